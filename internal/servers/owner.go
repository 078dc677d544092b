package servers

import (
	"context"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/state"
)

// owner is what is known of one principal. What is in the store is read
// when they come, and forgotten when they have not come for a while.
type owner struct {
	principal auth.Principal
	servers   map[string]*server // by id
	view      *view
	seen      bool              // the configured servers are among them
	unread    []*server         // of them, those to start as nothing of them is known yet
	changing  bool              // OnChange is on its way
	updates   map[string]bool   // resources of which OnUpdate has to be told; nil: nobody does
	naming    sync.Mutex        // held while exposed names are given
	installs  map[string]bool   // folders into which something is being installed
	levels    map[string]string // how much each client wants to be told
	level     string            // what its servers have been told

	loading sync.Mutex        // held while it is read from the store
	loaded  bool              // it was
	stored  map[string]Record // of configured servers that they have not asked for yet, by name
	used    time.Time         // when they last came
	held    int               // calls that wait for people, or for the lock of a server
}

// restAfter is how long an owner is kept in memory whom nobody asks for.
const restAfter = 10 * time.Minute

// owner returns what is known of a principal, which may not have been read yet.
// The lock is held.
func (servers *Servers) owner(p auth.Principal) *owner {
	o := servers.owners[p.ID]
	if o == nil {
		o = &owner{principal: p.Identity(), servers: map[string]*server{}, view: catalog.NewView[*server](),
			used: time.Now()}
		servers.owners[p.ID] = o
	}
	return o
}

// arrive makes sure that what is stored of a principal has been read.
func (servers *Servers) arrive(p auth.Principal) error {
	servers.mu.Lock()
	o := servers.owner(p)
	o.used = time.Now() // nobody forgets it now
	loaded := o.loaded
	servers.mu.Unlock()
	if loaded {
		return nil
	}
	o.loading.Lock()
	defer o.loading.Unlock()
	servers.mu.Lock()
	loaded = o.loaded
	servers.mu.Unlock()
	if loaded {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), oauth.StoreTimeout)
	defer cancel()
	all, err := servers.Store.Connections(ctx, p.ID)
	if err != nil {
		servers.Log.Error("could not read a user's connections", "owner", p.ID, "error", err)
		return fault.Wrap(fault.Internal, err, "your connections could not be read; try again in a moment")
	}
	for i := range all {
		all[i].Catalog.DropExternalRefs()
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	servers.sync(o, all)
	return nil
}

// sync puts in what is stored of an owner. The lock is held.
func (servers *Servers) sync(o *owner, all []Record) {
	o.stored = map[string]Record{}
	kept := map[string]*server{} // while the owner was away
	for _, s := range o.servers {
		kept[s.loginKey()] = s
	}
	for _, r := range all {
		key := r.ID
		if r.Configured {
			key = "=" + r.Name
		}
		switch s := kept[key]; {
		case s != nil:
			s.mu.Lock()
			s.rec = r
			s.mu.Unlock()
		case r.Configured:
			o.stored[r.Name] = r
		default:
			s := servers.server(o.principal, r, r.Values())
			if r.Off {
				s.on(state.Disconnected)
			}
			o.servers[r.ID] = s
		}
	}
	o.loaded = true
	servers.rebuild(o)
}

// hold keeps an owner in memory until release is called, which a call does that
// waits for people or for others.
func (servers *Servers) hold(p auth.Principal) (release func(), err error) {
	servers.mu.Lock()
	o := servers.owner(p)
	o.held++
	servers.mu.Unlock()
	release = func() {
		servers.mu.Lock()
		defer servers.mu.Unlock()
		o.held--
		o.used = time.Now()
	}
	if err := servers.arrive(p); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// forgetIdle frees what is in memory of owners who have not come for a while, and of
// whom nothing runs or waits. What the store does not have stays.
func (servers *Servers) forgetIdle() {
	logins := servers.waiting()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	for id, o := range servers.owners {
		if logins[id] || !o.idle() {
			continue
		}
		for key, s := range o.servers {
			if !s.shelve() {
				delete(o.servers, key)
			}
		}
		o.loaded, o.seen, o.unread, o.stored, o.view = false, false, nil, nil, catalog.NewView[*server]()
		if len(o.servers) == 0 {
			delete(servers.owners, id)
		}
	}
}

// idle says whether nobody has asked for an owner for a while, and nothing of
// theirs runs or waits. The lock of the Servers is held.
func (o *owner) idle() bool {
	if time.Since(o.used) < restAfter || o.held > 0 || o.changing || o.updates != nil ||
		len(o.installs)+len(o.levels) > 0 || !o.loading.TryLock() {
		return false
	}
	defer o.loading.Unlock()
	if !o.loaded && len(o.servers) > 0 {
		return false // it rests already
	}
	for _, s := range o.servers {
		if s.busy() {
			return false
		}
	}
	return true
}

// busy says whether the server runs, or something is done with it.
func (s *server) busy() bool {
	if !s.storing.TryLock() {
		return true
	}
	defer s.storing.Unlock()
	if !s.lock.TryAcquire(1) {
		return true
	}
	defer s.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance != nil || s.start != nil || s.retry != nil || s.installing || len(s.follows) > 0 ||
		time.Since(s.used) < restAfter
}

// shelve frees what the store has of a server, and says whether there is more:
// values that are never stored, a log-in, or that it failed.
func (s *server) shelve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Catalog = catalog.Catalog{}
	values := !s.Configured && s.Values.Complete && !s.rec.Values().Complete
	plain := s.State == state.Idle || s.State == state.Disabled || s.Configured && s.Settings.Invalid != ""
	return values || !plain || s.account.HasLogin()
}
