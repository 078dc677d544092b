// Package agenttest has a fake agent for tests of the host. It answers calls, and runs nothing.
package agenttest

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// Agent is a fake agent.
type Agent struct {
	Unresponsive bool   // the agent links itself to the host, and never answers a call
	BootID       string // the boot id that Hello returns
	SettingsErr  error  // the answer to settings; nil: it takes them
	// Usage returns whether a call or process runs, and for how long none has.
	Usage func() (busy bool, idle time.Duration)
	// Used returns what the sandbox has in use; nil: nothing.
	Used func() (memory uint64, processes uint32)
	// Limited is called with the limits that the settings say; it may be nil.
	Limited func(memory, processes uint64)
	// Dial connects to a port of the sandbox. An error is answered as "nothing listens".
	Dial func(port uint32) (net.Conn, error)
	// Files answers calls about files; nil: none is known.
	Files Files
}

// Files is what a fake agent has of files.
type Files interface {
	ListFiles(context.Context, *agentv1.ListFilesRequest) (*agentv1.ListFilesResponse, error)
	StatFile(context.Context, *agentv1.StatFileRequest) (*agentv1.StatFileResponse, error)
	MoveFile(context.Context, *agentv1.MoveFileRequest) (*agentv1.MoveFileResponse, error)
	MakeFolder(context.Context, *agentv1.MakeFolderRequest) (*agentv1.MakeFolderResponse, error)
	RemoveFile(context.Context, *agentv1.RemoveFileRequest) (*agentv1.RemoveFileResponse, error)
}

// SetRoot lets calls about files reach one folder.
func SetRoot(f interface {
	SetRoots([]*agentv1.FileRoot) error
}, path string) error {
	return f.SetRoots([]*agentv1.FileRoot{{Path: path}})
}

// Serve greets the host at the other end of c, and serves the link until it ends.
func (a Agent) Serve(c net.Conn, secret []byte) {
	defer c.Close()
	if wire.Greet(c, secret) != nil {
		return
	}
	mux, err := yamux.Server(wire.Coalesce(c), wire.HostMuxConfig())
	if err != nil {
		return
	}
	defer mux.Close()
	routes := http.NewServeMux()
	routes.Handle(agentv1connect.NewAgentHandler(a.handler()))
	l := &wire.Listener{Conns: make(chan net.Conn), Closed: mux.CloseChan()}
	server := &http.Server{Handler: routes}
	go server.Serve(l)
	defer server.Close()
	for {
		s, err := mux.AcceptStream()
		if err != nil {
			return
		}
		go a.dispatch(s, l)
	}
}

func (a Agent) dispatch(s net.Conn, l *wire.Listener) {
	var kind [1]byte
	if _, err := s.Read(kind[:]); err != nil {
		s.Close()
		return
	}
	if a.Unresponsive {
		<-l.Closed
		return
	}
	if kind[0] == wire.CallStream {
		select {
		case l.Conns <- s:
		case <-l.Closed:
		}
		return
	}
	defer s.Close()
	if kind[0] == wire.RawStream {
		a.serveRaw(s)
	}
	for kind[0] == wire.RunStream {
		r := new(agentv1.RunRequest)
		if wire.ReadMessage(s, r) != nil || wire.WriteMessage(s, lastEvent(r)) != nil {
			return
		}
	}
}

// lastEvent returns the last event of a run that succeeded.
func lastEvent(r *agentv1.RunRequest) *agentv1.RunEvent {
	if r.GetExec() != nil {
		return &agentv1.RunEvent{Event: &agentv1.RunEvent_Executed{Executed: &agentv1.ExecDone{}}}
	}
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Evaluated{Evaluated: &agentv1.EvaluateDone{Ok: true}}}
}

// serveRaw serves a raw stream that is to be connected to a port. No other is supported.
func (a Agent) serveRaw(s net.Conn) {
	open := new(agentv1.StreamOpen)
	if wire.ReadMessage(s, open) != nil {
		return
	}
	c, err := a.Dial(open.GetDial())
	if err != nil {
		_ = wire.WriteMessage(s, &agentv1.StreamReply{Code: uint32(connect.CodeNotFound), Message: err.Error()})
		return
	}
	defer c.Close()
	if wire.WriteMessage(s, &agentv1.StreamReply{}) != nil {
		return
	}
	var copying sync.WaitGroup
	copying.Go(func() {
		io.Copy(c, s)
		if h, ok := c.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
		}
	})
	io.Copy(s, c)
	s.Close()
	copying.Wait()
}

// handler answers the RPCs.
type handler struct {
	agentv1connect.UnimplementedAgentHandler
	agent Agent
}

// filesHandler answers the RPCs about files, too.
type filesHandler struct {
	handler
	Files
}

func (a Agent) handler() agentv1connect.AgentHandler {
	if a.Files == nil {
		return handler{agent: a}
	}
	return filesHandler{handler{agent: a}, a.Files}
}

func (c handler) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	return &agentv1.HelloResponse{BootId: c.agent.BootID}, nil
}

func (c handler) Configure(_ context.Context, r *agentv1.ConfigureRequest) (*agentv1.ConfigureResponse, error) {
	if c.agent.Limited != nil {
		c.agent.Limited(r.GetLimits().GetMemoryBytes(), r.GetLimits().GetProcesses())
	}
	return &agentv1.ConfigureResponse{Renewed: r.Renew}, c.agent.SettingsErr
}

func (c handler) StartInterpreter(context.Context,
	*agentv1.StartInterpreterRequest) (*agentv1.StartInterpreterResponse, error) {
	return &agentv1.StartInterpreterResponse{}, nil
}

func (c handler) Usage(context.Context, *agentv1.UsageRequest) (*agentv1.UsageResponse, error) {
	busy, idle := c.agent.Usage()
	r := &agentv1.UsageResponse{Busy: busy, IdleMicros: uint64(idle.Microseconds())}
	if c.agent.Used != nil {
		r.MemoryBytes, r.Processes = c.agent.Used()
	}
	return r, nil
}
