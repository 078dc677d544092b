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
	Servers Servers
	// Call calls a tool of a third-party server for a run, and Background for a program in the background of a session.
	Call       func(ctx context.Context, c tool.Call) (*tool.Result, error)
	Background func(ctx context.Context, session string, c tool.Call) (*tool.Result, error)
	// May returns why a call of a tool of a server, by the server's own name, is refused in any case; nil: it may be
	// made. The session is that of a program in the background; empty: a run calls. It asks nobody, and starts no
	// server.
	May func(ctx context.Context, session string, p auth.Principal, server, name string) error
	// Elicit asks a person what a server asks in a call of a program in the background, and returns MCP's ElicitResult.
	Elicit func(ctx context.Context, e tool.Elicitation) (json.RawMessage, error)
	// Logged gets the parameters of a server's log message during such a call, for the clients of a principal.
	Logged func(owner string, params json.RawMessage)
	// Own reports whether Sandlot itself has a tool of that name.
	Own func(tool string) bool
	// Offers returns what a principal's servers offer, and Search finds some of it; its answer is sent as JSON.
	Offers func(p auth.Principal) []catalog.Offered
	Search func(ctx context.Context, p auth.Principal, q Search) (any, error)
	// Tree returns the tool tree of a principal; nil: that of what its servers offer.
	Tree func(p auth.Principal) ([]agent.ToolFile, error)
	// Scope returns the scope of what runs in the background of a session, and Narrow takes what is not in a scope
	// away from it, until the session has another sandbox.
	Scope  func(session string) auth.Scope
	Narrow func(session string, s auth.Scope)
	// Limits counts the bytes of requests and answers.
	Limits *limit.Limiter
	Log    *slog.Logger
}

// Servers are the third-party servers.
type Servers interface {
	// Any reports whether a principal has third-party servers.
	Any(p auth.Principal) bool
	// ToolName returns the name by which clients call a tool of a server.
	ToolName(ctx context.Context, p auth.Principal, server, tool string) (string, error)
}

// Calls are the calls of tools by code in all sandboxes. A nil *Calls has none.
type Calls struct {
	Config

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

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
