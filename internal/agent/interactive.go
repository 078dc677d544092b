package agent

import (
	"context"
	"net"

	"sandlot/proto/agentv1"
)

// Interactive is a program in the sandbox whose standard streams are frames on a raw stream
// (wire.ReadFrame, wire.WriteFrame). Closing it ends the program.
type Interactive struct {
	net.Conn
	ProcessID string // for StopProcess; printable
}

// Interactive starts a program. Ctx bounds only the start.
func (c *Client) Interactive(ctx context.Context, cmd Command) (*Interactive, error) {
	stream, reply, err := c.stream(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Exec{Exec: cmd.Message()}})
	if err != nil {
		return nil, err
	}
	return &Interactive{Conn: stream, ProcessID: line(reply.ProcessId, maxProcessID)}, nil
}

// Dial connects to a port of the sandbox's loopback.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, _, err := c.stream(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: uint32(port)}})
	return conn, err
}
