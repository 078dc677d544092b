// Package images bounds the frozen images of sessions: for how long, and how much of the disk they have together. It
// compresses those of sessions that have slept for a while.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// Images are the images of the sessions that sleep.
type Images struct {
	Pool      *pool.Pool
	Log       *slog.Logger
	DiskBytes int64         // of all together; the oldest are lost
	Keep      time.Duration // of an image
	PackAfter time.Duration // after so long asleep an image is compressed
	// Asleep returns the sessions that sleep.
	Asleep func() []Sleeping
	// Lose makes a session that sleeps one that has only its files, for that reason.
	Lose func(ctx context.Context, session, why string)
}

// Sleeping is a session that sleeps.
type Sleeping struct {
	Session, Image string
	Since          time.Time
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

// Limit takes their images from the sessions that have slept for too long, and from those that have slept longest when
// all images together are too large.
func (i Images) Limit(ctx context.Context, now time.Time) {
	asleep := map[string]string{} // the sessions, by their images
	for _, a := range i.Asleep() {
		if now.Sub(a.Since) > i.Keep {
			i.Lose(ctx, a.Session, fmt.Sprintf("it was asleep for more than %s (hibernate.keep)", i.Keep))
			continue
		}
		asleep[a.Image] = a.Session
	}
	if len(asleep) == 0 {
		return
	}
	for _, h := range i.Pool.Hibernators() {
		images, err := h.FrozenImages(ctx)
		if err != nil {
			i.Log.Error("could not look how large the images of sessions are", "error", err)
			continue
		}
		var total int64
		for _, one := range images {
			if asleep[one.Name] != "" { // else it is a snapshot's
				total += one.Bytes
			}
		}
		for _, one := range images {
			if session := asleep[one.Name]; session != "" && total > i.DiskBytes {
				i.Lose(ctx, session, fmt.Sprintf("those that sleep had more than %d MB on the disk together "+
					"(hibernate.disk_mb), and it was asleep for longest", i.DiskBytes>>20))
				total -= one.Bytes
			}
		}
	}
}
