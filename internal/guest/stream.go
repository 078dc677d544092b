package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/files"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// serveRaw serves a raw stream.
func (a *Agent) serveRaw(s net.Conn) {
	open := new(agentv1.StreamOpen)
	if wire.ReadMessage(s, open) != nil {
		return
	}
	switch k := open.Kind.(type) {
	case *agentv1.StreamOpen_Exec:
		a.runInteractive(s, k.Exec)
	case *agentv1.StreamOpen_ReadFile:
		a.sendFile(s, k.ReadFile, open.Ticket)
	case *agentv1.StreamOpen_WriteFile:
		a.receiveFile(s, k.WriteFile, open.Ticket)
	case *agentv1.StreamOpen_Dial:
		a.dialPort(s, k.Dial)
	default:
		refuse(s, wire.Errorf(connect.CodeUnimplemented, "unknown kind of stream"))
	}
}

func refuse(s net.Conn, err error) { _ = wire.WriteMessage(s, refusalReply(err)) }

func refusalReply(err error) *agentv1.StreamReply {
	text := err.Error()
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		text = ce.Message()
	}
	return &agentv1.StreamReply{Code: uint32(connect.CodeOf(err)), Message: wire.UTF8(text)}
}

// transferBuffer is how many bytes of a file are copied at once.
const transferBuffer = 1 << 20

// directThreshold is the size from which on a file's bytes go over a direct connection.
const directThreshold = 4 << 20

// dialForFile makes the direct connection for the bytes of a file. It returns nil when they are
// to go over the stream: the file is small, or the connection failed.
func (a *Agent) dialForFile(ticket []byte, size int64) *os.File {
	if len(ticket) == 0 || size < directThreshold {
		return nil
	}
	f, err := a.dialDirect(ticket)
	if err != nil {
		return nil
	}
	return f
}

// copyFile copies with a large buffer. It hides the ReadFrom and WriteTo of both sides, which
// io.Copy would use, with other buffers.
func copyFile(to io.Writer, from io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, transferBuffer))
}

func (a *Agent) sendFile(s net.Conn, r *agentv1.ReadStream, ticket []byte) {
	f, st, err := a.Open(r.Path)
	if err != nil {
		refuse(s, err)
		return
	}
	defer f.Close()
	offset := int64(min(r.Offset, uint64(st.Size())))
	length := st.Size() - offset
	if r.Limit > 0 {
		length = min(length, int64(min(r.Limit, 1<<62)))
	}
	var target io.Writer = s
	conn := a.dialForFile(ticket, length)
	if conn != nil {
		defer conn.Close()
		target = conn
	}
	reply := &agentv1.StreamReply{Size: uint64(st.Size()), Direct: conn != nil, Version: files.VersionOf(st)}
	if wire.WriteMessage(s, reply) == nil {
		copyFile(target, io.NewSectionReader(f, offset, length)) // after an error the host misses bytes
	}
}

func (a *Agent) receiveFile(s net.Conn, w *agentv1.WriteStream, ticket []byte) {
	file, err := a.Replace(w.Path, w.Mode)
	if err != nil {
		refuse(s, err)
		return
	}
	var source io.Reader = s
	conn := a.dialForFile(ticket, int64(min(w.GetSize(), 1<<62)))
	if conn != nil {
		defer conn.Close()
		source = conn
	}
	var size int64
	if err = wire.WriteMessage(s, &agentv1.StreamReply{Direct: conn != nil}); err == nil {
		if w.Size != nil {
			source = io.LimitReader(source, int64(min(*w.Size, 1<<62)))
		}
		size, err = copyFile(file.File, source)
	}
	if err == nil && w.Size != nil && uint64(size) != *w.Size {
		err = wire.Errorf(connect.CodeInvalidArgument,
			"the transfer was cut: %d of %d bytes arrived, and the file was not changed", size, *w.Size)
	}
	if err = file.Commit(w.Condition, err); err == nil {
		version, _ := a.Version(w.Path) // it may be gone again
		_ = wire.WriteMessage(s, &agentv1.StreamReply{Size: uint64(size), Version: version})
		return
	}
	refuse(s, err)
	// The host may be sending still, and reads the answer afterwards: discard the rest.
	s.SetReadDeadline(time.Now().Add(10 * time.Second))
	io.Copy(io.Discard, source)
}

// dialPort connects the stream to a port of the sandbox's loopback.
func (a *Agent) dialPort(s net.Conn, port uint32) {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 10*time.Second)
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
		refuse(s, wire.Errorf(connect.CodeDeadlineExceeded, "port %d takes no connection", port))
		return
	}
	if err != nil {
		c, err = net.DialTimeout("tcp", fmt.Sprintf("[::1]:%d", port), time.Second)
	}
	if err != nil {
		refuse(s, wire.Errorf(connect.CodeNotFound, "nothing listens on port %d", port))
		return
	}
	defer c.Close()
	if wire.WriteMessage(s, &agentv1.StreamReply{}) != nil {
		return
	}
	var copying sync.WaitGroup
	copying.Go(func() {
		io.Copy(c, s)
		c.(*net.TCPConn).CloseWrite()
	})
	io.Copy(s, c)
	s.Close()
	copying.Wait()
}

// frameWriter writes frames. Several goroutines may use it.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) frame(kind byte, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return wire.WriteFrame(f.w, kind, p)
}

// runInteractive runs a program whose standard streams are connected to the host, over the stream s
// or over direct connections.
func (a *Agent) runInteractive(s net.Conn, c *agentv1.Command) {
	out := &frameWriter{w: s}
	stdin := newInputBuffer()
	var terminal *os.File
	replied := make(chan struct{}) // closed when the reply is sent: output follows it
	output := func(kind byte) io.Writer {
		return writerFunc(func(p []byte) (int, error) {
			<-replied
			return len(p), out.frame(kind, p)
		})
	}
	stdio := process.Stdio{Stdin: stdin, Stdout: output(wire.FrameStdout), Stderr: output(wire.FrameStderr),
		TerminalSize: c.Pty,
		OnTerminal:   func(f *os.File) { terminal = f }}
	err := a.dialStdio(c, &stdio)
	var p *process.Process
	if err == nil {
		p, err = a.Spawn("interactive", c, stdio)
	}
	for _, f := range stdio.Direct {
		f.Close() // the program has a duplicate; Close of a nil file does nothing
	}
	if err != nil {
		close(replied)
		refuse(s, err)
		return
	}
	err = wire.WriteMessage(s, &agentv1.StreamReply{ProcessId: p.ID(), Direct: len(c.Tickets) > 0})
	close(replied)
	var work sync.WaitGroup
	if terminal != nil {
		work.Go(func() { io.Copy(terminal, stdin) })
	}
	hostDone := make(chan struct{})
	work.Go(func() {
		defer close(hostDone)
		if err == nil {
			handleFrames(s, p, stdin, terminal)
		}
		stdin.end()
	})
	select {
	case <-p.Done():
	case <-hostDone:
		s.SetWriteDeadline(time.Now().Add(time.Second)) // the host does not read output any more
		p.Signal(syscall.SIGHUP)
		select {
		case <-p.Done():
		case <-time.After(time.Second):
			process.KillTree(p)
			<-p.Done()
		}
	}
	code, killedBy := p.Ended()
	exit := binary.BigEndian.AppendUint32(nil, uint32(code))
	if killedBy != "" {
		exit = append(exit, "killed: the sandbox reached its limit of "+killedBy...)
	}
	s.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_ = out.frame(wire.FrameExit, exit)
	s.Close()
	stdin.Close()
	s.SetReadDeadline(time.Now())
	work.Wait()
}

// dialStdio makes the direct connections for the standard input and output of a command that
// has tickets for them.
func (a *Agent) dialStdio(c *agentv1.Command, stdio *process.Stdio) (err error) {
	tickets := c.GetTickets()
	if len(tickets) == 0 {
		return nil
	}
	if len(tickets) != len(stdio.Direct) || c.Pty != nil {
		return wire.Errorf(connect.CodeInvalidArgument, "a command without a terminal may have two tickets")
	}
	for i := range stdio.Direct {
		if stdio.Direct[i], err = a.dialDirect(tickets[i]); err != nil {
			return err
		}
	}
	stdio.Stdin, stdio.Stdout = nil, nil
	return nil
}

// handleFrames handles the host's frames until the host is gone or the process has ended. It
// reads none while the input buffer is full.
func handleFrames(s net.Conn, p *process.Process, stdin *inputBuffer, terminal *os.File) {
	buf := make([]byte, wire.MaxFrame)
	for stdin.awaitSpace(s, p) {
		kind, data, err := wire.ReadFrame(s, buf)
		if err != nil {
			return
		}
		switch kind {
		case wire.FrameStdin:
			if len(data) > 0 {
				stdin.put(data)
				continue
			}
			if terminal != nil {
				stdin.put([]byte{4}) // Ctrl-D, a terminal's end of input
			}
			stdin.end()
		case wire.FrameResize:
			if len(data) == 4 && terminal != nil {
				_ = process.SetSize(terminal, binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]))
			}
		case wire.FrameSignal:
			if len(data) == 1 {
				p.Signal(syscall.Signal(data[0]))
			}
		}
	}
}

// inputBuffer buffers the input of a process until the process reads it. One goroutine adds
// input, one reads.
type inputBuffer struct {
	added, consumed chan struct{} // hold one element after data was added, or read

	mu     sync.Mutex
	data   bytes.Buffer
	ended  bool // the host sends no more input
	closed bool // the process reads no more input
}

// maxInput is how many bytes a buffer may have for another frame to be read.
const maxInput = 1 << 20

func newInputBuffer() *inputBuffer {
	return &inputBuffer{added: make(chan struct{}, 1), consumed: make(chan struct{}, 1)}
}

// wake puts an element into a channel with room for one, unless it has one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds input. After end or Close it discards the input.
func (i *inputBuffer) put(p []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended && !i.closed {
		i.data.Write(p)
	}
	wake(i.added)
}

// end is called when the host sends no more input.
func (i *inputBuffer) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	wake(i.added)
}

// Close is called when the process reads no more input.
func (i *inputBuffer) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed, i.data = true, bytes.Buffer{}
	wake(i.added)
	wake(i.consumed)
}

// Read implements io.Reader.
func (i *inputBuffer) Read(p []byte) (int, error) {
	for {
		i.mu.Lock()
		n, _ := i.data.Read(p)
		done := i.ended || i.closed
		i.mu.Unlock()
		switch {
		case n > 0:
			wake(i.consumed)
			return n, nil
		case done:
			return 0, io.EOF
		}
		<-i.added
	}
}

// WriteTo implements io.WriterTo. It closes the buffer when it returns.
func (i *inputBuffer) WriteTo(w io.Writer) (int64, error) {
	defer i.Close()
	return io.Copy(w, struct{ io.Reader }{i})
}

func (i *inputBuffer) full() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.data.Len() >= maxInput
}

// hostCheckInterval is how often a full buffer checks whether the host is gone.
const hostCheckInterval = 500 * time.Millisecond

// awaitSpace waits until the buffer has space for a frame. It returns false when p has ended or
// the host, the peer of s, is gone.
func (i *inputBuffer) awaitSpace(s net.Conn, p *process.Process) bool {
	for i.full() {
		select {
		case <-i.consumed:
		case <-p.Done():
		case <-time.After(hostCheckInterval):
			if hostGone(s) {
				return false
			}
		}
		if !p.Running() {
			return false
		}
	}
	return p.Running()
}

// hostGone reports whether the link broke or the stream was reset. It is for a stream with unread
// input. When the host has closed such a stream, yamux resets it after StreamCloseTimeout
// (wire.HostMuxConfig); before that the end of the stream is queued behind the input, and unknown.
func hostGone(s net.Conn) bool {
	if y, ok := s.(*yamux.Stream); ok && y.Session().IsClosed() {
		return true
	}
	_, err := s.Read(nil) // returns at once, as there is input to read
	return err != nil
}
