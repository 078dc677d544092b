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

// MaxToolConn bounds a ToolConn, in bytes.
const MaxToolConn = 4 << 10

// ToolConn says which program of the sandbox made a connection for calls of tools. It comes from the agent, and
// its texts are not checked.
type ToolConn struct {
	Tag       string   // of the command to which the program belongs; empty: to none
	Languages []string // of the interpreter to which it belongs; nil: to none
	Process   string   // the id of the background process to which it belongs; empty: to none
}

// WriteToolConn sends the first message of a connection for calls of tools.
func WriteToolConn(w io.Writer, c ToolConn) error {
	return WriteMessage(w, &agentv1.ToolConn{Tag: c.Tag, Languages: c.Languages, Process: c.Process})
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
	return ToolConn{Tag: m.Tag, Languages: m.Languages, Process: m.Process}, nil
}
