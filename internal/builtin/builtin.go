// Package builtin implements Sandlot's own tools: they run code and commands, and manage the files,
// processes, ports and sessions of the caller's sandboxes, and third-party MCP servers.
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
	// Connections are the third-party MCP servers; nil leaves out the tools for them.
	Connections *servers.Servers
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
	tools   []tool.Tool
	byName  map[string]tool.Callable // by name
	replies *once.Replies

	consent atomic.Pointer[tool.Policy]
}

// New returns the tools that c allows.
func New(c Config) *Tools {
	if c.Templates == nil {
		c.Templates = func() []*image.Template { return nil }
	}
	t := &Tools{Config: c, byName: map[string]tool.Callable{}, replies: once.New(c.TokenContext)}
	t.SetConsent(c.Consent)
	add(t, policy.CodeExecute, t.executeCodeTool(), retryable(t.replies, t.executeCode))
	add(t, policy.ShellExecute, t.executeCommandTool(), retryable(t.replies, t.executeCommand))
	add(t, policy.FileRead, readFileTool(), t.readFile)
	add(t, policy.FileWrite, writeFileTool(), t.writeFile)
	add(t, policy.FileList, listFilesTool(), t.listFiles)
	add(t, policy.ProcessList, listProcessesTool(), t.listProcesses)
	add(t, policy.ProcessRead, readProcessTool(), t.readProcess)
	add(t, policy.ProcessWrite, writeProcessTool(), t.writeProcess)
	add(t, policy.ProcessStop, stopProcessTool(), t.stopProcess)
	add(t, policy.PortExpose, exposePortTool(), t.exposePort)
	add(t, policy.PortClose, closePortTool(), t.closePort)
	add(t, policy.SessionList, getSessionsTool(), t.getSessions)
	add(t, policy.SessionStop, stopSessionTool(), t.stopSession)
	add(t, policy.VolumeList, getVolumePathTool(), t.getVolumePath)
	if c.Connections != nil {
		add(t, policy.ShellExecute, shellExecTool(), t.shellExec)
		add(t, policy.MCPConnect, connectExternalTool(), declineAsResult(t.connectExternal))
		add(t, policy.MCPInstall, installExternalTool(), declineAsResult(t.installExternal))
		add(t, policy.MCPList, listExternalTool(), t.listExternal)
		add(t, policy.MCPDisconnect, disconnectExternalTool(), t.disconnectExternal)
		add(t, policy.MCPRestart, restartExternalTool(), declineAsResult(t.restartExternal))
		add(t, policy.MCPLogs, externalLogsTool(), t.externalLogs)
	}
	alias := getVolumePathTool()
	alias.Name, alias.Alias = "get_volume_mappings", alias.Name
	add(t, policy.VolumeList, alias, t.getVolumePath)
	return t
}

// Close cancels the calls whose clients have disconnected, and waits for them.
func (t *Tools) Close() { t.replies.Close() }

// SetConsent sets whether users' agents may add third-party MCP servers from now
// on. A question that a user is being asked at the moment stays valid.
func (t *Tools) SetConsent(p tool.Policy) { t.consent.Store(&p) }

// Hints of tools that change nothing, and of tools that change something but have the same
// effect when they are called twice.
var (
	readOnlyHints   = tool.Hints{ReadOnly: true, Idempotent: true}
	idempotentHints = tool.Hints{Destructive: true, Idempotent: true}
)

// A handler runs the calls of a tool whose arguments are In.
type handler[In any] func(context.Context, tool.Call, In) (*tool.Result, error)

// add adds a tool. Policy sees its calls as operation o.
func add[In any](t *Tools, o policy.Operation, d tool.Tool, h handler[In]) {
	d.Operation = o
	t.tools = append(t.tools, d)
	t.byName[d.Name] = tool.Callable{Operation: o, Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		in, err := tool.Decode[In](d, c.Args)
		if err != nil {
			return nil, err
		}
		r, err := h(ctx, c, in)
		if err == nil {
			err = c.Reservation.CountAnswer(ctx, int64(r.Size()))
		}
		if err != nil {
			return nil, err
		}
		return r, nil
	}}
}

// retryable returns a handler that runs calls with the same idempotency key only once.
func retryable[In interface{ key() string }](replies *once.Replies, h handler[In]) handler[In] {
	return func(ctx context.Context, c tool.Call, in In) (*tool.Result, error) {
		return replies.Do(ctx, c, in.key(), func(ctx context.Context) (*tool.Result, error) { return h(ctx, c, in) })
	}
}

// Tools implements tool.Source.
func (t *Tools) Tools(context.Context, auth.Principal) []tool.Tool { return t.tools }

// Find implements tool.Source.
func (t *Tools) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	f, ok := t.byName[name]
	return f, ok
}

// SessionInput has the argument session_id, which most tools take.
type SessionInput struct {
	SessionID string `json:"session_id,omitempty"`
}

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

func (t *Tools) templateProp() tool.Prop {
	var names []string
	for _, template := range t.Templates() {
		names = append(names, template.Name)
		names = append(names, template.Provides...)
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
	return t.Sessions.Open(ctx, c.Principal, a)
}

// SessionOutput is the part of a result that describes the session of the call.
type SessionOutput struct {
	SessionID      string `json:"session_id" jsonschema:"Pass it in the next call to use the same computer."`
	SessionCreated bool   `json:"session_created" jsonschema:"Whether this call made the session."`
	Warnings
}

// Warnings report events of a session that the call did not cause.
type Warnings struct {
	Notice         string        `json:"notice,omitempty"`
	NetworkRefused []RefusedHost `json:"network_refused,omitempty"`
}

// Props implements tool.Describer.
func (Warnings) Props() []tool.Prop {
	return []tool.Prop{
		{Name: "notice", Description: "What was lost before this call, when the session's sandbox had to start again."},
		{Name: "network_refused", Description: "What programs in the sandbox were not allowed to reach since the " +
			"last result. Only the operator can allow it."},
	}
}

func sessionOutput(l *session.Lease) SessionOutput {
	return SessionOutput{SessionID: l.ID(), SessionCreated: l.Created, Warnings: Warnings{Notice: l.Notice}}
}

// sessionResult returns the result of a call that used session l.
func sessionResult(l *session.Lease, fields any, blocks ...tool.Content) *tool.Result {
	return &tool.Result{Fields: fields, Session: l.ID(), Summary: summary(l), Content: append(notice(l), blocks...)}
}

// textResult returns the result of a call without a session.
func textResult(fields any, text string) *tool.Result {
	return &tool.Result{Fields: fields, Content: []tool.Content{tool.Text(text)}}
}

// summary returns one line for the model: the session's id, and more.
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

// notice returns a text block that says what the session has lost, or nil.
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
