package servers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// process is a server's program that runs somewhere.
type process struct {
	stdout io.ReadCloser
	stdin  io.WriteCloser
	pid    int
	// end asks the program to end, and ends it when it does not; it waits.
	end  func()
	done chan struct{} // closed when it has ended

	mu   sync.Mutex
	exit string // in words; empty: the place where it ran is gone
}

func (p *process) ended(how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exit = how
}

// how says how it ended; the place that it ran in may have ended instead.
func (p *process) how() (words string, itself bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit, p.exit != ""
}

// logbook keeps the last bytes of what a server wrote on its standard error,
// and what stood between its messages.
type logbook struct {
	mu    sync.Mutex
	bytes []byte
	total int64
}

// Write implements io.Writer; it never fails.
func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += int64(len(p))
	if len(p) >= logBytes {
		l.bytes = append(l.bytes[:0], p[len(p)-logBytes:]...)
		return len(p), nil
	}
	if over := len(l.bytes) + len(p) - logBytes; over > 0 {
		l.bytes = append(l.bytes[:0], l.bytes[over:]...)
	}
	l.bytes = append(l.bytes, p...)
	return len(p), nil
}

// line adds a line of ours, or one that was no message.
func (l *logbook) line(format string, args ...any) { fmt.Fprintf(l, format+"\n", args...) }

// tail returns the last lines, safe to show.
func (l *logbook) tail(lines int) (string, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Split(strings.TrimRight(string(l.bytes), "\n"), "\n")
	if lines > 0 && len(all) > lines {
		all = all[len(all)-lines:]
	}
	return spec.Text(strings.Join(all, "\n"), logBytes), l.total
}

const (
	farewell = 2 * time.Second // for a program whose input has ended
	waiting  = 30 * time.Second
)

// home opens the principal's home.
func (b *Book) home(ctx context.Context, s *server) (*session.Lease, error) {
	if b.Sessions == nil {
		return nil, fault.New(fault.Connection, "this server has no sandboxes")
	}
	return b.Sessions.Open(ctx, s.owner, session.Ask{ID: "home"})
}

// inSandbox starts a program in the owner's home.
func (b *Book) inSandbox(ctx context.Context, s *server, argv []string, env map[string]string, cwd string) (*process, error) {
	l, err := b.home(ctx, s)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	open, cancel := context.WithTimeout(ctx, waiting)
	defer cancel()
	program, err := l.Agent().Start(open, agent.Command{Args: argv, Env: env, Dir: cwd})
	if err != nil {
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	out, in := io.Pipe()
	p := &process{stdin: program.In, stdout: out, done: make(chan struct{})}
	over := make(chan struct{}) // the output's
	go func() {
		defer close(over)
		pump(in, program.Out)
		// Whoever finds the end wants to know how it was.
		select {
		case <-p.done:
		case <-time.After(farewell):
		}
		in.CloseWithError(io.EOF)
	}()
	go func() {
		p.receive(program.Stream, &s.log)
		close(p.done)
		program.Out.SetReadDeadline(time.Now().Add(leftover)) // what the program left behind may hold it
		<-over
		program.Close()
	}()
	p.end = func() {
		program.In.Close()
		out.CloseWithError(io.ErrClosedPipe) // what it still says is let go
		select {
		case <-p.done:
		case <-time.After(farewell):
			program.Stream.Close() // the agent hangs up, and kills
			<-p.done
		}
	}
	return p, nil
}

// leftover is how long output is still taken from what a program left behind
// when it ended.
const leftover = 100 * time.Millisecond

// pump passes a program's output on until its end. A reader that went away does
// not stop the program.
func pump(to io.Writer, from net.Conn) {
	buf := make([]byte, 64<<10)
	for late := 0; late < maxRest; {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = rest(from, buf) // it has ended; what it has said by then counts
			late += n
		}
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// maxRest is more than a socket holds of what was said before the end.
const maxRest = 1 << 20

// rest reads what is there now.
func rest(from net.Conn, buf []byte) (n int, err error) {
	conn, ok := from.(syscall.Conn)
	if !ok {
		return 0, io.EOF
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); cerr != nil {
		return 0, cerr
	}
	if err == nil && n <= 0 {
		return 0, io.EOF
	}
	return max(n, 0), err
}

// receive takes a program's frames until it ends.
func (p *process) receive(stream net.Conn, log io.Writer) {
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
			p.ended(exitWords(data))
			return
		}
	}
}

func exitWords(data []byte) string {
	if len(data) < 4 {
		return "it ended"
	}
	if why := agent.Printable(string(data[4:]), 200); why != "" {
		return why
	}
	return codeWords(int(int32(binary.BigEndian.Uint32(data))))
}

func codeWords(code int) string {
	if code > 128 && code < 192 {
		return fmt.Sprintf("it was ended by signal %d (%s)", code-128, syscall.Signal(code-128))
	}
	return fmt.Sprintf("it ended with exit code %d", code)
}

// onHost starts a program on the server's machine, as the operator's settings
// said. It and all that it starts are one process group.
func onHost(s *server, argv []string, env map[string]string, cwd string) (*process, error) {
	as, err := spec.AccountOf(s.settings.User)
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "%s: %v", s.name, err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if cmd.Dir = cwd; cwd == "" {
		cmd.Dir = as.Folder()
	}
	cmd.Env = as.Environment()
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: as.Credential}
	cmd.Stderr = &s.log
	cmd.WaitDelay = farewell
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	p := &process{stdout: stdout, stdin: stdin, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The signal at the server's death comes when the thread that started
		// the program dies: it is kept until the program has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		w.Close()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		// Its group is ended while its number is still its own.
		_ = unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		_ = cmd.Wait() // its state says what there is to say
		p.ended(codeWords(exitCode(cmd.ProcessState)))
	}()
	if err := <-started; err != nil {
		stdout.Close()
		return nil, fault.Wrap(fault.CommandExecution, err, "%s could not be started on the server's machine: %v", argv[0], err)
	}
	p.end = func() {
		defer stdout.Close()
		stdin.Close()
		select {
		case <-p.done:
			return
		case <-time.After(farewell):
		}
		_ = syscall.Kill(-p.pid, syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(farewell):
			_ = syscall.Kill(-p.pid, syscall.SIGKILL)
			<-p.done
		}
	}
	return p, nil
}

func exitCode(st *os.ProcessState) int {
	if st == nil {
		return -1
	}
	if w, ok := st.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return st.ExitCode()
}

// withPath makes argv of a program for which folders stand first in PATH.
func withPath(path []string, command string, args []string) []string {
	argv := append([]string{command}, args...)
	if len(path) == 0 {
		return argv
	}
	return append([]string{"/bin/sh", "-c", `PATH="$1:$PATH"; export PATH; shift; exec "$@"`, "sh", strings.Join(path, ":")}, argv...)
}

// noise writes what a server printed between its messages into its log.
func (l *logbook) noise(line []byte) {
	l.line("[stdout] %s", bytes.TrimRight(line[:min(len(line), 2000)], "\r\n"))
}
