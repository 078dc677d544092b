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
	Sessions *session.Book
	Ports    *port.Book
	// Connections are third-party MCP servers; without it there are none.
	Connections *servers.Book
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
	once  *replies

	policy atomic.Pointer[tool.Policy]
}

type handler func(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error)

// New returns the tools.
func New(c Config) *Tools {
	t := &Tools{Config: c, found: map[string]tool.Found{}, once: newReplies()}
	if c.Hold != nil {
		t.once.hold = c.Hold
	}
	t.SetConsent(c.Consent)
	t.add(policy.CodeExecute, t.executeCode(), t.runCode)
	t.add(policy.ShellExecute, t.executeCommand(), t.runCommand)
	t.add(policy.FileRead, readFile(), t.read)
	t.add(policy.FileWrite, writeFile(), t.write)
	t.add(policy.FileList, listFiles(), t.files)
	t.add(policy.ProcessList, listProcesses(), t.processes)
	t.add(policy.ProcessRead, readProcess(), t.readOutput)
	t.add(policy.ProcessWrite, writeProcess(), t.writeInput)
	t.add(policy.ProcessStop, stopProcess(), t.stop)
	t.add(policy.PortExpose, exposePort(), t.expose)
	t.add(policy.PortClose, closePort(), t.closePort)
	t.add(policy.SessionList, getSessions(), t.sessions)
	t.add(policy.SessionStop, stopSession(), t.end)
	t.add(policy.VolumeList, getVolumePath(), t.volumes)
	if c.Connections != nil {
		t.add(policy.ShellExecute, shellExec(), t.shell)
		t.add(policy.MCPConnect, connectExternal(), declinable(t.connect))
		t.add(policy.MCPInstall, installExternal(), declinable(t.installAndConnect))
		t.add(policy.MCPList, listExternal(), t.listConnections)
		t.add(policy.MCPDisconnect, disconnectExternal(), t.disconnect)
		t.add(policy.MCPRestart, restartExternal(), declinable(t.restart))
		t.add(policy.MCPLogs, externalLogs(), t.externalLog)
	}
	alias := getVolumePath()
	alias.Name, alias.Alias = "get_volume_mappings", alias.Name
	t.add(policy.VolumeList, alias, t.volumes)
	return t
}

// SetConsent says whether users' agents may add third-party MCP servers from now
// on. A user who is being asked at this moment decides all the same.
func (t *Tools) SetConsent(p tool.Policy) { t.policy.Store(&p) }

// add adds a tool, whose calls are that operation.
func (t *Tools) add(o policy.Operation, d tool.Tool, h handler) {
	d.Operation = o
	t.list = append(t.list, d)
	t.found[d.Name] = tool.Found{Operation: o, Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		args, err := d.Parse(c.Args)
		if err != nil {
			return nil, err
		}
		r, err := h(ctx, c, args)
		if err == nil {
			err = c.Held.Made(ctx, weight(r))
		}
		if err != nil {
			return nil, err
		}
		return r, nil
	}}
}

// Tools implements tool.Source.
func (t *Tools) Tools(context.Context, auth.Principal) []tool.Tool { return t.list }

// Find implements tool.Source.
func (t *Tools) Find(_ auth.Principal, name string) (tool.Found, bool) {
	f, ok := t.found[name]
	return f, ok
}

// Parameters that many tools have.

func sessionParam() tool.Param {
	return tool.Param{Name: "session_id", Type: tool.String,
		Description: `Which computer to use. Leave it out for your default one; pass the session_id of an earlier result to go on there, "new" for a fresh one, "home" for your persistent one.`}
}

func (t *Tools) templateParam() tool.Param {
	var names []string
	for _, tm := range t.Templates {
		names = append(names, tm.Name)
		names = append(names, tm.Provides...)
	}
	slices.Sort(names)
	return tool.Param{Name: "template", Type: tool.String,
		Description: "What the session must provide: " + strings.Join(slices.Compact(names), ", ") + ". Only needed for a new session, or to say the language: python or node."}
}

func (t *Tools) flavorParam() tool.Param {
	var names, sizes []string
	for _, f := range t.Flavors {
		names = append(names, f.Name)
		sizes = append(sizes, f.String())
	}
	return tool.Param{Name: "flavor", Type: tool.String, Enum: names,
		Description: "How large a new session is: " + strings.Join(sizes, ", ") + "."}
}

func (t *Tools) timeoutParam() tool.Param {
	return tool.Param{Name: "timeout", Type: tool.Integer, Default: int(t.Timeout.Seconds()),
		Description: "Seconds after which it is stopped. What was printed until then is returned, with exit code 124. In the background there is no limit unless this gives one."}.
		Range(1, t.MaxTimeout.Seconds())
}

func keyParam() tool.Param {
	return tool.Param{Name: "idempotency_key", Type: tool.String,
		Description: "Any text. A second call with the same key within ten minutes gets the first one's result instead of running again: pass one when you may retry."}
}

func (t *Tools) timeout(a tool.Args) time.Duration {
	return time.Duration(a.Int("timeout", int64(t.Timeout.Seconds()))) * time.Second
}

// open returns the session that the call asks for.
func (t *Tools) open(ctx context.Context, c tool.Call, a tool.Args) (*session.Lease, error) {
	return t.Sessions.Open(ctx, c.Principal, session.Ask{ID: a.Text("session_id"), Template: a.Text("template"),
		Flavor: a.Text("flavor"), Fresh: c.Fresh})
}

// where is what every result of a session says.
func where(l *session.Lease) map[string]any {
	f := map[string]any{"session_id": l.ID(), "session_created": l.Created}
	if l.Notice != "" {
		f["notice"] = l.Notice
	}
	return f
}

// words repeats where, and what else there is to say.
func words(l *session.Lease, more ...string) string {
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

func outputSchema(required []string, fields map[string]any) map[string]any {
	if _, ok := fields["session_id"]; ok {
		fields["notice"] = typed("string", "What was lost before this call, when the session's sandbox had to start again.")
		fields["network_refused"] = map[string]any{"type": "array", "description": "What programs in the sandbox were not allowed to reach since the last result. Only the operator can allow it.",
			"items": map[string]any{"type": "object", "properties": map[string]any{"host": typed("string", "Name or address."),
				"port": typed("integer", "0 when it was only looked up."), "reason": typed("string", "Why."), "times": typed("integer", "How often.")}}}
	}
	return map[string]any{"type": "object", "properties": fields, "required": required}
}

func typed(kind, description string) map[string]any {
	return map[string]any{"type": kind, "description": description}
}

func sessionFields(more map[string]any) map[string]any {
	f := map[string]any{
		"session_id":      typed("string", "Pass it in the next call to use the same computer."),
		"session_created": typed("boolean", "Whether this call made the session."),
	}
	for k, v := range more {
		f[k] = v
	}
	return f
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func plural(n int, one, many string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", one)
	}
	return fmt.Sprintf("%d %s", n, many)
}
