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

// view has all names that third-party servers offer to one principal at the moment.
type view = catalog.View[*server]

// ConnectionID implements catalog.Server.
func (s *server) ConnectionID() string { return s.ID }

// offersResources reports whether the server may have resources that are in no list.
func (s *server) offersResources() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.rec.Catalog
	return s.instance != nil && s.instance.Session.Capabilities().Resources || len(c.Resources)+len(c.Templates) > 0
}

// rebuild makes an owner's view of the current catalogs. The caller holds servers.mu.
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

// rebuildOf is rebuild for the owner with that id.
func (servers *Servers) rebuildOf(id string) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if o := servers.owners[id]; o != nil && o.loaded {
		servers.rebuild(o)
	}
}

// changed rebuilds the view of the owner with that id, calls Changing, and makes a goroutine call OnChange, unless one
// is about to do it already.
func (servers *Servers) changed(id string) {
	if servers.rebuilt(id) && servers.Changing != nil {
		servers.Changing(id)
	}
}

// rebuilt is changed without Changing; false: the owner is not in memory.
func (servers *Servers) rebuilt(id string) bool {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	o := servers.owners[id]
	if o == nil || !o.loaded {
		return false
	}
	servers.rebuild(o)
	if servers.OnChange == nil || o.changing {
		return true
	}
	o.changing = servers.spawn(func(context.Context) {
		servers.mu.Lock()
		o.changing = false
		servers.mu.Unlock()
		servers.OnChange(id)
	})
	return true
}

// settle waits until code in a principal's sandboxes has the tools that the result of an operation is about to promise.
func (servers *Servers) settle(ctx context.Context, p auth.Principal, err error) {
	if err == nil && servers.Settle != nil {
		servers.Settle(ctx, p.ID)
	}
}

// listed is viewOf for a list. It also starts the configured servers whose lists have never been read.
func (servers *Servers) listed(p auth.Principal) *view {
	_ = servers.configure(p) // an error is in the log
	return servers.viewOf(p)
}

// viewOf returns a principal's view. It starts no server.
func (servers *Servers) viewOf(p auth.Principal) *view {
	if servers.arrive(p) == nil { // an error is in the log
		servers.assign(p)
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	return servers.owner(p).view
}

// errStale refuses the lists of an instance whose server has got another definition since.
var errStale = errors.New("the server was replaced")

// publish makes a server's lists safe, stores them and adds them to the view. Number is that of the
// definition that the lists belong to.
func (servers *Servers) publish(s *server, number int, o catalog.Offer, stateful bool) error {
	naming := servers.names(s.owner)
	naming.Lock()
	defer naming.Unlock()
	s.mu.Lock()
	settings, previous, prefix, mark := s.Settings, s.rec.Catalog, s.prefix(), ""
	s.mu.Unlock()
	if !s.Configured {
		mark = "[external:" + s.Name + "]"
	}
	taken, budget, room := servers.others(s)
	r := &catalog.Reader{Settings: settings, DescriptionPrefix: mark, Trust: settings.TrustMode(), Previous: previous,
		CheckHeaders: mcpclient.CheckTool, ID: s.ID, Budget: min(catalog.MaxCatalog, budget), Room: room,
		Names: &catalog.Namer{Prefix: prefix, Taken: func(kind, name string) bool {
			return taken[kind+"/"+name] || kind == "tool" && servers.Reserved(name)
		}}}
	c := r.Read(o)
	if err := s.updateIf(func(r *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.Number != number {
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

// names returns the mutex that is held while a principal's tools get the names that clients use.
func (servers *Servers) names(p auth.Principal) *sync.Mutex {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	return &servers.owner(p).naming
}

// others returns the names and URIs of the owner's other servers, whether they run or not, how many bytes this server's
// definitions may have, and how many together with what was approved of those that have changed. That takes no room
// from definitions, so that all servers may have twice MaxCatalogs with it.
func (servers *Servers) others(s *server) (taken map[string]bool, budget, room int) {
	taken, budget, room = map[string]bool{}, catalog.MaxCatalogs, catalog.MaxCatalogs
	for _, other := range servers.all(s.owner.ID) {
		if other == s {
			continue
		}
		c := other.record().Catalog
		size := c.Size()
		budget, room = budget-size+c.BeforeSize(), room-size
		for key, name := range c.Names {
			kind, _, _ := strings.Cut(key, "/")
			taken[kind+"/"+name] = true
		}
	}
	return taken, max(budget, 0), max(room, 0)
}

// Updated implements instance.Owner: it has OnUpdate called, with the URI that clients use, if a client
// has subscribed to the resource. Further updates before that call are part of it.
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

// tell calls OnUpdate for the owner's updates, until there are no more.
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
