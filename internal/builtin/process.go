package builtin

import (
	"cmp"
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

// processID returns the process handle for clients. It contains the session's id, so the tools that
// take it need no session_id.
func processID(l *session.Lease, id string) string { return l.ID() + "." + id }

func processProp() tool.Prop {
	return tool.Prop{Name: "process_id", Description: "As execute_command or list_processes gave it."}
}

// process returns a lease on the session of a process handle, and the agent's id of the process.
func (t *Tools) process(ctx context.Context, c tool.Call, id string) (*session.Lease, string, error) {
	sid, pid, ok := strings.Cut(id, ".")
	if !ok || sid == "new" || sid == "home" || sid == "" || pid == "" {
		return nil, "", fault.New(fault.InvalidParameters, "process_id %q is not one that execute_command gave",
			fault.Printable(id, 80)).
			With("argument", "process_id").With("allowed", "a process_id of execute_command or list_processes")
	}
	l, err := t.Sessions.Open(ctx, c.Principal, session.Ask{ID: sid})
	return l, pid, err
}

// ProcessList is the result of list_processes.
type ProcessList struct {
	Place
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

func listProcesses() tool.Tool {
	return tool.Tool{
		Name: "list_processes", Title: "List processes",
		Description: "List what runs, or ran, in a session: background processes, commands and interpreters, with " +
			"process_id, state and exit code.",
		Input:  tool.InputOf[SessionInput](),
		Output: tool.OutputOf[ProcessList]([]string{"processes"}, tool.Prop{Name: "processes"}),
		Hints:  reads,
	}
}

func (t *Tools) processes(ctx context.Context, c tool.Call, in SessionInput) (*tool.Result, error) {
	c.Fresh = false
	l, err := t.open(ctx, c, session.Ask{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	short, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	all, err := l.Agent().ListProcesses(short)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	rows, lines := []Process{}, []string{}
	for _, p := range all {
		row := processRow(l, p)
		rows = append(rows, row)
		lines = append(lines, fmt.Sprintf("%s  %s  %s  %s", row.ID, row.Kind, row.Status, row.Command))
	}
	return sessionResult(l, &ProcessList{Place: placeOf(l), Processes: rows},
		tool.Text(cmp.Or(strings.Join(lines, "\n"), "No processes."))), nil
}

func processRow(l *session.Lease, p agent.Process) Process {
	row := Process{ID: processID(l, p.ID), Command: fault.Printable(strings.Join(p.Args, " "), 500), Kind: p.Kind,
		Running: p.Running, PID: p.PID,
		OutputBytes: p.Written, Started: when(p.Started), Status: "running", Timeout: int(p.Timeout.Seconds())}
	if p.Kind == "interpreter" && !p.Busy {
		row.Status = "waiting for code"
	}
	if !p.Running {
		row.ExitCode, row.Ended, row.KilledBy = &p.ExitCode, when(p.Ended), p.KilledBy
		row.Status = fmt.Sprintf("ended with exit code %d", p.ExitCode)
		if p.KilledBy != "" {
			row.Status += fmt.Sprintf(" (limit: %s)", p.KilledBy)
		}
	}
	return row
}

type readProcessInput struct {
	ProcessID string  `json:"process_id"`
	Cursor    int64   `json:"cursor,omitempty"`
	MaxBytes  int     `json:"max_bytes,omitempty" jsonschema:"The most to return."`
	Wait      float64 `json:"wait,omitempty"` // seconds
}

// ProcessOutput is the result of read_process.
type ProcessOutput struct {
	Place
	ProcessID string `json:"process_id" jsonschema:"The process."`
	Output    string `json:"output" jsonschema:"What was printed from the cursor on."`
	Base64    string `json:"output_base64,omitempty" jsonschema:"The same bytes, when they are not text."`
	Cursor    int64  `json:"cursor" jsonschema:"Pass it the next time."`
	Running   bool   `json:"running" jsonschema:"Whether it still runs."`
	ExitCode  *int   `json:"exit_code"`
	Left      int64  `json:"bytes_left"`
	KilledBy  string `json:"killed_by,omitempty" jsonschema:"The limit that ended it: time, memory or processes."`
	Truncated bool   `json:"truncated"`
}

func readProcess() tool.Tool {
	return tool.Tool{
		Name: "read_process", Title: "Read a process's output",
		Description: "Read what a background process has printed (stdout and stderr in one stream). Pass the cursor " +
			"of the last result to get only what is new, and wait to be told when there is something.",
		Input: tool.InputOf[readProcessInput](processProp(),
			tool.Prop{Name: "cursor", Default: 0, Description: "Where to go on: the cursor of the last result. 0 is " +
				"the beginning."}.Range(0, 1<<53),
			tool.Prop{Name: "max_bytes", Default: maxOutput}.Range(1, 1<<20),
			tool.Prop{Name: "wait", Default: 0, Description: "Seconds to wait for new output or the end, if there " +
				"is none yet."}.Range(0, 300)),
		Output: tool.OutputOf[ProcessOutput]([]string{"output", "cursor", "running"},
			tool.Prop{Name: "exit_code", Nullable: true,
				Description: "Null while it runs; 124 when its time was over; 128+n after signal n."},
			tool.Prop{Name: "bytes_left",
				Description: "How much was printed that is not in this output: call again with cursor for it. 0: " +
					"that was all until now."},
			tool.Prop{Name: "truncated",
				Description: "Whether output between the given cursor and this was dropped: a process keeps " +
					"its last MiB."}),
		Hints: reads,
	}
}

// maxOutput is the number of bytes of a process's output, or of a file, that a call returns by default.
const maxOutput = 50000

func (t *Tools) readOutput(ctx context.Context, c tool.Call, in readProcessInput) (*tool.Result, error) {
	l, pid, err := t.process(ctx, c, in.ProcessID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	wait, most := time.Duration(in.Wait*float64(time.Second)), cmp.Or(in.MaxBytes, maxOutput)
	if most > limit.Large {
		if err := c.Held.Wait(ctx, int64(most)); err != nil {
			return nil, err
		}
	}
	limited, cancel := context.WithTimeout(ctx, wait+agentTimeout)
	defer cancel()
	m, err := l.Agent().ReadProcess(limited, pid, in.Cursor, most, wait)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	out := m.Data
	if cut := wholeCharacters(out); len(cut) < len(out) && utf8.ValidString(cut) && len(cut) > 0 &&
		utf8.Valid(out[:len(cut)]) {
		rest := int64(len(out) - len(cut)) // an incomplete character: the next call returns it
		m.Cursor, m.Left = m.Cursor-rest, m.Left+rest
		out = out[:len(cut)]
	}
	fields := &ProcessOutput{Place: placeOf(l), ProcessID: in.ProcessID,
		Output: strings.ToValidUTF8(string(out), "\uFFFD"), Cursor: m.Cursor,
		Running: m.Running, Left: m.Left, Truncated: m.Skipped > 0}
	if !utf8.Valid(out) {
		fields.Base64 = base64.StdEncoding.EncodeToString(out)
	}
	text := terminal.Text(fields.Output)
	if m.Skipped > 0 {
		text = fmt.Sprintf("[%d bytes before this were dropped]\n%s", m.Skipped, text)
	}
	r := sessionResult(l, fields, tool.Text(text))
	r.Words = summary(l, fmt.Sprintf("cursor: %d", m.Cursor), fmt.Sprintf("running: %t", m.Running))
	if m.Left > 0 {
		r.Words += fmt.Sprintf("; %d bytes more are there: call again with this cursor", m.Left)
	}
	if !m.Running {
		fields.ExitCode, fields.KilledBy = &m.ExitCode, m.KilledBy
		r.Words += fmt.Sprintf("; exit_code: %d", m.ExitCode)
		if m.KilledBy != "" {
			r.Words += "; " + ended(l, m)
		}
	}
	fields.NetworkRefused = refused(l, r)
	system(l, r, "", text)
	return r, nil
}

// ended returns a text on the limit that ended a process.
func ended(l *session.Lease, m agent.ProcessOutput) string {
	if m.KilledBy == "time" && m.Timeout > 0 {
		return fmt.Sprintf("Ended: its time limit of %d seconds was over.", int(m.Timeout.Seconds()))
	}
	return killed(l, m.KilledBy)
}

type writeProcessInput struct {
	ProcessID string `json:"process_id"`
	Data      string `json:"data,omitempty" jsonschema:"What to write."`
	EOF       bool   `json:"eof,omitempty" jsonschema:"Close its input after that."`
}

// ProcessInput is the result of write_process.
type ProcessInput struct {
	Place
	ProcessID string `json:"process_id" jsonschema:"The process."`
	Written   int    `json:"written" jsonschema:"Bytes written."`
}

func writeProcess() tool.Tool {
	return tool.Tool{
		Name: "write_process", Title: "Write to a process's input",
		Description: "Write to the standard input of a background process. End lines with a newline, as the " +
			"Enter key would.",
		Input: tool.InputOf[writeProcessInput](processProp(),
			tool.Prop{Name: "data", Default: ""},
			tool.Prop{Name: "eof", Default: false}),
		Output: tool.OutputOf[ProcessInput]([]string{"written"}),
		Hints:  tool.Hints{Destructive: true},
	}
}

func (t *Tools) writeInput(ctx context.Context, c tool.Call, in writeProcessInput) (*tool.Result, error) {
	l, pid, err := t.process(ctx, c, in.ProcessID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	limited, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	written, err := l.Agent().WriteProcess(limited, pid, []byte(in.Data), in.EOF)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	fields := &ProcessInput{Place: placeOf(l), ProcessID: in.ProcessID, Written: written}
	return sessionResult(l, fields, tool.Text(fmt.Sprintf("Wrote %d bytes", written))), nil
}

// signals are the signals that stop_process may send.
var signals = []string{"TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT"}

type stopProcessInput struct {
	ProcessID string `json:"process_id"`
	Signal    string `json:"signal,omitempty" jsonschema:"The signal's name, without SIG."`
}

// ProcessEnd is the result of stop_process.
type ProcessEnd struct {
	Place
	ProcessID string `json:"process_id" jsonschema:"The process."`
	Running   bool   `json:"running" jsonschema:"Whether it still runs."`
	ExitCode  *int   `json:"exit_code"`
}

func stopProcess() tool.Tool {
	return tool.Tool{
		Name: "stop_process", Title: "Stop a process",
		Description: "Send a signal to a process and all that it started. After TERM, INT, HUP and QUIT comes KILL " +
			"when it still runs five seconds later. Works on background processes, running commands and " +
			"interpreters: there it stops the code that runs and keeps the variables; KILL ends the interpreter.",
		Input: tool.InputOf[stopProcessInput](processProp(),
			tool.Prop{Name: "signal", Enum: signals, Default: "TERM"}),
		Output: tool.OutputOf[ProcessEnd]([]string{"running"},
			tool.Prop{Name: "exit_code", Nullable: true}),
		Hints: replaces,
	}
}

func (t *Tools) stop(ctx context.Context, c tool.Call, in stopProcessInput) (*tool.Result, error) {
	l, pid, err := t.process(ctx, c, in.ProcessID)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	name := cmp.Or(in.Signal, "TERM")
	grace := time.Duration(0)
	switch name {
	case "TERM", "INT", "HUP", "QUIT":
		grace = 5 * time.Second
	}
	limited, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	running, exit, err := l.Agent().StopProcess(limited, pid, unix.SignalNum("SIG"+name), grace)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	fields := &ProcessEnd{Place: placeOf(l), ProcessID: in.ProcessID, Running: running}
	text := fmt.Sprintf("Signal %s was sent; the process still runs", name)
	if strings.HasPrefix(pid, "interpreter-") {
		text = "The interpreter runs no code now"
	}
	if !running {
		fields.ExitCode = &exit
		text = fmt.Sprintf("The process ended with exit code %d", exit)
	}
	return sessionResult(l, fields, tool.Text(text)), nil
}
