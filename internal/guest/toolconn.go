package guest

import (
	"context"
	"net"
	"runtime"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// largeTools is from how many bytes a change of the tool tree costs memory worth freeing.
const largeTools = 128 << 10

// SetTools implements the RPC.
func (a *Agent) SetTools(_ context.Context, r *agentv1.SetToolsRequest) (*agentv1.SetToolsResponse, error) {
	if a.config.ToolsDir == "" {
		return nil, wire.Errorf(connect.CodeUnimplemented, "this agent has no tool tree")
	}
	err := a.tools.Set(r)
	if proto.Size(r) > largeTools {
		time.AfterFunc(freeMemoryDelay, func() { // the garbage would be several times the tree
			runtime.GC() // pools keep theirs until the second time
			debug.FreeOSMemory()
		})
	}
	if err != nil {
		return nil, err
	}
	return &agentv1.SetToolsResponse{Shared: true}, nil
}

// dialTools makes a connection for calls of tools.
func (a *Agent) dialTools(ctx context.Context) (net.Conn, error) {
	c, err := a.dialHost(ctx)
	if err != nil {
		return nil, err
	}
	if err := wire.GreetTools(c, a.currentSecret()); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// maxAncestors bounds how far whose looks.
const maxAncestors = 64

// whose returns to which of the programs that the agent has started a process belongs: the nearest one that is an
// ancestor, or the leader of the session of one, which a process has when its parent has ended. To an interpreter
// belong its descendants alone: of a process whose parent has ended nothing tells which cell has started it.
func (a *Agent) whose(pid int) wire.ToolConn {
	var started time.Time // of the process that the walk has come from; zero: it has just begun
	for range maxAncestors {
		p, err := process.Ancestry(pid)
		if err != nil {
			break
		}
		for _, id := range []int{pid, p.Session} {
			if c, ok := a.Processes.ToolConn(id); ok && id > 1 {
				return c
			}
		}
		if languages := a.interpreterOf(pid); languages != nil {
			return wire.ToolConn{Languages: languages, Child: !started.IsZero(), Started: started}
		}
		if p.Parent <= 1 {
			break
		}
		pid, started = p.Parent, p.Started
	}
	return wire.ToolConn{}
}

// interpreterOf returns the languages of the interpreter whose process has an id; nil: there is none.
func (a *Agent) interpreterOf(pid int) (languages []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, i := range a.interps {
		if pid == 0 || i.PID() != pid {
			continue
		}
		for _, l := range a.languages {
			if a.interpreterName(l) == name {
				languages = append(languages, l.Name)
			}
		}
	}
	return languages
}

// addToolPaths makes programs find the command and the modules of the tool tree, where there is one.
func (a *Agent) addToolPaths(env map[string]string) {
	if a.config.ToolsDir == "" {
		return
	}
	a.tools.Restore()
	if path := env["PATH"]; path != "" {
		env["PATH"] = path + ":" + wire.ToolsDir
	}
	if path := env["PYTHONPATH"]; path != "" {
		env["PYTHONPATH"] = path + ":" + wire.ToolsPython
	} else {
		env["PYTHONPATH"] = wire.ToolsPython
	}
}
