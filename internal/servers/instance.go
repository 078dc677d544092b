package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// instance is a server that runs: one session with it.
type instance struct {
	s        *server
	rec      Record // as it was at the start
	settings spec.Configured
	values   spec.Values // with the stored ones in their places
	gen      int         // of the server, as it was
	client   *http.Client
	session  *mcpclient.Session
	process  *process.Process // the program, where there is one
	since    time.Time
	refresh  chan struct{}
	ending   atomic.Bool
	died     atomic.Bool // its program, by itself
	over     sync.Once
	held     int // calls that use it; the server's lock guards it

	mu       sync.Mutex
	inFlight map[*inFlight]bool
	free     chan struct{} // closed, and made anew, when a flight ends
}

// inFlight is a call on its way. While its client is asked it does not stand in
// the way of others: people take their time.
type inFlight struct {
	client tool.Client
	asked  bool
	waits  bool // for its turn
}

func newInstance(s *server) *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &instance{s: s, rec: s.rec, settings: s.settings, values: s.values, gen: s.gen, since: time.Now(),
		refresh: make(chan struct{}, 1), inFlight: map[*inFlight]bool{}, free: make(chan struct{})}
}

// local says whether its program runs in a sandbox.
func (l *instance) local() bool {
	return l.settings.Kind == spec.Stdio && l.settings.Where != spec.OnHost
}

// capabilities is what servers are told that clients can. In the older era that
// is said once, before it is known who will call.
func (l *instance) capabilities() json.RawMessage {
	if l.local() { // the client's folders are not in the sandbox
		return json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{}}`)
	}
	return json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`)
}

// dial opens the way to the server. It may be called a second time, with a
// fresh program for one that did not understand the newer era.
func (l *instance) dial(ctx context.Context) (transport.Transport, error) {
	s := l.s
	if l.settings.Kind != spec.Stdio {
		return l.remote()(ctx)
	}
	if l.process != nil {
		l.process.End()
	}
	c := process.Command{Name: s.name, Argv: process.WithPath(l.rec.Path, l.settings.Command, l.settings.Args),
		Env: l.values.Env, Cwd: l.rec.Cwd}
	var p *process.Process
	var err error
	if l.settings.Where == spec.OnHost {
		p, err = process.OnHost(c, l.settings.User, &s.log)
	} else {
		p, err = s.servers.inSandbox(ctx, s, c)
	}
	if err != nil {
		return nil, err
	}
	l.process = p
	return p.Transport(&s.log), nil
}

// inSandbox starts a program in the home of a server's owner.
func (servers *Servers) inSandbox(ctx context.Context, s *server, c process.Command) (*process.Process, error) {
	if servers.Sessions == nil {
		return nil, fault.New(fault.Connection, "this server has no sandboxes")
	}
	l, err := servers.Sessions.Open(ctx, s.owner, session.Ask{ID: "home"})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return process.InSandbox(ctx, l, c, &s.log)
}

// remote is the way to a server that runs elsewhere.
func (l *instance) remote() transport.Dial {
	s := l.s
	h := http.Header{}
	for k, v := range l.values.Headers {
		h.Set(k, v)
	}
	l.client = s.servers.client(s, l.settings)
	login := s.account.Handler(l.settings.URL, l.settings.OAuth,
		func() *http.Client { return s.servers.client(s, l.settings) })
	r := transport.Remote{URL: l.settings.URL, Header: h, Client: l.client, OAuth: login}
	if l.settings.Kind == spec.SSE {
		return transport.SSE(r)
	}
	return transport.HTTP(r)
}

// read asks the server for all that it offers, stores that, and makes it known.
// A list that cannot be read ends the first reading, if it is that of the tools;
// later ones leave what was there.
func (l *instance) read(ctx context.Context, first bool) error {
	var o catalog.Offer
	var failed error
	can := l.session.Capabilities()
	list := func(when bool, method, field string) (all []json.RawMessage, keep bool) {
		if !when {
			return nil, false
		}
		all, err := l.session.List(ctx, method, field, catalog.MaxDefinitions)
		if err == nil {
			return all, false
		}
		o.Odd = append(o.Odd, fmt.Sprintf("%s: %s", method, spec.Text(err.Error(), 300)))
		if len(all) > 0 && errors.Is(err, transport.ErrTooLarge) {
			return all, false // there is more than is taken
		}
		if field == "tools" && first {
			failed = fmt.Errorf("%s: %w", method, err)
		}
		return nil, true
	}
	o.Tools, o.Unread.Tools = list(can.Tools, "tools/list", "tools")
	o.Prompts, o.Unread.Prompts = list(can.Prompts, "prompts/list", "prompts")
	o.Resources, o.Unread.Resources = list(can.Resources, "resources/list", "resources")
	o.Templates, o.Unread.Templates = list(can.Resources, "resources/templates/list", "resourceTemplates")
	o.Instructions = l.session.Instructions()
	if err := ctx.Err(); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	select {
	case <-l.session.Done():
		return fmt.Errorf("it ended while it was asked what it offers: %w", l.session.Err())
	default:
	}
	l.s.servers.awaitPrefix(ctx, l.s)
	return l.s.servers.publish(l.s, l.gen, o, !l.session.Stateless())
}

// resume brings back what clients had asked of the session before.
func (l *instance) resume(ctx context.Context) {
	s := l.s
	level := s.servers.level(s.owner.ID)
	s.mu.Lock()
	var uris []string
	for u := range s.follows {
		uris = append(uris, u)
	}
	s.mu.Unlock()
	if level != "" && l.session.Capabilities().Logging {
		_ = l.session.SetLevel(ctx, level) // it says less then
	}
	for _, u := range uris {
		if err := l.session.Subscribe(ctx, u); err != nil {
			s.log.Line("[sandlot] the changes of %s cannot be followed any more: %s", spec.Clip(u),
				spec.Text(err.Error(), 200))
		}
	}
}

// watch is with the session until it is over.
func (l *instance) watch(ctx context.Context) {
	rest := 100 * time.Millisecond
	last := time.Now()
	for {
		select {
		case <-l.session.Done():
			if !l.ending.Load() {
				l.s.ended(l)
			}
			return
		case <-ctx.Done():
			l.close()
			return
		case <-l.refresh:
		}
		// One that announces changes all the time is asked ever less often.
		if time.Since(last) > 20*rest {
			rest = 100 * time.Millisecond
		} else {
			rest = min(2*rest, 10*time.Second)
		}
		select {
		case <-time.After(rest):
		case <-l.session.Done():
			continue
		case <-ctx.Done():
			continue
		}
		last = time.Now()
		again, cancel := context.WithTimeout(ctx, handshakeLimit)
		if err := l.read(again, false); err != nil && !l.ending.Load() {
			l.s.log.Line("[sandlot] what it offers could not be read again: %s", spec.Text(err.Error(), 300))
		}
		cancel()
		l.s.servers.changed(l.s.owner.ID)
	}
}

// close ends the session and the program, and waits for them.
func (l *instance) close() {
	if l.process != nil && !l.ending.Load() {
		select {
		case <-l.process.Done():
			l.died.Store(true) // before anybody ended it
		default:
		}
	}
	l.ending.Store(true)
	l.over.Do(func() {
		if l.session != nil {
			l.session.Close()
		}
		if l.process != nil {
			l.process.End()
		}
		if l.client != nil {
			l.client.CloseIdleConnections()
		}
	})
}

// how says how its program ended, if it does within that time, and whether it
// did that by itself.
func (l *instance) how(within time.Duration) (string, bool) {
	switch {
	case l.process == nil:
		return "", false
	case l.died.Load():
		return l.process.How()
	case l.ending.Load():
		return "", false
	}
	select {
	case <-l.process.Done():
		return l.process.How()
	case <-time.After(max(within, 50*time.Millisecond)):
		return "", false
	}
}

// HandleNotification implements mcpclient.Handler.
func (l *instance) HandleNotification(method string, params json.RawMessage) {
	switch method {
	case "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed":
		select {
		case l.refresh <- struct{}{}:
		default:
		}
	case "notifications/resources/updated":
		var p struct{ URI string }
		if json.Unmarshal(params, &p) == nil {
			l.s.servers.updated(l.s, p.URI)
		}
	case "notifications/message":
		l.logged(params)
	}
}

// logged passes on what the server says: to those whose calls are on their way,
// or else to all of its owner's clients.
func (l *instance) logged(params json.RawMessage) {
	var p rawjson.Object
	if len(params) > 64<<10 || json.Unmarshal(params, &p) != nil {
		return
	}
	catalog.CleanMeta(p)
	name := l.s.name
	if logger := rawjson.Text(p["logger"]); logger != "" {
		name += "/" + spec.Text(logger, 120)
	}
	p["logger"] = rawjson.Quote(name)
	b, err := json.Marshal(p)
	if err != nil {
		return
	}
	clients := l.clients()
	for _, c := range clients {
		c.Tell("notifications/message", b)
	}
	if len(clients) == 0 && l.s.servers.OnLog != nil {
		l.s.servers.OnLog(l.s.owner.ID, b)
	}
}

// clients are those whose calls are on their way, each once.
func (l *instance) clients() []tool.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]bool{}
	var all []tool.Client
	for f := range l.inFlight {
		if f.client != nil && !seen[f.client.ID()] {
			seen[f.client.ID()] = true
			all = append(all, f.client)
		}
	}
	return all
}
