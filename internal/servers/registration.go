package servers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/pool"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// agreed asks for consent to a change, where that has to be asked for.
func (servers *Servers) agreed(ctx context.Context, old *server, consent spec.Consent, c spec.Change) error {
	if consent == nil {
		return nil
	}
	if c.Cwd == "" {
		c.Cwd = pool.WorkspaceDir
	}
	if old != nil {
		c.Replaces = old.record().Target()
	}
	return consent(ctx, c)
}

// Connect adds a server, or replaces the one of that name, and starts it. Where
// that fails nothing has changed.
func (servers *Servers) Connect(ctx context.Context, p auth.Principal, a spec.ConnectRequest) (Info, error) {
	if err := a.Check(); err != nil {
		return Info{}, err
	}
	release, err := servers.hold(p)
	if err != nil {
		return Info{}, err
	}
	defer release()
	if err := servers.free(p, a.Name); err != nil {
		return Info{}, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	r, known := Record{Owner: p.ID, Spec: a.Spec(), Created: now, Updated: now}, a.Values()
	if _, err := servers.revealed(ctx, p.ID, known); err != nil {
		return Info{}, err
	}
	if old := servers.named(p, a.Name); old == nil || !old.record().Covers(r.Spec) {
		if err := servers.agreed(ctx, old, a.Consent, a.Change()); err != nil {
			return Info{}, err
		}
	}
	switch old := servers.named(p, a.Name); { // people take their time
	case old == nil:
		return servers.add(ctx, p, r, known)
	case old.Configured:
		return Info{}, taken(a.Name)
	default:
		return old.replace(ctx, r, known)
	}
}

// named returns a principal's server of that name, or nil.
func (servers *Servers) named(p auth.Principal, name string) *server {
	for _, s := range servers.all(p.ID) {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func (s *server) record() Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

func taken(name string) error {
	return fault.New(fault.InvalidParameters,
		"the operator's settings have a server of the name %q; choose another name", name).With("argument", "name")
}

// full is an error when the owner may have no more connections. The lock of the Servers
// is held.
func (o *owner) full() error {
	n := 0
	for _, s := range o.servers {
		if !s.Configured {
			n++
		}
	}
	if n < maxConnections {
		return nil
	}
	return fault.New(fault.ResourceLimit,
		"you have %d connections, which is the limit; disconnect_external_mcp with delete: true removes one", n).
		With("resource_type", "connections").With("current_usage", n).With("limit", maxConnections)
}

// add makes a new connection.
func (servers *Servers) add(ctx context.Context, p auth.Principal, r Record, known spec.Values) (Info, error) {
	servers.mu.Lock()
	o := servers.owner(p)
	if err := o.full(); err != nil {
		servers.mu.Unlock()
		return Info{}, err
	}
	for r.ID == "" || o.servers[r.ID] != nil {
		r.ID = newID()
	}
	for _, s := range o.servers {
		if s.Name == r.Name { // another call was faster
			servers.mu.Unlock()
			return s.replace(ctx, r, known)
		}
	}
	s := servers.server(p, r, known)
	s.on(state.Created)
	o.servers[r.ID] = s
	servers.mu.Unlock()
	err := s.update(func(*Record) {})
	if err == nil {
		err = s.ready(ctx)
	}
	if err == nil || errors.Is(err, oauth.ErrLoginNeeded) {
		return s.info(), nil
	}
	s.mu.Lock()
	theirs := s.owners > 0
	if !theirs {
		s.on(state.Removal)
	}
	if s.Removed {
		s.account.Close()
	}
	s.mu.Unlock()
	if theirs { // it is that call's to say what becomes of it
		return Info{}, fault.Wrap(fault.Connection, err, "another call connected %q while this one started it", r.Name)
	}
	s.remove(context.WithoutCancel(ctx))
	return Info{}, diagnosis.NotConnected(err, r.Spec.Configured())
}

// ready waits until the server runs.
func (s *server) ready(ctx context.Context) error {
	_, release, err := s.use(ctx)
	if err != nil {
		return err
	}
	release()
	return nil
}

// replace takes up other settings for the same name: its tools keep their names.
func (s *server) replace(ctx context.Context, r Record, known spec.Values) (Info, error) {
	s.mu.Lock()
	gone := s.Removed
	s.owners++
	claim := s.owners
	s.mu.Unlock()
	if gone {
		return Info{}, fault.New(fault.Connection, "another connection of the name %q ends at this moment; try again",
			r.Name)
	}
	s.interrupt()
	if err := s.acquire(ctx); err != nil {
		return Info{}, s.unclaimed(ctx, err)
	}
	s.mu.Lock()
	before, settings, had := s.rec, s.Settings, s.Values
	login, neverStarted := s.account.Current(), s.NeverStarted
	s.mu.Unlock()
	r.ID, r.Created = before.ID, before.Created
	r.Catalog = catalog.Catalog{Names: before.Catalog.Names, Prefix: before.Catalog.Prefix}
	if r.SameTarget(before.Spec) { // what was approved of it is still what was approved
		r.Catalog, r.Stateful, r.Elicits = before.Catalog, before.Stateful, before.Elicits
	}
	s.stop(state.Stopped)
	err := s.adopt(r, known)
	s.release()
	if err == nil {
		err = s.ready(ctx)
	}
	if err == nil || errors.Is(err, oauth.ErrLoginNeeded) {
		s.account.Commit()
		return s.info(), nil
	}
	back := context.WithoutCancel(ctx)
	if neverStarted { // what was there before has never worked, and whoever made it was told so
		s.mu.Lock()
		last := s.owners == claim
		s.mu.Unlock()
		if last {
			s.remove(back)
		}
		return Info{}, diagnosis.NotConnected(err, r.Spec.Configured())
	}
	// What was there before is there again.
	s.interrupt()
	if s.acquire(back) == nil {
		s.stop(state.Stopped)
		if lost := s.adopt(before, had); lost != nil {
			s.logger.Error("could not store a connection", "error", lost)
		}
		s.rollBack(login)
		s.mu.Lock()
		s.Settings = settings
		if before.Off {
			s.on(state.Disconnected)
		}
		s.mu.Unlock()
		s.release()
		s.servers.rebuildOf(s.owner.ID)
	}
	return Info{}, diagnosis.NotConnected(err, r.Spec.Configured())
}

// unclaimed is for a call that gave up before it took a connection over: should
// nobody else have one, it goes.
func (s *server) unclaimed(ctx context.Context, err error) error {
	s.mu.Lock()
	s.owners--
	alone := s.owners == 0 && s.NeverStarted && s.start == nil
	s.mu.Unlock()
	if alone {
		s.remove(context.WithoutCancel(ctx))
	}
	return err
}

// adopt makes r what runs from now on. The server is acquired, and nothing runs. Its
// user has to log in anew: what ran before was another server.
func (s *server) adopt(r Record, known spec.Values) error {
	if err := s.updateIf(func(old *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.Number++ // what is still on its way belongs to what was
		*old = r
		return nil
	}); err != nil {
		return err
	}
	s.beginReplace()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Settings, s.Values = r.Spec.Configured(), known
	s.on(state.Forgiven)
	s.on(state.Stopped)
	return nil
}

// Disconnect stops a server and takes back what it offers. Its registration
// stays in the list unless it is deleted.
func (servers *Servers) Disconnect(ctx context.Context, p auth.Principal, what string, forget bool) (Info, error) {
	s, release, err := servers.holdServer(p, what)
	if err != nil {
		return Info{}, err
	}
	defer release()
	if s.Configured {
		return Info{}, fault.New(fault.InvalidParameters,
			"%s is the operator's, and can be disconnected in the settings alone (mcp.%s.disabled)", s.Title(), s.Name)
	}
	if forget {
		i := s.info()
		s.remove(context.WithoutCancel(ctx))
		return i, nil
	}
	s.interrupt()
	if err := s.acquire(ctx); err != nil {
		return Info{}, err
	}
	err = s.update(func(r *Record) { r.Off, r.Updated = true, time.Now().UTC() })
	if err == nil {
		s.stop(state.Disconnected)
		s.forgetLogin()
	}
	s.release()
	servers.changed(p.ID)
	return s.info(), err
}

// remove ends a server and forgets it.
func (s *server) remove(ctx context.Context) {
	servers := s.servers
	s.mu.Lock()
	s.on(state.Removal)
	s.account.Close()
	s.mu.Unlock()
	servers.mu.Lock() // at once: its name may come again
	o := servers.owners[s.owner.ID]
	mine := o != nil && o.servers[s.ID] == s
	if mine {
		delete(o.servers, s.ID)
	}
	if o != nil {
		delete(o.stored, s.Name)
	}
	servers.mu.Unlock()
	servers.changed(s.owner.ID)
	s.interrupt()
	if s.acquire(ctx) == nil {
		s.stop(state.Disconnected)
		s.release()
	}
	l := s.dropLogin()
	servers.mu.Lock()
	again, same := o != nil && o.servers[s.ID] != nil, false
	if o != nil {
		for _, other := range o.servers {
			same = same || other != s && other.loginKey() == s.loginKey()
		}
	}
	servers.mu.Unlock()
	if !same { // else it is another's by now
		s.account.DeleteStored(l)
	}
	if !mine || again {
		return // what is stored is another's by now
	}
	s.storing.Lock() // what was being stored is stored
	defer s.storing.Unlock()
	if err := servers.Store.RemoveConnection(ctx, s.owner.ID, s.ID); err != nil {
		s.logger.Error("could not remove a connection", "error", err)
	}
}

// Restart stops a server and starts it again, with values for variables that
// were not stored; those that are not given stay as they are. With variables
// that it did not have it is another one.
func (servers *Servers) Restart(ctx context.Context, p auth.Principal, what string, env, headers map[string]string,
	agree spec.Consent) (Info, error) {
	s, release, err := servers.holdServer(p, what)
	if err != nil {
		return Info{}, err
	}
	defer release()
	if err := s.barred(); err != nil {
		return Info{}, err
	}
	next, err := s.given(env, headers)
	if err != nil {
		return Info{}, err
	}
	r := s.record()
	was := r
	r.SetValues(next)
	if len(env)+len(headers) > 0 {
		if _, err := servers.revealed(ctx, p.ID, next); err != nil {
			return Info{}, err
		}
	}
	if !was.Covers(r.Spec) {
		if err := servers.agreed(ctx, s, agree, r.Change()); err != nil {
			return Info{}, err
		}
	}
	s.interrupt()
	if err := s.acquire(ctx); err != nil {
		return Info{}, err
	}
	if err := s.give(env, headers); err != nil {
		s.release()
		return Info{}, err
	}
	s.stop(state.Stopped)
	s.mu.Lock()
	s.on(state.Forgiven)
	s.mu.Unlock()
	s.account.ServerAnswered()
	s.account.EndStuckLogin()
	if s.record().Off {
		err = s.update(func(r *Record) { r.Off, r.Updated = false, time.Now().UTC() })
	}
	s.release()
	if err == nil {
		err = s.ready(ctx)
	}
	return s.info(), err
}

// barred says why the operator's settings do not let the server start, if so.
func (s *server) barred() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Configured && (s.Settings.Disabled || s.Settings.Invalid != "") {
		return s.unusable()
	}
	return nil
}

// given is what a server's values are with these, which may be none.
func (s *server) given(env, headers map[string]string) (spec.Values, error) {
	s.mu.Lock()
	rec, had := s.rec, s.Values
	s.mu.Unlock()
	if len(env)+len(headers) == 0 {
		return had, nil
	}
	if rec.Configured {
		return had, fault.New(fault.InvalidParameters, "%s has its values from the operator's settings",
			s.Title()).With("argument", "env")
	}
	a := spec.ConnectRequest{Name: rec.Name, Kind: rec.Kind, Command: rec.Command, URL: rec.URL, Env: env,
		Headers: headers}
	if err := a.Check(); err != nil {
		return had, err
	}
	next := had.Merge(env, headers)
	if len(next.Env) > spec.MaxValues || len(next.Headers) > spec.MaxValues {
		return had, fault.New(fault.InvalidParameters,
			"%s would have %d variables and %d headers; at most %d of each can be given", s.Title(), len(next.Env),
			len(next.Headers), spec.MaxValues).With("argument", "env")
	}
	lacksEnv, lacksHeaders := rec.Missing(next)
	missing := append(lacksEnv, lacksHeaders...)
	if next.Complete = len(missing) == 0; !next.Complete {
		return had, fault.New(fault.InvalidParameters, "%s needs %s too", s.Title(),
			strings.Join(missing, ", ")).With("argument", "env").With("missing", missing)
	}
	return next, nil
}

// give takes values for variables and headers. The server is acquired.
func (s *server) give(env, headers map[string]string) error {
	if len(env)+len(headers) == 0 {
		return nil
	}
	next, err := s.given(env, headers)
	if err != nil {
		return err
	}
	if err := s.update(func(r *Record) { r.SetValues(next) }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Values = next
	return nil
}

// Approve takes a server's tools as they are now; with seen, the hashes of tools
// by their own names, those that are what was seen.
func (servers *Servers) Approve(ctx context.Context, p auth.Principal, what string,
	seen map[string]string) (Info, error) {
	s, release, err := servers.holdServer(p, what)
	if err != nil {
		return Info{}, err
	}
	defer release()
	if err := s.update(func(r *Record) {
		r.Catalog.Tools = slices.Clone(r.Catalog.Tools)
		r.Catalog.Approve(seen)
	}); err != nil {
		return Info{}, err
	}
	s.mu.Lock()
	if s.instance != nil { // its descriptions may hold a warning
		s.instance.Refresh()
	}
	s.mu.Unlock()
	servers.changed(p.ID)
	return s.info(), nil
}
