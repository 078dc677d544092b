package servers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/pool"
	"sandlot/internal/quota"
	"sandlot/internal/secret"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// askConsent asks the user for consent to a change of a server; old is the server that it replaces, or
// nil. Without a consent function no consent is needed.
func (servers *Servers) askConsent(ctx context.Context, old *server, consent spec.Consent, c spec.Change) error {
	if consent == nil {
		return nil
	}
	c.Cwd = cmp.Or(c.Cwd, pool.WorkspaceDir)
	if old != nil {
		c.Replaces = old.record().Target()
	}
	return consent(ctx, c)
}

// Connect adds a server, or replaces the one with the same name, and starts it. If the start fails,
// everything is as before.
func (servers *Servers) Connect(ctx context.Context, p auth.Principal, a spec.ConnectRequest) (i Info, err error) {
	defer func() { servers.settle(ctx, p, err) }()
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
	r, known := Record{Owner: p.ID, Spec: a.Spec(), Scope: p.Scope, Created: now, Updated: now}, a.Values()
	if _, err := servers.revealed(ctx, p.ID, known); err != nil {
		return Info{}, err
	}
	if old := servers.named(p, a.Name); old == nil || !old.record().Covers(r.Spec) {
		if err := servers.askConsent(ctx, old, a.Consent, a.Change()); err != nil {
			return Info{}, err
		}
	}
	switch old := servers.named(p, a.Name); { // again: while the user was asked, it may have changed
	case old == nil:
		return servers.add(ctx, p, r, known)
	case old.Configured:
		return Info{}, nameTaken(a.Name)
	default:
		return old.replace(ctx, r, known)
	}
}

// named returns the principal's server with that name, or nil.
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

func nameTaken(name string) error {
	return fault.Argument("name",
		"the operator's settings have a server of the name %q; choose another name", name)
}

// full returns an error if the owner, who has that id, may add no more servers. The caller holds servers.mu.
func (servers *Servers) full(id string, o *owner) error {
	n := 0
	for _, s := range o.servers {
		if !s.Configured {
			n++
		}
	}
	if limit := servers.Quotas.Of(id).Connections; limit > 0 && n >= limit {
		return quota.Reached("connections", n, limit,
			"you have %d connections, and your quota is %d; disconnect_external_mcp with delete: true removes one", n,
			limit)
	}
	if n < maxConnections {
		return nil
	}
	return fault.Limit("connections", n, maxConnections,
		"you have %d connections, which is the limit; disconnect_external_mcp with delete: true removes one", n)
}

// add adds a server and starts it.
func (servers *Servers) add(ctx context.Context, p auth.Principal, r Record, known spec.Values) (Info, error) {
	servers.mu.Lock()
	o := servers.owner(p)
	if err := servers.full(p.ID, o); err != nil {
		servers.mu.Unlock()
		return Info{}, err
	}
	for r.ID == "" || o.servers[r.ID] != nil {
		r.ID = secret.ID()[:6] // short, as it is in names of tools that models and people read
	}
	for _, s := range o.servers {
		if s.Name == r.Name { // a call at the same time has added it
			servers.mu.Unlock()
			return s.replace(ctx, r, known)
		}
	}
	s := servers.newServer(p, r, known)
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
	replaced := s.takeovers > 0
	if !replaced {
		s.on(state.Removal)
	}
	if s.Removed {
		s.account.Close()
	}
	s.mu.Unlock()
	if replaced { // another call has taken the server over, and removes it if its own start fails
		return Info{}, fault.Wrap(fault.Connection, err, "another call connected %q while this one started it", r.Name)
	}
	s.remove(context.WithoutCancel(ctx))
	return Info{}, diagnosis.NotConnected(err, r.Spec.Configured())
}

// ready starts the server if it does not run, and waits for the start.
func (s *server) ready(ctx context.Context) error {
	_, release, err := s.use(ctx)
	if err == nil {
		release()
	}
	return err
}

// replace gives the server another definition and starts it. Its tools keep their names. If the start
// fails, the server gets its previous definition back.
func (s *server) replace(ctx context.Context, r Record, known spec.Values) (Info, error) {
	s.mu.Lock()
	removed := s.Removed
	s.takeovers++
	takeover := s.takeovers
	s.mu.Unlock()
	if removed {
		return Info{}, fault.New(fault.Connection, "another connection of the name %q is being removed; try again",
			r.Name)
	}
	s.interrupt()
	if err := s.acquire(ctx); err != nil {
		return Info{}, s.giveUpReplace(ctx, err)
	}
	s.mu.Lock()
	before, settings, values := s.rec, s.Settings, s.Values
	login, neverStarted := s.account.Current(), s.NeverStarted
	s.mu.Unlock()
	r.ID, r.Created = before.ID, before.Created
	r.Catalog = catalog.Catalog{Names: before.Catalog.Names, Prefix: before.Catalog.Prefix}
	if r.SameTarget(before.Spec) { // approvals of its tools stay valid
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
	rollBackCtx := context.WithoutCancel(ctx)
	if neverStarted { // the previous definition has never worked, and the call that made it has failed
		s.mu.Lock()
		last := s.takeovers == takeover
		s.mu.Unlock()
		if last {
			s.remove(rollBackCtx)
		}
		return Info{}, diagnosis.NotConnected(err, r.Spec.Configured())
	}
	s.interrupt()
	if s.acquire(rollBackCtx) == nil {
		s.stop(state.Stopped)
		if err := s.adopt(before, values); err != nil {
			s.logger.Error("could not store a connection", "error", err)
		}
		s.rollBack(login)
		s.mu.Lock()
		s.Settings = settings
		s.announce()
		if before.Off {
			s.on(state.Disconnected)
		}
		s.mu.Unlock()
		s.release()
		s.Changed()
	}
	return Info{}, diagnosis.NotConnected(err, r.Spec.Configured())
}

// giveUpReplace ends a replace whose context ended before it began. It removes a server that has never
// started and that no other call starts or replaces.
func (s *server) giveUpReplace(ctx context.Context, err error) error {
	s.mu.Lock()
	s.takeovers--
	alone := s.takeovers == 0 && s.NeverStarted && s.start == nil
	s.mu.Unlock()
	if alone {
		s.remove(context.WithoutCancel(ctx))
	}
	return err
}

// adopt makes r the server's definition. The caller has acquired the server and stopped it. The user's
// log-in belongs to the previous definition, so the user has to log in again.
func (s *server) adopt(r Record, known spec.Values) error {
	if err := s.updateIf(func(old *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.Number++ // messages of the previous instance that are still processed have the previous number
		*old = r
		return nil
	}); err != nil {
		return err
	}
	s.beginReplace()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Settings, s.Values, s.Restarter = r.Spec.Configured(), known, ""
	s.on(state.Forgiven)
	s.on(state.Stopped)
	return nil
}

// Disconnect stops a server, and clients do not see its tools any more. The server stays in the list,
// unless remove is set.
func (servers *Servers) Disconnect(ctx context.Context, p auth.Principal, what string, remove bool) (Info, error) {
	s, release, err := servers.holdServer(p, what)
	if err != nil {
		return Info{}, err
	}
	defer release()
	if s.Configured {
		return Info{}, fault.New(fault.InvalidParameters,
			"%s is the operator's, and only the settings can disconnect it (mcp.%s.disabled)", s.Title(), s.Name)
	}
	if remove {
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

// remove stops a server and deletes it, with all that is stored of it.
func (s *server) remove(ctx context.Context) {
	servers := s.servers
	s.mu.Lock()
	s.on(state.Removal)
	s.account.Close()
	s.mu.Unlock()
	s.log.Close()
	servers.mu.Lock() // before the server is stopped, so that its name can be used again at once
	o := servers.owners[s.owner.ID]
	listed := o != nil && o.servers[s.ID] == s
	if listed {
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
	idUsed, loginUsed := o != nil && o.servers[s.ID] != nil, false // by a server that was added since
	if o != nil {
		for _, other := range o.servers {
			loginUsed = loginUsed || other != s && other.loginKey() == s.loginKey()
		}
	}
	servers.mu.Unlock()
	if !loginUsed {
		s.account.DeleteStored(l)
	}
	if !listed || idUsed {
		return
	}
	s.storing.Lock() // waits for an update that is being stored
	defer s.storing.Unlock()
	if err := servers.Store.RemoveConnection(ctx, s.owner.ID, s.ID); err != nil {
		s.logger.Error("could not remove a connection", "error", err)
	}
}

// Restart stops a server and starts it again. The values in env and headers replace the values of the same
// names. A variable or header that the server did not have needs the user's consent, as for a new server.
func (servers *Servers) Restart(ctx context.Context, p auth.Principal, what string, env, headers map[string]string,
	consent spec.Consent) (i Info, err error) {
	defer func() { servers.settle(ctx, p, err) }()
	s, release, err := servers.holdServer(p, what)
	if err != nil {
		return Info{}, err
	}
	defer release()
	if err := s.forbidden(); err != nil {
		return Info{}, err
	}
	next, err := s.mergedValues(env, headers)
	if err != nil {
		return Info{}, err
	}
	r := s.record()
	before := r
	r.SetValues(next)
	if len(env)+len(headers) > 0 {
		if _, err := servers.revealed(ctx, p.ID, next); err != nil {
			return Info{}, err
		}
	}
	if !before.Covers(r.Spec) {
		if err := servers.askConsent(ctx, s, consent, r.Change()); err != nil {
			return Info{}, err
		}
	}
	s.interrupt()
	if err := s.acquire(ctx); err != nil {
		return Info{}, err
	}
	if err := s.setValues(env, headers, p.Scope); err != nil {
		s.release()
		return Info{}, err
	}
	s.stop(state.Stopped)
	s.mu.Lock()
	s.Restarter = p.Scope
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

// forbidden returns why the operator's settings do not let the server start; nil: they do.
func (s *server) forbidden() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Configured && (s.Settings.Disabled || s.Settings.Invalid != "") {
		return s.unusable()
	}
	return nil
}

// mergedValues returns the server's values, and the ones of env and headers; both may be empty.
func (s *server) mergedValues(env, headers map[string]string) (spec.Values, error) {
	s.mu.Lock()
	rec, values := s.rec, s.Values
	s.mu.Unlock()
	if len(env)+len(headers) == 0 {
		return values, nil
	}
	if rec.Configured {
		return values, fault.Argument("env", "%s has its values from the operator's settings", s.Title())
	}
	a := spec.ConnectRequest{Name: rec.Name, Kind: rec.Kind, Command: rec.Command, URL: rec.URL, Env: env,
		Headers: headers}
	if err := a.Check(); err != nil {
		return values, err
	}
	next := values.Merge(env, headers)
	if len(next.Env) > spec.MaxValues || len(next.Headers) > spec.MaxValues {
		return values, fault.Argument("env",
			"%s would have %d variables and %d headers; at most %d of each can be given", s.Title(), len(next.Env),
			len(next.Headers), spec.MaxValues)
	}
	lacksEnv, lacksHeaders := rec.Missing(next)
	missing := append(lacksEnv, lacksHeaders...)
	if next.Complete = len(missing) == 0; !next.Complete {
		return values, fault.Argument("env", "%s needs %s too", s.Title(),
			strings.Join(missing, ", ")).With("missing", missing)
	}
	return next, nil
}

// setValues adds values that a token with a scope has given. The caller has acquired the server.
func (s *server) setValues(env, headers map[string]string, scope auth.Scope) error {
	if len(env)+len(headers) == 0 {
		return nil
	}
	next, err := s.mergedValues(env, headers)
	if err != nil {
		return err
	}
	if err := s.update(func(r *Record) { r.SetValues(next); r.Scope = policy.Narrow(r.Scope, scope) }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Values = next
	s.announce()
	return nil
}

// Approve releases a server's tools that are held back. If seen is not empty, it has the hashes of the
// tools that the user has seen, by the server's own names: then it releases only tools with those hashes.
func (servers *Servers) Approve(ctx context.Context, p auth.Principal, what string,
	seen map[string]string) (i Info, err error) {
	defer func() { servers.settle(ctx, p, err) }()
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
	if s.instance != nil { // removes the warnings from the descriptions of changed tools
		s.instance.Refresh()
	}
	s.mu.Unlock()
	servers.changed(p.ID)
	return s.info(), nil
}
