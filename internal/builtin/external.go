package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/servers"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

func shellExec() tool.Tool {
	return tool.Tool{
		Name: "sandbox_shell_exec", Title: "Run a shell command in the home session",
		Description: "Run a shell command line in your home session, the persistent computer in which your external MCP servers run, for example to look at what auto_install_and_connect_mcp installed in /workspace/external-mcp. For other work use execute_command, which takes a session_id.",
		Params: []tool.Param{
			{Name: "command", Type: tool.String, Required: true, Description: "The command line."},
			{Name: "cwd", Type: tool.String, Default: "/workspace", Description: "The directory to start in."},
			tool.Param{Name: "timeoutMs", Type: tool.Integer, Default: 60000, Description: "Milliseconds after which it is stopped."}.Range(1, 3_600_000),
		},
		Output: map[string]any{"type": "object", "required": []string{"exitCode", "stdout", "stderr", "timedOut"}, "properties": map[string]any{
			"exitCode": typed("integer", "124 when the time was over; 128+n after signal n."), "stdout": typed("string", "Standard output."),
			"stderr": typed("string", "Standard error."), "timedOut": typed("boolean", "Whether it was stopped for its time."),
			"session_id": typed("string", "The home session."), "truncated": typed("boolean", "Whether output was left out.")}},
		Hints: tool.Hints{Destructive: true, OpenWorld: true},
	}
}

func (t *Tools) shell(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	if strings.TrimSpace(a.Text("command")) == "" {
		return nil, fault.New(fault.InvalidParameters, "argument \"command\" is empty").With("argument", "command")
	}
	l, err := t.Sessions.Open(ctx, c.Principal, session.Ask{ID: "home"})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	timeout := min(time.Duration(a.Int("timeoutMs", 60000))*time.Millisecond, t.MaxTimeout)
	cmd := Command(l.Booted.Template, a.Text("command"), nil, false)
	cmd.Dir = a.Text("cwd")
	d, err := t.execute(ctx, l, c, agent.Exec{Command: cmd, Timeout: timeout})
	if err != nil {
		return nil, knowing(err, fault.CommandExecution, map[string]any{"command": a.Text("command"), "session_id": l.ID()})
	}
	stdout, stderr := render(l, "stdout", d.Stdout), render(l, "stderr", d.Stderr)
	ending := ""
	switch {
	case d.TimedOut:
		ending = fmt.Sprintf("Execution timed out after %s", timeout)
	case d.KilledBy != "":
		ending = killed(l, d.KilledBy)
	}
	r := &tool.Result{IsError: d.ExitCode != 0, Fields: map[string]any{"exitCode": d.ExitCode, "stdout": stdout.data, "stderr": stderr.data, "timedOut": d.TimedOut, "session_id": l.ID()}}
	r.Content = append(notice(l), tool.Text(join(stdout.text, stderr.text, ending)))
	output(r, stdout, stderr)
	refused(l, r)
	system(l, r, a.Text("command"), stdout.text, stderr.text)
	r.Words = fmt.Sprintf("exitCode: %d", d.ExitCode)
	return r, nil
}

func nameParam() tool.Param {
	return tool.Param{Name: "name", Type: tool.String, Required: true, Description: "What you call it; one name is one connection. A used name replaces that connection."}
}

func envParam() tool.Param {
	return tool.Param{Name: "env", Type: tool.Map, Description: "Environment variables. Values are never stored: after a restart of Sandlot they have to be given again. For an API key or a password, ask the user to run `sandlot secret set NAME` on a terminal, and give ${secret:NAME} in its place: that lasts, and keeps the value out of this chat."}
}

func connectExternal() tool.Tool {
	return tool.Tool{
		Name: "connect_external_mcp", Title: "Connect an MCP server",
		Description: "Add a third-party MCP server and offer its tools here as ext_{connectionId}_{toolName}. With command it runs in your home session (isolated; in /workspace); with url it is a remote server. The program must be there already: for a package use auto_install_and_connect_mcp. Show the user what will run before you call this.",
		Params: []tool.Param{nameParam(),
			{Name: "command", Type: tool.String, Description: "The program, such as node or /workspace/server. Not a shell line."},
			{Name: "args", Type: tool.Strings, Description: "Its arguments, each as it is."},
			envParam(),
			{Name: "cwd", Type: tool.String, Description: "The directory that it starts in.", Default: "/workspace"},
			{Name: "url", Type: tool.String, Description: "A remote server's address, in place of command."},
			{Name: "transport", Type: tool.String, Enum: []string{"stdio", "http", "sse"}, Description: "How it is spoken to; http (Streamable HTTP) when there is a url, else stdio."},
			{Name: "headers", Type: tool.Map, Description: "Headers for a remote server, such as Authorization. As with env: Bearer ${secret:NAME} for what the user has stored."}},
		Output: connectionSchema(), Hints: tool.Hints{OpenWorld: true}, Asks: true,
	}
}

func connectionSchema() map[string]any {
	return map[string]any{"type": "object", "required": []string{"success", "connectionId", "name", "toolCount", "tools"}, "properties": map[string]any{
		"success": typed("boolean", "Whether it runs."), "connectionId": typed("string", "For disconnect_external_mcp and the others."), "name": typed("string", "Its name."),
		"toolCount": typed("integer", "How many tools it offers."), "tools": map[string]any{"type": "array", "items": map[string]any{"type": "object", "properties": map[string]any{
			"toolName": typed("string", "The name to call."), "remoteName": typed("string", "The server's own name for it.")}}},
		"promptCount": typed("integer", "How many prompts it offers."), "resourceCount": typed("integer", "How many resources, with the templates of such."),
		"envKeys": map[string]any{"type": "array", "items": map[string]any{"type": "string"}}, "envStored": typed("boolean", "Always false: values are not stored; those with ${secret:NAME} are, as they are written."),
		"secrets": map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "description": "Names of the user's stored secrets that it is given."},
		"state":   typed("string", "Where it is."), "runs": typed("string", "Exactly what runs, or is connected to."), "installLog": typed("string", "The end of what the installation printed.")}}
}

func (t *Tools) connect(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	i, err := t.Connections.Connect(ctx, c.Principal, spec.Ask{Name: a.Text("name"), Kind: spec.Kind(a.Text("transport")), Command: a.Text("command"),
		Args: a.Strings("args"), Cwd: a.Text("cwd"), URL: a.Text("url"), Env: a.Map("env"), Headers: a.Map("headers"), Consent: t.agree(c)})
	if err != nil {
		return nil, err
	}
	return connected(i), nil
}

// connected is the result of what connects.
func connected(i servers.Info) *tool.Result {
	runs := runsAs(i)
	r := &tool.Result{Fields: connectionFields(i)}
	r.Fields["success"], r.Fields["runs"] = i.State != servers.NeedsAuth, runs
	var b strings.Builder
	switch {
	case i.AuthURL != "":
		fmt.Fprintf(&b, "%s (connection %s) wants its user to log in. Open this in a browser, and use it after that:\n%s", i.Name, i.ID, i.AuthURL)
	default:
		fmt.Fprintf(&b, "%s is connected (connection %s), running %s.\n%s:", i.Name, i.ID, runs, plural(len(i.Tools), "tool", "tools"))
		for _, n := range i.Tools {
			fmt.Fprintf(&b, "\n- %s", n.Exposed)
		}
		if n := i.Prompts; n > 0 {
			fmt.Fprintf(&b, "\n%s", plural(n, "prompt", "prompts"))
		}
		if n := i.Resources; n > 0 {
			fmt.Fprintf(&b, "\n%s", plural(n, "resource", "resources"))
		}
		held(&b, i)
	}
	r.Content = []tool.Content{tool.Text(b.String())}
	r.Words = "connectionId: " + i.ID
	return r
}

func held(b *strings.Builder, i servers.Info) {
	if len(i.Held) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s held back until a person approves with `sandlot mcp approve %s`:", plural(len(i.Held), "tool is", "tools are"), i.ID)
	for _, n := range i.Held {
		fmt.Fprintf(b, "\n- %s: %s", n.Remote, n.Why)
	}
}

// runsAs is exactly what runs, or is connected to.
func runsAs(i servers.Info) string {
	if i.Configured {
		return "by the operator's settings"
	}
	if i.Kind != spec.Stdio {
		return i.URL
	}
	line := spec.CommandLine(append([]string{i.Command}, i.Args...))
	return fmt.Sprintf("%s (in %s of your home session)", line, cmp.Or(i.Cwd, "/workspace"))
}

func connectionFields(i servers.Info) map[string]any {
	tools := []map[string]any{}
	for _, n := range i.Tools {
		tools = append(tools, map[string]any{"toolName": n.Exposed, "remoteName": n.Remote})
	}
	f := map[string]any{"connectionId": i.ID, "name": i.Name, "toolCount": len(tools), "tools": tools,
		"promptCount": i.Prompts, "resourceCount": i.Resources,
		"envKeys": append([]string{}, i.EnvKeys...), "envStored": false, "state": string(i.State)}
	if len(i.Secrets) > 0 {
		f["secrets"] = i.Secrets
	}
	if len(i.Held) > 0 {
		var rows []map[string]any
		for _, n := range i.Held {
			rows = append(rows, map[string]any{"toolName": n.Exposed, "remoteName": n.Remote, "reason": n.Why})
		}
		f["heldTools"] = rows
	}
	if i.AuthURL != "" {
		f["authUrl"] = i.AuthURL
	}
	return f
}

func installExternal() tool.Tool {
	return tool.Tool{
		Name: "auto_install_and_connect_mcp", Title: "Install and connect an MCP server",
		Description: "Install a third-party MCP server into your home session (npm or pip package, or a git repository over https) and offer its tools here as ext_{connectionId}_{toolName}. It stays installed in /workspace/external-mcp. Show the user what will be installed before you call this. It may take minutes.",
		Params: []tool.Param{nameParam(),
			{Name: "install", Type: tool.Object, Required: true, Description: `What to install: {"type": "npm"|"pip"|"git", "spec": "..."}. spec is a package such as @modelcontextprotocol/server-memory, mcp-server-time==1.0 or https://host/repository.git#branch.`,
				Fields: []tool.Param{{Name: "type", Type: tool.String, Required: true, Enum: []string{"npm", "pip", "git"}, Description: "npm, pip or git."},
					{Name: "spec", Type: tool.String, Required: true, Description: "The package or repository."}}},
			{Name: "start", Type: tool.Object, Description: `How it starts: {"command": "...", "args": [...]}. command may be left out when the package brings one program.`,
				Fields: []tool.Param{{Name: "command", Type: tool.String, Description: "A program, found in node_modules/.bin or the virtual environment first."},
					{Name: "args", Type: tool.Strings, Description: "Its arguments."}}},
			envParam(),
			{Name: "workdir", Type: tool.String, Description: "The folder beneath /workspace to install into.", Default: "external-mcp/{name}"}},
		Output: connectionSchema(), Hints: tool.Hints{OpenWorld: true}, Asks: true,
	}
}

func (t *Tools) installAndConnect(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	what, start := a.Object("install"), a.Object("start")
	workdir := a.Text("workdir")
	done, err := t.Connections.Install(ctx, c.Principal, install.Request{Type: what.Text("type"), Spec: what.Text("spec"), Workdir: workdir,
		Ask: spec.Ask{Name: a.Text("name"), Command: start.Text("command"), Args: start.Strings("args"), Env: a.Map("env"), Consent: t.agree(c)}, Progress: c.Progress})
	if err != nil {
		f := fault.From(err)
		if f.Kind != fault.CommandExecution || done.Log == "" {
			return nil, err
		}
		// What the installer printed is the result: the agent can act on it.
		log := done.Log
		return &tool.Result{IsError: true, Content: []tool.Content{tool.Text(f.Error() + "\n\n" + log)},
			Fields: map[string]any{"success": false, "connectionId": "", "name": a.Text("name"), "toolCount": 0, "tools": []any{}, "installLog": log, "error": f.Error()}}, nil
	}
	r := connected(done.Info)
	r.Fields["installLog"] = done.Log
	var version, folder string
	if i := done.Install; i != nil { // another may have taken the name meanwhile
		version, folder = i.Version, i.Folder
	}
	r.Fields["installed"] = map[string]any{"type": what.Text("type"), "spec": what.Text("spec"), "version": version, "folder": folder,
		"commands": done.Commands, "seconds": done.Took.Round(100 * time.Millisecond).Seconds()}
	r.Content = append([]tool.Content{tool.Text(fmt.Sprintf("Installed %s %s into %s with:\n%s", what.Text("spec"), version, folder, strings.Join(done.Commands, "\n")))}, r.Content...)
	return r, nil
}

func listExternal() tool.Tool {
	return tool.Tool{
		Name: "list_external_mcp", Title: "List MCP servers",
		Description: "List your third-party MCP servers, the newest first after those of the operator: their state, tools, and what went wrong.",
		Output: map[string]any{"type": "object", "required": []string{"connections"}, "properties": map[string]any{
			"connections": map[string]any{"type": "array", "items": map[string]any{"type": "object"}}}},
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) listConnections(_ context.Context, c tool.Call, _ tool.Args) (*tool.Result, error) {
	rows := []map[string]any{}
	var b strings.Builder
	for _, i := range t.Connections.List(c.Principal) {
		row := connectionFields(i)
		row["id"], row["command"], row["args"], row["createdAt"], row["updatedAt"] = i.ID, i.Command, append([]string{}, i.Args...), when(i.Created), when(i.Updated)
		row["lastError"], row["transport"], row["configured"] = i.LastError, string(i.Kind), i.Configured
		row["restarts"], row["calls"] = i.Restarts, i.Calls
		if i.Calls > 0 {
			row["latencyMs"] = map[string]any{"p50": float64(i.P50.Microseconds()) / 1000, "p95": float64(i.P95.Microseconds()) / 1000}
		}
		if i.URL != "" {
			row["url"] = i.URL
		}
		if i.Version != "" {
			row["protocolVersion"] = i.Version
		}
		if len(i.Server) > 0 {
			row["serverInfo"] = json.RawMessage(i.Server)
		}
		if i.Install != nil {
			row["install"] = i.Install
		}
		rows = append(rows, row)
		fmt.Fprintf(&b, "%s  %s  %s, %s", i.ID, i.Name, i.State, plural(len(i.Tools), "tool", "tools"))
		if i.Prompts+i.Resources > 0 {
			fmt.Fprintf(&b, ", %s, %s", plural(i.Prompts, "prompt", "prompts"), plural(i.Resources, "resource", "resources"))
		}
		if i.LastError != "" {
			fmt.Fprintf(&b, ": %s", i.LastError)
		}
		held(&b, i)
		b.WriteByte('\n')
	}
	if len(rows) == 0 {
		b.WriteString("No MCP servers are connected. auto_install_and_connect_mcp installs one.")
	}
	return &tool.Result{Fields: map[string]any{"connections": rows}, Content: []tool.Content{tool.Text(strings.TrimRight(b.String(), "\n"))}}, nil
}

// whichParams say which connection is meant.
func whichParams() []tool.Param {
	return []tool.Param{{Name: "connectionId", Type: tool.String, Description: "The connection's id."}, {Name: "name", Type: tool.String, Description: "Or its name."}}
}

func which(a tool.Args) (string, error) {
	id, name := a.Text("connectionId"), a.Text("name")
	if (id == "") == (name == "") {
		return "", fault.New(fault.InvalidParameters, "give connectionId or name, one of them").With("argument", "connectionId")
	}
	return cmp.Or(id, name), nil
}

func disconnectExternal() tool.Tool {
	return tool.Tool{
		Name: "disconnect_external_mcp", Title: "Disconnect an MCP server",
		Description: "Stop a third-party MCP server and take its tools away. Its registration stays, and restart_external_mcp connects it again, unless delete is true. What was installed stays in /workspace.",
		Params:      append(whichParams(), tool.Param{Name: "delete", Type: tool.Boolean, Default: false, Description: "Remove the registration too."}),
		Output: map[string]any{"type": "object", "required": []string{"success", "connectionId", "deleted"}, "properties": map[string]any{
			"success": typed("boolean", "Whether it was there."), "connectionId": typed("string", "Its id."), "deleted": typed("boolean", "Whether its registration is gone.")}},
		Hints: tool.Hints{Destructive: true, Idempotent: true},
	}
}

func (t *Tools) disconnect(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	what, err := which(a)
	if err != nil {
		return nil, err
	}
	i, err := t.Connections.Disconnect(ctx, c.Principal, what, a.Bool("delete"))
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%s is disconnected. It stays in the list; restart_external_mcp connects it again.", i.Name)
	if a.Bool("delete") {
		text = fmt.Sprintf("%s is disconnected and removed from the list.", i.Name)
		if i.Install != nil {
			text += fmt.Sprintf(" Its files are still in %s.", path.Clean(i.Install.Folder))
		}
	}
	return &tool.Result{Content: []tool.Content{tool.Text(text)}, Fields: map[string]any{"success": true, "connectionId": i.ID, "deleted": a.Bool("delete")}}, nil
}

func restartExternal() tool.Tool {
	return tool.Tool{
		Name: "restart_external_mcp", Title: "Restart an MCP server",
		Description: "Stop a third-party MCP server and start it again; also one that was disconnected, that was given up, or that needs values of env again.",
		Params:      append(whichParams(), envParam(), tool.Param{Name: "headers", Type: tool.Map, Description: "Headers of a remote server. As with env."}),
		Output:      connectionSchema(), Hints: tool.Hints{OpenWorld: true}, Asks: true,
	}
}

func (t *Tools) restart(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	what, err := which(a)
	if err != nil {
		return nil, err
	}
	i, err := t.Connections.Restart(ctx, c.Principal, what, a.Map("env"), a.Map("headers"), t.agree(c))
	if err != nil {
		return nil, err
	}
	return connected(i), nil
}

func externalLogs() tool.Tool {
	return tool.Tool{
		Name: "external_mcp_logs", Title: "Show an MCP server's log",
		Description: "Show the last lines that a third-party MCP server printed on its standard error, and what stood between its messages.",
		Params:      append(whichParams(), tool.Param{Name: "lines", Type: tool.Integer, Default: 100, Description: "How many lines."}.Range(1, 2000)),
		Output: map[string]any{"type": "object", "required": []string{"connectionId", "log"}, "properties": map[string]any{
			"connectionId": typed("string", "Its id."), "log": typed("string", "The lines."), "totalBytes": typed("integer", "What it wrote in all; the last 64 KB are kept."), "state": typed("string", "Where it is."), "lastError": typed("string", "What went wrong.")}},
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) externalLog(_ context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	what, err := which(a)
	if err != nil {
		return nil, err
	}
	i, log, total, err := t.Connections.Logs(c.Principal, what, int(a.Int("lines", 100)))
	if err != nil {
		return nil, err
	}
	text := cmp.Or(log, "It has printed nothing.")
	if i.LastError != "" {
		text += "\n\nLast error: " + i.LastError
	}
	return &tool.Result{Content: []tool.Content{tool.Text(text)}, Fields: map[string]any{"connectionId": i.ID, "log": log, "totalBytes": total, "state": string(i.State), "lastError": i.LastError}}, nil
}
