package transport

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
	maxStray = 4 << 10   // bytes that are passed on of a line that is no message
	keptEnds = 4 << 10   // bytes that are kept of each end of a line that is too long
	keptLine = 256 << 10 // bytes of the largest buffer that is used for further lines
	// finalOutput is how long a program's output is still read when its input cannot be
	// written any more: most such programs have ended, and may have printed why.
	finalOutput = time.Second
	// closeTimeout bounds Close: reads of a closed pipe do not always return.
	closeTimeout = 5 * time.Second
)

// Stdio is the transport over a program's standard output and input: one message a
// line. Other lines (banners, logs) are passed to stray, which may be nil; each is cut at
// 4 KiB and valid only during the call. Close closes both streams: stdout if it is an
// io.Closer, else stdout has to end when stdin is closed. The caller starts and ends the
// program, and reads its standard error.
func Stdio(stdout io.Reader, stdin io.WriteCloser, stray func(line []byte)) Transport {
	if stray == nil {
		stray = func([]byte) {}
	}
	s := &stdio{stdout: stdout, stdin: stdin, stray: stray, queue: make(chan []byte), broken: make(chan struct{}),
		wrote: make(chan struct{}), read: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

type stdio struct {
	stdout io.Reader
	stdin  io.WriteCloser
	stray  func([]byte)

	queue   chan []byte
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	broken  chan struct{} // closed when the program's input could not be written
	read    chan struct{} // closed when the reader has ended
	wrote   chan struct{} // closed when the writer has ended
	started bool
}

func (s *stdio) Traits() Traits { return Traits{} }
func (s *stdio) Agreed(string)  {}
func (s *stdio) Abandon(int64)  {}

func (s *stdio) Start(to Receiver, limit int, reserve func() Reservation) {
	s.started = true
	go s.write(to)
	go s.listen(to, &lineReader{from: bufio.NewReaderSize(s.stdout, 64<<10), limit: limit,
		memory: memory{ctx: s.ctx, reserve: reserve, size: limit, stop: s.closeOutput}})
}

func (s *stdio) Send(ctx context.Context, m Outgoing) error {
	select {
	case <-s.ctx.Done():
		return ErrClosed
	case <-s.broken:
		return fmt.Errorf("%w: it takes no input any more", ErrClosed)
	case <-ctx.Done():
		return context.Cause(ctx)
	case s.queue <- append(m.Body, '\n'):
		return nil
	}
}

func (s *stdio) write(to Receiver) {
	defer close(s.wrote)
	for {
		select {
		case <-s.ctx.Done():
			return
		case b := <-s.queue:
			_, err := s.stdin.Write(b)
			if err == nil {
				continue
			}
			close(s.broken)
			select {
			case <-s.ctx.Done():
			case <-s.read:
			case <-time.After(finalOutput):
				to.Lost(fmt.Errorf("%w: it takes no input any more (%w)", ErrClosed, err))
			}
			return
		}
	}
}

func (s *stdio) listen(to Receiver, r *lineReader) {
	defer close(s.read)
	defer r.memory.release()
	for {
		line, err := r.next()
		cut, isCut := errors.AsType[*cutLine](err) // the ends together may look like a message
		if len(line) > 0 && !isCut {
			s.receive(to, line, r.memory.take())
		}
		switch {
		case err == nil:
		case isCut:
			s.stray(line[:min(len(line), maxStray)])
			if id, ok := guessID(line); ok {
				to.Fail(id, cut.cause)
			}
		case errors.Is(err, io.EOF):
			to.Lost(fmt.Errorf("%w: it ended its output", ErrClosed))
			return
		default:
			to.Lost(fmt.Errorf("%w: its output broke off: %w", ErrClosed, err))
			return
		}
	}
}

// closeOutput closes the program's standard output, if that is an io.Closer.
func (s *stdio) closeOutput() {
	if c, ok := s.stdout.(io.Closer); ok {
		_ = c.Close()
	}
}

// receive passes a line to the session or, if the line is no message, to onOtherLine.
func (s *stdio) receive(to Receiver, line []byte, r Reservation) {
	if _, ok := to.Receive(line, r); ok {
		return
	}
	if id, ok := guessID(line); ok && line[0] == '{' {
		to.Fail(id, errors.New("the server's answer is no JSON that can be read"))
	}
	s.stray(line[:min(len(line), maxStray)])
}

func (s *stdio) Close() error {
	s.cancel()
	_ = s.stdin.Close() // the caller ends the program in any case
	s.closeOutput()
	if !s.started {
		return nil
	}
	timeout := time.After(closeTimeout)
	for _, ended := range []chan struct{}{s.wrote, s.read} {
		select {
		case <-ended:
		case <-timeout:
			return errors.New("the program's input and output could not be closed; end the program")
		}
	}
	return nil
}

// lineReader reads lines of bounded length.
type lineReader struct {
	from   *bufio.Reader
	limit  int
	memory memory
	buf    []byte
}

// cutLine is an error that says why only the ends of a line were kept.
type cutLine struct{ cause error }

func (c *cutLine) Error() string { return c.cause.Error() }
func (c *cutLine) Unwrap() error { return c.cause }

// next returns the next line that is not empty, without white space around it. The line
// is valid until the next call. If a line is longer than the limit, or no memory could be
// reserved for it, next returns its beginning and end with a *truncatedLine. The last
// line may come with the error that ended the stream.
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
	r.memory.release() // of a blank line
	var tail []byte    // the last bytes so far of a truncated line
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
			r.memory.release()
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

// fits returns why a line has to be truncated before its next part, or nil.
func (r *lineReader) fits(part []byte) error {
	size := len(r.buf) + len(bytes.TrimRight(part, "\r\n"))
	if size > r.limit {
		return fmt.Errorf("%w: an answer of over %d bytes", ErrTooLarge, r.limit)
	}
	return r.memory.grow(size)
}

// A response of which only the ends are known most likely has its id in one of them:
// before the result, or after it.
var (
	idFirst = answerForm(`"id"\s*:\s*([1-9][0-9]{0,17})\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?`)
	answers = answerForm("")
	idLast  = regexp.MustCompile(`,\s*"id"\s*:\s*([1-9][0-9]{0,17})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

// answerForm returns a pattern for the beginning of a response: "jsonrpc", if it comes
// first, what the pattern first matches, and then "result" or "error".
func answerForm(first string) *regexp.Regexp {
	return regexp.MustCompile(`^\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?` + first + `"(?:result|error)"`)
}

// guessID returns the id of the request that an incomplete or invalid line seems to answer.
func guessID(line []byte) (int64, bool) {
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
