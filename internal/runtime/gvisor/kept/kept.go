// Package kept keeps programs by their content: what a frozen image was made with, also after the file at the
// program's own path was replaced.
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

// Store keeps programs in a folder of its own: each as SHA-256/NAME.
type Store struct {
	dir string

	mu    sync.Mutex
	known map[version]string // the SHA-256 of files
}

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
func New(dir string) *Store { return &Store{dir: dir, known: map[version]string{}} }

// Keep copies the file that from opens, which may be a path below /proc, unless there is a copy, and returns its
// SHA-256.
func (s *Store) Keep(from, name string) (sum string, err error) {
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
		return "", fmt.Errorf("%s is no file", from)
	}
	v := versionOf(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sum = s.known[v]; sum != "" && s.has(sum, name) {
		return sum, nil
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(s.dir, ".making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if sum, err = copyFile(f, filepath.Join(tmp, name)); err != nil {
		return "", err
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // the user of a sandbox's file server has to reach it
		return "", err
	}
	s.known[v] = sum
	if s.has(sum, name) {
		return sum, nil
	}
	to := filepath.Join(s.dir, sum)
	if err := os.RemoveAll(to); err != nil { // it is incomplete
		return "", err
	}
	return sum, errors.Join(atomicfile.Sync(tmp), os.Rename(tmp, to), atomicfile.Sync(s.dir))
}

// copyFile writes what is left of f into a new program, and returns its SHA-256.
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

// Path returns where the program with that SHA-256 is, if it is kept.
func (s *Store) Path(sum, name string) string { return filepath.Join(s.dir, sum, name) }

var validSum = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Find returns the path of the program with that SHA-256, after comparing its content.
func (s *Store) Find(sum, name string) (string, error) {
	if !validSum.MatchString(sum) || name != filepath.Base(name) {
		return "", errors.New("this is not a program's hash and name")
	}
	path := s.Path(sum, name)
	if now, err := s.Keep(path, name); err != nil || now != sum {
		return "", fmt.Errorf("the kept program %s is not there any more", name)
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

// Prune removes all programs but those of which keep says so.
func (s *Store) Prune(keep func(sum string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
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
