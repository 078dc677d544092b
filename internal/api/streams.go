package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
)

// Protocols that a request can be upgraded to.
const (
	upgradeExec = "sandlot-exec"
	upgradeMCP  = "sandlot-mcp"
	upgradeDial = "sandlot-dial"
)

// upgrade takes the connection over. The error was answered.
func upgrade(w http.ResponseWriter, r *http.Request, protocol string) (net.Conn, *bufio.ReadWriter, bool) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		problem(w, r, fault.New(fault.InvalidParameters, "this needs the header Upgrade: %s", protocol))
		return nil, nil, false
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		problem(w, r, err)
		return nil, nil, false
	}
	c.SetDeadline(time.Time{})
	context.AfterFunc(r.Context(), func() {
		if errors.Is(context.Cause(r.Context()), auth.ErrEnded) {
			c.Close()
		}
	})
	rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n")
	if rw.Flush() != nil {
		c.Close()
		return nil, nil, false
	}
	return c, rw, true
}

// exec runs an interactive process: after the upgrade the client sends one
// Command, gets one StreamReply, and then frames go both ways (wire.Frame*).
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	done, err := s.hold(r.Context(), limit.Streams)
	if err != nil {
		busy(w, r, err)
		return
	}
	defer done()
	p, _ := auth.From(r.Context())
	shell, err := s.Hub.OpenShell(r.Context(), p, hub.Ask{ID: r.PathValue("id"), Template: r.URL.Query().Get("template"), Flavor: r.URL.Query().Get("flavor")})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer shell.Close()
	c, rw, ok := upgrade(w, r, upgradeExec)
	if !ok {
		return
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(opening))
	cmd, err := agent.ReadCommand(rw)
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Time{})
	// What was hijacked has a context that does not end with the client.
	ctx, cancel := context.WithTimeout(r.Context(), opening)
	defer cancel()
	stream, err := shell.Run(ctx, cmd)
	if err != nil {
		_ = agent.WriteStarted(c, agent.Started{Failure: fault.From(err).Error()})
		return
	}
	defer stream.Close()
	if agent.WriteStarted(c, shell.Started(stream)) == nil && pipe(c, rw, stream) {
		return
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(r.Context()), ending)
	defer cancel()
	shell.Hangup(ctx, stream)
}

const (
	opening = 30 * time.Second // for a process to start
	ending  = 10 * time.Second // for what a process says at its end
	pulse   = 5 * time.Second  // how often a client is tried whose input waits
)

// pipe passes on what comes from both sides until one ends, and says whether
// it was the process. The client's end cannot be read while its input waits;
// it is written to then: an empty piece of output says nothing.
func pipe(client net.Conn, fromClient io.Reader, stream net.Conn) bool {
	var mu sync.Mutex
	var closing atomic.Bool // the deadline of the end counts
	say := func(kind byte, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if !closing.Load() {
			client.SetWriteDeadline(time.Now().Add(stall))
		}
		return wire.WriteFrame(client, kind, data)
	}
	input := &patient{Conn: stream}
	over := make(chan struct{})
	var lost atomic.Bool // nobody hears what the process still says
	var wg sync.WaitGroup
	wg.Go(func() {
		io.CopyBuffer(plainWriter{input}, struct{ io.Reader }{fromClient}, make([]byte, 64<<10))
		stream.Close()
		end := time.Now()
		if !lost.Load() {
			end = end.Add(ending)
		}
		closing.Store(true)
		stream.SetDeadline(end)
		client.SetWriteDeadline(end)
	})
	wg.Go(func() {
		tick := time.NewTicker(pulse)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if input.waits.Load() && say(wire.FrameStdout, nil) != nil {
					lost.Store(true)
					client.Close()
					stream.Close()
				}
			case <-over:
				return
			}
		}
	})
	ended := passOn(stream, say)
	client.Close()
	stream.Close()
	close(over)
	wg.Wait()
	return ended
}

// passOn passes a process's frames on, and says whether the last one came.
func passOn(stream io.Reader, say func(byte, []byte) error) bool {
	from, buf := bufio.NewReaderSize(stream, 64<<10), make([]byte, wire.MaxFrame)
	for {
		kind, data, err := wire.ReadFrame(from, buf)
		if err != nil {
			return false
		}
		if err := say(kind, data); kind == wire.FrameExit || err != nil {
			return kind == wire.FrameExit
		}
	}
}

// patient knows when a write waits.
type patient struct {
	net.Conn
	waits atomic.Bool
}

func (w *patient) Write(p []byte) (int, error) {
	w.waits.Store(true)
	defer w.waits.Store(false)
	return w.Conn.Write(p)
}

// deadline is that of reads from a connection.
type deadline interface{ SetReadDeadline(time.Time) error }

// stdio speaks MCP's stdio transport on an upgraded connection.
func (s *Server) stdio(w http.ResponseWriter, r *http.Request) {
	done, err := s.hold(r.Context(), limit.Streams)
	if err != nil {
		busy(w, r, err)
		return
	}
	defer done()
	p, _ := auth.From(r.Context())
	act, err := s.Hub.Begin(hub.Request{Principal: p, Operation: policy.ClientConnect, Name: "stdio"})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer act.Close()
	c, rw, ok := upgrade(w, r, upgradeMCP)
	if !ok {
		return
	}
	defer c.Close()
	err = s.Gateway.Serve(r.Context(), p, struct {
		io.Reader
		io.Closer
		deadline
	}{rw, c, c}, &taking{Conn: c, from: rw.Reader})
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.Log.DebugContext(r.Context(), "a stdio client ended", "error", err)
	}
}
