package guest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unicode/utf8"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// Limits of the output files in OutputDir: bytes of each, and how many.
const (
	maxFileSize = 64 << 20
	maxFiles    = 64
)

// maxInline is how many characters of a stream can be returned inline at each of
// its ends: three streams of that many fit into a message.
const maxInline = 1 << 20

// capture keeps the beginning and the end of one output stream, counts all of
// it, and writes the whole to a file once it does not fit. What is kept is
// counted in characters: a byte that is not UTF-8 is one.
type capture struct {
	name       string
	files      *outputFiles
	head, tail int // characters

	mu    sync.Mutex
	first []byte
	last  []byte // ring of as many bytes as tail characters can have
	at    int    // where the ring's oldest byte is, once it is full
	begun []byte // of a character whose rest has not come
	chars int    // in first
	all   uint64 // characters of the stream, without begun
	total uint64
	file  *os.File
	path  string
	kept  uint64
	full  bool // no more goes to the file
}

func newCapture(name string, files *outputFiles, b *agentv1.Bounds) *capture {
	c := &capture{name: name, files: files, head: 20000, tail: 30000}
	if b != nil {
		c.head, c.tail = int(min(b.HeadChars, maxInline)), int(min(b.TailChars, maxInline))
	}
	return c
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.total += uint64(n)
	if len(c.begun) > 0 {
		p = append(c.begun, p...)
	}
	complete := len(p) - unfinished(p)
	c.begun = bytes.Clone(p[complete:])
	c.add(p[:complete])
	return n, nil
}

// add takes bytes that end with a character.
func (c *capture) add(p []byte) {
	c.all += uint64(utf8.RuneCount(p))
	if c.all > uint64(c.head+c.tail) {
		c.keep(p)
	}
	k := 0
	for c.chars < c.head && k < len(p) {
		_, size := utf8.DecodeRune(p[k:])
		k += size
		c.chars++
	}
	c.first = append(c.first, p[:k]...)
	c.ring(p[k:])
}

// unfinished is how many bytes at the end of p begin a character that may go on.
func unfinished(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if utf8.RuneStart(p[len(p)-i]) {
			if utf8.FullRune(p[len(p)-i:]) {
				return 0
			}
			return i
		}
	}
	return 0
}

func (c *capture) ring(p []byte) {
	size := c.tail * utf8.UTFMax
	if len(p) >= size {
		c.last, c.at = append(c.last[:0], p[len(p)-size:]...), 0
		return
	}
	if room := size - len(c.last); room > 0 {
		k := min(room, len(p))
		c.last = append(c.last, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(c.last[c.at:], p)
		p = p[k:]
		c.at = (c.at + k) % len(c.last)
	}
}

// keep writes to the file: first what is inline already.
func (c *capture) keep(p []byte) {
	if c.full || c.files == nil {
		return
	}
	if c.file == nil {
		f, err := c.files.create(c.name)
		if err != nil {
			c.full = true
			return
		}
		c.file, c.path = f, f.Name()
		c.put(c.first)
		c.put(c.ordered())
	}
	c.put(p)
}

func (c *capture) put(p []byte) {
	if room := int(maxFileSize - c.kept); len(p) > room {
		p, c.full = p[:room], true
	}
	n, err := c.file.Write(p)
	c.kept += uint64(n)
	if err != nil {
		c.full = true
	}
}

// rewrites says whether a program has written over what it wrote, or sent escape
// sequences. A CR that was cut from its LF counts, which does no harm.
func rewrites(b []byte) bool {
	return bytes.ContainsAny(b, "\x1b\b") || bytes.Count(b, []byte("\r")) != bytes.Count(b, []byte("\r\n"))
}

func (c *capture) ordered() []byte {
	return append(append(make([]byte, 0, len(c.last)), c.last[c.at:]...), c.last[:c.at]...)
}

// done returns the captured output. Nothing is written after it. An output that a
// terminal would show otherwise is in a file as well, though it fits: the text of a
// result is as a terminal shows it.
func (c *capture) done() *agentv1.Captured {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(c.begun) // it stays unfinished
	c.begun = nil
	if c.file == nil && !c.full && c.total > 0 && (rewrites(c.first) || rewrites(c.last)) {
		c.keep(nil)
	}
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
	c.full = true
	return &agentv1.Captured{Head: c.first, Tail: c.end(), Total: c.total, Path: c.path, Kept: c.kept}
}

// end is the last characters in the ring.
func (c *capture) end() []byte {
	b := c.ordered()
	at := len(b)
	for n := 0; n < c.tail && at > 0; n++ {
		_, size := utf8.DecodeLastRune(b[:at])
		at -= size
	}
	return b[at:]
}

// outputFiles makes the files of outputs that do not fit inline, and removes the oldest.
type outputFiles struct {
	dir string

	mu    sync.Mutex
	n     int
	paths []string
}

func newOutputFiles() *outputFiles { return &outputFiles{dir: wire.OutputDir} }

func (o *outputFiles) create(name string) (*os.File, error) {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	path := filepath.Join(o.dir, fmt.Sprintf("%d-%s.txt", o.n, name))
	if o.paths = append(o.paths, path); len(o.paths) > maxFiles {
		os.Remove(o.paths[0])
		o.paths = o.paths[1:]
	}
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
}
