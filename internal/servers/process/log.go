package process

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"sandlot/internal/servers/spec"
)

// maxLog is how many bytes of output a Log keeps.
const maxLog = 64 << 10

// Log is a buffer with the last output of a server: its standard error, and the lines of
// standard output that are no messages.
type Log struct {
	mu    sync.Mutex
	bytes []byte
	total int64 // bytes that were ever written
}

// Write implements io.Writer; it never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += int64(len(p))
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
