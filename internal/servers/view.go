package servers

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"

	"sandlot/internal/auth"
	"sandlot/internal/mcpclient"
	"sandlot/internal/servers/catalog"
)

// view is what one principal is offered by third-party servers now.
type view = catalog.View[*server]

func (s *server) ConnectionID() string { return s.id }

// offersResources says whether the server has resources that need not be listed.
func (s *server) offersResources() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance != nil && s.instance.session.Can().Resources || len(s.rec.Catalog.Resources)+len(s.rec.Catalog.Templates) > 0
}

// rebuild makes an owner's view anew. The lock is held.
func (b *Servers) rebuild(o *owner) {
	v := catalog.NewView[*server]()
	for _, s := range sorted(o.servers) {
		s.mu.Lock()
		c, hide, trust := s.rec.Catalog, s.state == Disabled || s.removed || s.rec.Off, s.trust()
		s.mu.Unlock()
		if hide {
			continue
		}
		v.Add(s, c, trust)
	}
	o.view = v
}

// rebuildOf makes an owner's view anew.
func (b *Servers) rebuildOf(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.owners[id]; o != nil && o.loaded {
		b.rebuild(o)
	}
}

// changed makes an owner's view anew and tells who listens, once for many
// changes in a row.
func (b *Servers) changed(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owners[id]
	if o == nil || !o.loaded {
		return
	}
	b.rebuild(o)
	if b.OnChange == nil || o.changing {
		return
	}
	o.changing = b.spawn(func(context.Context) {
		b.mu.Lock()
		o.changing = false
		b.mu.Unlock()
		b.OnChange(id)
	})
}

// listed is viewOf for who lists all of it: servers of the settings of which nothing is
// known yet are started.
func (b *Servers) listed(p auth.Principal) *view {
	_ = b.configure(p) // what cannot be read is in the log
	return b.viewOf(p)
}

// viewOf returns what a principal is offered now. Looking something up starts nothing.
func (b *Servers) viewOf(p auth.Principal) *view {
	if b.arrive(p) == nil { // what cannot be read is in the log
		b.assign(p)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owner(p).view
}

// errStale is for what comes from a server that is another one by now.
var errStale = errors.New("the server was replaced")

// publish stores what a server offers, and makes it known. gen says what the
// server was when it was asked.
func (b *Servers) publish(s *server, gen int, o catalog.Offer, older bool) error {
	naming := b.names(s.owner)
	naming.Lock()
	defer naming.Unlock()
	s.mu.Lock()
	settings, old, prefix, mark := s.settings, s.rec.Catalog, s.prefix(), ""
	s.mu.Unlock()
	if !s.configured {
		mark = "[external:" + s.name + "]"
	}
	taken, left := b.others(s)
	r := &catalog.Reading{Settings: settings, Mark: mark, Trust: settings.Trusts(), Old: old,
		Valid: mcpclient.ValidTool, ID: s.id, Left: min(catalog.MaxCatalog, left),
		Names: &catalog.Names{Prefix: prefix, Taken: func(kind, name string) bool {
			return taken[kind+"/"+name] || kind == "tool" && b.Reserved(name)
		}}}
	c := r.Read(o)
	if err := s.updateIf(func(r *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gen != gen {
			return errStale
		}
		r.Catalog, r.Older = c, older
		return nil
	}); err != nil {
		return err
	}
	b.rebuildOf(s.owner.ID)
	return nil
}

// names returns what is held while exposed names of one owner are given.
func (b *Servers) names(p auth.Principal) *sync.Mutex {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &b.owner(p).naming
}

// others returns the names and URIs that the owner's other servers have, now or
// when they run again, and how many bytes of definitions there is room for.
func (b *Servers) others(s *server) (taken map[string]bool, left int) {
	taken, left = map[string]bool{}, catalog.MaxCatalogs
	for _, other := range b.all(s.owner.ID) {
		if other == s {
			continue
		}
		other.mu.Lock()
		c := other.rec.Catalog
		other.mu.Unlock()
		left -= c.Size()
		for key, name := range c.Names {
			kind, _, _ := strings.Cut(key, "/")
			taken[kind+"/"+name] = true
		}
	}
	return taken, max(left, 0)
}

// updated tells that a resource has changed that somebody follows, by the URI
// that clients know. However often that is said, it is told one at a time.
func (b *Servers) updated(s *server, uri string) {
	s.mu.Lock()
	follows := len(s.follows[uri]) > 0
	key := cmp.Or(s.rec.Catalog.Names["resource/"+uri], uri)
	s.mu.Unlock()
	if b.OnUpdate == nil || !follows {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owner(s.owner)
	if o.updates == nil {
		o.updates = map[string]bool{}
		b.spawn(func(ctx context.Context) { b.tell(ctx, o) })
	}
	o.updates[key] = true
}

// tell tells of the resources that have changed, until there are no more.
func (b *Servers) tell(ctx context.Context, o *owner) {
	for ctx.Err() == nil {
		b.mu.Lock()
		all := o.updates
		if o.updates = map[string]bool{}; len(all) == 0 {
			o.updates = nil
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for uri := range all {
			b.OnUpdate(o.principal.ID, uri)
		}
	}
}
