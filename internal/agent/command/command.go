// Package command is how a client of the HTTP API starts a command in a sandbox and
// speaks with it: the client sends a Command, the server answers with Started, and
// then frames go both ways until the command has ended.
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
	Env  map[string]string // added to the sandbox's own
	Dir  string            // empty: the workspace
	// Terminal, when it is not nil, is the size of the terminal that the program
	// gets in place of pipes.
	Terminal *Size
}

// Size is that of a terminal, in characters.
type Size struct{ Rows, Cols int }

// Message is the command as agents read it.
func (c Command) Message() *agentv1.Command {
	m := &agentv1.Command{Argv: c.Args, Env: c.Env, Cwd: c.Dir}
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

// Write sends the command to the HTTP API.
func (c Command) Write(w io.Writer) error { return wire.WriteMessage(w, c.Message()) }

// Started is what the HTTP API answers to a command.
type Started struct {
	Failure        string // why it did not start; empty: it did
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

// Write answers a client of the HTTP API.
func (s Started) Write(w io.Writer) error {
	m := &agentv1.StreamReply{ProcessId: s.ProcessID, SessionId: s.SessionID, SessionCreated: s.SessionCreated}
	if s.Failure != "" {
		m.Code, m.Message = uint32(connect.CodeUnknown), s.Failure
	}
	return wire.WriteMessage(w, m)
}

// The kinds of frames that this server's client knows: towards the command Stdin (empty:
// the end of its input) and Resize; from it Stdout, Stderr, and Exit at the end.
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

// ReadFrame reads one frame into buf, which must have room for MaxFrame bytes, and
// returns its kind and the part of buf that holds its data.
func ReadFrame(r io.Reader, buf []byte) (kind byte, data []byte, err error) {
	return wire.ReadFrame(r, buf)
}

// ExitStatus reads the data of a frame Exit: the exit code, and why the command ended
// where that has to be said, which is printable.
func ExitStatus(data []byte) (code int, why string, err error) {
	if len(data) < 4 {
		return 0, "", errors.New("the process ended without an exit code")
	}
	return int(int32(binary.BigEndian.Uint32(data))), fault.Printable(string(data[4:]), 500), nil
}

// Resized is the data of a frame Resize.
func (s Size) Resized() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(s.Rows))
	return binary.BigEndian.AppendUint16(b, uint16(s.Cols))
}
