package wire

import (
	"io"
	"time"

	"sandlot/proto/agentv1"
)

// ToolsDir is the folder of the tool tree in a sandbox, ToolsPython the one in it for PYTHONPATH, and ToolSocket
// the socket in it at which programs call tools.
const (
	ToolsDir    = "/run/mcp"
	ToolsPython = ToolsDir + "/python"
	ToolSocket  = "socket"
)

// SharedTools is where the host has the tree in the folder of the agent's socket, for agents that make ToolsDir a link
// to it. The socket is beside that link then, at ToolsDir with SharedSocketSuffix, and ToolSocket is a link to it.
const (
	SharedTools        = SocketDir + "/" + SharedName
	SharedName         = "mcp"
	SharedSocketSuffix = ".socket"
)

// MaxToolConn bounds a ToolConn, in bytes.
const MaxToolConn = 4 << 10

// ToolConn says which program of the sandbox made a connection for calls of tools. It comes from the agent, and
// its texts are not checked.
type ToolConn struct {
	Tag       string   // of the command to which the program belongs; empty: to none
	Languages []string // of the interpreter to which it belongs; nil: to none
	Process   string   // the id of the background process to which it belongs; empty: to none
	// Child: it is not the interpreter itself, but a child of it that was started at that time, or a descendant of
	// that child. The time may be StartError too early.
	Child   bool
	Started time.Time
}

// StartError is how much earlier a process may seem to have been started than it was: the kernel gives its age in
// hundredths of a second.
const StartError = 25 * time.Millisecond

// maxAge bounds the age of a process. The agent's number comes from the sandbox.
const maxAge = 10 * 365 * 24 * time.Hour

// WriteToolConn sends the first message of a connection for calls of tools.
func WriteToolConn(w io.Writer, c ToolConn) error {
	m := &agentv1.ToolConn{Tag: c.Tag, Languages: c.Languages, Process: c.Process, Child: c.Child}
	if c.Child {
		m.AgeMicros = uint64(max(time.Since(c.Started), 0).Microseconds())
	}
	return WriteMessage(w, m)
}

// ReadToolConn reads what WriteToolConn wrote, which has to arrive soon.
func ReadToolConn(c interface {
	io.Reader
	SetReadDeadline(time.Time) error
}) (ToolConn, error) {
	c.SetReadDeadline(time.Now().Add(greetingTimeout))
	defer c.SetReadDeadline(time.Time{})
	m := new(agentv1.ToolConn)
	if err := ReadBounded(c, m, MaxToolConn); err != nil {
		return ToolConn{}, err
	}
	age := time.Duration(min(m.AgeMicros, uint64(maxAge.Microseconds()))) * time.Microsecond
	return ToolConn{Tag: m.Tag, Languages: m.Languages, Process: m.Process, Child: m.Child,
		Started: time.Now().Add(-age)}, nil
}
