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
	maxOtherLine    = 4 << 10   // bytes that are passed on of a line that is no message
	truncatedEnds   = 4 << 10   // bytes that are kept of each end of a line that is too long
	maxReusedBuffer = 256 << 10 // bytes of the largest buffer that is used for further lines
	// finalOutputTimeout is how long a program's output is still read when its input cannot be
	// written any more: most such programs have ended, and may have printed why.
	finalOutputTimeout = time.Second
	// closeTimeout bounds Close: reads of a closed pipe do not always return.
	closeTimeout = 5 * time.Second
)

// Stdio is the transport over a program's standard output and input: one message a
// line. Other lines (banners, logs) are passed to onOtherLine, which may be nil; each is cut at
// 4 KiB and valid only during the call. Close closes both streams: stdout if it is an
// io.Closer, else stdout has to end when stdin is closed. The caller starts and ends the
// program, and reads its standard error.
func Stdio(stdout io.Reader, stdin io.WriteCloser, onOtherLine func(line []byte)) Transport {
	if onOtherLine == nil {
		onOtherLine = func([]byte) {}
	}
	s := &stdio{stdout: stdout, stdin: stdin, onOtherLine: onOtherLine, queue: make(chan []byte),
		inputFailed: make(chan struct{}),
		writeDone:   make(chan struct{}), readDone: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

type stdio struct {
	stdout      io.Reader
	stdin       io.WriteCloser
	onOtherLine func([]byte)

	queue       chan []byte
	ctx         context.Context // ends with Close
	cancel      context.CancelFunc
	inputFailed chan struct{} // closed when the program's input could not be written
	readDone    chan struct{} // closed when the reader has ended
	writeDone   chan struct{} // closed when the writer has ended
	started     bool
}

func (s *stdio) Traits() Traits    { return Traits{} }
func (s *stdio) Negotiated(string) {}
func (s *stdio) Abandon(int64)     {}

func (s *stdio) Start(to Receiver, l Limits) {
	s.started = true
	go s.writeLoop(to)
	go s.readLoop(to, &lineReader{reader: bufio.NewReaderSize(s.stdout, 64<<10),
		reserver: reserver{ctx: s.ctx, limits: l, size: l.Message, abort: s.closeOutput,
			takesLarge: func() bool { return to.TakesLarge(0) }}})
}

func (s *stdio) Send(ctx context.Context, m Outgoing) error {
	select {
	case <-s.ctx.Done():
		return ErrClosed
	case <-s.inputFailed:
		return fmt.Errorf("%w: it no longer reads input", ErrClosed)
	case <-ctx.Done():
		return context.Cause(ctx)
	case s.queue <- append(m.Body, '\n'):
		return nil
	}
}

func (s *stdio) writeLoop(to Receiver) {
	defer close(s.writeDone)
	for {
		select {
		case <-s.ctx.Done():
			return
		case b := <-s.queue:
			_, err := s.stdin.Write(b)
			if err == nil {
				continue
			}
			close(s.inputFailed)
			select {
			case <-s.ctx.Done():
			case <-s.readDone:
			case <-time.After(finalOutputTimeout):
				to.Ended(fmt.Errorf("%w: it no longer reads input (%w)", ErrClosed, err))
			}
			return
		}
	}
}

func (s *stdio) readLoop(to Receiver, r *lineReader) {
	defer close(s.readDone)
	defer r.reserver.release()
	for {
		line, err := r.next()
		truncated, isTruncated := errors.AsType[*truncatedLine](err) // the ends together may look like a message
		if errors.Is(err, ErrSlow) && !isTruncated {
			to.Ended(fmt.Errorf("%w: %w", ErrClosed, ErrSlow))
			return
		}
		if len(line) > 0 && !isTruncated {
			s.receive(to, line, r.reserver.transfer())
		}
		switch {
		case err == nil:
		case isTruncated:
			s.onOtherLine(line[:min(len(line), maxOtherLine)])
			if id, ok := guessID(line); ok {
				to.Fail(id, truncated.cause)
			}
		case errors.Is(err, io.EOF):
			to.Ended(fmt.Errorf("%w: it ended its output", ErrClosed))
			return
		default:
			to.Ended(fmt.Errorf("%w: its output broke off: %w", ErrClosed, err))
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
		to.Fail(id, errors.New("the server's answer is not JSON that can be read"))
	}
	s.onOtherLine(line[:min(len(line), maxOtherLine)])
}

func (s *stdio) Close() error {
	s.cancel()
	_ = s.stdin.Close() // the caller ends the program in any case
	s.closeOutput()
	if !s.started {
		return nil
	}
	timeout := time.After(closeTimeout)
	for _, done := range []chan struct{}{s.writeDone, s.readDone} {
		select {
		case <-done:
		case <-timeout:
			return errors.New("the program's input and output could not be closed; end the program")
		}
	}
	return nil
}

// lineReader reads lines of bounded length.
type lineReader struct {
	reader   *bufio.Reader
	reserver reserver // with the limits
	buf      []byte
}

// truncatedLine is an error that says why only the ends of a line were kept.
type truncatedLine struct{ cause error }

func (c *truncatedLine) Error() string { return c.cause.Error() }
func (c *truncatedLine) Unwrap() error { return c.cause }

// next returns the next line that is not empty, without white space around it. The line
// is valid until the next call. If a line is longer than the limit, or no memory could be
// reserved for it, next returns its beginning and end with a *truncatedLine. The last
// line may come with the error that ended the stream.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.readLine()
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff")))
		if len(line) > 0 || err != nil {
			return line, err
		}
	}
}

func (r *lineReader) readLine() ([]byte, error) {
	if cap(r.buf) > maxReusedBuffer {
		r.buf = nil
	}
	r.buf = r.buf[:0]
	r.reserver.release() // of a blank line
	var tail []byte      // the last bytes so far of a truncated line
	var truncatedBy error
	for {
		part, err := r.reader.ReadSlice('\n')
		switch {
		case tail != nil:
			tail = append(tail, part...)
			if excess := len(tail) - truncatedEnds; excess > 0 {
				tail = append(tail[:0], tail[excess:]...)
			}
		default:
			if truncatedBy = r.checkSize(part); truncatedBy == nil {
				r.buf = extend(r.buf, part)
				break
			}
			all := append(r.buf, part...)
			tail = append(make([]byte, 0, 2*truncatedEnds+r.reader.Size()), all[max(0, len(all)-truncatedEnds):]...)
			r.buf = append([]byte(nil), all[:min(len(all)-len(tail), truncatedEnds)]...)
			r.reserver.release()
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		switch {
		case err != nil && (r.reserver.isLost() || errors.Is(truncatedBy, ErrSlow)): // the output was closed for that
			err = ErrSlow
		case tail != nil && err == nil:
			err = &truncatedLine{truncatedBy}
		}
		return append(r.buf, tail...), err
	}
}

// checkSize returns why a line has to be truncated before its next part, or nil.
func (r *lineReader) checkSize(part []byte) error {
	return r.reserver.admit(len(r.buf) + len(bytes.TrimRight(part, "\r\n")))
}

// A response with only its ends known most likely has its id in one of them:
// before the result, or after it.
var (
	idBeforeResult = responsePattern(`"id"\s*:\s*([1-9][0-9]{0,17})\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?`)
	responseStart  = responsePattern("")
	idAfterResult  = regexp.MustCompile(`,\s*"id"\s*:\s*([1-9][0-9]{0,17})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

// responsePattern returns a pattern for the beginning of a response: "jsonrpc", if it comes
// first, what the pattern first matches, and then "result" or "error".
func responsePattern(first string) *regexp.Regexp {
	return regexp.MustCompile(`^\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?` + first + `"(?:result|error)"`)
}

// guessID returns the id of the request that an incomplete or invalid line seems to answer.
func guessID(line []byte) (int64, bool) {
	head, tail := line[:min(len(line), truncatedEnds)], line[max(0, len(line)-truncatedEnds):]
	m := idBeforeResult.FindSubmatch(head)
	if m == nil && responseStart.Match(head) {
		m = idAfterResult.FindSubmatch(tail)
	}
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	return n, err == nil
}
