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
	"sandlot/internal/servers/state"
)

// view is what one principal is offered by third-party servers now.
type view = catalog.View[*server]

func (s *server) ConnectionID() string { return s.ID }

// offersResources says whether the server has resources that need not be listed.
func (s *server) offersResources() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.rec.Catalog
	return s.instance != nil && s.instance.Session.Capabilities().Resources || len(c.Resources)+len(c.Templates) > 0
}

// rebuild makes an owner's view anew. The lock is held.
func (servers *Servers) rebuild(o *owner) {
	v := catalog.NewView[*server]()
	for _, s := range sorted(o.servers) {
		s.mu.Lock()
		c, hide, trust := s.rec.Catalog, s.State == state.Disabled || s.Removed || s.rec.Off, s.Settings.TrustMode()
		s.mu.Unlock()
		if hide {
			continue
		}
		v.Add(s, c, trust)
	}
	o.view = v
}

// rebuildOf makes an owner's view anew.
func (servers *Servers) rebuildOf(id string) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if o := servers.owners[id]; o != nil && o.loaded {
		servers.rebuild(o)
	}
}

// changed makes an owner's view anew and tells who listens, once for many
// changes in a row.
func (servers *Servers) changed(id string) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	o := servers.owners[id]
	if o == nil || !o.loaded {
		return
	}
	servers.rebuild(o)
	if servers.OnChange == nil || o.changing {
		return
	}
	o.changing = servers.spawn(func(context.Context) {
		servers.mu.Lock()
		o.changing = false
		servers.mu.Unlock()
		servers.OnChange(id)
	})
}

// listed is viewOf for who lists all of it: servers of the settings of which nothing is
// known yet are started.
func (servers *Servers) listed(p auth.Principal) *view {
	_ = servers.configure(p) // what cannot be read is in the log
	return servers.viewOf(p)
}

// viewOf returns what a principal is offered now. Looking something up starts nothing.
func (servers *Servers) viewOf(p auth.Principal) *view {
	if servers.arrive(p) == nil { // what cannot be read is in the log
		servers.assign(p)
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	return servers.owner(p).view
}

// errStale is for what comes from a server that is another one by now.
var errStale = errors.New("the server was replaced")

// publish stores what a server offers, and makes it known. gen says what the
// server was when it was asked.
func (servers *Servers) publish(s *server, gen int, o catalog.Offer, stateful bool) error {
	naming := servers.names(s.owner)
	naming.Lock()
	defer naming.Unlock()
	s.mu.Lock()
	settings, old, prefix, mark := s.Settings, s.rec.Catalog, s.prefix(), ""
	s.mu.Unlock()
	if !s.Configured {
		mark = "[external:" + s.Name + "]"
	}
	taken, left := servers.others(s)
	r := &catalog.Reader{Settings: settings, DescriptionPrefix: mark, Trust: settings.TrustMode(), Previous: old,
		CheckHeaders: mcpclient.CheckTool, ID: s.ID, Budget: min(catalog.MaxCatalog, left),
		Names: &catalog.Namer{Prefix: prefix, Taken: func(kind, name string) bool {
			return taken[kind+"/"+name] || kind == "tool" && servers.Reserved(name)
		}}}
	c := r.Read(o)
	if err := s.updateIf(func(r *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.Number != gen {
			return errStale
		}
		r.Catalog, r.Stateful = c, stateful
		return nil
	}); err != nil {
		return err
	}
	servers.rebuildOf(s.owner.ID)
	return nil
}

// names returns what is held while exposed names of one owner are given.
func (servers *Servers) names(p auth.Principal) *sync.Mutex {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	return &servers.owner(p).naming
}

// others returns the names and URIs that the owner's other servers have, now or
// when they run again, and how many bytes of definitions there is room for.
func (servers *Servers) others(s *server) (taken map[string]bool, left int) {
	taken, left = map[string]bool{}, catalog.MaxCatalogs
	for _, other := range servers.all(s.owner.ID) {
		if other == s {
			continue
		}
		c := other.record().Catalog
		left -= c.Size()
		for key, name := range c.Names {
			kind, _, _ := strings.Cut(key, "/")
			taken[kind+"/"+name] = true
		}
	}
	return taken, max(left, 0)
}

// Updated implements instance.Owner: it tells that a resource has changed that somebody follows, by the URI
// that clients know. However often that is said, it is told one at a time.
func (s *server) Updated(uri string) {
	servers := s.servers
	s.mu.Lock()
	follows := len(s.follows[uri]) > 0
	key := cmp.Or(s.rec.Catalog.Names["resource/"+uri], uri)
	s.mu.Unlock()
	if servers.OnUpdate == nil || !follows {
		return
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	o := servers.owner(s.owner)
	if o.updates == nil {
		o.updates = map[string]bool{}
		servers.spawn(func(ctx context.Context) { servers.tell(ctx, o) })
	}
	o.updates[key] = true
}

// tell tells of the resources that have changed, until there are no more.
func (servers *Servers) tell(ctx context.Context, o *owner) {
	for ctx.Err() == nil {
		servers.mu.Lock()
		all := o.updates
		if o.updates = map[string]bool{}; len(all) == 0 {
			o.updates = nil
			servers.mu.Unlock()
			return
		}
		servers.mu.Unlock()
		for uri := range all {
			servers.OnUpdate(o.principal.ID, uri)
		}
	}
}
