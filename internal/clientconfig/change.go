package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
)

// MaxFile is the maximum size of a client's file, in bytes. Claude Code's grows large.
const MaxFile = 64 << 20

// Change is a planned change of a client's file.
type Change struct {
	Path string // the file itself, if the client's path is a symbolic link
	New  bool   // the file does not exist yet

	before, after []byte
	mode          fs.FileMode
	uid, gid      int
	secret        string
}

// Plan reads the client's file and returns the change that adds the server; it writes nothing.
func (c Client) Plan(path string, s Server) (*Change, error) {
	change, err := planEdit(path, func(text []byte) ([]byte, error) { return c.Put(text, s) })
	if err == nil && s.TokenEnv == "" { // else Token has only the reference to a variable
		change.secret = s.Token
	}
	return change, err
}

// planEdit returns the change of a file that a function makes of its text.
func planEdit(path string, edit func([]byte) ([]byte, error)) (*Change, error) {
	target, err := resolveLinks(path)
	if err != nil {
		return nil, err
	}
	change := &Change{Path: target, mode: 0o600, uid: -1, gid: -1}
	st, err := os.Stat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		change.New = true
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", path)
	default:
		change.mode = st.Mode().Perm()
		change.uid, change.gid = owner(st)
		if change.before, err = readLimited(target); err != nil {
			return nil, err
		}
	}
	if change.after, err = edit(change.before); err != nil {
		return nil, fmt.Errorf("%s is left as it is: %w", path, err)
	}
	return change, nil
}

// resolveLinks resolves symbolic links in the path, so that the file is replaced and the links stay.
func resolveLinks(path string) (string, error) {
	if _, err := os.Lstat(path); err != nil {
		abs, err := filepath.Abs(path)
		return abs, err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%s is a link to nothing that can be read; correct it, or name another file with --file",
			path)
	}
	return filepath.Abs(resolved)
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(text) > MaxFile {
		err = fmt.Errorf("%s is larger than %d MiB", path, MaxFile>>20)
	}
	return text, err
}

// Unchanged reports whether the file already has the server, so that there is nothing to write.
func (ch *Change) Unchanged() bool { return !ch.New && bytes.Equal(ch.before, ch.after) }

// Write replaces the file atomically, after it has copied the old one to the path that it returns. It
// fails if the file has changed since Plan.
func (ch *Change) Write(now time.Time) (backup string, err error) {
	if err := os.MkdirAll(filepath.Dir(ch.Path), 0o700); err != nil {
		return "", err
	}
	text, err := readLimited(ch.Path)
	if missing := errors.Is(err, fs.ErrNotExist); missing != ch.New || err != nil && !missing ||
		!bytes.Equal(text, ch.before) {
		return "", fmt.Errorf("%s has changed in the meantime; try again", ch.Path)
	}
	if !ch.New {
		if backup, err = ch.backUp(now); err != nil {
			return "", fmt.Errorf("no copy of %s can be made, so it is left as it is: %w", ch.Path, err)
		}
	}
	f, err := os.CreateTemp(filepath.Dir(ch.Path), "."+filepath.Base(ch.Path)+".*")
	if err != nil {
		return backup, err
	}
	err = errors.Join(ch.writeTo(f, ch.after), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), ch.Path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return backup, err
}

func (ch *Change) writeTo(f *os.File, text []byte) error {
	if os.Getuid() == 0 && ch.uid >= 0 { // root keeps the file's owner
		if err := f.Chown(ch.uid, ch.gid); err != nil {
			return err
		}
	}
	_, err := f.Write(text)
	return errors.Join(err, f.Chmod(ch.mode))
}

func (ch *Change) backUp(now time.Time) (string, error) {
	for n := 0; ; n++ {
		path := ch.Path + now.Format(".bak-20060102-150405")
		if n > 0 {
			path += fmt.Sprintf("-%d", n)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) && n < 100 {
			continue
		}
		if err != nil {
			return "", err
		}
		return path, errors.Join(ch.writeTo(f, ch.before), f.Sync(), f.Close())
	}
}

// tokenPattern matches Sandlot's tokens.
var tokenPattern = regexp.MustCompile(`slt_[a-z2-7]{20,}`)

// Diff returns the change as a unified diff, without Sandlot's tokens.
func (ch *Change) Diff() string {
	name := ch.Path
	if ch.New {
		name = "/dev/null"
	}
	text := udiff.Unified(name, ch.Path, string(ch.before), string(ch.after))
	if ch.secret != "" {
		text = strings.ReplaceAll(text, ch.secret, "[secret]")
	}
	return tokenPattern.ReplaceAllString(text, "[secret]")
}
