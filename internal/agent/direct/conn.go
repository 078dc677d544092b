// Package direct is the host's side of a direct connection to the driver of an interpreter. Over
// it the host sends short cells of code, and the driver answers, without the agent. The package
// sandlot/internal/guest/interp/direct, the other side, describes the protocol.
//
// The driver's answers come from the sandbox, so they are bounded and checked. An invalid one
// ends its own connection, and nothing else.
package direct

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path"
	"syscall"
	"time"
	"unicode/utf8"

	"sandlot/internal/agent/wire"
)

const (
	// SuperviseAfter is how long a cell may run before the host asks the agent to supervise it.
	SuperviseAfter = 15 * time.Millisecond
	// SendLimit bounds how long a driver may take to read a cell, or to write its answer.
	SendLimit = 10 * time.Second
	// MaxAnswer bounds a driver's answer without the output of the cell, in bytes. It is more
	// than the driver's own bound.
	MaxAnswer = 512 << 10
)

const (
	// WarmUp makes a driver run its own code for cells once, so that the first cell is as fast as
	// the others. The driver answers with Handover.
	WarmUp = "0 -1 0\n"
	// Handover is the answer of a driver that hands the end of a cell over to the agent.
	Handover = "0 0 0\n"
)

var (
	// ErrNotSent is returned when the cell was not sent, and so did not begin.
	ErrNotSent = errors.New("the cell was not sent to the interpreter")
	// ErrProtocol is returned when the driver broke the protocol.
	ErrProtocol = errors.New("the interpreter's answer makes no sense")
	// ErrBroken is returned when the connection broke before there was an answer.
	ErrBroken = errors.New("the answer of the interpreter did not come")
)

// Answer is a driver's answer to a cell, with the output of the cell.
type Answer struct {
	wire.Reply
	Stdout, Stderr []byte
}

// Conn is a connection to a driver. Only one goroutine may use it at a time.
type Conn struct {
	conn     net.Conn
	reader   *bufio.Reader
	lastCell uint16 // the number of the last cell; 0 follows 65535
}

// Open waits until the driver that has dialed conn is ready for cells. It closes conn when that
// fails, or ctx ends.
func Open(ctx context.Context, conn net.Conn) (*Conn, error) {
	c := &Conn{conn: conn, reader: bufio.NewReaderSize(conn, 16<<10)}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(SendLimit))
	_, err := io.WriteString(conn, WarmUp)
	if err == nil {
		var answer []byte
		if answer, err = c.reader.ReadSlice('\n'); err == nil && string(answer) != Handover {
			err = ErrProtocol
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the connection. The driver then gets its cells from the agent.
func (c *Conn) Close() { c.conn.Close() }

// Idle reports whether the connection is open and has nothing to read, which has to be so between cells.
// It ignores a Handover of the last cell that arrived after the end of the cell.
func (c *Conn) Idle() bool {
	sc, ok := c.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil || c.reader.Buffered() > 0 {
		return false
	}
	idle := false
	raw.Control(func(fd uintptr) {
		var b [len(Handover)]byte
		n, err := receiveNow(fd, b[:])
		if err == nil && string(b[:n]) == Handover {
			_, err = receiveNow(fd, b[:])
		}
		idle = errors.Is(err, syscall.EAGAIN)
	})
	return idle
}

// Supervise makes the agent supervise a cell until its end, or stop it. Over is true when the
// cell was over already: then the driver answers the host.
type Supervise func(ctx context.Context, id int64) (over bool, err error)

// nextID returns the id of the next cell, which has 53 bits. The last 16 are the cell's number,
// by which the agent distinguishes a cell that is over from one that has not begun. The others
// are random, as code must not guess the id of another cell.
func (c *Conn) nextID() int64 {
	c.lastCell++
	return 1<<52 | rand.Int64N(1<<36)<<16 | int64(c.lastCell)
}

// Run runs a cell to its end, and returns its id. It returns the driver's answer, in which each
// stream, and the value, has at most limit bytes; or nil when the agent supervised the cell. An
// error of supervise is returned unchanged, and leaves the connection open. After any other
// error the connection is closed.
func (c *Conn) Run(ctx context.Context, code string, limit int, supervise Supervise) (*Answer, int64, error) {
	began, id := time.Now(), c.nextID()
	c.conn.SetDeadline(began.Add(SendLimit))
	if _, err := fmt.Fprintf(c.conn, "%d %d %d\n%s", id, len(code), limit, code); err != nil {
		c.Close() // the driver may have read a part of the cell
		return nil, id, ErrNotSent
	}
	c.conn.SetReadDeadline(began.Add(SuperviseAfter))
	_, err := c.reader.Peek(1)
	for attempts := 1; ; attempts++ {
		if err == nil {
			a, err := c.readAnswer(id, limit)
			if err != nil {
				c.Close()
			}
			if a != nil || err != nil {
				return a, id, err
			}
			// A Handover.
		}
		over, superviseErr := supervise(ctx, id)
		if superviseErr != nil || !over {
			return nil, id, superviseErr
		}
		// The cell was over already: the driver answers.
		c.conn.SetReadDeadline(time.Now().Add(SendLimit))
		_, err = c.reader.Peek(1)
		if errors.Is(err, io.EOF) && attempts < maxAttempts {
			// The driver's process may be dying. The agent answers so once it knows.
			select {
			case <-time.After(attemptInterval):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil || attempts > 1 {
			c.Close()
			return nil, id, ErrBroken
		}
	}
}

// How often, and after which interval, Run calls supervise for a driver that has closed its connection
// without an answer.
const (
	maxAttempts     = 50
	attemptInterval = 20 * time.Millisecond
)

// AwaitEnd stops a cell whose caller has cancelled it, by stop, and waits for the end of the cell. After
// that, the next answer on the connection is the answer to the next cell. After an error, the connection
// is closed.
func (c *Conn) AwaitEnd(ctx context.Context, id int64, stop Supervise) error {
	for {
		over, err := stop(ctx, id)
		if err != nil {
			c.Close()
			return err
		}
		if !over {
			return nil // the driver has answered the agent
		}
		a, err := c.readAnswer(id, MaxAnswer)
		if err != nil {
			c.Close()
			return err
		}
		if a != nil {
			return nil // the driver has answered the host
		}
	}
}

// readAnswer reads a driver's answer to a cell; nil: it was a Handover.
func (c *Conn) readAnswer(id int64, limit int) (*Answer, error) {
	c.conn.SetReadDeadline(time.Now().Add(SendLimit))
	line, err := c.reader.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, ErrProtocol
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	var size, stdout, stderr int
	if n, err := fmt.Sscanf(string(line), "%d %d %d\n", &size, &stdout, &stderr); err != nil || n != 3 ||
		size < 0 || size > MaxAnswer || stdout < 0 || stdout > limit || stderr < 0 || stderr > limit {
		return nil, ErrProtocol
	}
	if size == 0 {
		return nil, nil
	}
	data := make([]byte, size+stdout+stderr)
	if _, err := io.ReadFull(c.reader, data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	a := &Answer{Stdout: data[size : size+stdout : size+stdout], Stderr: data[size+stdout:]}
	if json.Unmarshal(data[:size], &a.Reply) != nil || a.ID != id || a.Result != nil && len(*a.Result) > limit {
		return nil, ErrProtocol
	}
	for _, file := range a.RawFiles {
		if file != "" && (path.Dir(file) != wire.OutputDir || !utf8.ValidString(file)) {
			return nil, ErrProtocol
		}
	}
	return a, nil
}
