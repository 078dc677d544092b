package agent

import (
	"context"
	"syscall"
	"time"

	"sandlot/internal/agent/command"
	"sandlot/internal/fault"
	"sandlot/proto/agentv1"
)

// Command is a program to start in a sandbox.
type Command = command.Command

// Size is that of a terminal, in characters.
type Size = command.Size

// Background says what to start in the background.
type Background struct {
	Command
	Stdin     []byte
	KeepStdin bool          // leave its input open for WriteProcess
	Timeout   time.Duration // it is ended after that; 0: never
}

// StartProcess starts a program in the background and returns its process id.
func (c *Client) StartProcess(ctx context.Context, b Background) (id string, err error) {
	m, err := call(ctx, c.rpc.StartProcess, &agentv1.StartProcessRequest{Command: b.Message(), Stdin: b.Stdin,
		StdinOpen: b.KeepStdin, TimeoutMillis: uint64(b.Timeout.Milliseconds())})
	if err != nil {
		return "", err
	}
	return fault.Printable(m.ProcessId, maxProcessID), nil
}

// maxProcessID is more bytes than an id has.
const maxProcessID = 32

// Process is a process that the agent started.
type Process struct {
	ID             string // printable, for the other methods
	Args           []string
	Kind           string // background, exec, interactive or interpreter
	PID            int    // inside the sandbox
	Running        bool
	Busy           bool // it is an interpreter that runs code now
	ExitCode       int  // of one that has ended: 128+n after signal n, 124 when its time was over
	Started, Ended time.Time
	Written        uint64        // bytes of output
	KilledBy       string        // the limit that ended it: memory, processes, disk or time; printable
	Timeout        time.Duration // that it was started with; 0: none
}

// ListProcesses returns what runs, and what ran and is remembered.
func (c *Client) ListProcesses(ctx context.Context) ([]Process, error) {
	m, err := call(ctx, c.rpc.ListProcesses, &agentv1.ListProcessesRequest{})
	if err != nil {
		return nil, err
	}
	all := make([]Process, len(m.Processes))
	for n, p := range m.Processes {
		all[n] = Process{ID: fault.Printable(p.ProcessId, maxProcessID), Args: p.Argv,
			Kind: fault.Printable(p.Kind, 20), PID: int(p.Pid), Running: p.Running, Busy: p.Busy,
			ExitCode: int(p.ExitCode),
			Started:  moment(p.StartedUnixMillis), Ended: moment(p.EndedUnixMillis),
			Written: p.OutputBytes, KilledBy: fault.Printable(p.KilledBy, 40),
			Timeout: span(p.TimeoutMillis, time.Millisecond)}
	}
	return all, nil
}

// ProcessOutput is a part of what a background process wrote.
type ProcessOutput struct {
	Data     []byte
	Cursor   int64 // to go on from; the number of bytes up to the end of Data
	Skipped  int64 // bytes between the cursor that was given and Data, which are gone
	Left     int64 // bytes after Data that are there already
	Running  bool
	ExitCode int           // as Process's
	KilledBy string        // as Process's
	Timeout  time.Duration // as Process's
}

// ReadProcess returns at most most bytes of a process's output from a cursor on.
// Where there is none it waits for some, or for the process's end.
func (c *Client) ReadProcess(ctx context.Context, id string, cursor int64, most int,
	wait time.Duration) (ProcessOutput, error) {
	m, err := call(ctx, c.rpc.ReadProcess, &agentv1.ReadProcessRequest{ProcessId: id, Cursor: uint64(cursor),
		MaxBytes: uint32(most), WaitMillis: uint64(wait.Milliseconds())})
	if err != nil {
		return ProcessOutput{}, err
	}
	if len(m.Output) > most || m.Cursor > maxCursor || m.Cursor < uint64(len(m.Output)) || m.Left > maxCursor ||
		m.Skipped > maxCursor {
		return ProcessOutput{}, ErrProtocol
	}
	return ProcessOutput{Data: m.Output, Cursor: int64(m.Cursor), Skipped: int64(m.Skipped), Left: int64(m.Left),
		Running: m.Running, ExitCode: int(m.ExitCode), KilledBy: fault.Printable(m.KilledBy, 40),
		Timeout: span(m.TimeoutMillis, time.Millisecond)}, nil
}

// WriteProcess writes to a process's input, closes it after that when eof is
// set, and returns how many bytes were written.
func (c *Client) WriteProcess(ctx context.Context, id string, data []byte, eof bool) (written int, err error) {
	m, err := call(ctx, c.rpc.WriteProcess, &agentv1.WriteProcessRequest{ProcessId: id, Data: data, Eof: eof})
	if err != nil {
		return 0, err
	}
	if int64(m.Written) > int64(len(data)) {
		return 0, ErrProtocol
	}
	return int(m.Written), nil
}

// StopProcess sends a signal to a process and to what it started; KILL follows
// after grace, unless that is 0. It says whether the process still runs, and its
// exit code when it does not.
func (c *Client) StopProcess(ctx context.Context, id string, signal syscall.Signal,
	grace time.Duration) (running bool, exitCode int, err error) {
	m, err := call(ctx, c.rpc.StopProcess, &agentv1.StopProcessRequest{ProcessId: id, Signal: int32(signal),
		GraceMillis: uint64(grace.Milliseconds())})
	if err != nil {
		return false, 0, err
	}
	return m.Running, int(m.ExitCode), nil
}
