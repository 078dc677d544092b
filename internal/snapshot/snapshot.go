// Package snapshot owns the snapshots of sessions: each is the memory, the processes and the files of a session at one
// moment, and stays until it is removed. The package also makes copies of sessions that live, which are a snapshot for
// a moment.
package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/session"
)

// Record is a stored snapshot.
type Record struct {
	ID      string
	Owner   string // the principal's id
	Name    string // one of the owner's alone
	Session string // the id of the session that it was made of, which may be gone
	session.Content
	Bytes   int64 // of the image and of the files, on the disk
	Created time.Time
}

// Store stores records.
type Store interface {
	PutSnapshot(ctx context.Context, r Record) error
	Snapshots(ctx context.Context) ([]Record, error)
	RemoveSnapshot(ctx context.Context, id string) error
}

// Config configures Snapshots.
type Config struct {
	Store    Store
	Sessions *session.Sessions
	// DiskBytes is how much of the disk all snapshots of all principals may have together. Those of one may have as
	// much as stays free for the others.
	DiskBytes int64
	// Permits is asked about snapshots before calls, and about copies.
	Permits session.Permits
	Log     *slog.Logger
}

const (
	// Max is how many snapshots a principal may have. Those that calls have asked for do not count: of them, as many
	// are kept, and the oldest go.
	Max = 20
	// maxBefore is how many of the snapshots that calls have asked for are kept of each session.
	maxBefore = 5
	// beforePrefix begins their names.
	beforePrefix = "before-"
	// MaxCopies is how many copies of a session can be made at once.
	MaxCopies = 8
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Snapshots has all snapshots of all principals. Order: a snapshot's files, then its record in the store, then the one
// in memory; and back.
type Snapshots struct {
	Config

	mu   sync.Mutex
	all  map[string]*Record // by id
	used map[string]int     // how many calls use a snapshot, or make it, by id
}

// New returns Snapshots without any. Recover loads the stored ones.
func New(c Config) *Snapshots {
	return &Snapshots{Config: c, all: map[string]*Record{}, used: map[string]int{}}
}

// Recover loads the stored snapshots.
func (s *Snapshots) Recover(ctx context.Context) error {
	records, err := s.Store.Snapshots(ctx)
	if err != nil {
		return fmt.Errorf("reading the snapshots: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.all[r.ID] = &r
	}
	return nil
}

// Kept returns the workspaces and the images that belong to snapshots.
func (s *Snapshots) Kept(context.Context) (workspaces, images []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.Image != "" { // else it is being made
			workspaces, images = append(workspaces, r.Workspace), append(images, r.Image)
		}
	}
	return workspaces, images, nil
}

// Units returns the units (auth.UnitOf) that have snapshots.
func (s *Snapshots) Units() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	units := map[string]bool{}
	for _, r := range s.all {
		units[auth.UnitOf(r.Owner)] = true
	}
	return units
}

// Bytes returns how much of the disk a principal's snapshots have.
func (s *Snapshots) Bytes(owner string) (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.Owner == owner {
			bytes += r.Bytes
		}
	}
	return bytes
}

// List returns a principal's snapshots, the oldest first.
func (s *Snapshots) List(p auth.Principal) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Record
	for _, r := range s.all {
		if r.Owner == p.ID && r.Image != "" {
			list = append(list, *r)
		}
	}
	slices.SortFunc(list, func(x, y Record) int {
		return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.Name, y.Name))
	})
	return list
}

// Create makes a snapshot of one of a principal's sessions; the name "" means one of the time.
func (s *Snapshots) Create(ctx context.Context, p auth.Principal, sessionID, name string) (Record, error) {
	if strings.HasPrefix(name, beforePrefix) {
		return Record{}, fault.Argument("name", "names that begin with %s are for snapshots before calls, and the "+
			"oldest of these are removed; use another name", beforePrefix)
	}
	return s.create(ctx, p, sessionID, cmp.Or(name, "at-"+time.Now().UTC().Format("20060102T150405Z")))
}

// Before makes a snapshot before a call. It is one of the latest of its session.
func (s *Snapshots) Before(ctx context.Context, p auth.Principal, sessionID string) (Record, error) {
	if err := s.Permits.MaySnapshot(ctx, p, sessionID); err != nil {
		return Record{}, err
	}
	r, err := s.create(ctx, p, sessionID, beforePrefix+secret.ID()[:8])
	if err != nil {
		return r, err
	}
	for _, old := range tooOld(s.List(p), r.Session) {
		if err := s.Remove(ctx, p, old.Name); err != nil {
			s.Log.Warn("could not remove an old snapshot", "snapshot", old.ID, "error", err)
		}
	}
	return r, nil
}

// isBefore reports whether a call has asked for the snapshot.
func (r Record) isBefore() bool { return strings.HasPrefix(r.Name, beforePrefix) }

// tooOld returns those of a principal's snapshots, the oldest first, that calls have asked for and that are not kept
// any more when there is one more of a session.
func tooOld(all []Record, session string) (old []Record) {
	var own, rest []Record
	for _, r := range all {
		if !r.isBefore() {
			continue
		}
		if rest = append(rest, r); r.Session == session {
			own = append(own, r)
		}
	}
	old = own[:max(0, len(own)-maxBefore)]
	rest = slices.DeleteFunc(rest, func(r Record) bool {
		return slices.ContainsFunc(old, func(o Record) bool { return o.ID == r.ID })
	})
	return append(old, rest[:max(0, len(rest)-Max)]...)
}

func (s *Snapshots) create(ctx context.Context, p auth.Principal, sessionID, name string) (Record, error) {
	began := time.Now()
	if !validName.MatchString(name) {
		return Record{}, fault.Argument("name", "a snapshot has a name of 1 to 64 letters, digits, dots, _ and -, "+
			"which begins with a letter or a digit")
	}
	r := Record{ID: secret.ID(), Owner: p.ID, Name: name, Created: time.Now().UTC()}
	if err := s.admit(&r); err != nil {
		return Record{}, err
	}
	kept := false
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !kept {
			delete(s.all, r.ID)
		}
		s.release(r.ID)
	}()
	if err := s.Sessions.CheckDisk(p.ID, max(s.Sessions.SizeOf(p, sessionID), 1)); err != nil {
		return Record{}, err
	}
	made := r // Kept must not see half of it
	err := s.Sessions.WhileStill(ctx, p, sessionID, func(ctx context.Context, id string, c session.Content,
		bytes int64) error {
		made.Session, made.Content, made.Bytes = id, c, bytes
		files, done, err := s.Sessions.ReserveCopies(ctx, p.ID, session.Plan{Workspace: c.Workspace, Copies: 1,
			More: bytes})
		if err != nil {
			return err
		}
		defer done()
		if err := s.grow(&r, files+bytes); err != nil {
			return err
		}
		made.Workspace, bytes, err = s.Sessions.CopyWorkspace(ctx, c.Workspace)
		made.Bytes += bytes
		return err
	})
	if err == nil {
		err = s.keep(ctx, made)
	}
	if err != nil {
		return Record{}, err
	}
	kept = true
	s.Sessions.Publish(p.ID, made.Session, event.SessionSnapshotted, made.Name, time.Since(began))
	return made, nil
}

// admit makes a place for a snapshot, whose name nobody else can take.
func (s *Snapshots) admit(r *Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, other := range s.all {
		if other.Owner != r.Owner {
			continue
		}
		if other.Name == r.Name {
			return fault.Argument("name", "you have a snapshot %s already", r.Name).
				Advise("Use another name", "Remove that snapshot with remove_snapshot")
		}
		if !other.isBefore() {
			own++
		}
	}
	if own >= Max && !r.isBefore() {
		return fault.Limit("snapshots", own, Max, "you have %d snapshots, and may have %d", own, Max).
			Advise("Remove one that is not needed any more with remove_snapshot")
	}
	if err := s.fits(r, max(r.Bytes, 1)); err != nil {
		return err
	}
	s.all[r.ID], s.used[r.ID] = r, 1
	return nil
}

// fits returns a fault if a snapshot may not have so many bytes: those of one principal may have as much as stays free,
// so that no one, and no number of principals, leaves nothing to the next one. The caller holds mu.
func (s *Snapshots) fits(r *Record, bytes int64) error {
	var own, total int64
	for _, other := range s.all {
		if other == r {
			continue
		}
		if total += other.Bytes; other.Owner == r.Owner {
			own += other.Bytes
		}
	}
	if own+bytes <= s.DiskBytes-total-bytes {
		return nil
	}
	return fault.Limit("snapshots", own>>20, s.DiskBytes>>20, "your snapshots have %d MB, and the snapshots of "+
		"all users %d of %d MB (hibernate.disk_mb). One of %d MB does not fit: yours may have as much as stays free "+
		"for other users", own>>20, total>>20, s.DiskBytes>>20, (bytes+1<<20-1)>>20).
		Advise("Remove snapshots that are not needed any more with remove_snapshot",
			"Remove files that are not needed from the session")
}

// grow makes a snapshot that is being made count with its size.
func (s *Snapshots) grow(r *Record, bytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fits(r, bytes); err != nil {
		return err
	}
	r.Bytes = bytes
	return nil
}

// keep stores a snapshot whose files are there. After an error they are not.
func (s *Snapshots) keep(ctx context.Context, r Record) error {
	if err := s.Store.PutSnapshot(context.WithoutCancel(ctx), r); err != nil {
		s.Sessions.RemoveContent(ctx, r.Content)
		return fmt.Errorf("storing the snapshot: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[r.ID] = &r
	return nil
}

// release ends the use of a snapshot. The caller holds mu.
func (s *Snapshots) release(id string) {
	if s.used[id]--; s.used[id] <= 0 {
		delete(s.used, id)
	}
}

// use returns a principal's snapshot of that name, which stays until done.
func (s *Snapshots) use(p auth.Principal, name string) (r Record, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, r := range s.all {
		if r.Owner != p.ID || r.Image == "" {
			continue
		}
		if r.Name == name {
			s.used[r.ID]++
			return *r, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.release(r.ID)
			}, nil
		}
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return Record{}, nil, fault.New(fault.NotFound, "you have no snapshot %s", fault.Printable(name, 80)).
		With("snapshots", append([]string{}, names...)).Advise("Call list_snapshots to see yours")
}

// SessionOf returns the id of the session that a principal's snapshot was made of; empty: there is no such snapshot.
func (s *Snapshots) SessionOf(p auth.Principal, name string) string {
	r, done, err := s.use(p, name)
	if err != nil {
		return ""
	}
	done()
	return r.Session
}

// Remove removes a principal's snapshot. Sessions that were made of it stay.
func (s *Snapshots) Remove(ctx context.Context, p auth.Principal, name string) error {
	r, done, err := s.use(p, name)
	if err != nil {
		return err
	}
	defer done()
	s.mu.Lock()
	if s.used[r.ID] > 1 {
		s.mu.Unlock()
		return fault.New(fault.ResourceLimit, "the snapshot %s is being restored; try again when that is done", r.Name)
	}
	delete(s.all, r.ID)
	s.mu.Unlock()
	if err := s.Store.RemoveSnapshot(context.WithoutCancel(ctx), r.ID); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all[r.ID] = &r
		return fmt.Errorf("removing the snapshot: %w", err)
	}
	s.Sessions.RemoveContent(ctx, r.Content)
	return nil
}

// Restored is what Restore has made.
type Restored struct {
	Session string
	Created bool   // it is a new session
	Notice  string // why variables and processes are gone; empty: they are not
}

// Restore gives a session the content of one of a principal's snapshots, in place of its own: the session of that id,
// that of which the snapshot was made (""), or a new one ("new").
func (s *Snapshots) Restore(ctx context.Context, p auth.Principal, name, sessionID string) (result Restored,
	err error) {
	began := time.Now()
	if err := s.Sessions.CanCopy(); err != nil {
		return result, err
	}
	r, done, err := s.use(p, name)
	if err != nil {
		return result, err
	}
	defer done()
	id := cmp.Or(sessionID, r.Session)
	_, unknown := s.Sessions.Find(p, id)
	switch {
	case id == "new", id == "home" && unknown != nil:
		result.Created = true
	case unknown != nil && sessionID == "":
		return result, fault.New(fault.SessionNotFound, "the session that the snapshot was made of is gone").
			With("session_id", id).Advise("Use session_id \"new\" to make a new session of the snapshot")
	case unknown != nil:
		return result, unknown
	}
	source := r.Session
	if found, err := s.Sessions.Find(p, id); err == nil && found == source { // id may be "home"
		source = ""
	}
	if err := s.Permits.MayCopy(ctx, p, source, r.Secrets); err != nil {
		return result, err
	}
	_, copied, err := s.Sessions.ReserveCopies(ctx, p.ID, session.Plan{Workspace: r.Workspace, Copies: 1,
		More: -s.Sessions.SizeOf(p, id)})
	if err != nil {
		return result, err
	}
	defer copied()
	c, err := s.Sessions.Copy(ctx, r.Content)
	if err != nil {
		return result, err
	}
	if from := (session.Parent{Session: r.Session, Snapshot: r.Name}); id == "new" {
		result.Session, err = s.Sessions.MakeAsleep(ctx, p, c, from)
	} else {
		result.Session, err = s.Sessions.Replace(ctx, p, id, c, from)
	}
	if err != nil {
		s.Sessions.RemoveContent(ctx, c)
		return result, err
	}
	s.Sessions.Publish(p.ID, result.Session, event.SessionRestored, r.Name, time.Since(began))
	l, err := s.Sessions.Open(context.WithoutCancel(ctx), p, session.OpenRequest{ID: result.Session})
	if err != nil {
		if result.Created {
			s.Sessions.Stop(ctx, p, result.Session)
		}
		return result, err
	}
	result.Notice = l.Notice
	l.Release()
	return result, nil
}

// Fork makes n copies of one of a principal's sessions, each of which is a session of its own and lives, and returns
// their ids. After an error there are none.
func (s *Snapshots) Fork(ctx context.Context, p auth.Principal, sessionID string, n int) (id string, copies []string,
	err error) {
	began := time.Now()
	if n < 1 || n > MaxCopies {
		return "", nil, fault.Argument("count", "from 1 to %d copies can be made at once", MaxCopies)
	}
	if err := s.Sessions.CheckDisk(p.ID, max(s.Sessions.SizeOf(p, sessionID), 1)*int64(n)); err != nil {
		return "", nil, err
	}
	if err := s.Permits.MayCopy(ctx, p, "", s.Sessions.SecretsOf(p, sessionID)); err != nil {
		return "", nil, err
	}
	var original session.Content
	reserved := func() {}
	defer func() { reserved() }()
	err = s.Sessions.WhileStill(ctx, p, sessionID, func(ctx context.Context, from string, c session.Content,
		_ int64) (err error) {
		id, original = from, c
		_, done, err := s.Sessions.ReserveCopies(ctx, p.ID, session.Plan{Workspace: c.Workspace, Copies: int64(n),
			Temporary: 1})
		if err != nil {
			return err
		}
		reserved = done
		original.Workspace, _, err = s.Sessions.CopyWorkspace(ctx, c.Workspace)
		return err
	})
	if err != nil {
		return "", nil, err
	}
	defer s.Sessions.RemoveContent(ctx, original)
	defer func() {
		if err != nil {
			for _, copied := range copies {
				s.Sessions.Stop(ctx, p, copied)
			}
			copies = nil
		}
	}()
	for range n {
		c, err := s.Sessions.Copy(ctx, original)
		if err != nil {
			return id, copies, err
		}
		copied, err := s.Sessions.MakeAsleep(ctx, p, c, session.Parent{Session: id})
		if err != nil {
			s.Sessions.RemoveContent(ctx, c)
			return id, copies, err
		}
		copies = append(copies, copied)
	}
	var work errgroup.Group
	for _, copied := range copies {
		work.Go(func() error { return s.begin(ctx, p, copied) })
	}
	if err := work.Wait(); err != nil {
		return id, copies, err
	}
	s.Sessions.Publish(p.ID, id, event.SessionForked, fmt.Sprint(n), time.Since(began))
	return id, copies, nil
}

// begin wakes a copy for the first time.
func (s *Snapshots) begin(ctx context.Context, p auth.Principal, id string) error {
	l, err := s.Sessions.Open(ctx, p, session.OpenRequest{ID: id})
	if err != nil {
		return err
	}
	defer l.Release()
	if l.Notice != "" {
		return fault.Wrap(fault.SandboxCreation, errors.New(l.Notice),
			"a copy did not go on where the original was: %s", l.Notice)
	}
	return nil
}
