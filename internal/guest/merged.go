package guest

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// merged has both output streams of a call in the order in which they are read, which is the order of time as far as two
// pipes have one. Lines stay whole: what of a line arrives a moment later stands where the line began.
type merged struct {
	streams [2]*capture

	mu      sync.Mutex
	all     *capture
	queue   []piece // what follows, from a line on that has not ended
	queued  int     // bytes in the queue
	written [2]bool
	cleared bool // a stream was, so that the order of the rest is not known
}

// piece is what was read of a stream at once, with the end of its last line if that came a moment later.
type piece struct {
	stream int
	data   []byte
	at     time.Time
}

// open reports whether the end of the piece's last line may still come.
func (p *piece) open(now time.Time) bool {
	return p.data[len(p.data)-1] != '\n' && now.Sub(p.at) < lineWait
}

const (
	// lineWait is how long the end of a line may take.
	lineWait = 20 * time.Millisecond
	// maxMerged is how many bytes both streams may have as one: each has its own room in a message, too.
	maxMerged = 3 << 20
	// maxQueued is how many bytes wait for the end of a line.
	maxQueued = 64 << 10
)

// newMerged returns the captures of a call's stdout and stderr, with what has both.
func newMerged(files *outputFiles, b *agentv1.Bounds) *merged {
	m := &merged{streams: [2]*capture{newCapture("stdout", files, b), newCapture("stderr", files, b)},
		all: newCapture("output", nil, b)}
	m.all.maxHead, m.all.maxTail = min(2*m.all.maxHead, maxInline), min(2*m.all.maxTail, maxInline)
	return m
}

// writer returns the writer for a stream: 0 is stdout, 1 stderr. Its output also goes to live, if that is not nil.
func (m *merged) writer(i int, live *liveOutput) io.Writer {
	return &mergedWriter{m, i, live.tee(m.streams[i], i)}
}

type mergedWriter struct {
	merged *merged
	i      int
	to     io.Writer
}

// Write implements io.Writer.
func (w *mergedWriter) Write(p []byte) (int, error) {
	w.merged.add(w.i, p)
	return w.to.Write(p)
}

// Reset drops what the stream has.
func (w *mergedWriter) Reset() {
	m := w.merged
	m.mu.Lock()
	m.cleared = true
	m.mu.Unlock()
	m.streams[w.i].Reset()
}

// add adds what was read of a stream.
func (m *merged) add(i int, p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.written[i] = m.written[i] || len(p) > 0
	for at, q := range slices.Backward(m.queue) {
		if q.stream != i {
			continue
		}
		if q.open(now) {
			end := len(p)
			if n := bytes.IndexByte(p, '\n'); n >= 0 {
				end = n + 1
			}
			m.queue[at].data, p = append(q.data, p[:end]...), p[end:]
			m.queued += end
		}
		break
	}
	if len(p) > 0 {
		m.queue = append(m.queue, piece{i, bytes.Clone(p), now})
		m.queued += len(p)
	}
	for len(m.queue) > 0 && (!m.queue[0].open(now) || m.queued > maxQueued) {
		m.take()
	}
}

// take takes the first piece of the queue.
func (m *merged) take() {
	_, _ = m.all.Write(m.queue[0].data) // a capture does not fail
	m.queued -= len(m.queue[0].data)
	m.queue[0].data = nil
	m.queue = m.queue[1:]
}

// done returns the captured streams, and both as one; nil: only one of them has anything, or the order is not known.
// Order is that which the driver of an interpreter knows: it says more than when what was read.
func (m *merged) done(order []int) (stdout, stderr, both *agentv1.Captured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stdout, stderr = m.streams[0].done(), m.streams[1].done()
	if !m.written[0] || !m.written[1] || m.cleared {
		return stdout, stderr, nil
	}
	if known := wire.Merge(order, whole(stdout), whole(stderr)); known != nil && len(known) <= maxMerged {
		return stdout, stderr, &agentv1.Captured{Head: known, Total: uint64(len(known))}
	}
	for len(m.queue) > 0 {
		m.take()
	}
	if both = m.all.done(); len(both.Head)+len(both.Tail) > maxMerged {
		return stdout, stderr, nil
	}
	return stdout, stderr, both
}

// whole returns a captured stream of which nothing is left out; nil: something is.
func whole(c *agentv1.Captured) []byte {
	if c.Total != uint64(len(c.Head)+len(c.Tail)) {
		return nil
	}
	return append(c.Head[:len(c.Head):len(c.Head)], c.Tail...)
}
