package api

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/proto/agentv1"
)

// Protocols that a request can be upgraded to.
const (
	upgradeExec = "sandlot-exec"
	upgradeMCP  = "sandlot-mcp"
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
	l, err := s.open(r, session.Ask{ID: r.PathValue("id"), Template: r.URL.Query().Get("template"), Flavor: r.URL.Query().Get("flavor")})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer l.Release()
	c, rw, ok := upgrade(w, r, upgradeExec)
	if !ok {
		return
	}
	defer c.Close()
	cmd := new(agentv1.Command)
	if err := wire.ReadMessage(rw, cmd); err != nil {
		return
	}
	stream, reply, err := l.Agent().Stream(r.Context(), &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Exec{Exec: cmd}})
	if err != nil {
		f := fault.From(l.Fault(r.Context(), err, fault.CommandExecution))
		_ = wire.WriteMessage(c, &agentv1.StreamReply{Code: uint32(connect.CodeUnknown), Message: f.Error()})
		return
	}
	defer stream.Close()
	reply.SessionCreated, reply.SessionId = l.Created, l.ID()
	if wire.WriteMessage(c, reply) != nil {
		return
	}
	pipe(c, rw, stream)
}

// pipe copies both ways until one side ends.
func pipe(client net.Conn, fromClient io.Reader, stream net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() {
		io.CopyBuffer(plainWriter{stream}, struct{ io.Reader }{fromClient}, make([]byte, 64<<10))
		stream.Close()
		stream.SetDeadline(time.Now().Add(10 * time.Second)) // for what the process says at its end
	})
	io.CopyBuffer(plainWriter{client}, struct{ io.Reader }{stream}, make([]byte, 64<<10))
	client.Close()
	wg.Wait()
}

// stdio speaks MCP's stdio transport on an upgraded connection.
func (s *Server) stdio(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	c, rw, ok := upgrade(w, r, upgradeMCP)
	if !ok {
		return
	}
	defer c.Close()
	err := s.Gateway.Serve(r.Context(), p, struct {
		io.Reader
		io.Closer
	}{rw, c}, c)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.Log.DebugContext(r.Context(), "a stdio client ended", "error", err)
	}
}
