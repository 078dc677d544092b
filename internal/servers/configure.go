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
)

// SetConfigured makes list the servers of the operator's settings from now on:
// those that changed are stopped, and start again with what they are now.
func (b *Servers) SetConfigured(list []spec.Configured) {
	b.mu.Lock()
	b.configured = list
	var known []auth.Principal
	for _, o := range b.owners {
		if o.seen {
			o.seen = false
			known = append(known, o.principal)
		}
	}
	b.mu.Unlock()
	b.logins.Orphans(func(owner, key string) bool { // of users who have not come since, too
		name, configured := strings.CutPrefix(key, "=")
		p, _ := auth.Known(owner)
		return configured && !slices.ContainsFunc(list,
			func(c spec.Configured) bool { return c.Name == name && c.Admits(p.ID) && !c.Disabled })
	})
	for _, p := range known {
		_ = b.configure(p) // what cannot be read is in the log
		b.changed(p.ID)
	}
	if b.OnChange != nil { // clients of those who are not in memory may wait for it
		b.spawn(func(context.Context) { b.OnChange("") })
	}
}

// configure makes sure that what is stored of a principal is there, gives them the
// servers of the settings, and starts those that are new.
func (b *Servers) configure(p auth.Principal) error {
	if err := b.arrive(p); err != nil {
		return err
	}
	b.assign(p)
	b.mu.Lock()
	o := b.owner(p)
	unread := o.unread
	o.unread = nil
	b.mu.Unlock()
	for _, s := range unread {
		s.mu.Lock()
		s.beginUnlessBusy()
		s.mu.Unlock()
	}
	return nil
}

// assign gives a principal the servers of the settings, and starts none: those of which
// nothing is known yet wait in the owner's unread.
func (b *Servers) assign(p auth.Principal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owner(p)
	if o.seen || b.life.Err() != nil {
		return
	}
	o.seen = true
	want := map[string]spec.Configured{}
	for _, c := range b.configured {
		if c.Admits(p.ID) {
			want[c.Name] = c
		}
	}
	for _, s := range sorted(o.servers) {
		if c, stays := want[s.name]; s.configured {
			delete(want, s.name)
			if !stays { // at once: it may come again
				delete(o.servers, s.id)
			}
			b.spawn(func(ctx context.Context) { s.reconfigure(ctx, c, stays) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		s := b.configuredServer(o, want[name])
		o.servers[s.id] = s
		if !s.rec.Catalog.Read {
			o.unread = append(o.unread, s)
		}
	}
	b.rebuild(o)
}

// configuredServer makes a principal's own instance of a configured server. The
// lock is held.
func (b *Servers) configuredServer(o *owner, c spec.Configured) *server {
	now := time.Now().UTC()
	r, known := o.stored[c.Name]
	if !known {
		r = Record{Owner: o.principal.ID, Configured: true, Spec: spec.Spec{Name: c.Name}, Created: now, Updated: now}
	}
	for r.ID = c.Name; o.servers[r.ID] != nil; { // a user's connection may have that id
		r.ID += "_"
	}
	s := b.server(o.principal, r, spec.Values{Env: c.Env, Headers: c.Headers, Known: true})
	s.settings = c
	s.on(s.applied())
	return s
}

// applied is what the settings of a server that does not run make of it. The lock is
// held, or nobody else knows the server.
func (s *server) applied() event {
	switch {
	case s.settings.Disabled:
		return event{what: disconnected}
	case s.settings.Broken != "":
		return event{what: broken, why: s.settings.Broken}
	}
	return event{what: stopped}
}

// reconfigure takes up changed settings, or goes.
func (s *server) reconfigure(ctx context.Context, c spec.Configured, stays bool) {
	if !stays {
		s.remove(context.WithoutCancel(ctx))
		return
	}
	s.mu.Lock()
	same := reflect.DeepEqual(s.settings, c)
	s.mu.Unlock()
	if same {
		return
	}
	s.interrupt()
	if s.acquire(ctx) != nil {
		return
	}
	s.stop(event{what: stopped})
	s.forgetLogin()
	s.mu.Lock()
	s.gen++
	s.settings, s.values = c, spec.Values{Env: c.Env, Headers: c.Headers, Known: true}
	s.on(event{what: forgiven})
	s.on(s.applied())
	if s.state == Idle && s.start == nil {
		s.launch()
	}
	s.mu.Unlock()
	s.release()
	s.book.changed(s.owner.ID)
}

// Ready waits until the configured servers of a principal of which nothing is
// known yet have started, or failed to, or ctx ends. It says whether it waited.
func (b *Servers) Ready(ctx context.Context, p auth.Principal) bool {
	if b.configure(p) != nil {
		return false
	}
	waited := false
	for _, s := range b.all(p.ID) {
		s.mu.Lock()
		st, read := s.start, s.rec.Catalog.Read
		s.mu.Unlock()
		if st == nil || read {
			continue
		}
		waited = true
		select {
		case <-st.done:
		case <-ctx.Done():
			return true
		}
	}
	return waited
}

// awaitPrefix lets servers of the settings with one prefix take their names in the
// order of the servers' own names, when they start for the first time.
func (b *Servers) awaitPrefix(ctx context.Context, s *server) {
	s.mu.Lock()
	prefix, read := s.settings.Prefix, s.rec.Catalog.Read
	s.mu.Unlock()
	if prefix == nil || read {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, other := range b.all(s.owner.ID) {
		if other == s {
			return
		}
		other.mu.Lock()
		st, same := other.start, other.settings.Prefix != nil && *other.settings.Prefix == *prefix && !other.rec.Catalog.Read
		other.mu.Unlock()
		if st == nil || !same {
			continue
		}
		select {
		case <-st.done:
		case <-ctx.Done():
			return
		}
	}
}
