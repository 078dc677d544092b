//go:build linux && !mac

package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"sandlot/internal/agent/wire"
)

// control calls the first process of a machine, one call at a time.
type control struct {
	dir  string
	mu   chan struct{} // has one element while nobody calls
	conn *net.UnixConn // nil: not connected
	in   *bufio.Reader
}

func newControl(dir string) *control {
	c := &control{dir: dir, mu: make(chan struct{}, 1)}
	c.mu <- struct{}{}
	return c
}

// callNumber is the number of the last call of this process. A machine may still answer one of an earlier server.
var callNumber atomic.Int64

func init() { callNumber.Store(time.Now().UnixNano()) }

// call makes a call, and waits for its answer. The machine may be booting.
func (c *control) call(ctx context.Context, call wire.MachineCall) error {
	select {
	case <-c.mu:
		defer func() { c.mu <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := c.exchange(ctx, call)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

func (c *control) exchange(ctx context.Context, call wire.MachineCall) (err error) {
	if c.conn == nil {
		if c.conn, err = dial(c.dir, controlSock); err != nil {
			return err
		}
		c.in = bufio.NewReaderSize(c.conn, wire.MaxMachineLine)
	}
	refused := false
	defer func() {
		if err != nil && !refused {
			c.conn.Close()
			c.conn = nil
		}
	}()
	conn := c.conn
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	call.Number = callNumber.Add(1)
	text, err := json.Marshal(call)
	if err != nil {
		return err
	}
	// An earlier server may have left a part of a line.
	if _, err := conn.Write(append(append([]byte{'\n'}, text...), '\n')); err != nil {
		return err
	}
	for {
		line, err := c.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return fmt.Errorf("the machine does not answer: %w", err)
		}
		var reply wire.MachineReply
		if json.Unmarshal(line, &reply) != nil || reply.Number != call.Number {
			continue
		}
		if refused = reply.Error != ""; refused {
			return fmt.Errorf("the machine says %.200q", reply.Error)
		}
		return nil
	}
}

// close ends the connection. The next call makes another one.
func (c *control) close() {
	<-c.mu
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
	c.mu <- struct{}{}
}

// carry makes the machine carry its agent's connections over a new stream.
func (c *control) carry(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := c.call(ctx, wire.MachineCall{Do: wire.MachineCut}); err != nil {
		return nil, err
	}
	stream, err := dial(c.dir, linkSock)
	if err != nil {
		return nil, err
	}
	if err := c.call(ctx, wire.MachineCall{Do: wire.MachineCarry}); err != nil {
		stream.Close()
		return nil, err
	}
	return stream, nil
}

// monitor calls QEMU itself (QMP), one command for each connection.
type monitor struct {
	conn *net.UnixConn
	in   *bufio.Reader
	stop func() bool
}

// maxMonitorLine bounds one line of QEMU, in bytes.
const maxMonitorLine = 1 << 20

func openMonitor(ctx context.Context, dir string) (*monitor, error) {
	conn, err := dial(dir, monitorSock)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn: conn, in: bufio.NewReaderSize(conn, maxMonitorLine)}
	m.stop = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	if _, err := m.in.ReadSlice('\n'); err != nil { // its greeting
		m.close()
		return nil, err
	}
	if err := m.do("qmp_capabilities", nil, nil); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *monitor) close() {
	m.stop()
	m.conn.Close()
}

// do carries out a command. result is where its answer goes; nil: nobody wants it.
func (m *monitor) do(command string, arguments, result any) error {
	text, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, arguments})
	if err == nil {
		_, err = m.conn.Write(append(text, '\n'))
	}
	if err != nil {
		return err
	}
	for {
		line, err := m.in.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("%s: QEMU says %.300q", command, answer.Error.Desc)
		case answer.Return == nil: // an event
		case result != nil:
			return json.Unmarshal(answer.Return, result)
		default:
			return nil
		}
	}
}
