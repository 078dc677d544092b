package mcpclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
)

const (
	maxNoise = 4 << 10   // of a line that is no message
	keptEnds = 4 << 10   // of a line that is too long
	keptLine = 256 << 10 // a buffer that has grown beyond is not kept
	// A program whose input cannot be written has mostly ended: what it still said
	// is read first.
	lastWords = time.Second
	// For what does not end although it is closed.
	ending = 5 * time.Second
)

// Lines is a pipe over a program's standard output and input: one message a
// line. Other lines (banners, logs) go to noise, which may be nil; a line is cut
// at 4 KiB and must not be kept. Both are closed with the session: stdout if it
// is an io.Closer, else it has to end when stdin does. The program is the
// caller's: to start, to end, and to listen to its standard error.
func Lines(stdout io.Reader, stdin io.WriteCloser, noise func(line []byte)) Pipe {
	if noise == nil {
		noise = func([]byte) {}
	}
	l := &lines{stdout: stdout, stdin: stdin, noise: noise, queue: make(chan []byte), ended: make(chan struct{}),
		wrote: make(chan struct{}), read: make(chan struct{}), stop: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

type lines struct {
	stdout io.Reader
	stdin  io.WriteCloser
	noise  func([]byte)

	queue   chan []byte
	stop    chan struct{}   // closed by close
	ctx     context.Context // ends with it
	cancel  context.CancelFunc
	ended   chan struct{} // closed when nothing can be written any more
	read    chan struct{} // closed when nothing more is read
	wrote   chan struct{} // closed when nothing more is written
	started bool
}

func (l *lines) traits() traits { return traits{} }
func (l *lines) agreed(string)  {}
func (l *lines) abandon(int64)  {}

func (l *lines) start(to inbox, limit int, room func() Room) {
	l.started = true
	go l.write(to)
	go l.listen(to, limit, room)
}

func (l *lines) send(ctx context.Context, m outgoing) error {
	select {
	case <-l.stop:
		return ErrClosed
	case <-l.ended:
		return fmt.Errorf("%w: it takes no input any more", ErrClosed)
	case <-ctx.Done():
		return context.Cause(ctx)
	case l.queue <- append(m.body, '\n'):
		return nil
	}
}

func (l *lines) write(to inbox) {
	defer close(l.wrote)
	for {
		select {
		case <-l.stop:
			return
		case b := <-l.queue:
			_, err := l.stdin.Write(b)
			if err == nil {
				continue
			}
			close(l.ended)
			select {
			case <-l.stop:
			case <-l.read:
			case <-time.After(lastWords):
				to.lost(fmt.Errorf("%w: it takes no input any more (%w)", ErrClosed, err))
			}
			return
		}
	}
}

func (l *lines) listen(to inbox, limit int, room func() Room) {
	defer close(l.read)
	r := lineReader{from: bufio.NewReaderSize(l.stdout, 64<<10), limit: limit,
		wants: func() (Room, func(), error) { return wait(l.ctx, room, limit, l.silence) }}
	defer func() { r.handOver().Release() }() // of what was no line
	for {
		line, err := r.next()
		cut, large := errors.AsType[*cutLine](err) // only its ends came, which may look whole
		if len(line) > 0 && !large {
			l.take(to, line, r.handOver())
		}
		switch {
		case err == nil:
		case large:
			l.noise(line[:min(len(line), maxNoise)])
			if id, ok := guess(line); ok {
				to.fail(id, cut.cause)
			}
		default:
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: it ended its output", ErrClosed)
			} else {
				err = fmt.Errorf("%w: its output broke off: %w", ErrClosed, err)
			}
			to.lost(err)
			return
		}
	}
}

// silence ends the output of a program that does not end a large message.
func (l *lines) silence() {
	if c, ok := l.stdout.(io.Closer); ok {
		_ = c.Close()
	}
}

// take hands a line to the session, or to those who listen to noise.
func (l *lines) take(to inbox, line []byte, room Room) {
	if _, ok := to.receive(line, room); ok {
		return
	}
	if id, ok := guess(line); ok && line[0] == '{' {
		to.fail(id, errors.New("the server's answer is no JSON that can be read"))
	}
	l.noise(line[:min(len(line), maxNoise)])
}

func (l *lines) close() error {
	close(l.stop)
	l.cancel()
	// Whatever the program makes of it: it is the caller who ends the program.
	_ = l.stdin.Close()
	if c, ok := l.stdout.(io.Closer); ok {
		_ = c.Close()
	}
	if !l.started {
		return nil
	}
	timeout := time.After(ending)
	for _, over := range []chan struct{}{l.wrote, l.read} {
		select {
		case <-over:
		case <-timeout:
			return errors.New("the program's input and output could not be closed; end the program")
		}
	}
	return nil
}

// lineReader reads lines of bounded length.
type lineReader struct {
	from  *bufio.Reader
	limit int
	wants func() (room Room, whole func(), _ error) // for a long line
	whole func()
	buf   []byte
	room  Room // of the line in buf; nil: it needs none
}

// cutLine is why only the ends of a line were kept.
type cutLine struct{ cause error }

func (c *cutLine) Error() string { return c.cause.Error() }
func (c *cutLine) Unwrap() error { return c.cause }

// handOver returns the room of the line that came, which is the caller's then.
func (r *lineReader) handOver() Room {
	if r.room == nil {
		return noRoom{}
	}
	r.whole()
	room := r.room
	r.room = nil
	return room
}

// next returns the next line that is not empty, without white space around it.
// It is valid until the next call. Of a line that is longer than the limit, or for
// which there is no room, the beginning and the end come, with a *cutLine. The last
// line may come with the error that ended it.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.line()
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff")))
		if len(line) > 0 || err != nil {
			return line, err
		}
	}
}

func (r *lineReader) line() ([]byte, error) {
	if cap(r.buf) > keptLine {
		r.buf = nil
	}
	r.buf = r.buf[:0]
	r.handOver().Release() // of one that nobody took
	var tail []byte        // what is left of a line that is cut
	var cut error
	for {
		part, err := r.from.ReadSlice('\n')
		switch {
		case tail != nil:
			tail = append(tail, part...)
			if over := len(tail) - keptEnds; over > 0 {
				tail = append(tail[:0], tail[over:]...)
			}
		default:
			if cut = r.fits(part); cut == nil {
				r.buf = append(r.buf, part...)
				break
			}
			all := append(r.buf, part...)
			tail = append(make([]byte, 0, 2*keptEnds+r.from.Size()), all[max(0, len(all)-keptEnds):]...)
			r.buf = append([]byte(nil), all[:min(len(all)-len(tail), keptEnds)]...)
			r.handOver().Release()
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if tail != nil && err == nil {
			err = &cutLine{cut}
		}
		return append(r.buf, tail...), err
	}
}

// fits says why a line is not kept whole with its next part; nil: it is.
func (r *lineReader) fits(part []byte) (err error) {
	size := len(r.buf) + len(bytes.TrimRight(part, "\r\n"))
	if size > r.limit {
		return fmt.Errorf("%w: an answer of over %d bytes", ErrTooLarge, r.limit)
	}
	if size > largeFrom && r.room == nil && r.wants != nil {
		r.room, r.whole, err = r.wants()
	}
	return err
}

// An answer of which only the ends are known says at one of them whose it is:
// programs write the members of a message in some fixed order.
var (
	idFirst = regexp.MustCompile(`^\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([1-9][0-9]{0,17})\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"`)
	answers = regexp.MustCompile(`^\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"`)
	idLast  = regexp.MustCompile(`,\s*"id"\s*:\s*([1-9][0-9]{0,17})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

// guess returns which request a line that cannot be read seems to answer.
func guess(line []byte) (int64, bool) {
	head, tail := line[:min(len(line), keptEnds)], line[max(0, len(line)-keptEnds):]
	m := idFirst.FindSubmatch(head)
	if m == nil && answers.Match(head) {
		m = idLast.FindSubmatch(tail)
	}
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	return n, err == nil
}
