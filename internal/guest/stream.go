package guest

import (
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

	"sandlot/internal/agent/wire"
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
		a.sendFile(s, k.ReadFile)
	case *agentv1.StreamOpen_WriteFile:
		a.receiveFile(s, k.WriteFile)
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

const streamBuffer = 256 << 10

func (a *Agent) sendFile(s net.Conn, r *agentv1.ReadStream) {
	p, err := a.files.find(r.Path, true)
	if err != nil {
		refuse(s, err)
		return
	}
	defer p.close()
	f, st, err := p.regular(os.O_RDONLY, 0)
	if err != nil {
		refuse(s, a.files.explain(r.Path, err))
		return
	}
	defer f.Close()
	if wire.WriteMessage(s, &agentv1.StreamReply{Size: uint64(st.Size())}) != nil {
		return
	}
	length := st.Size() - int64(min(r.Offset, uint64(st.Size())))
	if r.Limit > 0 {
		length = min(length, int64(min(r.Limit, 1<<62)))
	}
	section := io.NewSectionReader(f, int64(min(r.Offset, uint64(st.Size()))), length)
	io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{section}, make([]byte, streamBuffer))
}

func (a *Agent) receiveFile(s net.Conn, w *agentv1.WriteStream) {
	p, err := a.files.find(w.Path, true)
	if err != nil {
		refuse(s, err)
		return
	}
	defer p.close()
	n, err := p.replace(w.Mode)
	if err != nil {
		refuse(s, a.files.explain(w.Path, err))
		return
	}
	if err := wire.WriteMessage(s, &agentv1.StreamReply{}); err != nil {
		n.commit(err)
		return
	}
	var from io.Reader = s
	if w.Size != nil {
		from = io.LimitReader(s, int64(min(*w.Size, 1<<62)))
	}
	size, err := io.CopyBuffer(struct{ io.Writer }{n.file}, struct{ io.Reader }{from}, make([]byte, streamBuffer))
	if err == nil && w.Size != nil && uint64(size) != *w.Size {
		err = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the transfer broke: %d of %d bytes came, and nothing was changed", size, *w.Size))
	}
	if err := n.commit(err); err != nil {
		refuse(s, a.files.explain(w.Path, err))
		// The rest is taken, so that the other side reads the answer.
		s.SetReadDeadline(time.Now().Add(10 * time.Second))
		io.Copy(io.Discard, from)
		return
	}
	_ = wire.WriteMessage(s, &agentv1.StreamReply{Size: uint64(size)})
}

func (a *Agent) dial(s net.Conn, port uint32) {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second)
	if err != nil {
		c, err = net.DialTimeout("tcp", fmt.Sprintf("[::1]:%d", port), 5*time.Second)
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
	stdin, feed := io.Pipe()
	var terminal *os.File
	// Nothing may come before the reply.
	replied := make(chan struct{})
	sink := func(kind byte) io.Writer {
		return writerFunc(func(p []byte) (int, error) {
			<-replied
			return len(p), out.frame(kind, p)
		})
	}
	w := wiring{stdin: stdin, stdout: sink(wire.FrameStdout), stderr: sink(wire.FrameStderr), size: c.Pty, terminal: func(f *os.File) { terminal = f }}
	p, err := a.spawn("interactive", c, w)
	if err != nil {
		close(replied)
		refuse(s, err)
		return
	}
	err = wire.WriteMessage(s, &agentv1.StreamReply{ProcessId: p.id})
	close(replied)
	if terminal != nil {
		go io.Copy(terminal, stdin)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err == nil {
			control(s, p, feed, terminal)
		}
		feed.Close()
	}()
	select {
	case <-p.done:
	case <-ended: // the other side is gone
		p.signal(syscall.SIGHUP)
		select {
		case <-p.done:
		case <-time.After(time.Second):
			a.slay(p)
			<-p.done
		}
	}
	d := p.describe()
	exit := binary.BigEndian.AppendUint32(nil, uint32(d.ExitCode))
	switch d.KilledBy {
	case "":
	default:
		exit = append(exit, "killed: the sandbox reached its limit of "+d.KilledBy...)
	}
	s.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_ = out.frame(wire.FrameExit, exit)
	s.Close()
	feed.Close()
	stdin.Close()
	s.SetReadDeadline(time.Now())
	<-ended
}

// control reads the frames of the other side until it is gone.
func control(s net.Conn, p *process, stdin *io.PipeWriter, terminal *os.File) {
	buf := make([]byte, wire.MaxFrame)
	for {
		kind, data, err := wire.ReadFrame(s, buf)
		if err != nil {
			return
		}
		switch kind {
		case wire.FrameStdin:
			if len(data) == 0 {
				if terminal != nil {
					terminal.Write([]byte{4}) // end of input, for a terminal
				}
				stdin.Close()
				continue
			}
			stdin.Write(data) // after the process closed its input this fails, and is of no use
		case wire.FrameResize:
			if len(data) == 4 && terminal != nil {
				_ = pty.Setsize(terminal, &pty.Winsize{Rows: binary.BigEndian.Uint16(data), Cols: binary.BigEndian.Uint16(data[2:])})
			}
		case wire.FrameSignal:
			if len(data) == 1 {
				p.signal(syscall.Signal(data[0]))
			}
		}
	}
}
