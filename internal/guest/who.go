package guest

import (
	"fmt"
	"os"
	"strings"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
)

// whoIs returns what the host is told of a process whose connection it has refused; 0: of one that was not found.
func (a *Agent) whoIs(pid int) wire.Who {
	if pid == 0 {
		return wire.Who{Server: a.onlyServer()}
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	w := wire.Who{PID: uint32(pid), Name: wire.UTF8(strings.TrimSpace(string(name)))}
	w.Process, w.Server = a.startedFor(pid)
	return w
}

// startedFor returns to which of the programs that the agent has started a process belongs: the id of a background
// process or an interpreter, and what stands for a third-party server. It finds also what has left the tree of the
// program that has started it.
func (a *Agent) startedFor(pid int) (id, server string) {
	for at, n := pid, 0; n < maxAncestors; n++ {
		p, err := process.Ancestry(at)
		if err != nil {
			break
		}
		for _, leader := range []int{at, p.Session} {
			if id, server, ok := a.Processes.StartedAs(leader); ok {
				return id, server
			}
		}
		if languages := a.interpreterOf(at); languages != nil {
			return interpreterPrefix + languages[0], ""
		}
		if p.Parent <= 1 {
			break
		}
		at = p.Parent
	}
	id, server, _ = a.Processes.Marked(pid)
	return id, server
}

// onlyServer returns what stands for a third-party server if its program, and what it has started, is all that runs in
// the sandbox; empty: others run, too, or no server.
func (a *Agent) onlyServer() string {
	a.mu.Lock()
	busy := a.activeCalls > 0
	for _, i := range a.interps {
		busy = busy || !i.Idle()
	}
	a.mu.Unlock()
	if busy {
		return ""
	}
	return a.Processes.OnlyServer()
}
