package guest

import (
	"context"
	"net"
	"strconv"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// SetTools implements the RPC.
func (a *Agent) SetTools(_ context.Context, r *agentv1.SetToolsRequest) (*agentv1.SetToolsResponse, error) {
	if a.config.ToolsDir == "" {
		return nil, wire.Errorf(connect.CodeUnimplemented, "this agent has no tool tree")
	}
	if err := a.tools.Set(r); err != nil {
		return nil, err
	}
	return &agentv1.SetToolsResponse{}, nil
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
// ancestor, or the leader of the session of one, which a process has when its parent has ended.
func (a *Agent) whose(pid int) wire.ToolConn {
	for range maxAncestors {
		f, err := process.Stat(pid)
		if err != nil {
			break
		}
		session, _ := strconv.Atoi(f[3])
		for _, started := range []int{pid, session} {
			if c, ok := a.startedAs(started); ok {
				return c
			}
		}
		if pid, err = strconv.Atoi(f[1]); err != nil || pid <= 1 {
			break
		}
	}
	return wire.ToolConn{}
}

// startedAs returns what the agent has started as the process with an id; false: nothing.
func (a *Agent) startedAs(pid int) (wire.ToolConn, bool) {
	if c, ok := a.Processes.ToolConn(pid); ok {
		return c, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, i := range a.interps {
		if pid == 0 || i.PID() != pid {
			continue
		}
		var c wire.ToolConn
		for _, l := range a.languages {
			if a.interpreterName(l) == name {
				c.Languages = append(c.Languages, l.Name)
			}
		}
		return c, true
	}
	return wire.ToolConn{}, false
}

// addToolPaths makes programs find the command and the modules of the tool tree, where there is one.
func (a *Agent) addToolPaths(env map[string]string) {
	if a.config.ToolsDir == "" {
		return
	}
	if path := env["PATH"]; path != "" {
		env["PATH"] = path + ":" + wire.ToolsDir
	}
	if path := env["PYTHONPATH"]; path != "" {
		env["PYTHONPATH"] = path + ":" + wire.ToolsPython
	} else {
		env["PYTHONPATH"] = wire.ToolsPython
	}
}
