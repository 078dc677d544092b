package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sandlot/internal/sandbox"
)

// sleeping is a session that sleeps.
type sleeping struct {
	*Session
	record Record
	since  time.Time // when somebody used it last, or tried to
}

// asleep returns the sessions that sleep, by their images.
func (s *Sessions) asleep() map[string]sleeping {
	all := map[string]sleeping{}
	for _, session := range s.filter(func(c current) bool { return c.rec.Sleeps() }) {
		r := session.record()
		since := r.Slept
		if r.Used.After(since) { // it was resumed, or somebody has tried to use it
			since = r.Used
		}
		all[r.Image] = sleeping{session, r, since}
	}
	return all
}

// packImages compresses the images of sessions that have slept for a while, in that interval, until ctx ends.
func (s *Sessions) packImages(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.packDue(ctx, time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// packDue compresses what is due. A session that is about to be used waits for a moment at most.
func (s *Sessions) packDue(ctx context.Context, now time.Time) {
	due := s.asleep()
	maps.DeleteFunc(due, func(_ string, a sleeping) bool { return now.Sub(a.since) <= s.Hibernation.PackAfter })
	if len(due) == 0 {
		return
	}
	for _, h := range s.Pool.Hibernators() {
		images, err := h.FrozenImages(ctx)
		if err != nil {
			s.Log.Error("could not look which images of sessions are to be compressed", "error", err)
		}
		for _, one := range images {
			a, isDue := due[one.Name]
			if !isDue || one.Packed || ctx.Err() != nil {
				continue
			}
			err := h.PackFrozen(ctx, one.Name)
			if err != nil && ctx.Err() == nil && !errors.Is(err, sandbox.ErrLater) &&
				!errors.Is(err, context.Canceled) {
				s.Log.Warn("could not compress the image of a session, which stays as it is", "session", a.record.ID,
					"error", err)
			}
		}
	}
}

// limitImages takes their images from the sessions that have slept for too long, unless they are paused. When all images
// together are too large, it does so from those that have slept longest of the owner who has most, the paused ones last:
// nobody loses an image because of others who have more.
func (s *Sessions) limitImages(ctx context.Context, now time.Time) {
	asleep, bounds := s.asleep(), s.Hibernation
	for image, a := range asleep {
		if a.record.State != Paused && now.Sub(a.since) > bounds.Keep {
			a.loseImage(ctx, fmt.Sprintf("it was asleep for more than %s (hibernate.keep)", bounds.Keep))
			delete(asleep, image)
		}
	}
	for _, h := range s.Pool.Hibernators() {
		images, err := h.FrozenImages(ctx)
		if err != nil {
			s.Log.Error("could not look how large the images of sessions are", "error", err)
			continue
		}
		images = slices.DeleteFunc(images, func(one sandbox.FrozenImage) bool {
			return asleep[one.Name].Session == nil // it is a snapshot's
		})
		slices.SortStableFunc(images, func(x, y sandbox.FrozenImage) int {
			switch px, py := asleep[x.Name].record.State == Paused, asleep[y.Name].record.State == Paused; {
			case px == py:
				return 0
			case py:
				return -1
			}
			return 1
		})
		owner := func(image string) string { return asleep[image].record.Owner }
		for _, one := range tooMuch(images, bounds.DiskBytes, owner) {
			asleep[one.Name].loseImage(ctx, fmt.Sprintf("all sleeping sessions had more than %d MB on the "+
				"disk (hibernate.disk_mb), yours had most, and it was the one asleep for longest",
				bounds.DiskBytes>>20))
		}
	}
}

// tooMuch returns the images that are to go until the others have at most max bytes: each is the first of the owner who
// has most then. Of images, those that matter least are first.
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
