// Package builtin implements Sandlot's own tools: they run code and commands, and manage the files,
// processes, ports and sessions of the caller's sandboxes, and third-party MCP servers.
package builtin

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/image"
	"sandlot/internal/once"
	"sandlot/internal/port"
	"sandlot/internal/registry"
	"sandlot/internal/servers"
	"sandlot/internal/session"
	"sandlot/internal/session/reason"
	"sandlot/internal/snapshot"
	"sandlot/internal/tool"
	"sandlot/internal/toolcall"
	"sandlot/internal/volume"
)

// Config is what the tools need.
type Config struct {
	Sessions *session.Sessions
	// Snapshots are the snapshots and copies of sessions.
	Snapshots *snapshot.Snapshots
	Ports     *port.Ports
	Calls     *toolcall.Calls
	// Connections are the third-party MCP servers; nil leaves out the tools for them.
	Connections *servers.Servers
	// Registries are the registries of third-party servers; nil leaves out the tool for them.
	Registries *registry.Registries
	// Connected reports whether a principal has tools of third-party servers, which code can call; nil: nobody has.
	Connected func(context.Context, auth.Principal) bool
	// Consent is the initial policy for agents that add third-party servers; see SetConsent.
	Consent tool.Policy
	// Templates returns all templates on offer. One that is not ready yet may have no languages.
	Templates func() []*image.Template
	Flavors   []image.Flavor
	// Volumes lists the shared folders and how full they are; nil: there are none.
	Volumes func() []volume.Usage
	// Timeout is the time limit of a call that sets none, MaxTimeout the highest that a call may set.
	Timeout, MaxTimeout time.Duration
	// MaxOutput is the maximum number of characters of each stream in a result.
	MaxOutput int
	// Events receives an event for each question to a user.
	Events *event.Stream
	// Labeled gives the text of execute_code the form with [stdout] and [stderr] headings.
	Labeled bool
	// TokenContext returns a context that is cancelled when the principal's token ends; nil: it never is.
	TokenContext func(context.Context, auth.Principal) (_ context.Context, release func())
	Log          *slog.Logger
}

// Tools implements tool.Source and tool.Reader.
type Tools struct {
	Config
	kinds   []kind
	byName  map[string]tool.Callable
	replies *once.Replies[reply]
	edits   turns

	current atomic.Pointer[descriptions]
	consent atomic.Pointer[tool.Policy]
}

// Close cancels the calls whose clients have disconnected, and waits for them.
func (t *Tools) Close() { t.replies.Close() }

// SetConsent sets whether users' agents may add third-party MCP servers from now
// on. A question that a user is being asked at the moment stays valid.
func (t *Tools) SetConsent(p tool.Policy) { t.consent.Store(&p) }

// Tools implements tool.Source. Nobody in particular (see hub.OwnTools) has no third-party servers, and starts none.
func (t *Tools) Tools(ctx context.Context, p auth.Principal) []tool.Tool {
	if p.ID != "" && t.Connected != nil && t.Connected(ctx, p) {
		return t.current.Load().connected()
	}
	return t.current.Load().list()
}

// Find implements tool.Source.
func (t *Tools) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	f, ok := t.byName[name]
	return f, ok
}

// SessionInput has the argument session_id, which most tools take.
type SessionInput struct {
	SessionID string `json:"session_id,omitempty"`
}

// target implements targeted.
func (in SessionInput) target(_ *Tools, c tool.Call, d *tool.Detail) {
	d.Session = session.OpenRequest{ID: in.SessionID}.Wanted(c.Principal)
}

func (in *SessionInput) pin(id string) { in.SessionID = id }

// Props implements tool.Describer.
func (SessionInput) Props() []tool.Prop {
	return []tool.Prop{{Name: "session_id", Description: "Which computer to use. Leave it out for your default one; " +
		"pass the session_id of an earlier result to go on there, \"new\" for a fresh one, \"home\" for your " +
		"persistent one."}}
}

// IdempotencyInput has the argument that makes a call safe to retry.
type IdempotencyInput struct {
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

func (in IdempotencyInput) key() string { return in.IdempotencyKey }

// Props implements tool.Describer.
func (IdempotencyInput) Props() []tool.Prop {
	return []tool.Prop{{Name: "idempotency_key", Description: "Any text. A second call with the same key within ten " +
		"minutes gets the first one's result instead of running again: pass one when you may retry."}}
}

// noInput is the input of tools that take no arguments.
type noInput struct{}

// timeout returns the time limit of a call whose argument timeout is seconds; 0: it was not given.
func (t *Tools) timeout(seconds int64) time.Duration {
	if seconds == 0 {
		return t.Timeout
	}
	return time.Duration(seconds) * time.Second
}

// openSession returns a lease on the session that the call names, which is created if necessary.
func (t *Tools) openSession(ctx context.Context, c tool.Call, a session.OpenRequest) (*session.Lease, error) {
	a.NewByDefault = c.NewSession
	l, err := t.Sessions.Open(tool.WithProgress(ctx, c.Progress), c.Principal, a)
	if err == nil {
		noteSession(ctx, c, l, a)
	}
	return l, err
}

// wantedSession returns the session that openSession opens for a call: an id, "home" or "new".
func wantedSession(c tool.Call, id string) string {
	return session.OpenRequest{ID: id, NewByDefault: c.NewSession}.Wanted(c.Principal)
}

// SessionOutput is the part of a result that describes the session of the call.
type SessionOutput struct {
	SessionID      string `json:"session_id" jsonschema:"Pass it in the next call to use the same computer."`
	SessionCreated bool   `json:"session_created" jsonschema:"Whether this call made the session."`
	Snapshot       string `json:"snapshot,omitempty"`
	Warnings
}

// Warnings report events of a session that the call did not cause.
type Warnings struct {
	Notice         string               `json:"notice,omitempty"`
	NetworkRefused []reason.RefusedHost `json:"network_refused,omitempty"`
	Advice         string               `json:"advice,omitempty"`
}

// Props implements tool.Describer.
func (Warnings) Props() []tool.Prop {
	return []tool.Prop{
		{Name: "notice", Description: "What happened before this call: what was lost when the session's sandbox had " +
			"to start again, or that the session was asleep."},
		{Name: "network_refused", Description: "What programs in the sandbox were not allowed to reach since the " +
			"last result. Only the operator can allow it."},
		{Name: "advice", Description: "How what was refused can be had."},
	}
}

func sessionOutput(l *session.Lease) SessionOutput {
	return SessionOutput{SessionID: l.ID(), SessionCreated: l.Created, Snapshot: l.Snapshot,
		Warnings: Warnings{Notice: l.Notice}}
}

// sessionResult returns the result of a call that used session l.
func sessionResult(l *session.Lease, fields any, blocks ...tool.Content) *tool.Result {
	return &tool.Result{Fields: fields, Session: l.ID(), Notice: l.Notice, Summary: summary(l), Content: blocks}
}

// textResult returns the result of a call without a session.
func textResult(fields any, text string) *tool.Result {
	return &tool.Result{Fields: fields, Content: []tool.Content{tool.Text(text)}}
}

// summary returns one line for the model: the session's id, and more.
func summary(l *session.Lease, more ...string) string {
	w := "session_id: " + l.ID()
	switch {
	case l.Created && l.IsHome(): // calls without session_id go there
		w += " (new: your home session)"
	case l.Created:
		w += " (a new session; pass it in the next call to go on here)"
	}
	if l.Snapshot != "" {
		w += "; snapshot before this call: " + l.Snapshot
	}
	for _, m := range more {
		if m != "" {
			w += "; " + m
		}
	}
	return w
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
