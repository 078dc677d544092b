// Package direct is the host's side of the direct way: a connection to the driver
// of an interpreter, over which short cells of code go there and back without the
// agent. The protocol is described where its other side is, in
// sandlot/internal/guest/interp/direct.
//
// The driver's answers come out of the sandbox: they are bounded and checked, and a
// wrong one ends nothing but its own connection.
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

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

const (
	// SuperviseAfter is how long a cell may run before the agent supervises it.
	SuperviseAfter = 15 * time.Millisecond
	// SendLimit is how long a driver that waits for cells may take to read one, or
	// to write its answer.
	SendLimit = 10 * time.Second
	// MaxAnswer bounds a driver's answer without the output of the cell, in bytes:
	// more than the driver's own bound.
	MaxAnswer = 512 << 10
)

const (
	// WarmUp makes a driver run its own code for cells once, so that the first cell is
	// as quick as the others. The driver answers Handover.
	WarmUp = "0 -1 0\n"
	// Handover is the answer of a driver that leaves the end of a cell to the agent.
	Handover = "0 0 0\n"
)

var (
	// ErrUnsent says that a cell did not begin.
	ErrUnsent = errors.New("the cell was not sent to the interpreter")
	// ErrProtocol says that the driver broke the protocol.
	ErrProtocol = errors.New("the interpreter's answer makes no sense")
	// ErrBroken says that the connection broke before there was an answer.
	ErrBroken = errors.New("the answer of the interpreter did not come")
)

// Answer is a driver's answer to a cell, with the output of the cell.
type Answer struct {
	wire.Reply
	Stdout, Stderr []byte
}

// Way is a connection to one driver. One goroutine uses it at a time.
type Way struct {
	conn net.Conn
	r    *bufio.Reader
	last uint16 // the number of the last cell; it counts in circles
}

// Open takes a connection that a driver has dialed, and waits until the driver is
// ready for cells. The connection is closed when that fails, or ctx ends.
func Open(ctx context.Context, conn net.Conn) (*Way, error) {
	w := &Way{conn: conn, r: bufio.NewReaderSize(conn, 16<<10)}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(SendLimit))
	_, err := io.WriteString(conn, WarmUp)
	if err == nil {
		var answer []byte
		if answer, err = w.r.ReadSlice('\n'); err == nil && string(answer) != Handover {
			err = ErrProtocol
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// Close closes the connection. The driver takes its cells from the agent then.
func (w *Way) Close() { w.conn.Close() }

// Quiet says whether the connection is open and has nothing to read. Between cells a
// driver leaves it so, but for a Handover that came too late, which Quiet reads.
func (w *Way) Quiet() bool {
	sc, ok := w.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil || w.r.Buffered() > 0 {
		return false
	}
	quiet := false
	raw.Control(func(fd uintptr) {
		var b [len(Handover)]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
		if err == nil && string(b[:n]) == Handover {
			_, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
		}
		quiet = errors.Is(err, unix.EAGAIN)
	})
	return quiet
}

// Supervise asks the agent to supervise a cell until its end. Over is true when the
// cell is over, and the driver answers the host.
type Supervise func(ctx context.Context, id int64) (over bool, err error)

// nextID makes the id of the next cell: its number in the last 16 bits, by which the
// agent tells a cell that is over from one that has not begun, and random ones above,
// as no code may guess the id of another cell. 53 bits in all.
func (w *Way) nextID() int64 {
	w.last++
	return 1<<52 | rand.Int64N(1<<36)<<16 | int64(w.last)
}

// Run runs a cell to its end. It returns the driver's answer, of whose output each
// stream, and the value, has at most limit bytes; or nil when the agent supervised
// the cell. An error of supervise is returned as it is, with the cell's id, and leaves
// the connection open; any other has closed it.
func (w *Way) Run(ctx context.Context, code string, limit int, supervise Supervise) (*Answer, int64, error) {
	began, id := time.Now(), w.nextID()
	w.conn.SetDeadline(began.Add(SendLimit))
	if _, err := fmt.Fprintf(w.conn, "%d %d %d\n%s", id, len(code), limit, code); err != nil {
		w.Close() // the driver may have got a part of the cell
		return nil, id, ErrUnsent
	}
	w.conn.SetReadDeadline(began.Add(SuperviseAfter))
	_, err := w.r.Peek(1)
	for asks := 1; ; asks++ {
		if err == nil {
			a, err := w.answer(id, limit)
			if err != nil {
				w.Close()
			}
			if a != nil || err != nil {
				return a, id, err
			}
			// A Handover.
		}
		over, serr := supervise(ctx, id)
		if serr != nil || !over {
			return nil, id, serr
		}
		// The cell was over already, and the driver answers.
		w.conn.SetReadDeadline(time.Now().Add(SendLimit))
		_, err = w.r.Peek(1)
		if errors.Is(err, io.EOF) && asks < maxAsks {
			// The driver's process may be dying: the agent says so once it knows.
			select {
			case <-time.After(askAgain):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil || asks > 1 {
			w.Close()
			return nil, id, ErrBroken
		}
	}
}

// How often, and after which pause, the agent is asked about a driver that has
// closed its connection without an answer.
const (
	maxAsks  = 50
	askAgain = 20 * time.Millisecond
)

// Await returns when a cell is over that its caller has given up, and which the agent is
// asked to stop: the next answer on the connection belongs to the next cell. Any error
// has closed the connection.
func (w *Way) Await(ctx context.Context, id int64, stop Supervise) error {
	for {
		over, err := stop(ctx, id)
		if err != nil {
			w.Close()
			return err
		}
		if !over {
			return nil // the agent had the answer
		}
		a, err := w.answer(id, MaxAnswer)
		if err != nil {
			w.Close()
			return err
		}
		if a != nil {
			return nil // the driver had it
		}
	}
}

// answer reads a driver's answer to a cell; nil is a Handover.
func (w *Way) answer(id int64, limit int) (*Answer, error) {
	w.conn.SetReadDeadline(time.Now().Add(SendLimit))
	line, err := w.r.ReadSlice('\n')
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
	if _, err := io.ReadFull(w.r, data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	a := &Answer{Stdout: data[size : size+stdout : size+stdout], Stderr: data[size+stdout:]}
	if json.Unmarshal(data[:size], &a.Reply) != nil || a.ID != id || a.Result != nil && len(*a.Result) > limit {
		return nil, ErrProtocol
	}
	for _, file := range a.Raw {
		if file != "" && (path.Dir(file) != wire.OutputDir || !utf8.ValidString(file)) {
			return nil, ErrProtocol
		}
	}
	return a, nil
}
