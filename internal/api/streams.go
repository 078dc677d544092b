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
	"time"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

// upgrade takes the connection over. Nothing is answered by HTTP from then on.
func upgrade(w http.ResponseWriter, r *http.Request, to string) (*conn.Client, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), to) {
		return nil, fault.New(fault.InvalidParameters, "this needs the header Upgrade: %s", to)
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
	rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + to + "\r\n\r\n")
	_ = rw.Flush() // the next read from a client that is gone fails too
	return &conn.Client{Buffered: conn.Buffered{Conn: c, From: rw.Reader}}, nil
}

// exec runs an interactive process: after the upgrade the client sends one Command,
// gets one Started, and then frames go both ways (package command).
func (s *Server) exec(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	q := r.URL.Query()
	shell, err := s.Hub.OpenShell(r.Context(), p,
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
		return nil // the client is gone, or speaks something else
	}
	c.SetReadDeadline(time.Time{})
	// What was hijacked has a context that does not end with the client.
	ctx, cancel := context.WithTimeout(r.Context(), startLimit)
	defer cancel()
	stream, started, err := shell.Run(ctx, cmd)
	if err != nil {
		_ = command.Started{Failure: fault.From(err).Error()}.Write(c)
		return nil
	}
	defer stream.Close()
	if started.Write(c) == nil && pipe(c.Conn, c.From, stream) {
		return nil
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(r.Context()), endLimit)
	defer cancel()
	shell.Hangup(ctx, stream)
	return nil
}

const (
	startLimit    = 30 * time.Second // for a process to start
	endLimit      = 10 * time.Second // for what a process writes at its end
	probeInterval = 5 * time.Second  // how often a client is tried whose input waits
)

// pipe passes frames on from both sides until one ends, and says whether it was the
// process. The end of a client cannot be read while its input waits for the process;
// then the client is written to: an empty frame of output says nothing.
func pipe(client net.Conn, fromClient io.Reader, stream net.Conn) bool {
	var mu sync.Mutex       // held while a frame is written to the client
	var closing atomic.Bool // the deadline of the end counts
	write := func(kind byte, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if !closing.Load() {
			client.SetWriteDeadline(time.Now().Add(conn.Stall))
		}
		return command.WriteFrame(client, kind, data)
	}
	input := &waitingWriter{Conn: stream}
	over := make(chan struct{})
	var lost atomic.Bool // the client is gone: it does not see what the process still writes
	var wg sync.WaitGroup
	wg.Go(func() {
		conn.Copy(input, fromClient, 64<<10)
		stream.Close()
		end := time.Now()
		if !lost.Load() {
			end = end.Add(endLimit)
		}
		closing.Store(true)
		stream.SetDeadline(end)
		client.SetWriteDeadline(end)
	})
	wg.Go(func() {
		tick := time.NewTicker(probeInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if input.waits.Load() && write(command.Stdout, nil) != nil {
					lost.Store(true)
					client.Close()
					stream.Close()
				}
			case <-over:
				return
			}
		}
	})
	ended := passOn(stream, write)
	client.Close()
	stream.Close()
	close(over)
	wg.Wait()
	return ended
}

// passOn passes a process's frames on, and says whether the last one came.
func passOn(stream io.Reader, write func(byte, []byte) error) bool {
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

// waitingWriter is a connection that knows whether a write waits.
type waitingWriter struct {
	net.Conn
	waits atomic.Bool
}

func (w *waitingWriter) Write(p []byte) (int, error) {
	w.waits.Store(true)
	defer w.waits.Store(false)
	return w.Conn.Write(p)
}

// stdio speaks MCP's stdio transport on an upgraded connection.
func (s *Server) stdio(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	act, err := s.Hub.Begin(hub.Request{Principal: p, Operation: policy.ClientConnect, Name: "stdio"})
	if err != nil {
		return err
	}
	defer act.Close()
	c, err := upgrade(w, r, protocol.UpgradeMCP)
	if err != nil {
		return err
	}
	defer c.Close()
	err = s.Gateway.Serve(r.Context(), p, c, c)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.Log.DebugContext(r.Context(), "a stdio client ended", "error", err)
	}
	return nil
}

// dial connects the client to a port of its session: after the upgrade bytes go
// both ways, and each side's end by itself.
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
	c.HalfClosed = hub.HalfCloseTimeout
	conn.Splice(c, stream)
	return nil
}
