package servers

import (
	"context"
	"slices"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
)

// followers are the clients that have subscribed to resources of one server, by the server's own URIs
// of the resources.
type followers map[string]map[string]bool

func (f followers) add(uri, client string) {
	if f[uri] == nil {
		f[uri] = map[string]bool{}
	}
	f[uri][client] = true
}

// drop removes a client's subscription, and reports whether it was the last one to the resource.
func (f followers) drop(uri, client string) (last bool) {
	if !f[uri][client] {
		return false
	}
	delete(f[uri], client)
	if len(f[uri]) > 0 {
		return false
	}
	delete(f, uri)
	return true
}

// Subscribe implements tool.External.
func (servers *Servers) Subscribe(ctx context.Context, p auth.Principal, client, uri string) error {
	s, remote := servers.viewOf(p).Resource(uri, (*server).offersResources)
	if s == nil {
		// It may be a resource of a configured server whose lists have not been read yet.
		_ = servers.configure(p) // an error is in the log
		return nil               // a resource of Sandlot's own, or one that does not change
	}
	l, release, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	n, follows := len(s.follows), len(s.follows[remote]) > 0
	if follows {
		s.follows.add(remote, client)
	}
	s.mu.Unlock()
	if follows {
		return nil
	}
	if most := catalog.MaxDefinitions; n >= most {
		return fault.Limit("subscriptions", most, most,
			"there are subscriptions to %d resources of this server already", most)
	}
	if err := l.Session.Subscribe(ctx, remote); err != nil {
		return s.callFault(l, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follows.add(remote, client)
	return nil
}

// Unsubscribe implements tool.External.
func (servers *Servers) Unsubscribe(ctx context.Context, p auth.Principal, client, uri string) error {
	s, remote := servers.viewOf(p).Resource(uri, (*server).offersResources)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	l, last := s.instance, s.follows.drop(remote, client)
	s.mu.Unlock()
	if l == nil || !last {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hearing)
	defer cancel()
	if err := l.Session.Unsubscribe(ctx, remote); err != nil {
		return s.callFault(l, err)
	}
	return nil
}

// hearing is how long a server may take to answer a request about subscriptions or log levels.
const hearing = 5 * time.Second

// SetLevel implements tool.External.
func (servers *Servers) SetLevel(ctx context.Context, p auth.Principal, client, level string) {
	servers.mu.Lock()
	o := servers.owner(p)
	if o.levels == nil {
		o.levels = map[string]string{}
	}
	o.levels[client] = level
	servers.mu.Unlock()
	servers.relevel(ctx, o)
}

// relevel sets the log level of an owner's servers to the lowest level that one of the clients has set,
// if that has changed. The SDK drops the messages below a client's own level. The level stays as it is
// when the last client disconnects.
func (servers *Servers) relevel(ctx context.Context, o *owner) {
	servers.mu.Lock()
	level := ""
	for _, l := range o.levels {
		if level == "" || slices.Index(levels, l) < slices.Index(levels, level) {
			level = l
		}
	}
	same := level == o.level || level == ""
	if !same {
		o.level = level
	}
	servers.mu.Unlock()
	if same {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hearing)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range servers.all(o.principal.ID) {
		s.mu.Lock()
		l := s.instance
		s.mu.Unlock()
		if l != nil && l.Session.Capabilities().Logging {
			all.Go(func() { _ = l.Session.SetLevel(ctx, level) }) // after an error, it keeps its level
		}
	}
	all.Wait()
}

// levels are the log levels of MCP, the lowest first.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// ClientGone implements tool.External.
func (servers *Servers) ClientGone(p auth.Principal, client string) {
	for _, s := range servers.all(p.ID) {
		var over []string
		s.mu.Lock()
		for uri := range s.follows {
			if s.follows.drop(uri, client) {
				over = append(over, uri)
			}
		}
		l := s.instance
		s.mu.Unlock()
		if l == nil || len(over) == 0 {
			continue
		}
		servers.spawn(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, hearing)
			defer cancel()
			for _, uri := range over {
				_ = l.Session.Unsubscribe(ctx, uri) // after an error, its notifications reach no client
			}
		})
	}
	servers.mu.Lock()
	wanted := false
	o := servers.owners[p.ID]
	if o != nil {
		_, wanted = o.levels[client]
		delete(o.levels, client)
	}
	servers.mu.Unlock()
	if wanted {
		servers.spawn(func(ctx context.Context) { servers.relevel(ctx, o) })
	}
}
