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

// owner has the servers of one principal. They are read from the store with the principal's first
// request, and leave memory some time after the last one.
//
// Catalogs take up to 32 MiB of memory for each principal, and a server with thousands of users needs those
// of a few: 900 MB for 1,000 active users with ten servers each, under 150 MB two minutes after their last
// calls (TestManyPrincipals). What is not in the store stays: values that are never stored, log-ins, and that
// Sandlot has stopped restarting a server. The price is one read of the database, about a millisecond, for a
// user who returns.
type owner struct {
	principal auth.Principal
	servers   map[string]*server // by id
	view      *view
	seen      bool              // servers has the configured servers that the principal may use
	unread    []*server         // configured servers whose lists have never been read: configure starts them
	changing  bool              // a goroutine is about to call OnChange
	updates   map[string]bool   // URIs with which OnUpdate has to be called; nil: no goroutine calls it
	naming    sync.Mutex        // held while tools get the names that clients use
	installs  map[string]bool   // folders of running installations
	levels    map[string]string // log levels that clients have set, by client
	level     string            // the log level of the servers

	loading sync.Mutex        // held while the records are read from the store
	loaded  bool              // the records have been read
	stored  map[string]Record // records of configured servers that are not in servers, by name
	used    time.Time         // the last request of the principal
	held    int               // calls during which the owner has to stay in memory
}

// restAfter is how long an owner stays in memory at most after the principal's last request.
const restAfter = 10 * time.Minute

// restAfter returns how long an owner stays in memory after the principal's last request: servers do not run longer
// without use.
func (servers *Servers) restAfter() time.Duration { return min(restAfter, servers.Idle) }

// owner returns the owner of a principal, which may not have been loaded. The caller holds servers.mu.
func (servers *Servers) owner(p auth.Principal) *owner {
	o := servers.owners[p.ID]
	if o == nil {
		o = &owner{principal: p.Identity(), servers: map[string]*server{}, view: catalog.NewView[*server](),
			used: time.Now()}
		servers.owners[p.ID] = o
	}
	return o
}

// arrive reads the principal's records from the store, if they have not been read.
func (servers *Servers) arrive(p auth.Principal) error {
	servers.mu.Lock()
	o := servers.owner(p)
	o.used = time.Now() // so that forgetIdle does not remove it now
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
		all[i].Catalog.Renew()
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	servers.sync(o, all)
	return nil
}

// sync gives an owner the servers of stored records. Servers that stayed in memory get only the part
// of the record that forgetIdle freed. The caller holds servers.mu.
func (servers *Servers) sync(o *owner, all []Record) {
	o.stored = map[string]Record{}
	kept := map[string]*server{} // that forgetIdle left in memory
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
			s := servers.newServer(o.principal, r, r.Values())
			if r.Off {
				s.on(state.Disconnected)
			}
			o.servers[r.ID] = s
		}
	}
	o.loaded = true
	servers.rebuild(o)
}

// hold keeps an owner in memory until release is called. Calls that may wait long, such as for the
// user's consent, need it.
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

// forgetIdle frees the memory of idle owners, except what is not in the store.
func (servers *Servers) forgetIdle() {
	logins := servers.waiting()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	for id, o := range servers.owners {
		if logins[id] || !o.idle(servers.restAfter()) {
			continue
		}
		for key, s := range o.servers {
			if !s.shelve() {
				s.log.Close()
				delete(o.servers, key)
			}
		}
		o.loaded, o.seen, o.unread, o.stored, o.view = false, false, nil, nil, catalog.NewView[*server]()
		if len(o.servers) == 0 {
			delete(servers.owners, id)
		}
	}
}

// idle reports whether the principal has made no request for a while, and no server runs and nothing
// waits for one. The caller holds the mu of the Servers.
func (o *owner) idle(after time.Duration) bool {
	if time.Since(o.used) < after || o.held > 0 || o.changing || o.updates != nil ||
		len(o.installs)+len(o.levels) > 0 || !o.loading.TryLock() {
		return false
	}
	defer o.loading.Unlock()
	if !o.loaded && len(o.servers) > 0 {
		return false // forgetIdle has freed it already
	}
	for _, s := range o.servers {
		if s.busy(after) {
			return false
		}
	}
	return true
}

// busy reports whether the server runs, was used not so long ago, or is started, changed or stored at the moment.
func (s *server) busy(after time.Duration) bool {
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
		time.Since(s.used) < after
}

// shelve frees the part of a server that is in the store, and reports whether there is something that
// is not: values that are never stored, a log-in, or a failure.
func (s *server) shelve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Catalog = catalog.Catalog{}
	values := !s.Configured && s.Values.Complete && !s.rec.Values().Complete
	plain := s.State == state.Idle || s.State == state.Disabled || s.Configured && s.Settings.Invalid != ""
	return values || !plain || s.account.HasLogin()
}
