package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/plural"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/tool"
)

type shellInput struct {
	Command string `json:"command" jsonschema:"The command line."`
	Cwd     string `json:"cwd,omitempty" jsonschema:"The directory to start in."`
	Timeout int64  `json:"timeoutMs,omitempty" jsonschema:"Milliseconds after which it is stopped."`
}

// detail implements detailed.
func (in shellInput) detail() string { return in.Command }

// target implements targeted.
func (shellInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Session = "home" }

// ShellResult is the result of sandbox_shell_exec.
type ShellResult struct {
	Streams
	ExitCode  int    `json:"exitCode" jsonschema:"124 when the time was over; 128+n after signal n."`
	Stdout    string `json:"stdout" jsonschema:"Standard output."`
	Stderr    string `json:"stderr" jsonschema:"Standard error."`
	TimedOut  bool   `json:"timedOut" jsonschema:"Whether it was stopped for its time."`
	SessionID string `json:"session_id" jsonschema:"The home session."`
	Warnings
}

func (t *Tools) shellExec(ctx context.Context, c tool.Call, in shellInput) (*tool.Result, error) {
	if strings.TrimSpace(in.Command) == "" {
		return nil, fault.Argument("command", "argument \"command\" is empty")
	}
	l, err := t.Sessions.Wake(ctx, c.Principal, "home")
	if err != nil {
		return nil, err
	}
	defer l.Release()
	timeout := min(time.Duration(cmp.Or(in.Timeout, 60000))*time.Millisecond, t.MaxTimeout)
	cmd := Command(l.Booted.Template, in.Command, nil, false)
	cmd.Dir = in.Cwd
	d, err := t.execute(ctx, l, c, agent.Exec{Command: cmd, Timeout: timeout})
	if err != nil {
		return nil, addContext(err, fault.CommandExecution, map[string]any{"command": in.Command, "session_id": l.ID()})
	}
	stdout, stderr := renderStream(l, "stdout", d.Stdout), renderStream(l, "stderr", d.Stderr)
	fields := &ShellResult{ExitCode: d.ExitCode, Stdout: stdout.data, Stderr: stderr.data, TimedOut: d.TimedOut,
		SessionID: l.ID()}
	r := sessionResult(l, fields)
	fields.Streams, _ = addOutputs(l, r, d, timeout, stdout, stderr)
	fields.warn(l, r, in.Command, stdout.text, stderr.text)
	r.Summary = fmt.Sprintf("exitCode: %d", d.ExitCode)
	return r, nil
}

// ConnectInput are the arguments of connect_external_mcp.
type ConnectInput struct {
	Name      string            `json:"name"`
	Command   string            `json:"command,omitempty"`
	Args      []string          `json:"args,omitempty" jsonschema:"Its arguments, each as it is."`
	Env       map[string]string `json:"env,omitempty"`
	Cwd       string            `json:"cwd,omitempty" jsonschema:"The directory that it starts in."`
	URL       string            `json:"url,omitempty" jsonschema:"A remote server's address, in place of command."`
	Transport string            `json:"transport,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
}

func (in ConnectInput) serverName() string { return in.Name }

// detail implements detailed.
func (in ConnectInput) detail() string {
	if in.URL != "" {
		return policy.ServerName(in.Name) + " " + policy.Address(in.URL)
	}
	return policy.ServerName(in.Name) + " " + policy.ServerVariables(in.Env) +
		policy.ServerCommand(append([]string{in.Command}, in.Args...))
}

// target implements targeted.
func (in ConnectInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Server = in.Name }

// Server is a third-party server in the results for its owner.
type Server struct {
	ConnectionID  string       `json:"connectionId"`
	Name          string       `json:"name"`
	ToolCount     int          `json:"toolCount"`
	Tools         []ServerTool `json:"tools"`
	PromptCount   int          `json:"promptCount"`
	ResourceCount int          `json:"resourceCount"` // including resource templates
	EnvKeys       []string     `json:"envKeys"`
	EnvStored     bool         `json:"envStored"` // always false
	State         string       `json:"state"`
	Secrets       []string     `json:"secrets,omitempty"` // names of the stored secrets that the server gets
	HeldTools     []HeldTool   `json:"heldTools,omitempty"`
	AuthURL       string       `json:"authUrl,omitempty"` // where its user logs in
	LeftOut       []string     `json:"leftOut,omitempty"` // definitions and parts of them that clients could not read
}

// ServerTool has both names of a third-party server's tool.
type ServerTool struct {
	Name   string `json:"toolName"` // by which Sandlot's clients call it
	Remote string `json:"remoteName"`
}

// HeldTool is a tool that is held back until a person approves it.
type HeldTool struct {
	ServerTool
	Reason string `json:"reason"`
}

// Connected is the result of the tools that connect a server.
type Connected struct {
	Server
	Success    bool       `json:"success"`
	Runs       string     `json:"runs"`                 // the command line, or the URL
	InstallLog *string    `json:"installLog,omitempty"` // empty: it worked
	Installed  *Installed `json:"installed,omitempty"`
}

// Installed is what was installed, and how.
type Installed struct {
	Type     string   `json:"type"` // npm, pip or git
	Spec     string   `json:"spec"`
	Version  string   `json:"version"`
	Folder   string   `json:"folder"`
	Commands []string `json:"commands"`
	Seconds  float64  `json:"seconds"`
}

func (t *Tools) connectExternal(ctx context.Context, c tool.Call, in ConnectInput) (*tool.Result, error) {
	i, err := t.Connections.Connect(ctx, c.Principal, spec.ConnectRequest{Name: in.Name, Kind: spec.Kind(in.Transport),
		Command: in.Command, Args: in.Args, Cwd: in.Cwd,
		URL: in.URL, Env: in.Env, Headers: in.Headers, Consent: t.consentFor(c)})
	if err != nil {
		return nil, err
	}
	r, _ := connectResult(i)
	return r, nil
}

// connectResult returns the result for a server that was connected, and its fields.
func connectResult(i servers.Info) (*tool.Result, *Connected) {
	runs := commandOrURL(i)
	fields := &Connected{Server: serverOf(i), Success: i.State != state.NeedsAuth, Runs: runs}
	var b strings.Builder
	switch {
	case i.AuthURL != "":
		fmt.Fprintf(&b, "%s (connection %s) wants its user to log in. Open this in a browser, and use it "+
			"after that:\n%s", i.Name, i.ID, i.AuthURL)
	default:
		fmt.Fprintf(&b, "%s is connected (connection %s), running %s.\n%s:", i.Name, i.ID, runs,
			plural.Of(len(i.Tools), "tool", "tools"))
		for _, n := range i.Tools {
			fmt.Fprintf(&b, "\n- %s", n.Exposed)
		}
		if n := i.Prompts; n > 0 {
			fmt.Fprintf(&b, "\n%s", plural.Of(n, "prompt", "prompts"))
		}
		if n := i.Resources; n > 0 {
			fmt.Fprintf(&b, "\n%s", plural.Of(n, "resource", "resources"))
		}
		writeHeldTools(&b, i)
		writeLeftOut(&b, i)
	}
	r := textResult(fields, b.String())
	r.Summary = "connectionId: " + i.ID
	return r, fields
}

func writeHeldTools(b *strings.Builder, i servers.Info) {
	if len(i.Held) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s held back until a person approves with `sandlot mcp approve %s`:",
		plural.Of(len(i.Held), "tool is", "tools are"), i.ID)
	for _, n := range i.Held {
		fmt.Fprintf(b, "\n- %s: %s", fault.Name(n.Remote, 256), n.Why)
	}
}

// maxLeftOut is how many omissions the result of connecting names.
const maxLeftOut = 5

// writeLeftOut says what of a server's definitions is not offered.
func writeLeftOut(b *strings.Builder, i servers.Info) {
	if len(i.Omissions) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s left out, since clients could not read them:", plural.Of(i.LeftOut, "definition is", "definitions are"))
	for _, o := range i.Omissions[:min(len(i.Omissions), maxLeftOut)] {
		fmt.Fprintf(b, "\n- %s", fault.Name(o, 512))
	}
	if len(i.Omissions) > maxLeftOut {
		fmt.Fprintf(b, "\n- and more: `sandlot mcp inspect %s`", i.ID)
	}
}

// commandOrURL returns the exact command line of a server, or its URL.
func commandOrURL(i servers.Info) string {
	if i.Configured {
		return "by the operator's settings"
	}
	if i.Kind != spec.Stdio {
		return i.URL
	}
	line := spec.CommandLine(append([]string{i.Command}, i.Args...))
	return fmt.Sprintf("%s (in %s of your home session)", line, cmp.Or(i.Cwd, "/workspace"))
}

func serverOf(i servers.Info) Server {
	s := Server{ConnectionID: i.ID, Name: i.Name, ToolCount: len(i.Tools), Tools: []ServerTool{},
		PromptCount: i.Prompts, ResourceCount: i.Resources,
		EnvKeys: append([]string{}, i.EnvKeys...), State: string(i.State), Secrets: i.Secrets, AuthURL: i.AuthURL,
		LeftOut: i.Omissions[:min(len(i.Omissions), maxLeftOut)]}
	for _, n := range i.Tools {
		s.Tools = append(s.Tools, ServerTool{Name: n.Exposed, Remote: n.Remote})
	}
	for _, n := range i.Held {
		s.HeldTools = append(s.HeldTools, HeldTool{ServerTool{Name: n.Exposed, Remote: n.Remote}, n.Why})
	}
	return s
}

// InstallInput are the arguments of auto_install_and_connect_mcp.
type InstallInput struct {
	Name    string            `json:"name"`
	Install InstallSource     `json:"install"`
	Start   InstallCommand    `json:"start,omitzero"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
}

// InstallSource names the package or repository to install.
type InstallSource struct {
	Type   string `json:"type"`
	Spec   string `json:"spec"`
	SHA256 string `json:"sha256,omitempty"`
}

// InstallCommand is the command that starts the server; empty: the only program of the package.
type InstallCommand struct {
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
}

func (in InstallInput) serverName() string { return in.Name }

// detail implements detailed.
func (in InstallInput) detail() string {
	text := policy.ServerName(in.Name) + " " + policy.ServerVariables(in.Env) + in.Install.Type + ":" +
		strings.ReplaceAll(strings.TrimSpace(in.Install.Spec), " ", "%20")
	if in.Start.Command != "" || len(in.Start.Args) > 0 {
		text += " " + policy.ServerCommand(append([]string{in.Start.Command}, in.Start.Args...))
	}
	return text
}

// target implements targeted.
func (in InstallInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Server = in.Name }

func (t *Tools) installExternal(ctx context.Context, c tool.Call, in InstallInput) (*tool.Result, error) {
	if t.Sessions != nil {
		if err := t.Sessions.DiskReached(c.Principal.ID); err != nil {
			return nil, err
		}
	}
	request := spec.ConnectRequest{Name: in.Name, Command: in.Start.Command, Args: in.Start.Args, Env: in.Env,
		Consent: t.consentFor(c)}
	result, err := t.Connections.Install(ctx, c.Principal, install.Request{Type: in.Install.Type, Spec: in.Install.Spec,
		SHA256: in.Install.SHA256, Workdir: in.Workdir, ConnectRequest: request, Progress: c.Progress})
	if err != nil {
		f := fault.From(err)
		if f.Kind != fault.CommandExecution || result.Log == "" {
			return nil, err
		}
		// The installer's output goes into the result: the agent can act on it.
		r := textResult(&NotConnected{Name: in.Name, Tools: []ServerTool{}, InstallLog: result.Log, Error: f.Error()},
			f.Error()+"\n\n"+result.Log)
		r.IsError = true
		return r, nil
	}
	r, fields := connectResult(result.Info)
	installed := &Installed{Type: in.Install.Type, Spec: in.Install.Spec, Commands: result.Commands,
		Seconds: result.Took.Round(100 * time.Millisecond).Seconds()}
	if i := result.Install; i != nil { // nil if another call has replaced the connection since
		installed.Version, installed.Folder = i.Version, i.Folder
	}
	fields.InstallLog, fields.Installed = new(string), installed
	text := fmt.Sprintf("Installed %s %s into %s", installed.Spec, installed.Version, installed.Folder)
	r.Content = append([]tool.Content{tool.Text(text)}, r.Content...)
	return r, nil
}

// ServerList is the result of list_external_mcp.
type ServerList struct {
	Servers []ServerRow `json:"connections"`
}

// ServerRow is a server in a list.
type ServerRow struct {
	Server
	ID         string          `json:"id"`
	Command    string          `json:"command"`
	Args       []string        `json:"args"`
	Created    string          `json:"createdAt"`
	Updated    string          `json:"updatedAt"`
	LastError  string          `json:"lastError"`
	Transport  string          `json:"transport"`
	Configured bool            `json:"configured"` // by the operator
	Restarts   int             `json:"restarts"`
	Calls      int             `json:"calls"`
	Latency    *Latency        `json:"latencyMs,omitempty"` // of its last calls
	URL        string          `json:"url,omitempty"`
	Version    string          `json:"protocolVersion,omitempty"`
	ServerInfo json.RawMessage `json:"serverInfo,omitempty"`
	Install    *spec.Install   `json:"install,omitempty"`
}

// Latency is how long calls took, in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

func (t *Tools) listExternal(_ context.Context, c tool.Call, _ noInput) (*tool.Result, error) {
	rows := []ServerRow{}
	var b strings.Builder
	for _, i := range t.Connections.List(c.Principal) {
		rows = append(rows, serverRow(i))
		fmt.Fprintf(&b, "%s  %s  %s, %s", i.ID, i.Name, i.State, plural.Of(len(i.Tools), "tool", "tools"))
		if i.Prompts+i.Resources > 0 {
			fmt.Fprintf(&b, ", %s, %s", plural.Of(i.Prompts, "prompt", "prompts"),
				plural.Of(i.Resources, "resource", "resources"))
		}
		if i.LastError != "" {
			fmt.Fprintf(&b, ": %s", strings.ReplaceAll(fault.Printable(i.LastError, 4096), "\n", "\n    "))
		}
		writeHeldTools(&b, i)
		b.WriteByte('\n')
	}
	if len(rows) == 0 {
		b.WriteString("No MCP servers are connected. auto_install_and_connect_mcp installs one.")
	}
	return textResult(&ServerList{Servers: rows}, strings.TrimRight(b.String(), "\n")), nil
}

func serverRow(i servers.Info) ServerRow {
	row := ServerRow{Server: serverOf(i), ID: i.ID, Command: i.Command, Args: append([]string{}, i.Args...),
		Created: formatTime(i.Created), Updated: formatTime(i.Updated),
		LastError: i.LastError, Transport: string(i.Kind), Configured: i.Configured, Restarts: i.Restarts,
		Calls: i.Calls, URL: i.URL, Version: i.Version,
		ServerInfo: i.Server, Install: i.Install}
	if i.Calls > 0 {
		row.Latency = &Latency{P50: millis(i.P50), P95: millis(i.P95)}
	}
	return row
}

// ServerInput has the arguments that select a server: its connection's id or its name.
type ServerInput struct {
	ConnectionID string `json:"connectionId,omitempty" jsonschema:"The connection's id."`
	Name         string `json:"name,omitempty" jsonschema:"Or its name."`
}

func (in ServerInput) serverName() string { return in.Name }

func (in ServerInput) nameOrID() (string, error) {
	if (in.ConnectionID == "") == (in.Name == "") {
		return "", fault.Argument("connectionId", "give connectionId or name, one of them")
	}
	return cmp.Or(in.ConnectionID, in.Name), nil
}

// target implements targeted.
func (in ServerInput) target(t *Tools, c tool.Call, d *tool.Detail) {
	if server, err := in.nameOrID(); err == nil {
		d.Server = t.Connections.NameOf(c.Principal, server)
	}
}

// DisconnectInput are the arguments of disconnect_external_mcp.
type DisconnectInput struct {
	ServerInput
	Delete bool `json:"delete,omitempty" jsonschema:"Remove the registration too."`
}

// Disconnected is the result of disconnect_external_mcp.
type Disconnected struct {
	Success      bool   `json:"success" jsonschema:"Whether it was there."`
	ConnectionID string `json:"connectionId" jsonschema:"Its id."`
	Deleted      bool   `json:"deleted" jsonschema:"Whether its registration is gone."`
}

func (t *Tools) disconnectExternal(ctx context.Context, c tool.Call, in DisconnectInput) (*tool.Result, error) {
	server, err := in.nameOrID()
	if err != nil {
		return nil, err
	}
	i, err := t.Connections.Disconnect(ctx, c.Principal, server, in.Delete)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%s is disconnected. It stays in the list; restart_external_mcp connects it again.", i.Name)
	if in.Delete {
		text = fmt.Sprintf("%s is disconnected and removed from the list.", i.Name)
		if i.Install != nil {
			text += fmt.Sprintf(" Its files are still in %s.", path.Clean(i.Install.Folder))
		}
	}
	return textResult(&Disconnected{Success: true, ConnectionID: i.ID, Deleted: in.Delete}, text), nil
}

// RestartInput are the arguments of restart_external_mcp.
type RestartInput struct {
	ServerInput
	Env     map[string]string `json:"env,omitempty"`
	Headers map[string]string `json:"headers,omitempty" jsonschema:"Headers of a remote server. As with env."`
}

// implies implements implying; see connectsAgain.
func (RestartInput) implies() []policy.Operation {
	return []policy.Operation{policy.MCPConnect, policy.MCPInstall}
}

func (t *Tools) restartExternal(ctx context.Context, c tool.Call, in RestartInput) (*tool.Result, error) {
	server, err := in.nameOrID()
	if err != nil {
		return nil, err
	}
	if len(in.Env)+len(in.Headers) > 0 {
		if c, err = t.connectsAgain(ctx, c, server, in.Env); err != nil {
			return nil, err
		}
	}
	i, err := t.Connections.Restart(ctx, c.Principal, server, in.Env, in.Headers, t.consentFor(c))
	if err != nil {
		return nil, err
	}
	r, _ := connectResult(i)
	return r, nil
}

// connectsAgain asks policy about a restart with other values: it makes another server of the user's, as connecting or
// installing it with them does. The call that it returns has the door that asks for consent.
func (t *Tools) connectsAgain(ctx context.Context, c tool.Call, server string, env map[string]string) (tool.Call, error) {
	i, _, err := t.Connections.Info(c.Principal, server)
	if err != nil || i.Configured { // the restart fails
		return c, err
	}
	all := maps.Clone(env)
	if all == nil {
		all = map[string]string{}
	}
	for _, name := range i.EnvKeys { // those that it has stay
		all[name] = ""
	}
	if i.Install != nil {
		in := InstallInput{Name: i.Name, Install: InstallSource{Type: i.Install.Type, Spec: i.Install.Spec,
			SHA256: i.Install.SHA256}, Env: all}
		d, err := c.Door().Ask(ctx, policy.MCPInstall, in.detail())
		return c.Through(d), err
	}
	in := ConnectInput{Name: i.Name, Command: i.Command, Args: i.Args, URL: i.URL, Env: all}
	d, err := c.Door().Ask(ctx, policy.MCPConnect, in.detail())
	return c.Through(d), err
}

type logsInput struct {
	ServerInput
	Lines int `json:"lines,omitempty" jsonschema:"How many lines."`
}

// ServerLog is the result of external_mcp_logs.
type ServerLog struct {
	ConnectionID string `json:"connectionId" jsonschema:"Its id."`
	Log          string `json:"log" jsonschema:"The lines."`
	TotalBytes   int64  `json:"totalBytes" jsonschema:"What it wrote in all; the last 64 KB are kept."`
	State        string `json:"state" jsonschema:"Where it is."`
	LastError    string `json:"lastError" jsonschema:"What went wrong."`
}

func (t *Tools) externalLogs(_ context.Context, c tool.Call, in logsInput) (*tool.Result, error) {
	server, err := in.nameOrID()
	if err != nil {
		return nil, err
	}
	i, log, total, err := t.Connections.Logs(c.Principal, server, cmp.Or(in.Lines, 100))
	if err != nil {
		return nil, err
	}
	text := cmp.Or(log, "It has printed nothing.")
	if i.LastError != "" {
		text += "\n\nLast error: " + i.LastError
	}
	return textResult(&ServerLog{ConnectionID: i.ID, Log: log, TotalBytes: total, State: string(i.State),
		LastError: i.LastError}, text), nil
}
