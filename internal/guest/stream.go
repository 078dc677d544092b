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
	"github.com/creack/pty"
	"github.com/hashicorp/yamux"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// raw serves a stream of bytes.
func (a *Agent) raw(s net.Conn) {
	open := new(agentv1.StreamOpen)
	if wire.ReadMessage(s, open) != nil {
		return
	}
	switch k := open.Kind.(type) {
	case *agentv1.StreamOpen_Exec:
		a.interactive(s, k.Exec)
	case *agentv1.StreamOpen_ReadFile:
		a.sendFile(s, k.ReadFile, open.Ticket)
	case *agentv1.StreamOpen_WriteFile:
		a.receiveFile(s, k.WriteFile, open.Ticket)
	case *agentv1.StreamOpen_Dial:
		a.dial(s, k.Dial)
	default:
		refuse(s, connect.NewError(connect.CodeUnimplemented, errors.New("unknown kind of stream")))
	}
}

func refuse(s net.Conn, err error) { _ = wire.WriteMessage(s, refusal(err)) }

func refusal(err error) *agentv1.StreamReply {
	reply := &agentv1.StreamReply{Code: uint32(connect.CodeOf(err)), Message: toUTF8(err.Error())}
	var ce *connect.Error
	if errors.As(err, &ce) {
		reply.Message = toUTF8(ce.Message())
	}
	return reply
}

const streamBuffer = 1 << 20

// large is from what size on a file's bytes are worth a connection.
const large = 4 << 20

// own makes the connection that a file's bytes go over; nil: they go over the
// stream.
func (a *Agent) own(ticket []byte, size int64) *os.File {
	if len(ticket) == 0 || size < large {
		return nil
	}
	f, err := a.dialDirect(ticket)
	if err != nil {
		return nil
	}
	return f
}

func (a *Agent) sendFile(s net.Conn, r *agentv1.ReadStream, ticket []byte) {
	p, err := a.Find(r.Path, true)
	if err != nil {
		refuse(s, err)
		return
	}
	defer p.Close()
	f, st, err := p.Regular(os.O_RDONLY, 0)
	if err != nil {
		refuse(s, a.Explain(r.Path, err))
		return
	}
	defer f.Close()
	length := st.Size() - int64(min(r.Offset, uint64(st.Size())))
	if r.Limit > 0 {
		length = min(length, int64(min(r.Limit, 1<<62)))
	}
	section := io.NewSectionReader(f, int64(min(r.Offset, uint64(st.Size()))), length)
	var to io.Writer = s
	own := a.own(ticket, length)
	if own != nil {
		defer own.Close()
		to = own
	}
	if wire.WriteMessage(s, &agentv1.StreamReply{Size: uint64(st.Size()), Direct: own != nil}) != nil {
		return
	}
	io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{section}, make([]byte, streamBuffer))
}

func (a *Agent) receiveFile(s net.Conn, w *agentv1.WriteStream, ticket []byte) {
	p, err := a.Find(w.Path, true)
	if err != nil {
		refuse(s, err)
		return
	}
	defer p.Close()
	n, err := p.Replace(w.Mode)
	if err != nil {
		refuse(s, a.Explain(w.Path, err))
		return
	}
	var from io.Reader = s
	own := a.own(ticket, int64(min(w.GetSize(), 1<<62)))
	if own != nil {
		defer own.Close()
		from = own
	}
	if err := wire.WriteMessage(s, &agentv1.StreamReply{Direct: own != nil}); err != nil {
		n.Commit(err)
		return
	}
	if w.Size != nil {
		from = io.LimitReader(from, int64(min(*w.Size, 1<<62)))
	}
	size, err := io.CopyBuffer(struct{ io.Writer }{n.File}, struct{ io.Reader }{from}, make([]byte, streamBuffer))
	if err == nil && w.Size != nil && uint64(size) != *w.Size {
		err = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the transfer broke: %d of %d bytes came, and nothing was changed", size, *w.Size))
	}
	if err := n.Commit(err); err != nil {
		refuse(s, a.Explain(w.Path, err))
		// The rest is taken, so that the other side reads the answer.
		s.SetReadDeadline(time.Now().Add(10 * time.Second))
		if own == nil {
			io.Copy(io.Discard, from)
		}
		return
	}
	_ = wire.WriteMessage(s, &agentv1.StreamReply{Size: uint64(size)})
}

func (a *Agent) dial(s net.Conn, port uint32) {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 10*time.Second)
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
		refuse(s, connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("port %d takes no connection", port)))
		return
	}
	if err != nil {
		c, err = net.DialTimeout("tcp", fmt.Sprintf("[::1]:%d", port), time.Second)
	}
	if err != nil {
		refuse(s, connect.NewError(connect.CodeNotFound, fmt.Errorf("nothing listens on port %d", port)))
		return
	}
	defer c.Close()
	if wire.WriteMessage(s, &agentv1.StreamReply{}) != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		io.Copy(c, s)
		c.(*net.TCPConn).CloseWrite()
	})
	io.Copy(s, c)
	s.Close()
	both.Wait()
}

// framer writes frames from several goroutines.
type framer struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *framer) frame(kind byte, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return wire.WriteFrame(f.w, kind, p)
}

// interactive runs a process whose streams are the other side's.
func (a *Agent) interactive(s net.Conn, c *agentv1.Command) {
	out := &framer{w: s}
	stdin := newIntake()
	var terminal *os.File
	// Nothing may come before the reply.
	replied := make(chan struct{})
	sink := func(kind byte) io.Writer {
		return writerFunc(func(p []byte) (int, error) {
			<-replied
			return len(p), out.frame(kind, p)
		})
	}
	w := process.Wiring{Stdin: stdin, Stdout: sink(wire.FrameStdout), Stderr: sink(wire.FrameStderr), Size: c.Pty,
		Terminal: func(f *os.File) { terminal = f }}
	err := a.connectProgram(c, &w)
	var p *process.Process
	if err == nil {
		p, err = a.Spawn("interactive", c, w)
	}
	for _, f := range w.Direct {
		f.Close() // the program has its own; nil is closed already
	}
	if err != nil {
		close(replied)
		refuse(s, err)
		return
	}
	err = wire.WriteMessage(s, &agentv1.StreamReply{ProcessId: p.ID(), Direct: len(c.Tickets) > 0})
	close(replied)
	if terminal != nil {
		go io.Copy(terminal, stdin)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err == nil {
			control(s, p, stdin, terminal)
		}
		stdin.end()
	}()
	select {
	case <-p.Done():
	case <-ended: // the other side is gone
		s.SetWriteDeadline(time.Now().Add(time.Second)) // nobody need read what the process still says
		p.Signal(syscall.SIGHUP)
		select {
		case <-p.Done():
		case <-time.After(time.Second):
			process.KillTree(p)
			<-p.Done()
		}
	}
	d := p.Describe()
	exit := binary.BigEndian.AppendUint32(nil, uint32(d.ExitCode))
	switch d.KilledBy {
	case "":
	default:
		exit = append(exit, "killed: the sandbox reached its limit of "+d.KilledBy...)
	}
	s.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_ = out.frame(wire.FrameExit, exit)
	s.Close()
	stdin.Close()
	s.SetReadDeadline(time.Now())
	<-ended
}

// connectProgram makes the connections that a command wants for its input and
// output.
func (a *Agent) connectProgram(c *agentv1.Command, w *process.Wiring) (err error) {
	tickets := c.GetTickets()
	if len(tickets) == 0 {
		return nil
	}
	if len(tickets) != len(w.Direct) || c.Pty != nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("a command without a terminal may have two tickets"))
	}
	for i := range w.Direct {
		if w.Direct[i], err = a.dialDirect(tickets[i]); err != nil {
			return err
		}
	}
	w.Stdin, w.Stdout = nil, nil
	return nil
}

// control reads the frames of the other side until it is gone or the process
// has ended. Behind more input than an intake holds, frames wait.
func control(s net.Conn, p *process.Process, stdin *intake, terminal *os.File) {
	buf := make([]byte, wire.MaxFrame)
	for stdin.wait(s, p) {
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
				stdin.put([]byte{4}) // end of input, for a terminal
			}
			stdin.end()
		case wire.FrameResize:
			if len(data) == 4 && terminal != nil {
				_ = pty.Setsize(terminal, &pty.Winsize{Rows: binary.BigEndian.Uint16(data), Cols: binary.BigEndian.Uint16(data[2:])})
			}
		case wire.FrameSignal:
			if len(data) == 1 {
				p.Signal(syscall.Signal(data[0]))
			}
		}
	}
}

// intake holds the input that came for a process until the process takes it.
// One goroutine puts, one reads.
type intake struct {
	more, room chan struct{} // hold one when something was put, or taken

	mu     sync.Mutex
	data   bytes.Buffer
	ended  bool // nothing more comes
	closed bool // nothing more is taken
}

// maxIntake bounds what an intake holds, but for one frame, in bytes.
const maxIntake = 1 << 20

func newIntake() *intake {
	return &intake{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds input. After the process closed its own side it is of no use.
func (i *intake) put(p []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended && !i.closed {
		i.data.Write(p)
	}
	tell(i.more)
}

// end says that nothing more comes.
func (i *intake) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	tell(i.more)
}

// Close says that nothing more is taken.
func (i *intake) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed, i.data = true, bytes.Buffer{}
	tell(i.more)
	tell(i.room)
}

// Read implements io.Reader.
func (i *intake) Read(p []byte) (int, error) {
	for {
		i.mu.Lock()
		n, _ := i.data.Read(p)
		over := i.ended || i.closed
		i.mu.Unlock()
		switch {
		case n > 0:
			tell(i.room)
			return n, nil
		case over:
			return 0, io.EOF
		}
		<-i.more
	}
}

// WriteTo implements io.WriterTo. An intake whose reader fails is closed.
func (i *intake) WriteTo(w io.Writer) (int64, error) {
	defer i.Close()
	return io.Copy(w, struct{ io.Reader }{i})
}

func (i *intake) full() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.data.Len() >= maxIntake
}

// checkEvery is how often a full intake looks whether the other side is there.
const checkEvery = 500 * time.Millisecond

// wait waits for room for a frame of s. It returns false when p has ended or
// the other side is gone.
func (i *intake) wait(s net.Conn, p *process.Process) bool {
	for i.full() {
		select {
		case <-i.room:
		case <-p.Done():
		case <-time.After(checkEvery):
			if gone(s) {
				return false
			}
		}
		if !p.Running() {
			return false
		}
	}
	return p.Running()
}

// gone says whether the link broke or the stream was reset, with input unread
// before its end. A host that closes a stream makes yamux reset it after
// wire.Mux's StreamCloseTimeout; before that its end is behind the input.
func gone(s net.Conn) bool {
	if y, ok := s.(*yamux.Stream); ok && y.Session().IsClosed() {
		return true
	}
	_, err := s.Read(nil) // waits while there is nothing to read
	return err != nil
}
