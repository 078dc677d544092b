// Package direct is the host's side of the direct way: a connection to the driver
// of an interpreter, over which short cells of code go there and back without the
// agent. The protocol is described where its other side is, in
// sandlot/internal/guest/interp/direct.
//
// What a driver says comes out of the sandbox: it is bounded, checked, and never
// ends more than its own way.
package direct

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Soon is how long a cell may run before the agent supervises it.
	Soon = 15 * time.Millisecond
	// SendLimit is how long a driver that waits for cells may take to read one, or
	// to write its answer.
	SendLimit = 10 * time.Second
)

const (
	// Warm asks a driver to do once what each cell does. It answers Leave.
	Warm = "0 -1 0\n"
	// Leave is what a driver says that leaves the end of a cell to the agent.
	Leave = "0 0 0\n"
)

var (
	// ErrUnsent says that a cell did not begin.
	ErrUnsent = errors.New("the cell was not sent to the interpreter")
	// ErrProtocol says that the driver broke the protocol.
	ErrProtocol = errors.New("the interpreter's answer makes no sense")
	// ErrBroken says that the connection broke before there was an answer.
	ErrBroken = errors.New("the answer of the interpreter did not come")
)

// Way is a connection to one driver. One goroutine uses it at a time.
type Way struct {
	conn net.Conn
	r    *bufio.Reader
	last uint16 // the number of the last cell; it counts in circles
}

// Open takes a connection that a driver has dialed, and makes the driver get ready.
// The connection is closed when that fails, or ctx ends.
func Open(ctx context.Context, conn net.Conn) (*Way, error) {
	w := &Way{conn: conn, r: bufio.NewReaderSize(conn, 16<<10)}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(SendLimit))
	_, err := io.WriteString(conn, Warm)
	if err == nil {
		var said []byte
		if said, err = w.r.ReadSlice('\n'); err == nil && string(said) != Leave {
			err = ErrProtocol
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the way. The driver takes its cells from the agent then.
func (w *Way) Close() { w.conn.Close() }

// Quiet says whether the way is open and nothing waits to be read, which is how a
// driver leaves it between cells: but for Leave, when that came too late.
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
		var b [len(Leave)]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
		if err == nil && string(b[:n]) == Leave {
			_, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
		}
		quiet = errors.Is(err, unix.EAGAIN)
	})
	return quiet
}

// Supervise asks the agent to supervise a cell until its end. Over is true when the
// cell is over, and the driver answers the host.
type Supervise func(ctx context.Context, id int64) (over bool, err error)

// name makes the id of the next cell: its number in the last 16 bits, by which the
// agent knows a cell that is over from one that has not begun, and random ones above,
// as no code may guess the id of another cell. 53 bits in all.
func (w *Way) name() int64 {
	w.last++
	return 1<<52 | rand.Int64N(1<<36)<<16 | int64(w.last)
}

// Run runs a cell to its end. It returns the driver's answer, of whose output each
// stream, and the value, has at most limit bytes; or nil when the agent supervised
// the cell. An error of supervise is returned as it is, with the cell's id, and leaves
// the way open; any other has closed it.
func (w *Way) Run(ctx context.Context, code string, limit int, supervise Supervise) (*Answer, int64, error) {
	began, id := time.Now(), w.name()
	w.conn.SetDeadline(began.Add(SendLimit))
	if _, err := fmt.Fprintf(w.conn, "%d %d %d\n%s", id, len(code), limit, code); err != nil {
		w.Close() // what came of it is no whole cell
		return nil, id, ErrUnsent
	}
	w.conn.SetReadDeadline(began.Add(Soon))
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
			// There is more to it than is said here.
		}
		over, serr := supervise(ctx, id)
		if serr != nil || !over {
			return nil, id, serr
		}
		// It was over already, and the driver answers.
		w.conn.SetReadDeadline(time.Now().Add(SendLimit))
		_, err = w.r.Peek(1)
		if errors.Is(err, io.EOF) && asks < maxAsks {
			// Its process may be dying, which the agent tells when it is over.
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

// Await returns when a cell is over that was given up, and which the agent is asked to
// stop: what comes back next on the way is the next cell's. Any error has closed it.
func (w *Way) Await(ctx context.Context, id int64, stop Supervise) error {
	for {
		over, err := stop(ctx, id)
		if err != nil {
			w.Close()
			return err
		}
		if !over {
			return nil // the agent had it
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
