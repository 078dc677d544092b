// Package images bounds the frozen images of sessions: for how long, and how much of the disk they have together. It
// compresses those of sessions that have slept for a while.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// Images are the images of the sessions that sleep.
type Images struct {
	Pool      *pool.Pool
	Log       *slog.Logger
	DiskBytes int64         // of all together; of the owner who has most, the oldest are lost
	Keep      time.Duration // of an image
	PackAfter time.Duration // after so long asleep an image is compressed
	// Asleep returns the sessions that sleep.
	Asleep func() []Sleeping
	// Lose makes a session that sleeps one that has only its files, for that reason.
	Lose func(ctx context.Context, session, why string)
}

// Sleeping is a session that sleeps.
type Sleeping struct {
	Session, Owner, Image string
	Since                 time.Time
	Paused                bool // it is to stay until somebody resumes it
}

// Run calls Pack in that interval, until ctx ends.
func (i Images) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			i.Pack(ctx, time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// Pack compresses what is due. A session that is about to be used waits for a moment at most.
func (i Images) Pack(ctx context.Context, now time.Time) {
	due := map[string]string{} // the sessions, by their images
	for _, a := range i.Asleep() {
		if now.Sub(a.Since) > i.PackAfter {
			due[a.Image] = a.Session
		}
	}
	if len(due) == 0 {
		return
	}
	for _, h := range i.Pool.Hibernators() {
		images, err := h.FrozenImages(ctx)
		if err != nil {
			i.Log.Error("could not look which images of sessions are to be compressed", "error", err)
		}
		for _, one := range images {
			if due[one.Name] == "" || one.Packed || ctx.Err() != nil {
				continue
			}
			err := h.PackFrozen(ctx, one.Name)
			if err != nil && ctx.Err() == nil && !errors.Is(err, sandbox.ErrLater) &&
				!errors.Is(err, context.Canceled) {
				i.Log.Warn("could not compress the image of a session, which stays as it is", "session", due[one.Name],
					"error", err)
			}
		}
	}
}

// Limit takes their images from the sessions that have slept for too long, unless they are paused. When all images together are too large, it
// does so from those that have slept longest of the owner who has most, the paused ones last: nobody loses an image
// because of others who have more.
func (i Images) Limit(ctx context.Context, now time.Time) {
	asleep := map[string]Sleeping{} // by their images
	for _, a := range i.Asleep() {
		if !a.Paused && now.Sub(a.Since) > i.Keep {
			i.Lose(ctx, a.Session, fmt.Sprintf("it was asleep for more than %s (hibernate.keep)", i.Keep))
			continue
		}
		asleep[a.Image] = a
	}
	for _, h := range i.Pool.Hibernators() {
		images, err := h.FrozenImages(ctx)
		if err != nil {
			i.Log.Error("could not look how large the images of sessions are", "error", err)
			continue
		}
		images = slices.DeleteFunc(images, func(one sandbox.FrozenImage) bool {
			return asleep[one.Name].Session == "" // it is a snapshot's
		})
		slices.SortStableFunc(images, func(x, y sandbox.FrozenImage) int {
			switch px, py := asleep[x.Name].Paused, asleep[y.Name].Paused; {
			case px == py:
				return 0
			case py:
				return -1
			}
			return 1
		})
		for _, one := range tooMuch(images, i.DiskBytes, func(image string) string { return asleep[image].Owner }) {
			i.Lose(ctx, asleep[one.Name].Session, fmt.Sprintf("all sleeping sessions had more than %d MB on the "+
				"disk (hibernate.disk_mb), yours had most, and it was the one asleep for longest",
				i.DiskBytes>>20))
		}
	}
}

// tooMuch returns the images, of which those that matter least are first, that are to go until the others have at most max bytes:
// each is the first of the owner who has most then.
func tooMuch(images []sandbox.FrozenImage, max int64, owner func(image string) string) (gone []sandbox.FrozenImage) {
	var total int64
	owners := map[string]int64{}
	for _, one := range images {
		total += one.Bytes
		owners[owner(one.Name)] += one.Bytes
	}
	for total > max && len(images) > 0 {
		most := ""
		for name, bytes := range owners {
			if most == "" || bytes > owners[most] || bytes == owners[most] && name < most {
				most = name
			}
		}
		at := slices.IndexFunc(images, func(one sandbox.FrozenImage) bool { return owner(one.Name) == most })
		if at < 0 {
			delete(owners, most)
			continue
		}
		one := images[at]
		images = slices.Delete(images, at, at+1)
		total -= one.Bytes
		owners[most] -= one.Bytes
		gone = append(gone, one)
	}
	return gone
}
