package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/toolfolder"
)

const (
	// maxConns bounds the connections of programs that are served at once. As many as maxWaiting more wait, for at
	// most waitLimit.
	maxConns   = 64
	maxWaiting = 256
	waitLimit  = 30 * time.Second
	// dialLimit is how long a connection waits for a host: a server that is restarted is back before that.
	dialLimit = 30 * time.Second
	// firstLimit is how long a program may take until it sends something.
	firstLimit = 30 * time.Second
)

// Config is what Tools need.
type Config struct {
	Dir string // of the tree
	// Shared is the folder in which the host has the tree, if it shares one.
	Shared string
	// Dial makes a connection for calls of tools to the host.
	Dial func(ctx context.Context) (net.Conn, error)
	// Whose returns to which of the agent's programs the process with an id belongs.
	Whose func(pid int) wire.ToolConn
	// Begin is called when a program waits for an answer of the host, until end is called: the sandbox is in use.
	Begin func() (end func())
}

// Tools are the tool tree and its socket.
type Tools struct {
	config Config
	slots  chan struct{} // held by the connections that are served
	queue  chan struct{} // held by those, and by the ones that wait

	setting sync.Mutex   // held while the tree changes
	set     func() error // puts the tree back; nil: none was set
	tree    *os.File     // the folder that the agent has written; nil: the tree is a link

	mu       sync.Mutex
	listener *net.UnixListener // nil: there is no tree, or Close was called
	socket   string            // the path of the listener's socket
	made     fs.FileInfo       // the file of the socket
	closed   bool
	watched  bool              // watch runs
	conns    map[net.Conn]bool // of programs and to the host; true: the host serves it
	work     sync.WaitGroup
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
}

// New returns Tools without a tree.
func New(c Config) *Tools {
	t := &Tools{config: c, slots: make(chan struct{}, maxConns),
		queue: make(chan struct{}, maxConns+maxWaiting), conns: map[net.Conn]bool{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Close ends all connections, and removes the socket. The files stay.
func (t *Tools) Close() {
	t.mu.Lock()
	l := t.listener
	t.listener, t.closed = nil, true
	for c := range t.conns {
		c.Close()
	}
	t.mu.Unlock()
	t.cancel()
	t.setting.Lock()
	t.set = nil
	if t.tree != nil {
		t.tree.Close()
		t.tree = nil
	}
	t.setting.Unlock()
	if l != nil {
		l.Close()
		_ = os.Remove(t.socket)
	}
	t.work.Wait()
}

// Cut ends the connections that a host serves: it is gone, or the sandbox has slept, or is a copy. gVisor wakes nobody
// who waits for such a connection then. Those that wait for a host go on waiting.
func (t *Tools) Cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, served := range t.conns {
		if served {
			c.Close()
		}
	}
}

// track notes a connection for Close and, if the host serves it, Cut.
func (t *Tools) track(c net.Conn, served bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		c.Close()
	}
	t.conns[c] = served
}

func (t *Tools) forget(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// listens reports whether the socket is at a path.
func (t *Tools) listens(place string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isAt(place)
}

// isAt is listens for who holds mu.
func (t *Tools) isAt(place string) bool {
	now, err := os.Lstat(place)
	return err == nil && t.listener != nil && t.socket == place && os.SameFile(now, t.made)
}

// listen makes the socket at a path, unless there is one. A program that is root may have removed it.
func (t *Tools) listen(place string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errors.New("the agent ends")
	}
	if t.isAt(place) {
		return nil
	}
	if t.listener != nil {
		t.listener.Close()
		t.listener = nil
	}
	temporary := filepath.Join(filepath.Dir(place), toolfolder.NewPrefix+filepath.Base(place))
	if err := os.Remove(temporary); err != nil { // a program may have put a folder there
		if err := clearAway(temporary); err != nil {
			return err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: temporary})
	if err != nil {
		return fmt.Errorf("making the socket for calls of tools: %w", err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(temporary, 0o666) // all users of the sandbox may connect
	if err == nil {
		t.made, err = os.Lstat(temporary)
	}
	if err == nil {
		if err = os.Rename(temporary, place); errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EISDIR) { // a folder
			err = errors.Join(clearAway(place), os.Rename(temporary, place))
		}
	}
	if err != nil {
		l.Close()
		_ = os.Remove(temporary)
		return fmt.Errorf("making the socket for calls of tools: %w", err)
	}
	t.listener, t.socket = l, place
	t.work.Go(func() { t.accept(l) })
	return nil
}

// accept serves the connections of programs until the listener is closed.
func (t *Tools) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as too many open files
			select {
			case <-time.After(5 * time.Millisecond):
			case <-t.ctx.Done():
			}
			continue
		}
		select {
		case t.queue <- struct{}{}:
		default:
			c.Close()
			continue
		}
		t.work.Go(func() {
			defer func() { <-t.queue }()
			defer c.Close()
			t.track(c, false)
			defer t.forget(c)
			who, err := t.peer(c) // at once: another process may get its id
			if err != nil {
				return
			}
			select {
			case t.slots <- struct{}{}:
			case <-time.After(waitLimit):
				refuse(c, errFull)
				return
			case <-t.ctx.Done():
				return
			}
			defer func() { <-t.slots }()
			t.serve(c, who)
		})
	}
}

// serve carries a connection of a program to the host and back. The host gets one as soon as the program has sent
// something.
func (t *Tools) serve(c *net.UnixConn, who wire.ToolConn) {
	first := make([]byte, 4<<10)
	c.SetReadDeadline(time.Now().Add(firstLimit))
	n, err := c.Read(first)
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Time{})
	host, err := t.dialHost(who, first[:n])
	if err != nil {
		refuse(c, err)
		return
	}
	defer host.Close()
	t.track(host, true)
	defer t.forget(host)
	t.track(c, true)
	w := &waiting{begin: t.config.Begin}
	w.sent(first[:n])
	defer w.stop()
	splice(c, host, w)
}

// refusal says why a program's request was not passed on, in the words of toolcall on the host.
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r refusal) Error() string { return r.Message }

var (
	errFull = refusal{"busy", fmt.Sprintf("too many programs call tools at once: at most %d connections are served",
		maxConns)}
	errAway = refusal{"unavailable", fmt.Sprintf("Sandlot does not run, or did not take over this sandbox within %v: "+
		"the call was not made", dialLimit)}
)

// refuse answers a request that was not passed on. Without an answer its program would have to think that a tool may
// have run, as it does after other errors.
func refuse(c net.Conn, err error) {
	if r, ok := errors.AsType[refusal](err); ok {
		line, _ := json.Marshal(map[string]refusal{"error": r})
		c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.Write(append(line, '\n'))
	}
}

// splice copies between a program and the host until the host has ended the connection, or one of them is gone. A
// program that sends nothing more may still wait for an answer.
func splice(program, host splicer, w *waiting) {
	var sending sync.WaitGroup
	sending.Go(func() {
		_, _ = io.Copy(noting{host, w.sent}, program)
		_ = host.CloseWrite() // the host ends the connection then, and may have sent a last answer before
	})
	_, _ = io.Copy(noting{program, w.received}, host) // however it ends, the connection is over
	program.Close()
	host.Close()
	sending.Wait()
}

// waiting says whether a program waits for an answer to one of its lines. Each direction of its connection has a
// goroutine.
type waiting struct {
	begin func() (end func())

	mu    sync.Mutex
	lines int    // that are not answered
	end   func() // nil: it does not wait
	head  []byte // the beginning of the line that the host is sending
}

// progress begins a line that is no answer, as the host writes it.
const progress = `{"progress":`

// sent is called with what the program sends.
func (w *waiting) sent(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines += bytes.Count(p, newline)
	if w.lines > 0 && w.end == nil {
		w.end = w.begin()
	}
}

// received is called with what the host sends.
func (w *waiting) received(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, newline)
		w.head = append(w.head, line[:min(len(line), len(progress)-len(w.head))]...)
		if ended && string(w.head) != progress {
			w.lines--
		}
		if ended {
			w.head = w.head[:0]
		}
		p = rest
	}
	if w.lines <= 0 && w.end != nil {
		w.end()
		w.lines, w.end = 0, nil
	}
}

// stop is called when the connection has ended.
func (w *waiting) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil {
		w.end()
		w.end = nil
	}
}

var newline = []byte{'\n'}

// noting calls a function with what is written, before that.
type noting struct {
	io.Writer
	note func([]byte)
}

func (n noting) Write(p []byte) (int, error) {
	n.note(p)
	return n.Writer.Write(p)
}

// peer returns to which program of the agent the process that connected belongs.
func (t *Tools) peer(c *net.UnixConn) (who wire.ToolConn, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return who, err
	}
	var peer *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(cerr, err); err != nil {
		return who, err
	}
	return t.config.Whose(int(peer.Pid)), nil
}

// splicer is a connection whose directions can be closed one by one.
type splicer interface {
	net.Conn
	CloseWrite() error
}

// dialHost makes a connection to the host, and sends on it who calls, and what the program has sent. While there is no
// host it tries again.
func (t *Tools) dialHost(who wire.ToolConn, first []byte) (splicer, error) {
	ctx, cancel := context.WithTimeout(t.ctx, dialLimit)
	defer cancel()
	passed := false // a host may have the request
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c, err := t.config.Dial(ctx)
		if err == nil {
			if err = wire.WriteToolConn(c, who); err == nil {
				passed = true
				_, err = c.Write(first)
			}
			if out, ok := c.(splicer); ok && err == nil {
				return out, nil
			}
			c.Close()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if !passed {
				err = errAway
			}
			return nil, errors.Join(err, ctx.Err())
		}
	}
}
