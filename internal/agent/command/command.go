// Package command is the protocol by which a client of the HTTP API runs a command in a sandbox:
// the client sends a Command, the server answers with Started, and then both send frames until
// the command has ended.
package command

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/proto/agentv1"
)

// Command is a program to start in a sandbox.
type Command struct {
	Args []string          // the first is looked up in PATH
	Env  map[string]string // added to the sandbox's environment
	Dir  string            // empty: the workspace
	// Terminal is the size of the terminal that the program gets in place of pipes; nil: pipes.
	Terminal *Size
	// Server stands for the third-party server whose program it is, in what the agent says of refused connections; empty:
	// it is the program of none. A client of the HTTP API cannot set it.
	Server string
}

// As returns the command as one of a user of the sandbox: USER or USER:GROUP, names or numbers; empty: the template's.
func (c Command) As(user string) Command {
	if user != "" {
		c.Args = append([]string{wire.AgentPath, wire.AsCommand, user}, c.Args...)
	}
	return c
}

// Size is the size of a terminal, in characters.
type Size struct{ Rows, Cols int }

// Message returns the command as the message for an agent.
func (c Command) Message() *agentv1.Command {
	m := &agentv1.Command{Argv: c.Args, Env: c.Env, Cwd: c.Dir, Server: c.Server}
	if c.Terminal != nil {
		m.Pty = &agentv1.Pty{Rows: uint32(c.Terminal.Rows), Cols: uint32(c.Terminal.Cols)}
	}
	return m
}

// Read reads what Write wrote.
func Read(r io.Reader) (Command, error) {
	m := new(agentv1.Command)
	if err := wire.ReadMessage(r, m); err != nil {
		return Command{}, err
	}
	c := Command{Args: m.Argv, Env: m.Env, Dir: m.Cwd}
	if m.Pty != nil {
		c.Terminal = &Size{Rows: int(m.Pty.Rows), Cols: int(m.Pty.Cols)}
	}
	return c, nil
}

// Write sends the command to the server.
func (c Command) Write(w io.Writer) error { return wire.WriteMessage(w, c.Message()) }

// Started is the server's answer to a Command.
type Started struct {
	Failure        string // why the command was not started; empty: it was
	ProcessID      string
	SessionID      string
	SessionCreated bool
}

// ReadStarted reads what Started.Write wrote.
func ReadStarted(r io.Reader) (Started, error) {
	m := new(agentv1.StreamReply)
	if err := wire.ReadMessage(r, m); err != nil {
		return Started{}, err
	}
	s := Started{ProcessID: m.ProcessId, SessionID: m.SessionId, SessionCreated: m.SessionCreated}
	if m.Code != 0 {
		s.Failure = cmp.Or(fault.Printable(m.Message, 2000), "the program was not started")
	}
	return s, nil
}

// Write sends the answer to a client of the HTTP API.
func (s Started) Write(w io.Writer) error {
	m := &agentv1.StreamReply{ProcessId: s.ProcessID, SessionId: s.SessionID, SessionCreated: s.SessionCreated}
	if s.Failure != "" {
		m.Code, m.Message = uint32(connect.CodeUnknown), s.Failure
	}
	return wire.WriteMessage(w, m)
}

// The kinds of frames. The client sends Stdin (without data: end of input) and Resize, the server
// sends Stdout and Stderr, and Exit at the end.
const (
	Stdin  = wire.FrameStdin
	Stdout = wire.FrameStdout
	Stderr = wire.FrameStderr
	Resize = wire.FrameResize
	Exit   = wire.FrameExit
)

// MaxFrame is how many bytes a frame may have.
const MaxFrame = wire.MaxFrame

// WriteFrame writes one frame of at most MaxFrame bytes.
func WriteFrame(w io.Writer, kind byte, data []byte) error { return wire.WriteFrame(w, kind, data) }

// ReadFrame reads one frame into buf, which must have room for MaxFrame bytes, and returns its
// kind and the part of buf with its data.
func ReadFrame(r io.Reader, buf []byte) (kind byte, data []byte, err error) {
	return wire.ReadFrame(r, buf)
}

// ExitStatus decodes the data of an Exit frame: the exit code, and why the sandbox ended the
// command, which is printable, or empty when the command ended by itself.
func ExitStatus(data []byte) (code int, why string, err error) {
	if len(data) < 4 {
		return 0, "", errors.New("the process ended without an exit code")
	}
	return int(int32(binary.BigEndian.Uint32(data))), fault.Printable(string(data[4:]), 500), nil
}

// EndedStatus returns the data of an Exit frame, which ExitStatus decodes.
func EndedStatus(code int, why string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(int32(code))), why...)
}

// ResizeData returns the data of a Resize frame.
func (s Size) ResizeData() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(s.Rows))
	return binary.BigEndian.AppendUint16(b, uint16(s.Cols))
}
