// Package process runs the programs of third-party MCP servers, in a sandbox or on the
// host, with a transport over their standard input and output.
package process

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/processgroup"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// Command is a program to run.
type Command struct {
	Name string // the server's name, for faults
	Argv []string
	Env  map[string]string
	Cwd  string
}

// Process is a running program of a server.
type Process struct {
	Pid    int // on the host; 0: it runs in a sandbox
	stdout io.ReadCloser
	stdin  io.WriteCloser
	stop   func()
	done   chan struct{}
	// refusals returns what it was not allowed to reach since the last call; nil: it runs on the host.
	refusals func(context.Context) []egress.Refusal

	mu         sync.Mutex
	exitReason string // how the program ended; empty: it has not, or its sandbox ended
}

// Stop closes the program's input, kills the program if it does not end within ExitGrace,
// and waits for its end.
func (p *Process) Stop() { p.stop() }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Transport returns a transport to the program. Lines that are no messages are logged.
func (p *Process) Transport(log *Log) transport.Transport {
	return transport.Stdio(p.stdout, p.stdin, log.NonProtocolLine)
}

func (p *Process) setExit(how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exitReason = how
}

// ExitReason returns how the program ended; itself is false if its sandbox ended instead.
func (p *Process) ExitReason() (text string, itself bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exitReason, p.exitReason != ""
}

const (
	// ExitGrace is how long a program may still run after its input was closed.
	ExitGrace    = 2 * time.Second
	startTimeout = 30 * time.Second
)

// InSandbox starts a program in the leased sandbox. The program continues to run when the
// lease is released.
func InSandbox(ctx context.Context, l *session.Lease, c Command, log *Log) (*Process, error) {
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tag := secret.ID()
	program, err := l.Agent().StartProgram(startCtx, agent.Command{Args: c.Argv, Env: c.Env, Dir: c.Cwd, Server: tag})
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	outputReader, outputWriter := io.Pipe()
	p := &Process{stdin: program.In, stdout: outputReader, done: make(chan struct{}),
		refusals: takeRefusals(l.Booted.Outlet, l.Agent(), tag)}
	outputDone := make(chan struct{}) // closed when the output has ended
	go func() {
		defer close(outputDone)
		copyOutput(outputWriter, program.Out)
		// Readers that find the end of the output ask for the ExitReason: wait until it is set.
		select {
		case <-p.done:
		case <-time.After(ExitGrace):
		}
		outputWriter.CloseWithError(io.EOF)
	}()
	go func() {
		p.readFrames(program.Stream, log)
		close(p.done)
		program.Out.SetReadDeadline(time.Now().Add(childOutputTimeout)) // its child processes may keep the output open
		<-outputDone
		program.Close()
	}()
	p.stop = func() {
		program.In.Close()
		outputReader.CloseWithError(io.ErrClosedPipe) // further output is discarded
		select {
		case <-p.done:
		case <-time.After(ExitGrace):
			program.Stream.Close() // the agent then kills the program
			<-p.done
		}
	}
	return p, nil
}

// reportTimeout bounds the wait for an agent to say what it knows of refused connections.
const reportTimeout = 2 * time.Second

// takeRefusals returns the function that returns what a program in a sandbox was not allowed to reach since the last call.
func takeRefusals(outlet *egress.Outlet, a *agent.Client, tag string) func(context.Context) []egress.Refusal {
	return func(ctx context.Context) []egress.Refusal {
		if outlet == nil || !outlet.RefusedLately() {
			return nil
		}
		// The agent may still have to tell of connections to a name that was refused.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
		defer cancel()
		_, _ = a.Usage(ctx)
		return outlet.TakeRefusalsOf(tag)
	}
}

// Refusals returns what the program, and all that it has started, was not allowed to reach since the last call.
func (p *Process) Refusals(ctx context.Context) []egress.Refusal {
	if p.refusals == nil {
		return nil
	}
	return p.refusals(ctx)
}

// childOutputTimeout is how long output of child processes is still read after a program has
// ended.
const childOutputTimeout = 100 * time.Millisecond

// copyOutput copies a program's output until its end. It ignores errors of to: a reader that has
// closed does not stop the program.
func copyOutput(to io.Writer, from net.Conn) {
	buf := make([]byte, 64<<10)
	for afterEnd := 0; afterEnd < maxBuffered; {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = readBuffered(from, buf) // the program has ended; its output until then is complete
			afterEnd += n
		}
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// maxBuffered bounds the output that is read after the program's end; a socket buffers less.
const maxBuffered = 1 << 20

// readBuffered reads what the socket has buffered, without waiting.
func readBuffered(from net.Conn, buf []byte) (n int, err error) {
	conn, ok := from.(syscall.Conn)
	if !ok {
		return 0, io.EOF
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = readNow(fd, buf) }); cerr != nil {
		return 0, cerr
	}
	if err == nil && n <= 0 {
		return 0, io.EOF
	}
	return max(n, 0), err
}

// readFrames reads the frames of the agent until the program has ended.
func (p *Process) readFrames(stream net.Conn, log io.Writer) {
	from, buf := bufio.NewReaderSize(stream, 4<<10), make([]byte, wire.MaxFrame)
	for {
		kind, data, err := wire.ReadFrame(from, buf)
		if err != nil {
			return
		}
		switch kind {
		case wire.FrameStderr:
			log.Write(data)
		case wire.FrameExit:
			p.setExit(exitText(data))
			return
		}
	}
}

func exitText(data []byte) string {
	if len(data) < 4 {
		return "it ended"
	}
	if why := fault.Printable(string(data[4:]), 200); why != "" {
		return why
	}
	return exitCodeText(int(int32(binary.BigEndian.Uint32(data))))
}

func exitCodeText(code int) string {
	if code > 128 && code < 192 {
		return fmt.Sprintf("it was ended by signal %d%s", code-128, signalText(code-128))
	}
	return fmt.Sprintf("it ended with exit code %d", code)
}

// environ returns env with the command's variables added.
func (c Command) environ(env []string) []string {
	for k, v := range c.Env {
		env = append(env, k+"="+v)
	}
	return env
}

// OnHost starts a program on the host, without a sandbox, as the user that the operator's
// settings name; for an empty user see spec.LookupHostUser. The program has a process
// group of its own, which is killed when it ends.
func OnHost(c Command, user string, log *Log) (*Process, error) {
	hostUser, err := spec.LookupHostUser(user)
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "%s: %v", c.Name, err)
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	if cmd.Dir = c.Cwd; c.Cwd == "" {
		cmd.Dir = hostUser.DefaultDir()
	}
	cmd.Env = c.environ(hostUser.Environment())
	cmd.SysProcAttr = attributes(hostUser.Credential)
	cmd.Stderr = log
	cmd.WaitDelay = ExitGrace
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	p := &Process{stdout: stdout, stdin: stdin, done: make(chan struct{})}
	group, started := (*processgroup.Group)(nil), make(chan error, 1)
	go func() {
		// Pdeathsig is sent when the thread that started the program ends, not only when
		// the server does: keep the thread until the program has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		var err error
		group, err = processgroup.Start(cmd)
		w.Close()
		if err == nil {
			p.Pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		defer group.Close()
		// Kill the process group before Wait: after that, another process could get its id.
		awaitExit(cmd.Process)
		_ = group.Kill()
		_ = cmd.Wait() // cmd.ProcessState has the exit status
		p.setExit(exitCodeText(exitCode(cmd.ProcessState)))
	}()
	if err := <-started; err != nil {
		stdout.Close()
		return nil, notStarted(err)
	}
	p.stop = func() {
		defer stdout.Close()
		stdin.Close()
		select {
		case <-p.done:
			return
		case <-time.After(ExitGrace):
		}
		_ = group.Terminate()
		select {
		case <-p.done:
		case <-time.After(ExitGrace):
			_ = group.Kill()
			<-p.done
		}
	}
	return p, nil
}

func exitCode(st *os.ProcessState) int {
	if st == nil {
		return -1
	}
	if signal := endSignal(st); signal != 0 {
		return 128 + signal
	}
	return st.ExitCode()
}

// WithPath returns the argv that runs a command with folders before PATH.
func WithPath(path []string, command string, args []string) []string {
	argv := append([]string{command}, args...)
	if len(path) == 0 {
		return argv
	}
	return append([]string{"/bin/sh", "-c", `PATH="$1:$PATH"; export PATH; shift; exec "$@"`, "sh", strings.Join(path, ":")}, argv...)
}

// notStarted returns the fault for a program that could not be started on the host. It has no path: the command is of
// the settings, may have a secret, and users do not see it.
func notStarted(err error) error {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fault.Wrap(fault.CommandExecution, err, "its program could not be started on the server's machine: %v", err)
}
