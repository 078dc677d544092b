package servers

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// SetConfigured replaces the servers of the operator's settings. Servers whose settings changed are
// stopped and started again.
func (servers *Servers) SetConfigured(list []spec.Configured) {
	servers.mu.Lock()
	servers.configured = list
	var known []auth.Principal
	for _, o := range servers.owners {
		if o.seen {
			o.seen = false
			known = append(known, o.principal)
		}
	}
	servers.mu.Unlock()
	servers.Logins.DeleteOrphans(func(owner, key string) bool { // also of owners that are not in memory
		name, configured := strings.CutPrefix(key, "=")
		p, _ := auth.FromID(owner)
		return configured && !slices.ContainsFunc(list,
			func(c spec.Configured) bool { return c.Name == name && c.AllowsPrincipal(p.ID) && !c.Disabled })
	})
	for _, p := range known {
		_ = servers.configure(p) // an error is in the log
		servers.changed(p.ID)
	}
	if servers.OnChange != nil { // owners that are not in memory may have clients too
		servers.spawn(func(context.Context) { servers.OnChange("") })
	}
}

// configure loads the principal's servers, as arrive and assign do, and starts the configured servers
// whose lists have never been read.
func (servers *Servers) configure(p auth.Principal) error {
	if err := servers.arrive(p); err != nil {
		return err
	}
	servers.assign(p)
	servers.mu.Lock()
	o := servers.owner(p)
	unread := o.unread
	o.unread = nil
	servers.mu.Unlock()
	for _, s := range unread {
		s.mu.Lock()
		s.beginUnlessBusy()
		s.mu.Unlock()
	}
	return nil
}

// assign gives a principal the servers of the settings, and starts none: those whose lists have never
// been read are added to the owner's unread.
func (servers *Servers) assign(p auth.Principal) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	o := servers.owner(p)
	if o.seen || servers.life.Err() != nil {
		return
	}
	o.seen = true
	want := map[string]spec.Configured{}
	for _, c := range servers.configured {
		if c.AllowsPrincipal(p.ID) {
			want[c.Name] = c
		}
	}
	for _, s := range sorted(o.servers) {
		if c, stays := want[s.Name]; s.Configured {
			delete(want, s.Name)
			if !stays { // before it is stopped, so that its name can be used again at once
				delete(o.servers, s.ID)
			}
			servers.spawn(func(ctx context.Context) { s.reconfigure(ctx, c, stays) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		s := servers.configuredServer(o, want[name])
		o.servers[s.ID] = s
		if !s.rec.Catalog.Loaded {
			o.unread = append(o.unread, s)
		}
	}
	servers.rebuild(o)
}

// configuredServer returns a new server of a principal for a server of the settings. The caller holds
// servers.mu.
func (servers *Servers) configuredServer(o *owner, c spec.Configured) *server {
	now := time.Now().UTC()
	r, known := o.stored[c.Name]
	if !known {
		r = Record{Owner: o.principal.ID, Configured: true, Spec: spec.Spec{Name: c.Name}, Created: now, Updated: now}
	}
	for r.ID = c.Name; o.servers[r.ID] != nil; { // a server that the principal added may have that id
		r.ID += "_"
	}
	s := servers.newServer(o.principal, r, spec.Values{Env: c.Env, Headers: c.Headers, Complete: true})
	s.Settings = c
	s.apply(s.eventOfSettings())
	return s
}

// eventOfSettings returns the event for a server with new settings that does not run. The caller holds
// s.mu, unless s is new.
func (s *server) eventOfSettings() state.Event {
	switch {
	case s.Settings.Disabled:
		return state.Event{What: state.Disconnected}
	case s.Settings.Invalid != "":
		return state.Event{What: state.Broken, Why: s.Settings.Invalid}
	}
	return state.Event{What: state.Stopped}
}

// reconfigure gives the server changed settings, or removes it.
func (s *server) reconfigure(ctx context.Context, c spec.Configured, stays bool) {
	if !stays {
		s.remove(context.WithoutCancel(ctx))
		return
	}
	s.mu.Lock()
	same := reflect.DeepEqual(s.Settings, c)
	s.mu.Unlock()
	if same {
		return
	}
	s.interrupt()
	if s.acquire(ctx) != nil {
		return
	}
	s.stop(state.Stopped)
	s.forgetLogin()
	s.mu.Lock()
	s.Number++
	s.Settings, s.Values = c, spec.Values{Env: c.Env, Headers: c.Headers, Complete: true}
	s.on(state.Forgiven)
	s.apply(s.eventOfSettings())
	if s.State == state.Idle && s.start == nil {
		s.launch()
	}
	s.mu.Unlock()
	s.release()
	s.Changed()
}

// WaitReady starts the principal's configured servers whose lists have never been read, and waits until
// each has started or failed, or ctx ends. It reports whether there was one.
func (servers *Servers) WaitReady(ctx context.Context, p auth.Principal) bool {
	if servers.configure(p) != nil {
		return false
	}
	waited := false
	for _, s := range servers.all(p.ID) {
		s.mu.Lock()
		st, read := s.start, s.rec.Catalog.Loaded
		s.mu.Unlock()
		if st == nil || read {
			continue
		}
		waited = true
		_ = st.wait(ctx) // the server's state has the error
	}
	return waited
}

// awaitPrefix waits for the first starts of configured servers with the same prefix that come before s in
// the order of names. So their tools get the same names each time: the first server gets a name that
// several have.
func (servers *Servers) awaitPrefix(ctx context.Context, s *server) {
	s.mu.Lock()
	prefix, read := s.Settings.Prefix, s.rec.Catalog.Loaded
	s.mu.Unlock()
	if prefix == nil || read {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, other := range servers.all(s.owner.ID) {
		if other == s {
			return
		}
		other.mu.Lock()
		st, its, read := other.start, other.Settings.Prefix, other.rec.Catalog.Loaded
		other.mu.Unlock()
		if st == nil || its == nil || *its != *prefix || read {
			continue
		}
		_ = st.wait(ctx)
	}
}
