// Package instance owns one running third-party server: the session with it, its
// program, and the calls in flight. It ends with the session; the next start of the
// server is another instance.
package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/limit"
	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// Owner is the server that an instance runs for. It outlives the instance.
type Owner interface {
	// Publish stores and announces the offer of an instance.
	Publish(ctx context.Context, i *Instance, o catalog.Offer) error
	// Exited is called when a session has ended, unless Close ended it.
	Exited(i *Instance)
	// Changed is called when the server's lists have been read again.
	Changed()
	// Updated is called when a resource has changed, by the server's own URI.
	Updated(uri string)
	// Elicits is called when the server asks a client in the middle of a call.
	Elicits()
	// Logged gets the parameters of a log message that belongs to no call.
	Logged(params json.RawMessage)
	// Subscriptions returns what clients have set or subscribed to, for a new session: the log
	// level, which may be empty, and the URIs of resources.
	Subscriptions() (level string, uris []string)
}

// Definition is the program that runs, or the address that is reached.
type Definition struct {
	Settings spec.Configured
	Values   spec.Values
	Number   int // distinguishes the definitions that one server has had
	// Restarter is the scope of the token that has asked for this start; empty: none has, or it has every operation.
	Restarter auth.Scope
}

// Local reports whether the server's program runs in a sandbox.
func (d *Definition) Local() bool {
	return d.Settings.Kind == spec.Stdio && d.Settings.Where != spec.OnHost
}

// StartLimit returns how long the server may take to start. A program that installs what it runs, such
// as npx, may take as long as an installation.
func (d *Definition) StartLimit(install time.Duration) time.Duration {
	switch {
	case d.Settings.Timeout > 0:
		return d.Settings.Timeout
	case d.installs():
		return install
	}
	return startLimit
}

// installs reports whether the program first installs what it runs, if that is missing.
func (d *Definition) installs() bool {
	return slices.Contains([]string{"npx", "uvx", "bunx", "pipx", "pnpm", "yarn", "uv", "go", "docker"},
		path.Base(d.Settings.Command))
}

// startLimit bounds the start of a server whose settings have no limit.
const startLimit = 30 * time.Second

// Config is what an instance needs.
type Config struct {
	Definition       // values with the stored secrets that they refer to
	Owner      Owner // the server
	Account    *oauth.Account
	Output     *process.Log   // gets the program's standard error
	Principal  auth.Principal // who has the server
	Scope      auth.Scope     // of the tokens that have defined the server
	Name       string         // of the server
	Configured bool           // by the operator
	Cwd        string
	Path       []string // folders that stand first in PATH
	Stateful   bool     // the server spoke a stateful revision the last time

	// References are the variables of its program with references to secrets in them: whoever has a copy of the home has
	// those too.
	References map[string]string
	Sessions   *session.Sessions // nil: there are no sandboxes
	Dial       Dial
	Limits     *limit.Limiter // counts large answers; nil: they are not counted
	Version    string         // of Sandlot
	Log        *slog.Logger
}

// Instance is a running server.
type Instance struct {
	Config
	Session *mcpclient.Session
	Since   time.Time
	Used    int // by how many calls at the moment; the owner's lock guards it

	client  *http.Client     // of a remote server
	process *process.Process // nil: there is no program
	refresh chan struct{}
	closing atomic.Bool
	died    atomic.Bool // the program ended before Close
	close   sync.Once

	mu    sync.Mutex // guards the fields below, and those of each call
	calls map[*call]bool
	free  chan struct{} // closed and replaced when a call ends, or begins or ends to await its user
}

// New returns an instance that has not started.
func New(c Config) *Instance {
	return &Instance{Config: c, Since: time.Now(), refresh: make(chan struct{}, 1), calls: map[*call]bool{},
		free: make(chan struct{})}
}

// Start connects to the server within limit, reads and publishes its lists, and restores the log level
// and the subscriptions of the previous session. After an error, the caller calls Close.
func (i *Instance) Start(ctx context.Context, limit time.Duration) (err error) {
	i.Session, err = mcpclient.Connect(ctx, i.dial, mcpclient.Options{Name: "sandlot", Version: i.Version,
		Capabilities: i.capabilities(), HandshakeTimeout: limit,
		StatefulFirst: i.Stateful || i.installs(), // a program that installs is not started twice
		Handler:       i, Reserve: i.reserve(), MaxLarge: largestAnswer, Log: i.Log})
	if err != nil {
		return err
	}
	if err := i.readLists(ctx, true); err != nil {
		return err
	}
	level, uris := i.Owner.Subscriptions()
	if level != "" && i.Session.Capabilities().Logging {
		_ = i.Session.SetLevel(ctx, level) // an error: the server logs at its own level
	}
	for _, uri := range uris {
		if err := i.Session.Subscribe(ctx, uri); err != nil {
			i.Output.Printf("[sandlot] the subscription to %s could not be renewed: %s", spec.ClipName(uri),
				spec.SafeText(err.Error(), 200))
		}
	}
	return nil
}

// largestAnswer bounds the answers to requests with Request.Large.
const largestAnswer = limit.LargestAnswer

// capabilities returns the capabilities that a stateful server gets in its handshake, before it is
// known which clients will call. A server in a sandbox gets no roots: the clients' folders are not
// there.
func (i *Instance) capabilities() json.RawMessage {
	if i.Local() {
		return json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{}}`)
	}
	return json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`)
}

// reserve returns a function that makes reservations for large answers; nil: they are not counted.
func (i *Instance) reserve() func() transport.Reservation {
	if i.Limits == nil {
		return nil
	}
	return func() transport.Reservation {
		return i.Limits.NewReservation(i.Principal.ID, limit.IncomingAnswerBytes)
	}
}

// readLists asks the server for all its lists, and publishes them. If the tools cannot be read the
// first time, it fails. In all other cases, the previous list stays in place of one that cannot be read.
func (i *Instance) readLists(ctx context.Context, first bool) error {
	var o catalog.Offer
	var failed error
	capabilities := i.Session.Capabilities()
	list := func(supported bool, method, field string) []json.RawMessage {
		none := []json.RawMessage{}
		if !supported {
			return none
		}
		all, err := i.Session.List(ctx, method, field, catalog.MaxDefinitions)
		if err == nil {
			return append(none, all...)
		}
		o.Omissions = append(o.Omissions, fmt.Sprintf("%s: %s", method, spec.SafeText(err.Error(), 300)))
		if len(all) > 0 && errors.Is(err, transport.ErrTooLarge) {
			return all // the rest is left out
		}
		if field == "tools" && first {
			failed = fmt.Errorf("%s: %w", method, err)
		}
		return nil
	}
	o.Tools = list(capabilities.Tools, "tools/list", "tools")
	o.Prompts = list(capabilities.Prompts, "prompts/list", "prompts")
	o.Resources = list(capabilities.Resources, "resources/list", "resources")
	o.Templates = list(capabilities.Resources, "resources/templates/list", "resourceTemplates")
	o.Instructions = i.Session.Instructions()
	if err := ctx.Err(); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	select {
	case <-i.Session.Done():
		return fmt.Errorf("it ended while its lists were read: %w", i.Session.Err())
	default:
	}
	return i.Owner.Publish(ctx, i, o)
}

// Refresh makes Watch read the server's lists again.
func (i *Instance) Refresh() {
	select {
	case i.refresh <- struct{}{}:
	default:
	}
}

// Watch reads the lists again when they change, until the session ends. It closes the session when ctx
// ends.
func (i *Instance) Watch(ctx context.Context) {
	pause := 100 * time.Millisecond
	last := time.Now()
	for {
		select {
		case <-i.Session.Done():
			if !i.closing.Load() {
				i.Owner.Exited(i)
			}
			return
		case <-ctx.Done():
			i.Close()
			return
		case <-i.refresh:
		}
		// A server that announces changes all the time is asked ever less often.
		if time.Since(last) > 20*pause {
			pause = 100 * time.Millisecond
		} else {
			pause = min(2*pause, 10*time.Second)
		}
		select {
		case <-time.After(pause):
		case <-i.Session.Done():
			continue
		case <-ctx.Done():
			continue
		}
		last = time.Now()
		limited, cancel := context.WithTimeout(ctx, startLimit)
		if err := i.readLists(limited, false); err != nil && !i.closing.Load() {
			i.Output.Printf("[sandlot] the lists could not be read again: %s", spec.SafeText(err.Error(), 300))
		}
		cancel()
		i.Owner.Changed()
	}
}

// Close ends the session and the program, and waits for them. It may be called twice.
func (i *Instance) Close() {
	if i.process != nil && !i.closing.Load() {
		select {
		case <-i.process.Done():
			i.died.Store(true)
		default:
		}
	}
	i.closing.Store(true)
	i.close.Do(func() {
		if i.Session != nil {
			i.Session.Close()
		}
		if i.process != nil {
			i.process.Stop()
		}
		if i.client != nil {
			i.client.CloseIdleConnections()
		}
	})
}

// ExitReason returns how the program ended, if it ends within that time, and whether it ended by
// itself and not by Close.
func (i *Instance) ExitReason(within time.Duration) (reason string, byItself bool) {
	switch {
	case i.process == nil:
		return "", false
	case i.died.Load():
		return i.process.ExitReason()
	case i.closing.Load():
		return "", false
	}
	select {
	case <-i.process.Done():
		return i.process.ExitReason()
	case <-time.After(max(within, 50*time.Millisecond)):
		return "", false
	}
}

// Refusals returns what the program of a server in a sandbox was not allowed to reach since the last call.
func (i *Instance) Refusals(ctx context.Context) []egress.Refusal {
	if i.process == nil {
		return nil
	}
	return i.process.Refusals(ctx)
}

// Pid returns the process id of a program on the host; 0: there is none.
func (i *Instance) Pid() int {
	if i.process == nil {
		return 0
	}
	return i.process.Pid
}

// HandleNotification implements mcpclient.Handler.
func (i *Instance) HandleNotification(method string, params json.RawMessage) {
	switch method {
	case "notifications/tools/list_changed", "notifications/prompts/list_changed",
		"notifications/resources/list_changed":
		i.Refresh()
	case "notifications/resources/updated":
		var p struct{ URI string }
		if json.Unmarshal(params, &p) == nil {
			i.Owner.Updated(p.URI)
		}
	case "notifications/message":
		i.relayLog(params)
	}
}

// relayLog sends a log message to the clients of the calls in flight, or else to all of
// the principal's.
func (i *Instance) relayLog(params json.RawMessage) {
	var p rawjson.Object
	if len(params) > 64<<10 || json.Unmarshal(params, &p) != nil {
		return
	}
	catalog.CleanMeta(p)
	name := i.Name
	if logger := rawjson.Text(p["logger"]); logger != "" {
		name += "/" + spec.SafeText(logger, 120)
	}
	p["logger"] = rawjson.Quote(name)
	b, err := json.Marshal(p)
	if err != nil {
		return
	}
	listeners := i.listeners()
	for _, c := range listeners {
		c.Notify("notifications/message", b)
	}
	if len(listeners) == 0 {
		i.Owner.Logged(b)
	}
}
