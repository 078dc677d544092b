// Package kept keeps files by their content: the programs with which a frozen image was made, and the files of the
// machine that it has open, also after the file at the path was replaced.
package kept

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"sandlot/internal/atomicfile"
)

// Store keeps files in a folder of its own: each as SHA-256/NAME.
type Store struct {
	dir  string
	max  int64             // bounds the store, in bytes; 0: nothing does
	room func(int64) error // returns an error if the disk has no room for so many bytes; nil: that does not matter

	mu    sync.Mutex
	known map[version]string // the SHA-256 of files
	bytes int64              // of all files, once they were measured; else -1
}

// ErrFull means that a file does not fit into a store.
var ErrFull = errors.New("as much is kept as may be")

// version identifies the content of a file as long as nobody sets its times back.
type version struct {
	device, inode  uint64
	size, modified int64
	changed        syscall.Timespec
}

func versionOf(st os.FileInfo) version {
	sys := st.Sys().(*syscall.Stat_t)
	return version{uint64(sys.Dev), sys.Ino, st.Size(), st.ModTime().UnixNano(), sys.Ctim}
}

// New returns the store of a folder, which need not exist yet.
func New(dir string) *Store { return &Store{dir: dir, known: map[version]string{}, bytes: -1} }

// NewBounded returns a store of at most max bytes. Room returns an error if the disk has no room for so many.
func NewBounded(dir string, max int64, room func(int64) error) *Store {
	s := New(dir)
	s.max, s.room = max, room
	return s
}

// Max returns the bound of the store, in bytes; 0: there is none.
func (s *Store) Max() int64 { return s.max }

// Keep copies the file that from opens, which may be a path below /proc, unless there is a copy, and returns its
// SHA-256. The error is ErrFull if there is no room for it.
func (s *Store) Keep(from, name string) (sum string, err error) {
	return s.KeepIf(from, name, func(string, int64) error { return nil })
}

// KeepIf does as Keep, if may returns no error. That is called when the file's SHA-256 and its size in bytes are known,
// also when there is a copy, and Prune removes nothing until the file is kept. It calls no method of the store.
func (s *Store) KeepIf(from, name string, may func(sum string, size int64) error) (sum string, err error) {
	f, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file", from)
	}
	if s.max > 0 && st.Size() > s.max { // before it is read, for which others would wait
		return "", fmt.Errorf("%w: %d MB of %d", ErrFull, st.Size()>>20, s.max>>20)
	}
	v := versionOf(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sum = s.known[v]; sum != "" && s.has(sum, name) {
		return sum, may(sum, st.Size())
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	sum = hex.EncodeToString(h.Sum(nil))
	if err := may(sum, st.Size()); err != nil {
		return "", err
	}
	if s.has(sum, name) {
		s.known[v] = sum
		return sum, nil
	}
	if err := s.admit(st.Size()); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(s.dir, ".making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if copied, err := copyFile(f, filepath.Join(tmp, name)); err != nil {
		return "", err
	} else if copied != sum {
		return "", fmt.Errorf("%s has changed while it was copied", from)
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // the user of a sandbox's file server has to reach it
		return "", err
	}
	s.known[v] = sum
	to := filepath.Join(s.dir, sum)
	if err := os.RemoveAll(to); err != nil { // it is incomplete
		return "", err
	}
	err = errors.Join(atomicfile.Sync(tmp), os.Rename(tmp, to), atomicfile.Sync(s.dir))
	if err == nil && s.bytes >= 0 {
		s.bytes += st.Size()
	}
	return sum, err
}

// admit returns an error if there is no room for so many more bytes. The caller holds mu.
func (s *Store) admit(more int64) error {
	if s.max == 0 {
		return nil
	}
	if s.bytes < 0 {
		files, _ := filepath.Glob(filepath.Join(s.dir, "*", "*"))
		s.bytes = 0
		for _, path := range files {
			if st, err := os.Stat(path); err == nil {
				s.bytes += st.Size()
			}
		}
	}
	if s.bytes+more > s.max {
		return fmt.Errorf("%w: %d of %d MB", ErrFull, s.bytes>>20, s.max>>20)
	}
	if err := s.room(more); err != nil {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return nil
}

// copyFile writes what is left of f into a new file, and returns its SHA-256.
func copyFile(f *os.File, to string) (sum string, err error) {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), f)
	if err == nil {
		err = out.Sync()
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, out.Close())
}

func (s *Store) has(sum, name string) bool {
	st, err := os.Stat(s.Path(sum, name))
	return err == nil && st.Mode().IsRegular()
}

// Path returns where the file with that SHA-256 is, if it is kept.
func (s *Store) Path(sum, name string) string { return filepath.Join(s.dir, sum, name) }

var validSum = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Find returns the path of the file with that SHA-256, after comparing its content. An error for which
// atomicfile.IsPassing is true says nothing about the file.
func (s *Store) Find(sum, name string) (string, error) {
	if !validSum.MatchString(sum) || name != filepath.Base(name) {
		return "", errors.New("this is not a file's hash and name")
	}
	path := s.Path(sum, name)
	now, err := s.Keep(path, name)
	switch {
	case atomicfile.IsPassing(err):
		return "", fmt.Errorf("reading the kept file %s: %w", name, err)
	case err != nil || now != sum:
		return "", fmt.Errorf("the kept file %s is not there any more", name)
	}
	return path, nil
}

// Known returns the SHA-256 of the file at path if there is a copy of it; else it is empty.
func (s *Store) Known(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[versionOf(st)]
}

// Prune removes all files that keep does not keep.
func (s *Store) Prune(keep func(sum string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes = -1
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !keep(e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}
