package builtin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

func (t *Tools) executeCommand() tool.Tool {
	return tool.Tool{
		Name: "execute_command", Title: "Run a shell command",
		Description: "Run a shell command line (pipes, redirections, && and globbing work) in an isolated Linux sandbox and return its output and exit code. " +
			"It starts in /workspace. Set background to true for servers and long jobs: it returns a process_id at once, for read_process, write_process and stop_process. " +
			"For Python or JavaScript that should keep its variables use execute_code. " +
			"pip, npm and go install packages; which other hosts can be reached is the operator's choice, and a result says what was refused.",
		Params: []tool.Param{
			{Name: "command", Type: tool.String, Required: true, Description: `The command line, such as "ls -la | head". With args: the program alone.`},
			{Name: "args", Type: tool.Strings, Description: "Arguments of the program, passed as they are, without a shell."},
			{Name: "cwd", Type: tool.String, Description: "The directory to start in.", Default: "/workspace"},
			{Name: "env", Type: tool.Map, Description: "Environment variables, added to the sandbox's own."},
			{Name: "stdin", Type: tool.String, Description: "Text for its standard input."},
			{Name: "background", Type: tool.Boolean, Description: "Return at once and let it run on.", Default: false},
			sessionParam(), t.templateParam(), t.flavorParam(), t.timeoutParam(), keyParam(),
		},
		Output: outputSchema([]string{"session_id", "session_created", "success"}, sessionFields(timeFields(map[string]any{
			"command":    typed("string", "The command."),
			"args":       map[string]any{"type": "array", "items": map[string]any{"type": "string"}},
			"exit_code":  map[string]any{"type": []string{"integer", "null"}, "description": "Null while it runs in the background; 124 when the time was over; 128+n after signal n."},
			"success":    typed("boolean", "Whether the exit code is 0; in the background: whether it started."),
			"process_id": typed("string", "Of a command in the background."),
			"truncated":  typed("boolean", "Whether output was left out here; the whole is in the linked resource."),
		}))),
		Hints: tool.Hints{Destructive: true},
	}
}

func (t *Tools) runCommand(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	return t.once.do(ctx, c, a, func(ctx context.Context) (*tool.Result, error) {
		if strings.TrimSpace(a.Text("command")) == "" {
			return nil, fault.New(fault.InvalidParameters, "argument \"command\" is empty").With("argument", "command")
		}
		l, err := t.open(ctx, c, a)
		if err != nil {
			return nil, err
		}
		defer l.Release()
		cmd := Command(l.Booted.Template, a.Text("command"), a.Strings("args"), a.Has("args"))
		cmd.Dir, cmd.Env = a.Text("cwd"), a.Map("env")
		if a.Bool("background") {
			return t.background(ctx, l, a, cmd)
		}
		return t.foreground(ctx, l, c, a, cmd)
	})
}

// Command makes argv of a command line, or of a program and its arguments.
func Command(t *image.Template, command string, args []string, literal bool) agent.Command {
	if literal {
		return agent.Command{Args: append([]string{command}, args...)}
	}
	shell := "/bin/sh"
	if l, ok := t.Language("bash"); ok && len(l.Command) > 0 {
		shell = l.Command[0]
	}
	return agent.Command{Args: []string{shell, "-c", command}}
}

func commandFields(l *session.Lease, a tool.Args) map[string]any {
	f := where(l)
	f["command"] = a.Text("command")
	f["args"] = append([]string{}, a.Strings("args")...)
	return f
}

func (t *Tools) background(ctx context.Context, l *session.Lease, a tool.Args, cmd agent.Command) (*tool.Result, error) {
	var limit time.Duration // none, unless it is asked for
	if a.Has("timeout") {
		limit = t.timeout(a)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p, err := l.Agent().StartProcess(ctx, agent.Background{Command: cmd, Stdin: []byte(a.Text("stdin")), KeepStdin: !a.Has("stdin"), Timeout: limit})
	if err != nil {
		return nil, knowing(l.Fault(ctx, err, fault.CommandExecution), fault.CommandExecution, map[string]any{"command": a.Text("command"), "session_id": l.ID()})
	}
	id := processID(l, p)
	r := &tool.Result{Fields: commandFields(l, a)}
	r.Fields["process_id"], r.Fields["success"], r.Fields["exit_code"], r.Fields["truncated"] = id, true, nil, false
	took(r.Fields, time.Since(start))
	text := fmt.Sprintf("Started in the background: process_id %s. Its output: read_process; its end: stop_process", id)
	if limit > 0 {
		text += fmt.Sprintf(", or its time limit in %d seconds", int(limit.Seconds()))
	}
	r.Content = append(notice(l), tool.Text(text+"."))
	r.Words = words(l, "process_id: "+id)
	return r, nil
}

func (t *Tools) foreground(ctx context.Context, l *session.Lease, c tool.Call, a tool.Args, cmd agent.Command) (*tool.Result, error) {
	timeout := t.timeout(a)
	d, err := t.execute(ctx, l, c, agent.Exec{Command: cmd, Stdin: []byte(a.Text("stdin")), Timeout: timeout})
	if err != nil {
		return nil, knowing(err, fault.CommandExecution, map[string]any{"command": a.Text("command"), "session_id": l.ID()})
	}
	return commandResult(l, a, d, timeout), nil
}

// execute runs a command to its end.
func (t *Tools) execute(ctx context.Context, l *session.Lease, c tool.Call, x agent.Exec) (*agent.ExecResult, error) {
	x.Inline = t.inline()
	limited, cancel := context.WithTimeout(ctx, x.Timeout+patience)
	defer cancel()
	d, err := l.Agent().Exec(limited, x, observer(c))
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	return d, nil
}

func commandResult(l *session.Lease, a tool.Args, d *agent.ExecResult, timeout time.Duration) *tool.Result {
	stdout, stderr := render(l, "stdout", d.Stdout), render(l, "stderr", d.Stderr)
	ending := ""
	switch {
	case d.TimedOut:
		ending = fmt.Sprintf("Execution timed out after %d seconds", int(timeout.Seconds()))
	case d.KilledBy != "":
		ending = killed(l, d.KilledBy)
	case d.ExitCode != 0 && stdout.text == "" && stderr.text == "":
		ending = fmt.Sprintf("The command printed nothing and ended with exit code %d", d.ExitCode)
	}
	r := &tool.Result{IsError: d.ExitCode != 0, Fields: commandFields(l, a)}
	took(r.Fields, d.Duration)
	r.Fields["exit_code"] = d.ExitCode
	r.Fields["success"] = d.ExitCode == 0
	r.Content = append(notice(l), tool.Text(join(stdout.text, stderr.text, ending)))
	output(r, stdout, stderr)
	refused(l, r)
	system(l, r, strings.Join(append([]string{a.Text("command")}, a.Strings("args")...), " "), stdout.text, stderr.text)
	r.Words = words(l, fmt.Sprintf("exit_code: %d", d.ExitCode), fmt.Sprintf("%.1f ms", millis(d.Duration)))
	return r
}
