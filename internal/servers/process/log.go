package process

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"sandlot/internal/servers/spec"
)

// maxLog is how many bytes of output a Log keeps.
const maxLog = 64 << 10

// Log is a buffer with the last output of a server: its standard error, and the lines of
// standard output that are no messages.
type Log struct {
	mu      sync.Mutex
	bytes   []byte
	total   int64         // bytes that were ever written
	changed chan struct{} // closed by the next write or Close; nil: nobody waits
	closed  bool
	life    string // see Life
}

// Write implements io.Writer; it never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += int64(len(p))
	l.wake()
	if len(p) >= maxLog {
		l.bytes = append(l.bytes[:0], p[len(p)-maxLog:]...)
		return len(p), nil
	}
	if excess := len(l.bytes) + len(p) - maxLog; excess > 0 {
		l.bytes = append(l.bytes[:0], l.bytes[excess:]...)
	}
	l.bytes = append(l.bytes, p...)
	return len(p), nil
}

// wake tells those who wait that something has changed. The caller holds l.mu.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Close ends the reads of those who follow the log: nothing will be written any more.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

// Life distinguishes the log from those that the same server had before, which began at 0 too.
func (l *Log) Life() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life == "" {
		l.life = strings.ToLower(rand.Text()[:10])
	}
	return l.life
}

// maxPart is how many bytes After returns at once.
const maxPart = 16 << 10

// Part is what After returns.
type Part struct {
	Text string // lines, safe to show; empty: there is no whole one with anything to show
	End  int64  // how many bytes had been written up to the end of Text, or of what shows nothing
	Lost int64  // how many bytes before Text were no longer there
	// More is closed when there may be more; nil if Text is not empty.
	More   <-chan struct{}
	Closed bool // nothing will be written any more
}

// After returns lines that were written after the first from bytes. A line that is longer than maxPart comes in parts.
func (l *Log) After(from int64) Part {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.total - int64(len(l.bytes))
	p := Part{End: min(max(from, oldest), l.total)}
	rest := l.bytes[p.End-oldest:]
	if from < oldest { // the rest of a line whose beginning is lost says little
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			rest = rest[i+1:]
			p.End += int64(i + 1)
		}
		p.Lost = p.End - from
	}
	for n := whole(rest); n > 0; n = whole(rest) {
		p.Text = spec.SafeText(string(rest[:n]), maxLog)
		p.End += int64(n)
		if p.Text != "" { // else all of it is invisible
			return p
		}
		rest = rest[n:]
	}
	if p.Closed = l.closed; !p.Closed {
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		p.More = l.changed
	}
	return p
}

// whole returns how many bytes of b After takes at once: whole lines, or a part of a line that is longer than maxPart.
func whole(b []byte) int {
	n := bytes.LastIndexByte(b[:min(len(b), maxPart)], '\n') + 1
	if n == 0 && len(b) >= maxPart {
		for n = maxPart; n > maxPart-utf8.UTFMax && !utf8.RuneStart(b[n-1]); n-- {
		}
		n-- // the last character may go on in the next part
	}
	return n
}

// Printf writes a formatted line.
func (l *Log) Printf(format string, args ...any) { fmt.Fprintf(l, format+"\n", args...) }

// Tail returns the last lines, safe to show (0: all), and how many bytes were ever written.
func (l *Log) Tail(lines int) (string, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Split(strings.TrimRight(string(l.bytes), "\n"), "\n")
	if lines > 0 && len(all) > lines {
		all = all[len(all)-lines:]
	}
	return spec.SafeText(strings.Join(all, "\n"), maxLog), l.total
}

// NonProtocolLine writes a line of standard output that is no message.
func (l *Log) NonProtocolLine(line []byte) {
	l.Printf("[stdout] %s", bytes.TrimRight(line[:min(len(line), 2000)], "\r\n"))
}
