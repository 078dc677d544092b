package builtin

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/once"
	"sandlot/internal/policy"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// CommandInput are the arguments of execute_command.
type CommandInput struct {
	Command    string            `json:"command"`
	Args       []string          `json:"args,omitempty"` // nil: Command is a shell line
	Cwd        string            `json:"cwd,omitempty" jsonschema:"The directory to start in."`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty" jsonschema:"The user to run it as, by name or id."`
	Stdin      *string           `json:"stdin,omitempty" jsonschema:"Text for its standard input."`
	Background bool              `json:"background,omitempty" jsonschema:"Return at once and let it run on."`
	TTY        bool              `json:"tty,omitempty"`
	SessionInput
	Template string `json:"template,omitempty"`
	Flavor   string `json:"flavor,omitempty"`
	Timeout  int64  `json:"timeout,omitempty"`
	BeforeInput
	IdempotencyInput
}

func (in CommandInput) stdin() []byte {
	if in.Stdin == nil {
		return nil
	}
	return []byte(*in.Stdin)
}

// detail implements detailed.
func (in CommandInput) detail() string {
	args := append([]string{in.Command}, in.Args...)
	if in.Args == nil {
		args = []string{"sh", "-c", in.Command}
	}
	if in.User != "" { // as one would write it
		args = append([]string{"sudo", "-u", in.User}, args...)
	}
	return policy.CommandLine(args, in.Env)
}

// target implements targeted.
func (in CommandInput) target(_ *Tools, c tool.Call, d *tool.Detail) {
	d.Session = wantedSession(c, in.SessionID)
}

// CommandResult is the result of execute_command.
type CommandResult struct {
	SessionOutput
	Timing
	Streams
	Output    string   `json:"output,omitempty" jsonschema:"What it printed, as text."`
	Command   string   `json:"command" jsonschema:"The command."`
	Args      []string `json:"args"`
	ExitCode  *int     `json:"exit_code"` // nil: it runs in the background
	Success   bool     `json:"success"`
	ProcessID string   `json:"process_id,omitempty" jsonschema:"Of a command in the background."`
}

func (t *Tools) executeCommand(ctx context.Context, c tool.Call, in CommandInput) (*tool.Result, error) {
	if strings.TrimSpace(in.Command) == "" {
		return nil, fault.Argument("command", "argument \"command\" is empty")
	}
	env, err := c.Door().Reveal(ctx, in.Env)
	if err != nil {
		return nil, err
	}
	before, err := t.snapshotBefore(ctx, c, in.BeforeInput, in.SessionID)
	if err != nil {
		return nil, err
	}
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID, Template: in.Template, Flavor: in.Flavor})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	l.Snapshot = before
	if err := l.UseVariables(ctx, c.Door().Reveal, in.Env); err != nil {
		return nil, err
	}
	cmd := Command(l.Booted.Template, in.Command, in.Args, in.Args != nil)
	cmd.Dir, cmd.Env = in.Cwd, env
	cmd = cmd.As(in.User)
	once.Begun(ctx)
	if in.Background || in.TTY {
		t.Calls.BeginBackground(ctx, l.ID(), c.Principal)
		return t.runInBackground(ctx, l, in, cmd)
	}
	return t.runInForeground(ctx, l, c, in, cmd)
}

// Command returns the argument list for a shell command line or, if literal is set, for a program and
// its arguments.
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

func commandFields(l *session.Lease, in CommandInput) *CommandResult {
	return &CommandResult{SessionOutput: sessionOutput(l), Command: in.Command, Args: append([]string{}, in.Args...)}
}

// terminalSize is the size of the terminal of a process in the background, whose screen models read.
var terminalSize = agent.Size{Rows: 30, Cols: 120}

func (t *Tools) runInBackground(ctx context.Context, l *session.Lease, in CommandInput, cmd agent.Command) (
	*tool.Result, error) {
	start, limit := time.Now(), time.Duration(in.Timeout)*time.Second // 0: no limit
	if in.TTY {
		cmd.Terminal = &terminalSize
		env := map[string]string{"TERM": "xterm-256color"}
		maps.Copy(env, cmd.Env)
		cmd.Env = env
	}
	p, err := l.Agent().StartProcess(ctx, agent.Background{Command: cmd, Stdin: in.stdin(),
		KeepStdin: in.Stdin == nil || in.TTY, Timeout: limit})
	if err != nil {
		return nil, addContext(l.Fault(ctx, err, fault.CommandExecution), fault.CommandExecution,
			map[string]any{"command": in.Command, "session_id": l.ID()})
	}
	fields := commandFields(l, in)
	fields.ProcessID, fields.Success, fields.Timing = processID(l, p), true, timing(time.Since(start))
	text := fmt.Sprintf("Started in the background: process_id %s. Its output: read_process; its end: stop_process",
		fields.ProcessID)
	if in.TTY {
		text = fmt.Sprintf("Started in a terminal: process_id %s. Its screen: read_process; keys: write_process; its end: "+
			"stop_process", fields.ProcessID)
	}
	if limit > 0 {
		text += fmt.Sprintf(", or its time limit in %d seconds", int(limit.Seconds()))
	}
	switch awake := l.KeepAwake(limit); {
	case awake == 0:
		text += fmt.Sprintf(". While it only waits, the session sleeps after %s without a call, and it stands still until "+
			"the next one", short(t.Sessions.IdleTimeout))
	case limit == 0:
		text += fmt.Sprintf(". It keeps the session awake for %s", short(awake))
	}
	r := sessionResult(l, fields, tool.Text(text+"."))
	r.Summary = summary(l, "process_id: "+fields.ProcessID)
	return r, nil
}

// short writes a duration of whole seconds without what is zero at its end.
func short(d time.Duration) string {
	text := d.Round(time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len(zero)+1]
		}
	}
	return text
}

func (t *Tools) runInForeground(ctx context.Context, l *session.Lease, c tool.Call, in CommandInput,
	cmd agent.Command) (*tool.Result, error) {
	timeout := t.timeout(in.Timeout)
	d, err := t.execute(ctx, l, c, agent.Exec{Command: cmd, Stdin: in.stdin(), Timeout: timeout})
	if err != nil {
		return nil, addContext(err, fault.CommandExecution, map[string]any{"command": in.Command, "session_id": l.ID()})
	}
	return t.Calls.Noted(l.ID(), commandResult(l, in, d, timeout)), nil
}

// execute runs a command until it ends.
func (t *Tools) execute(ctx context.Context, l *session.Lease, c tool.Call, x agent.Exec) (*agent.ExecResult, error) {
	tag, end := t.Calls.Begin(ctx, l.ID(), "a command", c)
	defer end()
	x.Inline, x.Tag = t.inlineLimits(), tag
	agentCtx, cancel := context.WithTimeout(ctx, x.Timeout+agent.AnswerTimeout)
	defer cancel()
	d, err := l.Agent().Exec(agentCtx, x, progressObserver(c))
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	return d, nil
}

func commandResult(l *session.Lease, in CommandInput, d *agent.ExecResult, timeout time.Duration) *tool.Result {
	stdout, stderr := renderStream(l, "stdout", d.Stdout), renderStream(l, "stderr", d.Stderr)
	fields := commandFields(l, in)
	fields.Timing, fields.ExitCode, fields.Success = timing(d.Duration), &d.ExitCode, d.ExitCode == 0
	r := sessionResult(l, fields)
	fields.Streams, fields.Output = addOutputs(l, r, d, timeout, stdout, stderr)
	fields.warn(l, r, strings.Join(append([]string{in.Command}, in.Args...), " "), stdout.text, stderr.text)
	r.Summary = summary(l, ending(d.ExitCode, d.Duration)...)
	return r
}

// addOutputs adds to a result what a command printed and how it ended. It returns the fields about the outputs, and
// both as data.
func addOutputs(l *session.Lease, r *tool.Result, d *agent.ExecResult, timeout time.Duration,
	stdout, stderr renderedStream) (Streams, string) {
	endText := ""
	switch {
	case d.TimedOut:
		endText = fmt.Sprintf("Execution timed out after %g seconds", timeout.Seconds())
	case d.KilledBy != "":
		endText = limitText(l, d.KilledBy)
	case d.ExitCode != 0 && stdout.text == "" && stderr.text == "":
		endText = fmt.Sprintf("The command printed nothing and ended with exit code %d", d.ExitCode)
	}
	printed := printedBy(stdout, stderr, d.Merged)
	text := joinNonEmpty(printed.text, endText)
	r.Content = append(r.Content, tool.Text(text))
	r.IsError = d.ExitCode != 0
	return addStreams(r, stdout, stderr), joinNonEmpty(printed.plain(), endText)
}
