package image

import (
	"context"
	"errors"
	"fmt"

	"sandlot/internal/api/client"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/inventory"
	"sandlot/internal/oci"
)

// openHere opens the images of a state folder, for commands that do not work with a server elsewhere.
func (p *commands) openHere() (Images, error) {
	all, err := p.open()
	if err == nil && all.Server != nil {
		err = errors.New("this is done on the server's own machine, without --server")
	}
	return all, err
}

// listImages lists the images.
func (p *commands) listImages(ctx context.Context) ([]inventory.Image, error) {
	all, err := p.open()
	if err != nil {
		return nil, err
	}
	if all.Server == nil {
		return all.List()
	}
	list, err := all.Server.Images(ctx)
	return list.Images, err
}

// remove removes an image.
func (i Images) remove(ctx context.Context, ref string) (hub.ImageRemoved, error) {
	if i.Server != nil {
		return i.Server.RemoveImage(ctx, ref)
	}
	removed, err := i.Remove(ctx, ref)
	return hub.ImageRemoved{Name: removed.Name, Digest: removed.Digest}, err
}

// pullThere lets a server get an image, and shows how far that is.
func (p *commands) pullThere(ctx context.Context, server *client.Client, r hub.ImageRequest) error {
	pull, err := server.PullImage(ctx, r)
	if err != nil {
		return err
	}
	show := newTransferDisplay(p.err)
	err = server.FollowImages(ctx, func(change hub.ImagesChange) (done bool, err error) {
		seen := change.Pull
		if change.Pulls != nil {
			for i := range *change.Pulls {
				if one := &(*change.Pulls)[i]; one.ID == pull.ID {
					seen = one
				}
			}
			if seen == nil {
				return true, errors.New("the server does not know the pull any more: it has stopped meanwhile")
			}
		}
		if seen == nil || seen.ID != pull.ID {
			return false, nil
		}
		pull = *seen
		stage := oci.Loading
		if pull.State == hub.PullDone {
			stage = oci.Loaded
		}
		show.update(oci.Progress{Layer: pull.Image, Stage: stage, Done: pull.Done, Total: pull.Total})
		return pull.State != hub.PullRunning, nil
	})
	show.close()
	switch {
	case err != nil && ctx.Err() != nil: // whoever interrupts it ends it, as without --server
		return errors.Join(err, server.EndPull(context.WithoutCancel(ctx), pull.ID))
	case err != nil:
		return err
	case pull.State == hub.PullFailed:
		return errors.New(fault.Printable(pull.Problem, maxProblem))
	case p.asJSON:
		return p.json(pull)
	}
	_, err = fmt.Fprintf(p.out, "%s is there: %s\n", pull.Image, pull.Digest)
	return err
}

// maxProblem bounds what a server says of a pull that has failed, in bytes.
const maxProblem = 4000
