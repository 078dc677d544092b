package agent

import (
	"cmp"
	"context"
	"io"
	"net"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/proto/agentv1"
)

// Interactive is a program whose input and output go over a stream, in frames
// (wire.ReadFrame, wire.WriteFrame). Closing it ends the program.
type Interactive struct {
	net.Conn
	ProcessID string // for StopProcess; printable
}

// Interactive starts a program. Ctx bounds the start alone.
func (c *Client) Interactive(ctx context.Context, cmd Command) (*Interactive, error) {
	stream, reply, err := c.stream(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Exec{Exec: cmd.message()}})
	if err != nil {
		return nil, err
	}
	return &Interactive{Conn: stream, ProcessID: fault.Printable(reply.ProcessId, maxProcessID)}, nil
}

// Dial connects to a port of the sandbox's loopback.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, _, err := c.stream(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: uint32(port)}})
	return conn, err
}

// ReadCommand reads what WriteCommand wrote: a command that a client of the HTTP
// API starts.
func ReadCommand(r io.Reader) (Command, error) {
	m := new(agentv1.Command)
	if err := wire.ReadMessage(r, m); err != nil {
		return Command{}, err
	}
	return commandOf(m), nil
}

// WriteCommand sends a command to the HTTP API.
func WriteCommand(w io.Writer, c Command) error { return wire.WriteMessage(w, c.message()) }

// Started is what the HTTP API answers to a command.
type Started struct {
	Failure        string // why it did not start; empty: it did
	ProcessID      string
	SessionID      string
	SessionCreated bool
}

// ReadStarted reads what WriteStarted wrote.
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

// WriteStarted answers a client of the HTTP API.
func WriteStarted(w io.Writer, s Started) error {
	m := &agentv1.StreamReply{ProcessId: s.ProcessID, SessionId: s.SessionID, SessionCreated: s.SessionCreated}
	if s.Failure != "" {
		m.Code, m.Message = uint32(connect.CodeUnknown), s.Failure
	}
	return wire.WriteMessage(w, m)
}
