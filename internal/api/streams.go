package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/toolview"
)

// upgrade switches the connection to the protocol to, after which it no longer speaks HTTP.
func upgrade(w http.ResponseWriter, r *http.Request, proto string) (*conn.Client, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), proto) {
		return nil, fault.New(fault.InvalidParameters, "this needs the header Upgrade: %s", proto)
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Time{})
	context.AfterFunc(r.Context(), func() {
		if errors.Is(context.Cause(r.Context()), auth.ErrEnded) {
			c.Close()
		}
	})
	rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + proto + "\r\n\r\n")
	_ = rw.Flush() // when the client is gone, the next read fails
	return &conn.Client{Buffered: conn.Buffered{Conn: c, Reader: rw.Reader}}, nil
}

// exec runs an interactive process. After the upgrade the client sends a Command and gets
// Started; then both sides send frames (package command).
func (s *Server) exec(w http.ResponseWriter, r *http.Request, who auth.Principal) error {
	q := r.URL.Query()
	shell, err := s.Hub.OpenShell(r.Context(), who,
		hub.SessionSpec{ID: r.PathValue("id"), Template: q.Get("template"), Flavor: q.Get("flavor")})
	if err != nil {
		return err
	}
	defer shell.Close()
	c, err := upgrade(w, r, protocol.UpgradeExec)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(startLimit))
	cmd, err := command.Read(c)
	if err != nil {
		return nil // the client is gone, or does not speak the protocol
	}
	c.SetReadDeadline(time.Time{})
	// The context of a hijacked connection does not end when the client is gone.
	ctx, cancel := context.WithTimeout(r.Context(), startLimit)
	defer cancel()
	stopped := make(chan struct{})
	done, err := s.tunnels.begin(func() { close(stopped) })
	if err != nil {
		_ = command.Started{Failure: fault.From(err).Error()}.Write(c)
		return nil
	}
	defer done()
	stream, started, err := shell.Run(ctx, cmd)
	if err != nil {
		_ = command.Started{Failure: fault.From(err).Error()}.Write(c)
		return nil
	}
	defer stream.Close()
	p := pipe{client: c.Conn, stream: stream, stops: stopped}
	if cmd.Terminal != nil { // its user may leave it open for ever
		p.stops = s.Hub.Stopping()
	}
	if started.Write(c) == nil && p.run(c.Reader) {
		return nil
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(r.Context()), endLimit)
	defer cancel()
	shell.Hangup(ctx, stream)
	return nil
}

const (
	startLimit    = 30 * time.Second // for the start of a process
	endLimit      = 10 * time.Second // for the last output of a process
	probeInterval = 5 * time.Second  // between probes of a client whose input is blocked
	hangUpLimit   = 2 * time.Second  // for a process to end that was hung up, and its client to be told
)

// pipe forwards the frames of a process and its client.
type pipe struct {
	client, stream net.Conn
	stops          <-chan struct{} // closed when the process has to end, as the server stops

	turn       chan struct{} // has something while a frame is written to the client
	clientGone atomic.Bool   // nobody reads the remaining output

	mu            sync.Mutex // never held while something is written
	finalDeadline bool       // the final deadline is set: write must not extend it
}

// setFinal sets the client's last deadline for writing, also for what is being written.
func (p *pipe) setFinal(end time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finalDeadline = true
	p.client.SetWriteDeadline(end)
}

// extend gives the next write its time, unless the final deadline is set.
func (p *pipe) extend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.finalDeadline {
		p.client.SetWriteDeadline(time.Now().Add(conn.Stall))
	}
}

// write writes a frame to the client.
func (p *pipe) write(kind byte, data []byte) error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.extend()
	return command.WriteFrame(p.client, kind, data)
}

// run forwards both ways until one side ends, or the server stops, which the client is told. It returns true when the
// process ended. While the client's input is blocked by the process, run reads nothing from the client and cannot see
// that it is gone: an empty output frame probes the client then.
func (p *pipe) run(fromClient io.Reader) bool {
	p.turn = make(chan struct{}, 1)
	input := &blockedWriter{Conn: p.stream}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		conn.Copy(input, fromClient, 64<<10)
		p.stream.Close()
		end := time.Now()
		if !p.clientGone.Load() {
			end = end.Add(endLimit)
		}
		p.stream.SetDeadline(end)
		p.setFinal(end)
	})
	wg.Go(func() {
		tick := time.NewTicker(probeInterval)
		defer tick.Stop()
		for stops := p.stops; ; {
			select {
			case <-tick.C:
				if input.blocked.Load() && p.write(command.Stdout, nil) != nil {
					p.clientGone.Store(true)
					p.client.Close()
					p.stream.Close()
				}
			case <-stops:
				p.setFinal(time.Now().Add(hangUpLimit))
				_ = p.write(command.Exit, command.EndedStatus(hungUp, serverStopped)) // then the client leaves
				p.clientGone.Store(true)
				p.stream.SetReadDeadline(time.Now().Add(hangUpLimit))
				p.stream.Close() // the agent hangs up
				stops = nil
			case <-done:
				return
			}
		}
	})
	ended := forwardFrames(p.stream, p.write)
	p.client.Close()
	p.stream.Close()
	close(done)
	wg.Wait()
	return ended
}

// hungUp is the exit code of a process that ends with its terminal, and serverStopped why it ended.
const (
	hungUp        = 128 + int(syscall.SIGHUP)
	serverStopped = "the server was stopped, and the command ended with it"
)

// forwardFrames forwards the frames of a process. It returns true when it read the Exit frame.
func forwardFrames(stream io.Reader, write func(byte, []byte) error) bool {
	from, buf := bufio.NewReaderSize(stream, 64<<10), make([]byte, command.MaxFrame)
	for {
		kind, data, err := command.ReadFrame(from, buf)
		if err != nil {
			return false
		}
		if err := write(kind, data); kind == command.Exit || err != nil {
			return kind == command.Exit
		}
	}
}

// blockedWriter is a connection that records whether a write is blocked.
type blockedWriter struct {
	net.Conn
	blocked atomic.Bool
}

func (w *blockedWriter) Write(p []byte) (int, error) {
	w.blocked.Store(true)
	defer w.blocked.Store(false)
	return w.Conn.Write(p)
}

// stdio serves MCP's stdio transport on an upgraded connection.
func (s *Server) stdio(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	asks, err := toolview.Parse(r.URL.Query().Get("tools"))
	if err != nil {
		return fault.Argument("tools", "tools=%q %v", fault.Clip(r.URL.Query().Get("tools")), err)
	}
	results, err := toolview.ParseResults(r.URL.Query().Get("results"))
	if err != nil {
		return fault.Argument("results", "results=%q %v", fault.Clip(r.URL.Query().Get("results")), err)
	}
	act, err := s.Hub.Begin(r.Context(), hub.Request{Principal: p, Operation: policy.ClientConnect, Name: "stdio"})
	if err != nil {
		return err
	}
	defer act.Close()
	c, err := upgrade(w, r, protocol.UpgradeMCP)
	if err != nil {
		return err
	}
	defer c.Close()
	done, err := s.tunnels.begin(func() { c.Close() })
	if err != nil {
		return nil // as any client whose server ends
	}
	defer done()
	err = s.Gateway.Serve(r.Context(), p, gateway.Asked{Tools: asks, Results: results}, c, c)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.Log.DebugContext(r.Context(), "a stdio client ended", "error", err)
	}
	return nil
}

// dial connects the client to a port of its session. After the upgrade it forwards bytes
// and half-closes both ways.
func (s *Server) dial(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	number, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || number < 1 || number > 65535 {
		return fault.New(fault.InvalidParameters, "the port must be a number from 1 to 65535")
	}
	stream, err := s.Hub.DialPort(r.Context(), p, r.PathValue("id"), number)
	if err != nil {
		return err
	}
	defer stream.End()
	c, err := upgrade(w, r, protocol.UpgradeDial)
	if err != nil {
		return err
	}
	end := func() {
		c.Close()
		stream.Conn.Close()
	}
	done, err := s.tunnels.begin(end)
	if err != nil {
		end()
		return nil
	}
	defer done()
	over := make(chan struct{})
	defer close(over)
	go func() { // nobody knows what is a call on it, and many are never closed
		select {
		case <-s.Hub.Stopping():
			time.AfterFunc(hub.DrainTimeout, end)
		case <-over:
		}
	}()
	c.HalfClosed = hub.HalfCloseTimeout
	conn.Splice(c, stream)
	return nil
}

// serveLive serves the live channel.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	return s.live.Serve(w, r, p)
}
