package agent

import (
	"context"
	"syscall"
	"time"

	"sandlot/internal/agent/command"
	"sandlot/proto/agentv1"
)

// Command is a program to start in a sandbox.
type Command = command.Command

// Size is the size of a terminal, in characters.
type Size = command.Size

// Background is a program to start in the background.
type Background struct {
	Command
	Stdin     []byte
	KeepStdin bool          // keep the input open for WriteProcess
	Timeout   time.Duration // after which the program is ended; 0: never
	Unread    time.Duration // it is ended once nobody has read its output for so long; 0: never
}

// StartProcess starts a program in the background and returns its process id.
func (c *Client) StartProcess(ctx context.Context, b Background) (id string, err error) {
	m, err := timedCall(ctx, 0, c.rpc.StartProcess, &agentv1.StartProcessRequest{Command: b.Message(), Stdin: b.Stdin,
		StdinOpen: b.KeepStdin, TimeoutMillis: uint64(b.Timeout.Milliseconds()),
		UnreadMillis: uint64(b.Unread.Milliseconds())})
	if err != nil {
		return "", err
	}
	return line(m.ProcessId, maxProcessID), nil
}

// maxProcessID bounds the length of a process id in bytes. The agent's are shorter.
const maxProcessID = 32

// Process is a process that the agent started.
type Process struct {
	ID             string // for the other methods; printable
	Args           []string
	Kind           string // how it was started: background, exec, interactive or interpreter
	PID            int    // inside the sandbox
	Running        bool
	Busy           bool // an interpreter that runs code now
	ExitCode       int  // once it has ended: 128+n after signal n, 124 after the timeout
	Started, Ended time.Time
	Written        uint64        // bytes of output
	KilledBy       string        // the limit that it was killed for: memory, processes, disk or time; printable
	Timeout        time.Duration // with which it was started; 0: none
	Terminal       bool          // it has a terminal
	Unread         time.Duration // with which it was started; 0: none
}

// ListProcesses returns the processes that run, and the background processes that have ended
// and that the agent still has in its table.
func (c *Client) ListProcesses(ctx context.Context) ([]Process, error) {
	m, err := timedCall(ctx, 0, c.rpc.ListProcesses, &agentv1.ListProcessesRequest{})
	if err != nil {
		return nil, err
	}
	all := make([]Process, len(m.Processes))
	for n, p := range m.Processes {
		if p.Pid > maxProcesses || p.OutputBytes > maxUsedBytes {
			return nil, ErrProtocol
		}
		all[n] = Process{ID: line(p.ProcessId, maxProcessID), Args: p.Argv,
			Kind: known(p.Kind, "background", "exec", "interactive", "interpreter"), PID: int(p.Pid),
			Running: p.Running, Busy: p.Busy,
			ExitCode: int(p.ExitCode),
			Started:  unixMillis(p.StartedUnixMillis), Ended: unixMillis(p.EndedUnixMillis),
			Written: p.OutputBytes, KilledBy: knownLimit(p.KilledBy),
			Timeout: duration(p.TimeoutMillis, time.Millisecond), Terminal: p.Terminal != nil,
			Unread: duration(p.UnreadMillis, time.Millisecond)}
	}
	return all, nil
}

// Listener is a TCP port of a sandbox on which a program listens.
type Listener struct {
	Port    int
	Program string // its name, printable
}

// maxListeners is how many ports an agent may list, and maxProgram how many bytes the name of a program has.
const maxListeners, maxProgram = 256, 64

// ListPorts returns on which TCP ports the programs of the sandbox listen, each once.
func (c *Client) ListPorts(ctx context.Context) ([]Listener, error) {
	m, err := timedCall(ctx, 0, c.rpc.ListPorts, &agentv1.ListPortsRequest{})
	if err != nil {
		return nil, err
	}
	if len(m.Listeners) > maxListeners {
		return nil, ErrProtocol
	}
	all, known := []Listener{}, map[uint32]bool{}
	for _, l := range m.Listeners {
		if l.Port < 1 || l.Port > 65535 || known[l.Port] {
			return nil, ErrProtocol
		}
		known[l.Port] = true
		all = append(all, Listener{int(l.Port), line(l.Program, maxProgram)})
	}
	return all, nil
}

// ProcessOutput is a part of the output of a background process.
type ProcessOutput struct {
	Data      []byte
	Cursor    int64 // the offset of the end of Data in the output, for the next call
	Skipped   int64 // bytes between the requested cursor and Data, which are no longer kept
	Available int64 // bytes after Data that were written already
	Running   bool
	ExitCode  int           // as in Process
	KilledBy  string        // as in Process
	Timeout   time.Duration // as in Process
	Terminal  *Size         // the terminal that it was started with; nil: it has pipes
}

// How large a terminal may be whose screen the server makes.
const maxRows, maxColumns = 100, 300

// ReadProcess returns at most maxBytes of a process's output, from the offset cursor on. If there are none
// yet, it waits for output or the end of the process, but not longer than wait.
func (c *Client) ReadProcess(ctx context.Context, id string, cursor int64, maxBytes int,
	wait time.Duration) (ProcessOutput, error) {
	m, err := timedCall(ctx, wait, c.rpc.ReadProcess, &agentv1.ReadProcessRequest{ProcessId: id, Cursor: uint64(cursor),
		MaxBytes: uint32(maxBytes), WaitMillis: uint64(wait.Milliseconds())})
	if err != nil {
		return ProcessOutput{}, err
	}
	if len(m.Output) > maxBytes || m.Cursor > maxCursor || m.Cursor < uint64(len(m.Output)) || m.Left > maxCursor ||
		m.Skipped > maxCursor {
		return ProcessOutput{}, ErrProtocol
	}
	out := ProcessOutput{Data: m.Output, Cursor: int64(m.Cursor), Skipped: int64(m.Skipped), Available: int64(m.Left),
		Running: m.Running, ExitCode: int(m.ExitCode), KilledBy: knownLimit(m.KilledBy),
		Timeout: duration(m.TimeoutMillis, time.Millisecond)}
	if t := m.Terminal; t != nil {
		out.Terminal = &Size{Rows: int(min(max(t.Rows, 1), maxRows)), Cols: int(min(max(t.Cols, 1), maxColumns))}
	}
	return out, nil
}

// WriteProcess writes to a process's input, and closes it afterwards when eof is set. It returns
// how many bytes were written.
func (c *Client) WriteProcess(ctx context.Context, id string, data []byte, eof bool) (written int, err error) {
	return c.writeProcess(ctx, &agentv1.WriteProcessRequest{ProcessId: id, Data: data, Eof: eof})
}

// TypeKeys writes to a process's terminal what that of a person sends, byte for byte. It returns how many bytes were
// written.
func (c *Client) TypeKeys(ctx context.Context, id string, keys []byte) (written int, err error) {
	return c.writeProcess(ctx, &agentv1.WriteProcessRequest{ProcessId: id, Data: keys, Keys: true})
}

// ResizeTerminal changes the size of a process's terminal.
func (c *Client) ResizeTerminal(ctx context.Context, id string, to Size) error {
	_, err := c.writeProcess(ctx, &agentv1.WriteProcessRequest{ProcessId: id,
		Resize: &agentv1.Pty{Rows: uint32(to.Rows), Cols: uint32(to.Cols)}})
	return err
}

func (c *Client) writeProcess(ctx context.Context, r *agentv1.WriteProcessRequest) (written int, err error) {
	m, err := timedCall(ctx, 0, c.rpc.WriteProcess, r)
	if err != nil {
		return 0, err
	}
	if int64(m.Written) > int64(len(r.Data)) {
		return 0, ErrProtocol
	}
	return int(m.Written), nil
}

// StopProcess sends a signal to a process and its descendants; KILL follows after grace, unless
// grace is 0. It returns whether the process still runs, and its exit code when it does not.
func (c *Client) StopProcess(ctx context.Context, id string, signal syscall.Signal,
	grace time.Duration) (running bool, exitCode int, err error) {
	m, err := timedCall(ctx, 0, c.rpc.StopProcess, &agentv1.StopProcessRequest{ProcessId: id, Signal: int32(signal),
		GraceMillis: uint64(grace.Milliseconds())})
	if err != nil {
		return false, 0, err
	}
	return m.Running, int(m.ExitCode), nil
}
