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
)

// diskUse is what is known of the size of a session's workspace. It is measured in the background if its owner has a
// quota: measuring reads every folder of it, which no call waits for.
type diskUse struct {
	bytes   int64 // when it was measured last; before that, what is stored
	added   int64 // what ReserveDisk has admitted, and of uploads has arrived, since then
	coming  int64 // what has not arrived yet of uploads that ReserveUpload has admitted
	changed bool  // a call or the end of a sandbox may have changed it since then
	// at is when measuring began last; zero: it was not measured by this server.
	at, next  time.Time // next: not measured before
	measuring bool
}

const (
	// measureTick is the time between two looks at which workspaces are to be measured.
	measureTick = time.Second
	// measureRest is how many times as long as a workspace took to measure it is not measured again.
	measureRest = 20
	// measureLive is the time after which the workspace of a sandbox that lives is measured though no call has used it:
	// its programs may write.
	measureLive = time.Minute
	// maxMeasuring is how many workspaces are measured at once, of as many owners.
	maxMeasuring = 4
)

// due reports whether the workspace is to be measured now. The caller holds s.mu.
func (s *Session) due(now time.Time) bool {
	d, c := &s.disk, &s.cur
	if c.removed || d.measuring || now.Before(d.next) {
		return false
	}
	return d.at.IsZero() || d.changed || c.active > 0 || c.hasSandbox() && now.Sub(d.at) >= measureLive
}

// diskBytes returns the size of the workspace as far as it is known.
func (s *Session) diskBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.bytes + s.disk.added
}

// runMeasure measures the workspaces of principals with a quota of the disk until ctx ends.
func (s *Sessions) runMeasure(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	free := semaphore.NewWeighted(maxMeasuring)
	tick := time.NewTicker(measureTick)
	defer tick.Stop()
	for {
		for _, session := range s.dueSessions(time.Now()) {
			if !free.TryAcquire(1) {
				break
			}
			session.mu.Lock()
			session.disk.measuring = true // before the next look
			session.mu.Unlock()
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
		session.mu.Lock()
		owner, measuring, isDue := session.cur.rec.Owner, session.disk.measuring, session.due(now)
		at[session] = session.disk.at
		session.mu.Unlock()
		if measuring {
			busy[owner] = true
		}
		if isDue && s.Quotas.Of(owner).DiskMB > 0 {
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
	s.mu.Lock()
	began, id := time.Now(), s.cur.rec.Workspace
	s.disk.measuring, s.disk.changed = true, false
	admitted := s.disk.added
	s.mu.Unlock()
	size, at, err := s.sessions.Pool.WorkspaceBytes(ctx, id)
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.disk
	d.measuring, d.next = false, began.Add(took+max(measureTick, measureRest*took))
	if err != nil {
		d.changed, d.next = true, began.Add(took+max(measureLive, measureRest*took))
		if ctx.Err() == nil && !s.cur.removed {
			s.sessions.Log.Warn("could not measure a workspace; its size from before counts", "session", s.cur.rec.ID,
				"error", err)
		}
		return
	}
	if s.cur.rec.Workspace != id { // the session has another one since
		d.changed, d.next = true, time.Time{}
		return
	}
	d.bytes, d.at = size, began
	if at.Before(began) { // the runtime has measured it before
		d.changed = true
		return
	}
	d.added -= admitted
}

// diskOf returns the size of all workspaces of a principal as far as it is known, of their snapshots, and of the copies
// that are being made.
func (s *Sessions) diskOf(owner string) (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		session.mu.Lock()
		if session.cur.rec.Owner == owner {
			bytes += session.disk.bytes + session.disk.added + session.disk.coming
		}
		session.mu.Unlock()
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

// ReserveDisk returns a fault if the principal's quota of the disk does not allow a write of so many bytes to a file
// of the session. Else they count from now on; what was there before, and is overwritten, counts until the workspace
// is measured again.
func (l *Lease) ReserveDisk(file string, bytes int64) error {
	u, err := l.ReserveUpload(file, bytes)
	u.Done()
	return err
}

// Upload is a write that takes a while. What is not in the workspace yet counts until Close, however often the
// workspace is measured meanwhile. A nil *Upload counts for no quota.
type Upload struct {
	session *Session
	coming  int64 // the part of session.disk.coming that is this upload's
	unsent  int64 // what has not been sent to the sandbox
}

// onTheWay is how many bytes of an upload may have been sent, and not be in the file yet.
const onTheWay = 8 << 20

// Sent says that so many more bytes have been sent to the sandbox.
func (u *Upload) Sent(bytes int64) {
	if u == nil {
		return
	}
	u.session.mu.Lock()
	defer u.session.mu.Unlock()
	u.unsent -= bytes
	u.arrive(u.coming - max(u.unsent, 0) - onTheWay)
}

// Done says that all is in the file.
func (u *Upload) Done() {
	if u == nil {
		return
	}
	u.session.mu.Lock()
	defer u.session.mu.Unlock()
	u.arrive(u.coming)
}

// arrive makes bytes count as written. The caller holds the session's mu.
func (u *Upload) arrive(bytes int64) {
	bytes = min(max(bytes, 0), u.coming)
	u.coming -= bytes
	u.session.disk.coming -= bytes
	u.session.disk.added += bytes
}

// Close ends the upload: what has not arrived does not count any more. It may be called more than once.
func (u *Upload) Close() {
	if u == nil {
		return
	}
	u.session.mu.Lock()
	defer u.session.mu.Unlock()
	u.session.disk.coming -= u.coming
	u.coming = 0
}

// ReserveUpload is ReserveDisk for bytes that arrive later. The caller closes the upload.
func (l *Lease) ReserveUpload(file string, bytes int64) (*Upload, error) {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disk.coming += bytes
	return &Upload{session: l.Session, coming: bytes, unsent: bytes}, nil
}
