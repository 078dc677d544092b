package guest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

// Limits of the output files in OutputDir: the bytes of each file, and the number of files.
const (
	maxFileSize = 64 << 20
	maxFiles    = 64
	// fileBuffer is how many bytes are written to a file at once: a program may write each line by itself.
	fileBuffer = 32 << 10
)

// maxInline bounds the characters of each end of a stream that are returned inline: three
// streams of that many fit into a message.
const maxInline = 1 << 20

// capture keeps the beginning and the end of one output stream. When the stream has more than
// that, it writes the whole stream to a file as well. Lengths are in characters; a byte that is
// not UTF-8 counts as one.
type capture struct {
	name             string
	files            *outputFiles
	maxHead, maxTail int // how many characters of the beginning and of the end are kept

	mu         sync.Mutex
	head       []byte
	tail       []byte // a ring buffer, as large as maxTail characters can be
	oldest     int    // the index of the oldest byte in tail, once tail is full
	partial    []byte // the first bytes of a character that is not complete yet
	headChars  int    // how many characters head has
	totalChars uint64 // characters of the stream, without partial
	totalBytes uint64 // bytes of the stream
	file       *os.File
	buffered   *bufio.Writer // to the file
	path       string
	fileBytes  uint64 // bytes in the file
	fileDone   bool   // nothing more is written to the file
}

func newCapture(name string, files *outputFiles, b *agentv1.Bounds) *capture {
	c := &capture{name: name, files: files, maxHead: 20000, maxTail: 30000}
	if b != nil {
		c.maxHead, c.maxTail = int(min(b.HeadChars, maxInline)), int(min(b.TailChars, maxInline))
	}
	return c
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.totalBytes += uint64(n)
	if len(c.partial) > 0 {
		p = append(c.partial, p...)
	}
	complete := len(p) - partialLen(p)
	c.partial = bytes.Clone(p[complete:])
	c.add(p[:complete])
	return n, nil
}

// Reset drops all that was written, in the file as well.
func (c *capture) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head, c.tail, c.oldest, c.partial = c.head[:0], c.tail[:0], 0, nil
	c.headChars, c.totalChars, c.totalBytes = 0, 0, 0
	if c.file == nil {
		return
	}
	c.buffered.Reset(writerFunc(c.writeFile))
	c.fileBytes, c.fileDone = 0, false
	if _, err := c.file.Seek(0, io.SeekStart); err != nil || c.file.Truncate(0) != nil {
		c.fileDone = true
	}
}

// add adds bytes of complete characters.
func (c *capture) add(p []byte) {
	c.totalChars += uint64(utf8.RuneCount(p))
	if c.totalChars > uint64(c.maxHead+c.maxTail) {
		c.spill(p)
	}
	k := 0
	for c.headChars < c.maxHead && k < len(p) {
		_, size := utf8.DecodeRune(p[k:])
		k += size
		c.headChars++
	}
	c.head = append(c.head, p[:k]...)
	c.addTail(p[k:])
}

// partialLen returns how many bytes at the end of p are the beginning of a character that is
// not complete.
func partialLen(p []byte) int {
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

// addTail adds bytes to the ring buffer of the stream's end.
func (c *capture) addTail(p []byte) {
	size := c.maxTail * utf8.UTFMax
	if len(p) >= size {
		c.tail, c.oldest = append(c.tail[:0], p[len(p)-size:]...), 0
		return
	}
	if room := size - len(c.tail); room > 0 {
		k := min(room, len(p))
		c.tail = append(c.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(c.tail[c.oldest:], p)
		p = p[k:]
		c.oldest = (c.oldest + k) % len(c.tail)
	}
}

// spill writes to the file. The first time it creates the file, with what the stream had before.
func (c *capture) spill(p []byte) {
	if c.fileDone || c.files == nil {
		return
	}
	if c.file == nil {
		f, err := c.files.create(c.name)
		if err != nil {
			c.fileDone = true
			return
		}
		c.file, c.path = f, f.Name()
		c.buffered = bufio.NewWriterSize(writerFunc(c.writeFile), fileBuffer)
		c.buffered.Write(c.head)
		c.buffered.Write(c.tailBytes())
	}
	c.buffered.Write(p)
}

// writeFile writes to the file, up to maxFileSize. It returns no error: fileDone says that nothing more is written.
func (c *capture) writeFile(p []byte) (int, error) {
	if c.fileDone {
		return len(p), nil
	}
	all := len(p)
	if room := int(maxFileSize - c.fileBytes); all > room {
		p, c.fileDone = p[:room], true
	}
	n, err := c.file.Write(p)
	c.fileBytes += uint64(n)
	if err != nil {
		c.fileDone = true
	}
	return all, nil
}

// hasTerminalControls reports whether the host shows an output otherwise than it is: it has control characters other
// than newlines and tabs. CRs before LF do not count, unless their LF is not in b.
func hasTerminalControls(b []byte) bool {
	carriageReturns := 0
	for i, c := range b {
		switch {
		case c == '\r':
			carriageReturns++
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			return true
		case c == 0xc2 && i+1 < len(b) && b[i+1] >= 0x80 && b[i+1] < 0xa0: // the controls of C1
			return true
		}
	}
	return carriageReturns > 0 && carriageReturns != bytes.Count(b, []byte("\r\n"))
}

// tailBytes returns the bytes of the ring buffer, the oldest first.
func (c *capture) tailBytes() []byte {
	return append(append(make([]byte, 0, len(c.tail)), c.tail[c.oldest:]...), c.tail[:c.oldest]...)
}

// done returns the captured output. Nothing may be written afterwards. An output with terminal
// controls is in a file, too, even when it fits: the host shows it in a result as a terminal
// would, and the file has the bytes themselves.
func (c *capture) done() *agentv1.Captured {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(c.partial) // the rest of the character will not come
	c.partial = nil
	if c.file == nil && !c.fileDone && c.totalBytes > 0 && (hasTerminalControls(c.head) ||
		hasTerminalControls(c.tail)) {
		c.spill(nil)
	}
	if c.file != nil {
		c.buffered.Flush()
		c.file.Close()
		c.file, c.buffered = nil, nil
	}
	c.fileDone = true
	return &agentv1.Captured{Head: c.head, Tail: c.lastChars(), Total: c.totalBytes, Path: c.path, Kept: c.fileBytes}
}

// lastChars returns the last maxTail characters of the ring buffer.
func (c *capture) lastChars() []byte {
	b := c.tailBytes()
	at := len(b)
	for n := 0; n < c.maxTail && at > 0; n++ {
		_, size := utf8.DecodeLastRune(b[:at])
		at -= size
	}
	return b[at:]
}

// outputFiles creates the files for outputs that do not fit inline, and removes the oldest when
// there are more than maxFiles.
type outputFiles struct {
	dir  string
	user *user.User // the owner of the files, who can write into the folder

	mu      sync.Mutex
	created int // how many were created
	paths   []string
}

func newOutputFiles(u *user.User) *outputFiles { return &outputFiles{dir: wire.OutputDir, user: u} }

func (o *outputFiles) create(name string) (f *os.File, err error) {
	if err := makeShared(o.dir, o.user); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.created++
	path := filepath.Join(o.dir, fmt.Sprintf("%d-%s.txt", o.created, name))
	err = o.user.Do(func() error {
		if o.paths = append(o.paths, path); len(o.paths) > maxFiles {
			os.Remove(o.paths[0])
			o.paths = o.paths[1:]
		}
		// Code of the user may have made something at this path: follow no link, and wait for no pipe.
		f, err = os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
		return err
	})
	return f, err
}

// makeShared makes a folder into which the user can write. Root's own folders are the agent's. For
// another user it follows no link: an image may have one there, to a folder that others trust, and
// the user may be able to make one at any time.
func makeShared(dir string, u *user.User) error {
	if u == nil {
		return os.MkdirAll(dir, 0o755)
	}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for name := range strings.SplitSeq(strings.Trim(filepath.Clean(dir), "/"), "/") {
		if err != nil {
			break
		}
		parent := fd
		const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if fd, err = unix.Openat(parent, name, flags, 0); errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(parent, name, 0o755); err == nil {
				fd, err = unix.Openat(parent, name, flags, 0)
			}
		}
		unix.Close(parent)
	}
	if err != nil {
		return &os.PathError{Op: "making the folder", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	// Modes are not changed by a descriptor of O_PATH.
	folder, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "opening the folder", Path: dir, Err: err}
	}
	defer unix.Close(folder)
	var st unix.Stat_t
	if err := unix.Fstat(folder, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("the folder %s belongs to user %d, and not to the agent", dir, st.Uid)
	}
	return unix.Fchmod(folder, 0o777|unix.S_ISVTX)
}
