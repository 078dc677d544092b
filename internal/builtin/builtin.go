// Package builtin gives Sandlot's own tools: code, commands, files, processes,
// ports and sessions of the caller's sandboxes, and third-party MCP servers.
package builtin

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/builtin/once"
	"sandlot/internal/event"
	"sandlot/internal/image"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/servers"
	"sandlot/internal/session"
	"sandlot/internal/tool"
	"sandlot/internal/volume"
)

// Config is what the tools need.
type Config struct {
	Sessions *session.Sessions
	Ports    *port.Ports
	// Connections are third-party MCP servers; without it there are none.
	Connections *servers.Servers
	// Consent says at first whether users' agents may add them; see SetConsent.
	Consent   tool.Policy
	Templates []*image.Template
	Flavors   []image.Flavor
	// Volumes lists the shared folders, and how full they are; nil: none.
	Volumes func() []volume.Usage
	// Timeout is a call's time when it names none, MaxTimeout the most it may name.
	Timeout, MaxTimeout time.Duration
	// MaxOutput is how many characters of each stream a result holds.
	MaxOutput int
	// Events are told of what users were asked.
	Events *event.Stream
	// Labeled: the text of execute_code has the [stdout] form.
	Labeled bool
	// Hold returns a context that ends with the principal's token; nil: none ends.
	Hold func(context.Context, auth.Principal) (_ context.Context, release func())
	Log  *slog.Logger
}

// Tools implements tool.Source and tool.Reader.
type Tools struct {
	Config
	list  []tool.Tool
	found map[string]tool.Found // by name
	once  *once.Replies

	policy atomic.Pointer[tool.Policy]
}

// New returns the tools.
func New(c Config) *Tools {
	t := &Tools{Config: c, found: map[string]tool.Found{}, once: once.New(c.Hold)}
	t.SetConsent(c.Consent)
	add(t, policy.CodeExecute, t.executeCode(), retryable(t.once, t.runCode))
	add(t, policy.ShellExecute, t.executeCommand(), retryable(t.once, t.runCommand))
	add(t, policy.FileRead, readFile(), t.read)
	add(t, policy.FileWrite, writeFile(), t.write)
	add(t, policy.FileList, listFiles(), t.files)
	add(t, policy.ProcessList, listProcesses(), t.processes)
	add(t, policy.ProcessRead, readProcess(), t.readOutput)
	add(t, policy.ProcessWrite, writeProcess(), t.writeInput)
	add(t, policy.ProcessStop, stopProcess(), t.stop)
	add(t, policy.PortExpose, exposePort(), t.expose)
	add(t, policy.PortClose, closePort(), t.closePort)
	add(t, policy.SessionList, getSessions(), t.sessions)
	add(t, policy.SessionStop, stopSession(), t.end)
	add(t, policy.VolumeList, getVolumePath(), t.volumes)
	if c.Connections != nil {
		add(t, policy.ShellExecute, shellExec(), t.shell)
		add(t, policy.MCPConnect, connectExternal(), declinable(t.connect))
		add(t, policy.MCPInstall, installExternal(), declinable(t.installAndConnect))
		add(t, policy.MCPList, listExternal(), t.listConnections)
		add(t, policy.MCPDisconnect, disconnectExternal(), t.disconnect)
		add(t, policy.MCPRestart, restartExternal(), declinable(t.restart))
		add(t, policy.MCPLogs, externalLogs(), t.externalLog)
	}
	alias := getVolumePath()
	alias.Name, alias.Alias = "get_volume_mappings", alias.Name
	add(t, policy.VolumeList, alias, t.volumes)
	return t
}

// Close ends the calls that go on without a client, and waits for them.
func (t *Tools) Close() { t.once.Close() }

// SetConsent says whether users' agents may add third-party MCP servers from now
// on. A user who is being asked at this moment decides all the same.
func (t *Tools) SetConsent(p tool.Policy) { t.policy.Store(&p) }

// Hints of tools that change nothing, and of those that may be called twice with the
// same end.
var (
	reads    = tool.Hints{ReadOnly: true, Idempotent: true}
	replaces = tool.Hints{Destructive: true, Idempotent: true}
)

// handler runs the calls of a tool with those arguments.
type handler[In any] func(context.Context, tool.Call, In) (*tool.Result, error)

// add adds a tool, whose calls are that operation.
func add[In any](t *Tools, o policy.Operation, d tool.Tool, h handler[In]) {
	d.Operation = o
	t.list = append(t.list, d)
	t.found[d.Name] = tool.Found{Operation: o, Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		in, err := tool.Decode[In](d, c.Args)
		if err != nil {
			return nil, err
		}
		r, err := h(ctx, c, in)
		if err == nil {
			err = c.Held.Made(ctx, int64(r.Size()))
		}
		if err != nil {
			return nil, err
		}
		return r, nil
	}}
}

// retryable runs calls with the same idempotency key once.
func retryable[In interface{ key() string }](replies *once.Replies, h handler[In]) handler[In] {
	return func(ctx context.Context, c tool.Call, in In) (*tool.Result, error) {
		return replies.Do(ctx, c, in.key(), func(ctx context.Context) (*tool.Result, error) { return h(ctx, c, in) })
	}
}

// Tools implements tool.Source.
func (t *Tools) Tools(context.Context, auth.Principal) []tool.Tool { return t.list }

// Find implements tool.Source.
func (t *Tools) Find(_ auth.Principal, name string) (tool.Found, bool) {
	f, ok := t.found[name]
	return f, ok
}

// Arguments that many tools have.

// SessionInput are the arguments of a tool that takes a session alone.
type SessionInput struct {
	SessionID string `json:"session_id,omitempty"`
}

// Props implements tool.Described.
func (SessionInput) Props() []tool.Prop {
	return []tool.Prop{{Name: "session_id", Description: "Which computer to use. Leave it out for your default one; " +
		"pass the session_id of an earlier result to go on there, \"new\" for a fresh one, \"home\" for your " +
		"persistent one."}}
}

// KeyInput is the argument by which a client may try again.
type KeyInput struct {
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

func (in KeyInput) key() string { return in.IdempotencyKey }

// Props implements tool.Described.
func (KeyInput) Props() []tool.Prop {
	return []tool.Prop{{Name: "idempotency_key", Description: "Any text. A second call with the same key within ten " +
		"minutes gets the first one's result instead of running again: pass one when you may retry."}}
}

// nothing is for tools that take no arguments.
type nothing struct{}

func (t *Tools) templateProp() tool.Prop {
	var names []string
	for _, tm := range t.Templates {
		names = append(names, tm.Name)
		names = append(names, tm.Provides...)
	}
	slices.Sort(names)
	return tool.Prop{Name: "template", Description: "What the session must provide: " +
		strings.Join(slices.Compact(names), ", ") + ". Only needed for a new session, or to say the language: " +
		"python or node."}
}

func (t *Tools) flavorProp() tool.Prop {
	var names, sizes []string
	for _, f := range t.Flavors {
		names = append(names, f.Name)
		sizes = append(sizes, f.String())
	}
	return tool.Prop{Name: "flavor", Enum: names,
		Description: "How large a new session is: " + strings.Join(sizes, ", ") + "."}
}

func (t *Tools) timeoutProp() tool.Prop {
	return tool.Prop{Name: "timeout", Default: int(t.Timeout.Seconds()),
		Description: "Seconds after which it is stopped. What was printed until then is returned, with exit code " +
			"124. In the background there is no limit unless this gives one."}.
		Range(1, t.MaxTimeout.Seconds())
}

// timeout is the time of a call that names so many seconds; 0: it names none.
func (t *Tools) timeout(seconds int64) time.Duration {
	if seconds == 0 {
		return t.Timeout
	}
	return time.Duration(seconds) * time.Second
}

// open returns the session that the call asks for.
func (t *Tools) open(ctx context.Context, c tool.Call, a session.Ask) (*session.Lease, error) {
	a.Fresh = c.Fresh
	return t.Sessions.Open(ctx, c.Principal, a)
}

// Place is what results of a session say of it.
type Place struct {
	SessionID      string `json:"session_id" jsonschema:"Pass it in the next call to use the same computer."`
	SessionCreated bool   `json:"session_created" jsonschema:"Whether this call made the session."`
	Warnings
}

// Warnings say what happened to a session beside the call.
type Warnings struct {
	Notice         string    `json:"notice,omitempty"`
	NetworkRefused []Refused `json:"network_refused,omitempty"`
}

// Props implements tool.Described.
func (Warnings) Props() []tool.Prop {
	return []tool.Prop{
		{Name: "notice", Description: "What was lost before this call, when the session's sandbox had to start again."},
		{Name: "network_refused", Description: "What programs in the sandbox were not allowed to reach since the " +
			"last result. Only the operator can allow it."},
	}
}

func placeOf(l *session.Lease) Place {
	return Place{SessionID: l.ID(), SessionCreated: l.Created, Warnings: Warnings{Notice: l.Notice}}
}

// sessionResult is a result of a session.
func sessionResult(l *session.Lease, fields any, blocks ...tool.Content) *tool.Result {
	return &tool.Result{Fields: fields, Session: l.ID(), Words: summary(l), Content: append(notice(l), blocks...)}
}

// textResult is a result without a session: fields and a text.
func textResult(fields any, text string) *tool.Result {
	return &tool.Result{Fields: fields, Content: []tool.Content{tool.Text(text)}}
}

// summary is the session of a result, and what else a model needs, in one line.
func summary(l *session.Lease, more ...string) string {
	w := "session_id: " + l.ID()
	if l.Created {
		w += " (a new session; pass it in the next call to go on here)"
	}
	for _, m := range more {
		if m != "" {
			w += "; " + m
		}
	}
	return w
}

// notice returns the block that tells what was lost, if anything was.
func notice(l *session.Lease) []tool.Content {
	if l.Notice == "" {
		return nil
	}
	return []tool.Content{tool.Text(l.Notice)}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func plural(n int, one, many string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", one)
	}
	return fmt.Sprintf("%d %s", n, many)
}
