// Package gocache is the program of a sandbox that gives Go its build cache (GOCACHEPROG): a read-only cache that all
// sandboxes share, and behind it the sandbox's own. Both have the form of Go's own caches.
package gocache

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// request and response belong to Go's protocol (go help cache says where it is described): a line of JSON each. The body of a put
// follows its request, as a line with a string in base64.
type request struct {
	ID                 int64
	Command            string
	ActionID, OutputID []byte
	BodySize           int64
}

type response struct {
	ID            int64
	Err           string     `json:",omitempty"`
	KnownCommands []string   `json:",omitempty"`
	Miss          bool       `json:",omitempty"`
	OutputID      []byte     `json:",omitempty"`
	Size          int64      `json:",omitempty"`
	Time          *time.Time `json:",omitempty"`
	DiskPath      string     `json:",omitempty"`
}

// Run serves Go over the standard input and output, with the shared cache that is the only argument.
func Run(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "gocache: the only argument is the folder of the shared cache")
		return 2
	}
	own, err := ownCache()
	if err == nil {
		err = serve(os.Stdin, os.Stdout, own, args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gocache:", err)
		return 1
	}
	return 0
}

// ownCache returns the cache that Go has without this program.
func ownCache() (string, error) {
	if dir := os.Getenv("GOCACHE"); filepath.IsAbs(dir) {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "go-build"), err
}

// serve answers requests until Go closes the cache.
func serve(in io.Reader, out io.Writer, own, shared string) error {
	r, answers := bufio.NewReaderSize(in, 64<<10), json.NewEncoder(out)
	if err := answers.Encode(response{KnownCommands: []string{"get", "put", "close"}}); err != nil {
		return err
	}
	for {
		line, err := nextLine(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		var q request
		if err == nil {
			err = json.Unmarshal(line, &q)
		}
		if err != nil {
			return fmt.Errorf("reading a request: %w", err)
		}
		a := response{ID: q.ID}
		switch q.Command {
		case "get":
			a = get(q, own, shared)
		case "put":
			if a, err = receive(q, r, own); err != nil {
				return err
			}
		case "close":
			return answers.Encode(a)
		default:
			a.Err = "unknown command"
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// receive writes an output that follows its request into a cache.
func receive(q request, r *bufio.Reader, dir string) (a response, err error) {
	if q.BodySize <= 0 {
		return put(q, strings.NewReader(""), dir), nil
	}
	encoded, err := beginBody(r, q.BodySize)
	if err != nil {
		return a, err
	}
	a = put(q, base64.NewDecoder(base64.StdEncoding, encoded), dir)
	return a, endBody(r, encoded)
}

// nextLine returns the next line that is not empty.
func nextLine(r *bufio.Reader) ([]byte, error) {
	for {
		line, err := r.ReadBytes('\n')
		if err != nil && len(line) > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil || len(strings.TrimSpace(string(line))) > 0 {
			return line, err
		}
	}
}

// beginBody reads the quotation mark at the beginning of a body, and returns the rest in base64. The mark at its end is not
// a part of that.
func beginBody(r *bufio.Reader, size int64) (*io.LimitedReader, error) {
	for {
		c, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		if c == '"' {
			return &io.LimitedReader{R: r, N: (size + 2) / 3 * 4}, nil
		}
		if c != '\n' {
			return nil, fmt.Errorf("%q in place of a body", c)
		}
	}
}

// endBody reads what is left of a body, and the mark at its end.
func endBody(r *bufio.Reader, rest io.Reader) error {
	if _, err := io.Copy(io.Discard, rest); err != nil {
		return err
	}
	if c, err := r.ReadByte(); err != nil || c != '"' {
		return fmt.Errorf("a body has no end: %q, %w", c, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return nil
}

// get looks an action up in both caches, the sandbox's own first.
func get(q request, own, shared string) response {
	for _, dir := range []string{own, shared} {
		if a, ok := lookUp(dir, q.ActionID); ok {
			a.ID = q.ID
			return a
		}
	}
	return response{ID: q.ID, Miss: true}
}

// lookUp returns what a cache has for an action.
func lookUp(dir string, action []byte) (a response, ok bool) {
	id := hex.EncodeToString(action)
	if len(action) == 0 {
		return a, false
	}
	text, err := os.ReadFile(filepath.Join(dir, id[:2], id+"-a"))
	if err != nil {
		return a, false
	}
	f := strings.Fields(string(text))
	if len(f) != 5 || f[0] != "v1" || f[1] != id {
		return a, false
	}
	output, err := hex.DecodeString(f[2])
	size, sizeErr := strconv.ParseInt(f[3], 10, 64)
	nanos, timeErr := strconv.ParseInt(f[4], 10, 64)
	if errors.Join(err, sizeErr, timeErr) != nil || len(output) == 0 {
		return a, false
	}
	data := filepath.Join(dir, f[2][:2], f[2]+"-d")
	if st, err := os.Stat(data); err != nil || !st.Mode().IsRegular() || st.Size() != size {
		return a, false
	}
	at := time.Unix(0, nanos)
	return response{OutputID: output, Size: size, Time: &at, DiskPath: data}, true
}

// put writes an output of an action into a cache.
func put(q request, body io.Reader, dir string) response {
	a := response{ID: q.ID}
	if len(q.ActionID) == 0 || len(q.OutputID) == 0 {
		a.Err = "an action or an output has no id"
		return a
	}
	action, output := hex.EncodeToString(q.ActionID), hex.EncodeToString(q.OutputID)
	a.DiskPath = filepath.Join(dir, output[:2], output+"-d")
	err := write(a.DiskPath, body, q.BodySize)
	if err == nil {
		entry := fmt.Sprintf("v1 %s %s %20d %20d\n", action, output, q.BodySize, time.Now().UnixNano())
		err = write(filepath.Join(dir, action[:2], action+"-a"), strings.NewReader(entry), int64(len(entry)))
	}
	if err != nil {
		a.Err, a.DiskPath = err.Error(), ""
	}
	return a
}

// write replaces a file at once. One that is not a regular file, or a body that is not whole, is an error.
func write(name string, from io.Reader, size int64) error {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "put-")
	if err != nil {
		return err
	}
	n, err := io.Copy(f, from)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes in place of %d", n, size)
	}
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
