package builtin

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/session"
	"sandlot/internal/terminal"
	"sandlot/internal/tool"
)

// processID returns the process handle for clients. It contains the session's id, so the tools that
// take it need no session_id.
func processID(l *session.Lease, id string) string { return l.ID() + "." + id }

// openProcess returns a lease on the session of a process handle, and the agent's id of the process.
func (t *Tools) openProcess(ctx context.Context, c tool.Call, id string) (*session.Lease, string, error) {
	sessionID, pid, ok := strings.Cut(id, ".")
	if !ok || sessionID == "new" || sessionID == "home" || sessionID == "" || pid == "" {
		return nil, "", fault.Argument("process_id", "process_id %q is not one that execute_command gave",
			fault.Printable(id, 80)).With("allowed", "a process_id of execute_command or list_processes")
	}
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: sessionID})
	return l, pid, err
}

// processInput has the argument that names a process.
type processInput struct {
	ProcessID string `json:"process_id"`
}

// target implements targeted.
func (in processInput) target(_ *Tools, _ tool.Call, d *tool.Detail) {
	d.Session, _, _ = strings.Cut(in.ProcessID, ".")
}

// ProcessList is the result of list_processes.
type ProcessList struct {
	SessionOutput
	Processes []Process `json:"processes"`
}

// Process is a session's process in the results.
type Process struct {
	ID          string `json:"process_id"`
	Command     string `json:"command"`
	Kind        string `json:"kind"` // background, exec, interactive or interpreter
	Running     bool   `json:"running"`
	PID         int    `json:"pid"`
	OutputBytes uint64 `json:"output_bytes"`
	Started     string `json:"started_at"`
	Status      string `json:"status"`            // for people
	Timeout     int    `json:"timeout,omitempty"` // seconds
	ExitCode    *int   `json:"exit_code,omitempty"`
	Ended       string `json:"ended_at,omitempty"`
	KilledBy    string `json:"killed_by,omitempty"` // the limit that ended it
}

func (t *Tools) listProcesses(ctx context.Context, c tool.Call, in SessionInput) (*tool.Result, error) {
	c.NewSession = false
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	all, err := l.Agent().ListProcesses(ctx)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	rows, lines := []Process{}, []string{}
	for _, p := range all {
		row := processRow(l, p)
		rows = append(rows, row)
		lines = append(lines, processLine(row, p.Args))
	}
	return sessionResult(l, &ProcessList{SessionOutput: sessionOutput(l), Processes: rows},
		tool.Text(cmp.Or(strings.Join(lines, "\n"), "No processes."))), nil
}

func processLine(row Process, argv []string) string {
	return fmt.Sprintf("%s  %s  %s  %s", row.ID, row.Kind, row.Status, fault.Name(strings.Join(argv, " "), 500))
}

func processRow(l *session.Lease, p agent.Process) Process {
	command := fault.Printable(strings.Join(p.Args, " "), 500)
	row := Process{ID: processID(l, p.ID), Command: strings.Join(strings.Fields(command), " "), Kind: p.Kind,
		Running: p.Running, PID: p.PID,
		OutputBytes: p.Written, Started: formatTime(p.Started), Status: "running", Timeout: int(p.Timeout.Seconds())}
	if p.Kind == "interpreter" && !p.Busy {
		row.Status = "waiting for code"
	}
	if !p.Running {
		row.ExitCode, row.Ended, row.KilledBy = &p.ExitCode, formatTime(p.Ended), p.KilledBy
		row.Status = fmt.Sprintf("ended with exit code %d", p.ExitCode)
		if p.KilledBy != "" {
			row.Status += fmt.Sprintf(" (limit: %s)", p.KilledBy)
		}
	}
	return row
}

type readProcessInput struct {
	processInput
	Cursor   int64   `json:"cursor,omitempty"`
	MaxBytes int     `json:"max_bytes,omitempty" jsonschema:"The most to return."`
	Wait     float64 `json:"wait,omitempty"` // seconds
	Until    string  `json:"until,omitempty"`
}

// ProcessOutput is the result of read_process.
type ProcessOutput struct {
	SessionOutput
	ProcessID string `json:"process_id" jsonschema:"The process."`
	Output    string `json:"output" jsonschema:"What was printed from the cursor on. Of a terminal (tty): the lines that have scrolled off its screen since then, and the screen."`
	Base64    string `json:"output_base64,omitempty" jsonschema:"The same bytes, when they are not text."`
	Cursor    int64  `json:"cursor" jsonschema:"Pass it the next time."`
	Running   bool   `json:"running" jsonschema:"Whether it still runs."`
	ExitCode  *int   `json:"exit_code"`
	BytesLeft int64  `json:"bytes_left"`
	KilledBy  string `json:"killed_by,omitempty" jsonschema:"The limit that ended it: time, memory or processes."`
	Truncated bool   `json:"truncated"`
	Met       *bool  `json:"until_met,omitempty" jsonschema:"Whether what until names has come; absent without until."`
}

// processBytes and fileBytes are how many bytes of a process's output and of a file a call returns by default.
const (
	processBytes = 16000
	fileBytes    = 50000
)

// defaultWait is how many seconds a call waits that only says until what.
const defaultWait = 60

func (t *Tools) readProcess(ctx context.Context, c tool.Call, in readProcessInput) (*tool.Result, error) {
	until, err := parseCondition(in.Until)
	if err != nil {
		return nil, err
	}
	if !until.rests() && in.Wait == 0 {
		in.Wait = defaultWait
	}
	l, pid, err := t.openProcess(ctx, c, in.ProcessID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	wait, maxBytes := time.Duration(in.Wait*float64(time.Second)), cmp.Or(in.MaxBytes, processBytes)
	if maxBytes > limit.LargeAnswer {
		if err := c.Reservation.Reserve(ctx, int64(maxBytes)); err != nil {
			return nil, err
		}
	}
	f := follower{lease: l, id: pid, until: until, from: in.Cursor, max: maxBytes, reservation: c.Reservation}
	output, met, err := f.read(ctx, wait)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	var view terminal.View
	if output.Terminal != nil {
		if output, view, err = f.screen(ctx); err != nil {
			return nil, l.Fault(ctx, err, fault.CommandExecution)
		}
		f.leftOut = 0
	}
	data := output.Data
	if output.Running || output.Available > 0 {
		data = wholeRunes(data)
	}
	partial := int64(len(output.Data) - len(data)) // of an incomplete character: the next call returns it
	output.Cursor, output.Available = output.Cursor-partial, output.Available+partial
	fields := &ProcessOutput{SessionOutput: sessionOutput(l), ProcessID: in.ProcessID,
		Output: strings.ToValidUTF8(string(data), "\uFFFD"), Cursor: output.Cursor,
		Running: output.Running, BytesLeft: output.Available, Truncated: output.Skipped > 0}
	if !terminal.IsText(data) {
		fields.Base64 = base64.StdEncoding.EncodeToString(data)
	}
	text := terminal.Text(fields.Output)
	if output.Terminal != nil {
		fields.Output, fields.Truncated = view.Scrolled+view.Screen, fields.Truncated || view.LeftOut > 0
		if text = fields.Output; view.LeftOut > 0 {
			text = fmt.Sprintf("[%d lines before this are left out]\n%s", view.LeftOut, text)
		}
	}
	if output.Skipped > 0 {
		text = fmt.Sprintf("[%d bytes before this were dropped]\n%s", output.Skipped, text)
	}
	if f.leftOut > 0 {
		text = fmt.Sprintf("[%d bytes before this are left out: read them without until, with cursor %d]\n%s", f.leftOut,
			in.Cursor, text)
	}
	r := sessionResult(l, fields, tool.Text(text))
	r.Summary = summary(l, fmt.Sprintf("cursor: %d", output.Cursor), fmt.Sprintf("running: %t", output.Running))
	if output.Available > 0 {
		r.Summary += fmt.Sprintf("; %d bytes more are there: call again with this cursor", output.Available)
	}
	if !until.rests() {
		fields.Met = &met
		if !met {
			r.Summary += "; until: not yet"
		}
	}
	if !output.Running {
		fields.ExitCode, fields.KilledBy = &output.ExitCode, output.KilledBy
		r.Summary += fmt.Sprintf("; exit_code: %d", output.ExitCode)
		if output.KilledBy != "" {
			r.Summary += "; " + processEndText(l, output)
		}
	}
	fields.warn(l, r, "", text)
	return r, nil
}

// processEndText returns a text on the limit that ended a process.
func processEndText(l *session.Lease, output agent.ProcessOutput) string {
	if output.KilledBy == "time" && output.Timeout > 0 {
		return fmt.Sprintf("Ended: its time limit of %d seconds was over.", int(output.Timeout.Seconds()))
	}
	return limitText(l, output.KilledBy)
}

type writeProcessInput struct {
	processInput
	Data string `json:"data,omitempty" jsonschema:"What to write."`
	EOF  bool   `json:"eof,omitempty" jsonschema:"Close its input after that."`
}

// ProcessInput is the result of write_process.
type ProcessInput struct {
	SessionOutput
	ProcessID string `json:"process_id" jsonschema:"The process."`
	Written   int    `json:"written" jsonschema:"Bytes written."`
}

func (t *Tools) writeProcess(ctx context.Context, c tool.Call, in writeProcessInput) (*tool.Result, error) {
	l, pid, err := t.openProcess(ctx, c, in.ProcessID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	t.Sessions.Narrow(l.ID(), c.Principal.Scope) // a shell may read it
	written, err := l.Agent().WriteProcess(ctx, pid, []byte(in.Data), in.EOF)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	fields := &ProcessInput{SessionOutput: sessionOutput(l), ProcessID: in.ProcessID, Written: written}
	return sessionResult(l, fields, tool.Text(fmt.Sprintf("Wrote %d bytes", written))), nil
}

// linuxSignals are the numbers of the signals in a sandbox, whatever the server's system is.
var linuxSignals = map[string]syscall.Signal{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12,
	"TERM": 15, "CONT": 18, "STOP": 19}

type stopProcessInput struct {
	processInput
	Signal string `json:"signal,omitempty" jsonschema:"The signal's name, without SIG."`
}

// ProcessEnd is the result of stop_process.
type ProcessEnd struct {
	SessionOutput
	ProcessID string `json:"process_id" jsonschema:"The process."`
	Running   bool   `json:"running" jsonschema:"Whether it still runs."`
	ExitCode  *int   `json:"exit_code"`
}

func (t *Tools) stopProcess(ctx context.Context, c tool.Call, in stopProcessInput) (*tool.Result, error) {
	l, pid, err := t.openProcess(ctx, c, in.ProcessID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	signal := cmp.Or(in.Signal, "TERM")
	var grace time.Duration
	if strings.Contains(" TERM INT HUP QUIT ", " "+signal+" ") {
		grace = 5 * time.Second
	}
	running, exitCode, err := l.Agent().StopProcess(ctx, pid, linuxSignals[signal], grace)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	fields := &ProcessEnd{SessionOutput: sessionOutput(l), ProcessID: in.ProcessID, Running: running}
	text := fmt.Sprintf("Signal %s was sent; the process still runs", signal)
	if strings.HasPrefix(pid, "interpreter-") {
		text = "The interpreter runs no code now"
	}
	if !running {
		fields.ExitCode = &exitCode
		text = fmt.Sprintf("The process ended with exit code %d", exitCode)
	}
	return sessionResult(l, fields, tool.Text(text)), nil
}
