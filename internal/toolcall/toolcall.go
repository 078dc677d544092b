// Package toolcall owns calls of third-party tools by code in sandboxes: which run each belongs to, with whose rights
// and whose client it is made, how many there may be and how fast they are read, and the tool tree that a sandbox has
// for them.
//
// A program connects to a socket in its sandbox. The agent there says to which of the programs that it has started the
// program belongs, and carries the connection to Sandlot (agent.Tools). A run is code or a command whose client waits
// for its end: its calls have the rights of the run, ask its client, and end with it. All other calls are those of a
// program in the background, which has the rights of its session's owner and no client.
//
// Messages on a connection are lines of JSON, see protocol.go. They come from the sandbox, and are hostile.
package toolcall

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/tool"
)

// Config is what Calls need.
type Config struct {
	Door     Door
	Servers  Servers
	Finder   Finder
	Sessions Sessions
	Clients  Clients
	// Limits counts the bytes of requests and answers.
	Limits *limit.Limiter
	Log    *slog.Logger
}

// Door makes the calls, as far as policy allows them.
type Door interface {
	// CallExternal calls a tool of a third-party server for a run, and CallInBackground for a program in the background
	// of a session.
	CallExternal(ctx context.Context, c tool.Call) (*tool.Result, error)
	CallInBackground(ctx context.Context, session string, c tool.Call) (*tool.Result, error)
	// MayCall returns why a call of a tool of a server, by the server's own name, is refused in any case; nil: it may be
	// made. The session is that of a program in the background; empty: a run calls. It asks nobody, and starts no
	// server.
	MayCall(ctx context.Context, session string, p auth.Principal, server, name string) error
	// Elicit asks a person what a server asks in a call of a program in the background, and returns MCP's ElicitResult.
	Elicit(ctx context.Context, e tool.Elicitation) (json.RawMessage, error)
	// Owns reports whether Sandlot itself has a tool of that name.
	Owns(tool string) bool
}

// Servers are the third-party servers.
type Servers interface {
	// Any reports whether a principal has third-party servers.
	Any(p auth.Principal) bool
	// ToolName returns the name by which clients call a tool of a server.
	ToolName(ctx context.Context, p auth.Principal, server, tool string) (string, error)
	// Offered returns what a principal's servers offer.
	Offered(p auth.Principal) []catalog.Offered
}

// Finder searches what a principal's servers offer. The answer is sent as JSON.
type Finder interface {
	SearchJSON(ctx context.Context, p auth.Principal, query, server string, limit int) (any, error)
}

// Sessions know the scope of what runs in the background of a session.
type Sessions interface {
	ScopeOf(session string) auth.Scope
	// Narrow takes what is not in a scope away from it, until the session has another sandbox.
	Narrow(session string, s auth.Scope)
}

// Clients are the clients of all principals.
type Clients interface {
	// ForwardLog passes on the parameters of a server's log message to the clients of a principal.
	ForwardLog(owner string, params json.RawMessage)
}

// Calls are the calls of tools by code in all sandboxes. A nil *Calls has none.
type Calls struct {
	Config

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	tree   func(p auth.Principal) ([]agent.ToolFile, error) // in tests, in place of what servers offer

	mu        sync.Mutex
	closed    bool
	runs      map[string]*run         // by tag
	sandboxes map[string]*sandbox     // the last one of each session
	slots     map[string]*sharedSlots // of principals, by their ids
	owners    map[string]*owned       // of sandboxes that are attached, by their ids
	kept      []*owned                // whose trees are kept; the last one was used last
	making    chan struct{}           // held while a tree is made
	decoding  chan struct{}           // held while a large request is decoded
}

// New returns Calls. Config may be completed until the first sandbox is attached.
func New(c Config) *Calls {
	cs := &Calls{Config: c, runs: map[string]*run{}, sandboxes: map[string]*sandbox{},
		slots: map[string]*sharedSlots{}, owners: map[string]*owned{},
		making: make(chan struct{}, maxMaking), decoding: make(chan struct{}, 1)}
	cs.ctx, cs.cancel = context.WithCancel(context.Background())
	return cs
}

// Close ends all calls, and waits for them. Connections are refused after that.
func (cs *Calls) Close() {
	cs.mu.Lock()
	cs.closed = true
	cs.mu.Unlock()
	cs.cancel()
	cs.work.Wait()
}

// begin counts work for Close; false: Close was called.
func (cs *Calls) begin() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.closed {
		cs.work.Add(1)
	}
	return !cs.closed
}

// spawn runs work in a goroutine, for which Close waits. After Close it does nothing.
func (cs *Calls) spawn(work func()) {
	if cs.begin() {
		go func() {
			defer cs.work.Done()
			var err error
			defer fault.Recover(cs.ctx, cs.Log, "calls of tools by code", &err)
			work()
		}()
	}
}
