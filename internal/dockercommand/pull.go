package dockercommand

import (
	"context"
	"fmt"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"
)

// Pull makes a daemon pull an image, with the credentials of the docker command. It tells how far that is; nil: nobody.
func Pull(ctx context.Context, daemon *client.Client, name reference.Named, progress func(string)) error {
	auth, err := RegistryAuth(ctx, name)
	if err != nil {
		return err
	}
	answer, err := daemon.ImagePull(ctx, name.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	defer answer.Close()
	last, layers := "", layerSizes{}
	for m, err := range answer.JSONMessages(ctx) {
		if err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		if p := m.Progress; p != nil && m.Status == "Downloading" {
			layers[m.ID] = [2]int64{p.Current, p.Total}
		} else if l := layers[m.ID]; l[1] > 0 { // it is complete
			layers[m.ID] = [2]int64{l[1], l[1]}
		}
		line := fmt.Sprintf("getting the image %s: %s", reference.FamiliarString(name), layers)
		if progress != nil && line != last {
			progress(line)
			last = line
		}
	}
	return nil
}

// layerSizes has how much of each layer of an image was downloaded, and how much it has, in bytes.
type layerSizes map[string][2]int64

// String returns the sum, as far as the daemon has said it.
func (all layerSizes) String() string {
	done, total := int64(0), int64(0)
	for _, l := range all {
		done, total = done+l[0], total+l[1]
	}
	if total <= 0 {
		return "asking its registry"
	}
	return fmt.Sprintf("%d of %d MB", done>>20, (total+1<<20-1)>>20)
}
