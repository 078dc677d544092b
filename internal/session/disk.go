package session

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/pool"
	"sandlot/internal/session/usage"
)

// maxMeasuring is how many workspaces are measured at once, of as many owners.
const maxMeasuring = 4

// runMeasure measures the workspaces of principals with a quota of the disk until ctx ends.
func (s *Sessions) runMeasure(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	free := semaphore.NewWeighted(maxMeasuring)
	tick := time.NewTicker(usage.Tick)
	defer tick.Stop()
	for {
		for _, session := range s.dueSessions(time.Now()) {
			if !free.TryAcquire(1) {
				break
			}
			session.disk.Begin() // before the next look
			work.Go(func() {
				defer free.Release(1)
				session.measure(ctx)
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// dueSessions returns the sessions to measure, the one measured longest ago first, and one of each owner.
func (s *Sessions) dueSessions(now time.Time) []*Session {
	busy := map[string]bool{} // owners
	at := map[*Session]time.Time{}
	var due []*Session
	for _, session := range s.all() {
		c := session.current()
		owner := c.rec.Owner
		isDue, measuring := session.disk.Due(now, c.Calls > 0, c.hasSandbox())
		at[session] = session.disk.Measured()
		if measuring {
			busy[owner] = true
		}
		if isDue && !c.removed() && s.Quotas.Of(owner).DiskMB > 0 {
			due = append(due, session)
		}
	}
	slices.SortFunc(due, func(x, y *Session) int { return at[x].Compare(at[y]) })
	return slices.DeleteFunc(due, func(x *Session) bool {
		owner := x.record().Owner
		isBusy := busy[owner]
		busy[owner] = true
		return isBusy
	})
}

// measure measures the workspace. If that fails, the size from before stays, and it is tried again.
func (s *Session) measure(ctx context.Context) {
	err := s.disk.Measure(func() (int64, time.Time, error) {
		return s.sessions.Pool.WorkspaceBytes(ctx, s.record().Workspace)
	})
	if c := s.current(); err != nil && ctx.Err() == nil && !c.removed() {
		s.sessions.Log.Warn("could not measure a workspace; its size from before counts", "session", c.rec.ID, "error",
			err)
	}
}

// ReserveDisk returns a fault if the principal's quota of the disk does not allow a write of so many bytes to a file of
// the session. Else they count from now on; what is overwritten counts until the workspace is measured again.
func (l *Lease) ReserveDisk(file string, bytes int64) error {
	u, err := l.ReserveUpload(file, bytes)
	u.Done()
	return err
}

// ReserveUpload is ReserveDisk for bytes that arrive later. The caller closes the upload.
func (l *Lease) ReserveUpload(file string, bytes int64) (*usage.Upload, error) {
	if path.IsAbs(file) && !strings.HasPrefix(path.Clean(file)+"/", pool.WorkspaceDir+"/") {
		return nil, nil // a shared folder
	}
	s := l.sessions
	owner := l.record().Owner
	if s.Quotas.Of(owner).DiskMB == 0 {
		return nil, nil
	}
	return s.usage.Upload(owner, l.disk, bytes)
}
