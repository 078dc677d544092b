package session

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/pool"
	quotas "sandlot/internal/quota"
	"sandlot/internal/session/disk"
)

// maxMeasuring is how many workspaces are measured at once, of as many owners.
const maxMeasuring = 4

// runMeasure measures the workspaces of principals with a quota of the disk until ctx ends.
func (s *Sessions) runMeasure(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	free := semaphore.NewWeighted(maxMeasuring)
	tick := time.NewTicker(disk.Tick)
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

// diskOf returns the size of all workspaces of a principal as far as it is known, of their snapshots, and of the copies
// that are being made.
func (s *Sessions) diskOf(owner string) (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if session.record().Owner == owner {
			bytes += session.disk.Counts()
		}
	}
	if s.KeptBytes != nil {
		bytes += s.KeptBytes(owner)
	}
	return bytes + s.copies.Of(owner)
}

// DiskReached returns a fault if a principal has used up its quota of the disk, and else nil.
func (s *Sessions) DiskReached(owner string) error { return s.diskReached(owner, 1) }

// diskReached returns a fault if a principal may not write so many more bytes.
func (s *Sessions) diskReached(owner string, more int64) error {
	limit := s.Quotas.Of(owner).DiskMB
	if limit == 0 {
		return nil
	}
	used := s.diskOf(owner)
	if more <= int64(limit)<<20-used { // no sum: a client may say any size
		return nil
	}
	rest := ""
	if more > 1 {
		rest = fmt.Sprintf("; %d MB more do not fit", megabytes(more))
	}
	return quotas.Reached("disk_mb", megabytes(used), limit,
		"the workspaces of all your sessions have %d MB together, and your quota is %d MB%s", megabytes(used), limit,
		rest).
		Advise("Remove files with execute_command, or end sessions with stop_session, which removes their files: "+
			"stopped sessions count too",
			"What was removed counts some seconds later, when the workspace has been measured again")
}

// megabytes returns a size in MB, rounded up.
func megabytes(bytes int64) int {
	whole := bytes >> 20
	if bytes&(1<<20-1) != 0 {
		whole++
	}
	return int(whole)
}

// ReserveDisk returns a fault if the principal's quota of the disk does not allow a write of so many bytes to a file of
// the session. Else they count from now on; what is overwritten counts until the workspace is measured again.
func (l *Lease) ReserveDisk(file string, bytes int64) error {
	u, err := l.ReserveUpload(file, bytes)
	u.Done()
	return err
}

// ReserveUpload is ReserveDisk for bytes that arrive later. The caller closes the upload.
func (l *Lease) ReserveUpload(file string, bytes int64) (*disk.Upload, error) {
	if path.IsAbs(file) && !strings.HasPrefix(path.Clean(file)+"/", pool.WorkspaceDir+"/") {
		return nil, nil // a shared folder
	}
	s := l.sessions
	owner := l.record().Owner
	if s.Quotas.Of(owner).DiskMB == 0 {
		return nil, nil
	}
	s.reserveDisk.Lock()
	defer s.reserveDisk.Unlock()
	if err := s.diskReached(owner, bytes); err != nil {
		return nil, err
	}
	return l.disk.Upload(bytes), nil
}
