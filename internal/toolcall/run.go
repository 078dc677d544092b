package toolcall

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
	"sandlot/internal/tool"
)

// run is code, or a command, whose client waits for its end.
type run struct {
	session   string
	what      string         // it runs, in words
	principal auth.Principal // with the scope of its token
	client    tool.Client    // nil: it can get no questions
	progress  func(string)   // nil: it wants none
	questions chan struct{}  // held while the client is asked
	// ctx ends with the run. Its values come from the client's call: the origin, and what policy was asked.
	ctx context.Context
}

// treeWait is how long a run waits for the tool tree to have what it has to have by then, and firstTreeWait how long it
// waits for the first one of a sandbox, without which it cannot call any tool. What promises tools waits for settleWait:
// whoever has connected a server uses its tools next.
const (
	treeWait      = time.Second
	firstTreeWait = 10 * time.Second
	settleWait    = 20 * time.Second
)

// Begin notes that a call runs code or a command in a session, until end is called. What says what it runs, for
// events. The tag stands for that run in calls of tools; empty: its principal has no third-party servers.
func (cs *Calls) Begin(ctx context.Context, session, what string, c tool.Call) (tag string, end func()) {
	if !cs.BeginBackground(ctx, session, c.Principal) {
		return "", func() {}
	}
	ctx = event.WithCaller(ctx, callerText(session, what))
	ctx, cancel := context.WithCancel(ctx)
	r := &run{session: session, what: what, principal: c.Principal, client: c.Client, progress: c.Progress,
		questions: make(chan struct{}, 1), ctx: ctx}
	tag = secret.ID() + secret.ID()
	cs.mu.Lock()
	cs.runs[tag] = r
	cs.mu.Unlock()
	return tag, func() {
		cs.mu.Lock()
		delete(cs.runs, tag)
		cs.mu.Unlock()
		cancel()
	}
}

// BeginBackground notes that a principal starts a program in a session that may go on after the call, and waits for the
// tool tree. It reports whether the principal has third-party servers.
func (cs *Calls) BeginBackground(ctx context.Context, session string, p auth.Principal) bool {
	if cs == nil {
		return false
	}
	if p.Scope != "" {
		cs.Sessions.Narrow(session, p.Scope)
	}
	if !cs.Servers.Any(p) {
		return false
	}
	cs.mu.Lock()
	box := cs.sandboxes[session]
	cs.mu.Unlock()
	if box != nil {
		box.awaitTree(ctx)
	}
	return true
}

// callerText names the code of a session that calls a tool.
func callerText(session, what string) string { return "code of session " + session + ", " + what }

// caller is whose a call is.
type caller struct {
	principal auth.Principal
	ctx       context.Context // of its call
	run       *run            // nil: it is of a program in the background
	what      string          // the program is, in words
}

// callerOf returns whose a call is that a program of a sandbox makes. A tag of another session is none, and so is one
// whose run has ended. A cell has no more than the scope of what runs in the background: a thread that an earlier cell
// has left in its interpreter, or one to which it has given a connection, cannot be told apart from it.
func (s *sandbox) callerOf(ctx context.Context, from agent.Caller) (caller, func()) {
	s.calls.mu.Lock()
	r := s.calls.runs[from.Tag]
	s.calls.mu.Unlock()
	if r != nil && r.session == s.session {
		runCtx, cancel := context.WithCancel(r.ctx)
		stop := context.AfterFunc(ctx, cancel)
		p := r.principal
		if from.Language != "" {
			p.Scope = policy.Narrow(p.Scope, s.calls.Sessions.ScopeOf(s.session))
		}
		return caller{p, runCtx, r, r.what}, func() { stop(); cancel() }
	}
	p := s.owner
	p.Scope = s.calls.Sessions.ScopeOf(s.session)
	what := "a program in the background"
	if from.Process != "" {
		what = "process " + from.Process
	}
	return caller{p, event.WithCaller(ctx, callerText(s.session, what)), nil, what}, func() {}
}

// mayCall returns why a caller must not call a tool of a server, by the server's own name; nil: nothing is known
// against it, though rules may ask, or have a limit. No server is started for it.
func (s *sandbox) mayCall(who caller, server, name string) error {
	session := s.session
	if who.run != nil {
		session = ""
		if policy.InScope(who.run.principal, policy.MCPCall) && !policy.InScope(who.principal, policy.MCPCall) {
			return fault.New(fault.Forbidden, "a token without %s has run something in this session, and what that "+
				"may have left in an interpreter cannot be told apart from this code", policy.MCPCall).
				With("scope", string(who.principal.Scope)).
				Advise("Call the tool from execute_command, or from code in a session of its own")
		}
	}
	return s.calls.Door.MayCall(who.ctx, session, who.principal, server, name)
}

// client is the client of a run for one of its calls of tools.
type client struct {
	tool.Client
	questions chan struct{}
	// progress gets a line of text for each notification of progress.
	progress func(string)
}

// Retries implements tool.Client: code cannot make its call again with the answer.
func (c client) Retries() bool { return false }

// Notify implements tool.Client. The progress of a tool is no number for the progress of the run.
func (c client) Notify(method string, params json.RawMessage) {
	if method != "notifications/progress" {
		c.Client.Notify(method, params)
		return
	}
	var p struct {
		Progress, Total float64
		Message         string
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	if p.Message == "" && p.Total > 0 {
		p.Message = fmt.Sprintf("%g of %g", p.Progress, p.Total)
	}
	if p.Message != "" {
		c.progress(p.Message)
	}
}

// Ask implements tool.Client. A person is asked one thing at a time, however many calls a run makes at once.
func (c client) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	select {
	case c.questions <- struct{}{}:
		defer func() { <-c.questions }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return c.Client.Ask(ctx, method, params)
}

// sandbox is a session's sandbox, whose programs may call tools. It implements agent.Tools.
type sandbox struct {
	calls   *Calls
	owner   auth.Principal
	session string
	shared  *owned
	agent   Agent
	slots   chan struct{} // held by the calls under way
	conns   atomic.Int64

	treeMu  sync.Mutex
	tree    map[string]file // that it has, by path; nil: not known
	pending chan struct{}   // closed when the tree has what it is to have; nil: it has
	again   bool            // that has changed since it was asked for
	had     bool            // it has, or had, a tree
	failed  bool            // the tree could not be sent
	never   bool            // its agent knows of no tree
}

// Agent is the agent of a sandbox.
type Agent interface {
	SetTools(agent.Tools)
	UpdateTools(ctx context.Context, files []agent.ToolFile, removed []string, complete bool) error
	OnEnd(f func())
}

// AttachClient is Attach for the client of an agent.
func (cs *Calls) AttachClient(owner, session string, c *agent.Client, used bool) {
	cs.Attach(owner, session, c, used)
}

// Attach lets the programs of a session's sandbox call tools, until its agent's client is closed. A sandbox that was
// used before may have a tool tree already, which is that of another time.
func (cs *Calls) Attach(owner, session string, a Agent, used bool) {
	if cs == nil {
		return
	}
	s := &sandbox{calls: cs, owner: auth.OnBehalfOf(owner), session: session, agent: a,
		slots: make(chan struct{}, maxCalls), had: used}
	cs.mu.Lock()
	cs.sandboxes[session] = s
	if cs.owners[owner] == nil {
		cs.owners[owner] = &owned{boxes: map[*sandbox]bool{}, budget: newBudget(), making: make(chan struct{}, 1)}
	}
	s.shared = cs.owners[owner]
	s.shared.boxes[s] = true
	s.shared.changes++ // also what nobody has said
	cs.mu.Unlock()
	a.SetTools(s)
	a.OnEnd(func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		delete(s.shared.boxes, s)
		if cs.sandboxes[session] == s {
			delete(cs.sandboxes, session)
			for other := range s.shared.boxes { // a restore that failed leaves the session the sandbox that it had
				if other.session == session {
					cs.sandboxes[session] = other
				}
			}
		}
		if len(s.shared.boxes) == 0 && cs.owners[owner] == s.shared {
			delete(cs.owners, owner)
		}
	})
	s.updateTree()
}
