package builtin

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/session"
	"sandlot/internal/terminal"
	"sandlot/internal/tool"
)

// processID is the handle that a client gets: it names the session too, so that
// it is enough by itself.
func processID(l *session.Lease, id string) string { return l.ID() + "." + id }

func processParam() tool.Param {
	return tool.Param{Name: "process_id", Type: tool.String, Required: true, Description: "As execute_command or list_processes gave it."}
}

// process opens the session of a process handle.
func (t *Tools) process(ctx context.Context, c tool.Call, a tool.Args) (*session.Lease, string, error) {
	sid, pid, ok := strings.Cut(a.Text("process_id"), ".")
	if !ok || sid == "new" || sid == "home" || sid == "" || pid == "" {
		return nil, "", fault.New(fault.InvalidParameters, "process_id %q is not one that execute_command gave", agent.Printable(a.Text("process_id"), 80)).
			With("argument", "process_id").With("allowed", "a process_id of execute_command or list_processes")
	}
	l, err := t.Sessions.Open(ctx, c.Principal, session.Ask{ID: sid})
	return l, pid, err
}

func listProcesses() tool.Tool {
	return tool.Tool{
		Name: "list_processes", Title: "List processes",
		Description: "List what runs, or ran, in a session: background processes, commands and interpreters, with process_id, state and exit code.",
		Params:      []tool.Param{sessionParam()},
		Output: outputSchema([]string{"processes"}, sessionFields(map[string]any{
			"processes": map[string]any{"type": "array", "items": map[string]any{"type": "object"}},
		})),
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) processes(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	c.Fresh = false
	l, err := t.open(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := l.Agent().ListProcesses(short)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	rows := []map[string]any{}
	lines := []string{}
	for _, p := range list {
		row := processRow(l, p)
		rows = append(rows, row)
		lines = append(lines, fmt.Sprintf("%s  %s  %s  %s", row["process_id"], row["kind"], row["status"], row["command"]))
	}
	r := &tool.Result{Fields: where(l), Words: words(l)}
	r.Fields["processes"] = rows
	text := strings.Join(lines, "\n")
	if text == "" {
		text = "No processes."
	}
	r.Content = append(notice(l), tool.Text(text))
	return r, nil
}

func processRow(l *session.Lease, p agent.Process) map[string]any {
	row := map[string]any{
		"process_id": processID(l, p.ID), "command": agent.Printable(strings.Join(p.Args, " "), 500),
		"kind": p.Kind, "running": p.Running, "pid": p.PID, "output_bytes": p.Written,
		"started_at": when(p.Started), "status": "running",
	}
	if p.Kind == "interpreter" && !p.Busy {
		row["status"] = "waiting for code"
	}
	if p.Timeout > 0 {
		row["timeout"] = int(p.Timeout.Seconds())
	}
	if !p.Running {
		row["exit_code"], row["ended_at"] = p.ExitCode, when(p.Ended)
		row["status"] = fmt.Sprintf("ended with exit code %d", p.ExitCode)
		if p.KilledBy != "" {
			row["killed_by"] = p.KilledBy
			row["status"] = fmt.Sprintf("%s (limit: %s)", row["status"], row["killed_by"])
		}
	}
	return row
}

func readProcess() tool.Tool {
	return tool.Tool{
		Name: "read_process", Title: "Read a process's output",
		Description: "Read what a background process has printed (stdout and stderr in one stream). Pass the cursor of the last result to get only what is new, and wait to be told when there is something.",
		Params: []tool.Param{processParam(),
			tool.Param{Name: "cursor", Type: tool.Integer, Default: 0, Description: "Where to go on: the cursor of the last result. 0 is the beginning."}.Range(0, 1<<53),
			tool.Param{Name: "max_bytes", Type: tool.Integer, Default: 50000, Description: "The most to return."}.Range(1, 1<<20),
			tool.Param{Name: "wait", Type: tool.Number, Default: 0, Description: "Seconds to wait for new output or the end, if there is none yet."}.Range(0, 300)},
		Output: outputSchema([]string{"output", "cursor", "running"}, sessionFields(map[string]any{
			"process_id":    typed("string", "The process."),
			"output":        typed("string", "What was printed from the cursor on."),
			"output_base64": typed("string", "The same bytes, when they are not text."),
			"cursor":        typed("integer", "Pass it the next time."),
			"running":       typed("boolean", "Whether it still runs."),
			"exit_code":     map[string]any{"type": []string{"integer", "null"}, "description": "Null while it runs; 124 when its time was over; 128+n after signal n."},
			"bytes_left":    typed("integer", "How much was printed that is not in this output: call again with cursor for it. 0: that was all until now."),
			"killed_by":     typed("string", "The limit that ended it: time, memory or processes."),
			"truncated":     typed("boolean", "Whether output between the given cursor and this was dropped: a process keeps its last MiB."),
		})),
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) readOutput(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	l, pid, err := t.process(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	wait := time.Duration(a.Float("wait", 0) * float64(time.Second))
	most := a.Int("max_bytes", 50000)
	if most > limit.Large {
		if err := c.Held.Wait(ctx, most); err != nil {
			return nil, err
		}
	}
	limited, cancel := context.WithTimeout(ctx, wait+patience)
	defer cancel()
	m, err := l.Agent().ReadProcess(limited, pid, a.Int("cursor", 0), int(most), wait)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	out := m.Data
	if cut := edge(out); len(cut) < len(out) && utf8.ValidString(cut) && len(cut) > 0 && utf8.Valid(out[:len(cut)]) {
		rest := int64(len(out) - len(cut)) // of a character; it comes the next time
		m.Cursor, m.Left = m.Cursor-rest, m.Left+rest
		out = out[:len(cut)]
	}
	r := &tool.Result{Fields: where(l), Words: words(l, fmt.Sprintf("cursor: %d", m.Cursor), fmt.Sprintf("running: %t", m.Running))}
	r.Fields["process_id"], r.Fields["cursor"], r.Fields["running"] = a.Text("process_id"), m.Cursor, m.Running
	r.Fields["truncated"], r.Fields["exit_code"], r.Fields["bytes_left"] = m.Skipped > 0, nil, m.Left
	data := strings.ToValidUTF8(string(out), "\uFFFD")
	r.Fields["output"] = data
	if !utf8.Valid(out) {
		r.Fields["output_base64"] = base64.StdEncoding.EncodeToString(out)
	}
	text := terminal.Text(data)
	if m.Skipped > 0 {
		text = fmt.Sprintf("[%d bytes before this were dropped]\n%s", m.Skipped, text)
	}
	if m.Left > 0 {
		r.Words += fmt.Sprintf("; %d bytes more are there: call again with this cursor", m.Left)
	}
	if !m.Running {
		r.Fields["exit_code"] = m.ExitCode
		r.Words += fmt.Sprintf("; exit_code: %d", m.ExitCode)
		if m.KilledBy != "" {
			r.Fields["killed_by"] = m.KilledBy
			r.Words += "; " + ended(l, m)
		}
	}
	r.Content = append(notice(l), tool.Text(text))
	refused(l, r)
	system(l, r, "", text)
	return r, nil
}

// ended says what ended a process.
func ended(l *session.Lease, m agent.ProcessOutput) string {
	if m.KilledBy == "time" && m.Timeout > 0 {
		return fmt.Sprintf("Ended: its time limit of %d seconds was over.", int(m.Timeout.Seconds()))
	}
	return killed(l, m.KilledBy)
}

func writeProcess() tool.Tool {
	return tool.Tool{
		Name: "write_process", Title: "Write to a process's input",
		Description: "Write to the standard input of a background process. End lines with a newline, as the Enter key would.",
		Params: []tool.Param{processParam(),
			{Name: "data", Type: tool.String, Description: "What to write.", Default: ""},
			{Name: "eof", Type: tool.Boolean, Description: "Close its input after that.", Default: false}},
		Output: outputSchema([]string{"written"}, sessionFields(map[string]any{"process_id": typed("string", "The process."), "written": typed("integer", "Bytes written.")})),
		Hints:  tool.Hints{Destructive: true},
	}
}

func (t *Tools) writeInput(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	l, pid, err := t.process(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	written, err := l.Agent().WriteProcess(limited, pid, []byte(a.Text("data")), a.Bool("eof"))
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	r := &tool.Result{Fields: where(l), Words: words(l), Content: append(notice(l), tool.Text(fmt.Sprintf("Wrote %d bytes", written)))}
	r.Fields["process_id"], r.Fields["written"] = a.Text("process_id"), written
	return r, nil
}

// signals that stop_process may send.
var signals = []string{"TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT"}

func stopProcess() tool.Tool {
	return tool.Tool{
		Name: "stop_process", Title: "Stop a process",
		Description: "Send a signal to a process and all that it started. After TERM, INT, HUP and QUIT comes KILL when it still runs five seconds later. Works on background processes, running commands and interpreters: there it stops the code that runs and keeps the variables; KILL ends the interpreter.",
		Params: []tool.Param{processParam(),
			{Name: "signal", Type: tool.String, Enum: signals, Default: "TERM", Description: "The signal's name, without SIG."}},
		Output: outputSchema([]string{"running"}, sessionFields(map[string]any{"process_id": typed("string", "The process."), "running": typed("boolean", "Whether it still runs."),
			"exit_code": map[string]any{"type": []string{"integer", "null"}}})),
		Hints: tool.Hints{Destructive: true, Idempotent: true},
	}
}

func (t *Tools) stop(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	l, pid, err := t.process(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	name := a.Text("signal")
	if name == "" {
		name = "TERM"
	}
	grace := time.Duration(0)
	switch name {
	case "TERM", "INT", "HUP", "QUIT":
		grace = 5 * time.Second
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	running, exit, err := l.Agent().StopProcess(limited, pid, unix.SignalNum("SIG"+name), grace)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	r := &tool.Result{Fields: where(l), Words: words(l)}
	r.Fields["process_id"], r.Fields["running"], r.Fields["exit_code"] = a.Text("process_id"), running, nil
	text := fmt.Sprintf("Signal %s was sent; the process still runs", name)
	if strings.HasPrefix(pid, "interpreter-") {
		text = "The interpreter runs no code now"
	}
	if !running {
		r.Fields["exit_code"] = exit
		text = fmt.Sprintf("The process ended with exit code %d", exit)
	}
	r.Content = append(notice(l), tool.Text(text))
	return r, nil
}
