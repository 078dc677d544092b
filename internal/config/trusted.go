package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// trust checks files whose content is treated as the operator's own, and so can make the server run
// programs: nobody else may be able to write such a file, to replace it, or to redirect its path with a
// link.
type trust struct {
	shared  []string // folders that sandboxes can write
	volumes bool     // shared has volumes of the settings
	others  bool     // check that other users of the machine cannot write either
	links   int      // number of symbolic links that were followed
	accounts
}

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// open checks a file and opens it. The error says why the file must not be read, and what to do.
func (t *trust) open(file string) (*os.File, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	real, judged, err := t.follow(abs)
	if err != nil {
		return nil, err
	}
	// With O_NONBLOCK, opening a named pipe does not block.
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !os.SameFile(st, judged) {
		err = errors.New("it was replaced while it was opened")
	}
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("it is a directory, or another thing that is not a file")
	}
	if err == nil {
		err = t.file(real, st)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// follow resolves a path component by component, as the kernel does, and checks each folder and each
// link on the way.
func (t *trust) follow(abs string) (string, os.FileInfo, error) {
	at, rest := "/", strings.Split(abs, "/")
	if err := t.folder(at); err != nil {
		return "", nil, err
	}
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		st, err := os.Lstat(next)
		if err != nil {
			return "", nil, err
		}
		if st.Mode()&os.ModeSymlink != 0 {
			to, err := t.link(next, st)
			if err != nil {
				return "", nil, err
			}
			if filepath.IsAbs(to) {
				at = "/"
			}
			rest = append(strings.Split(to, "/"), rest...)
			continue
		}
		if strings.Join(rest, "") == "" {
			return next, st, nil
		}
		if err := t.folder(next); err != nil {
			return "", nil, err
		}
		at = next
	}
	return "", nil, errors.New("it is a directory")
}

func (t *trust) link(path string, st os.FileInfo) (string, error) {
	if t.links++; t.links > maxLinks {
		return "", errors.New("its name leads through too many links")
	}
	if t.others && !ownedByServer(st) {
		return "", fmt.Errorf("others than the server's user can write it: the link %s is another user's; name the "+
			"file itself", path)
	}
	return os.Readlink(path)
}

// folder checks a folder on the path.
func (t *trust) folder(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, s := range t.shared {
		if shared, err := os.Stat(s); err == nil && os.SameFile(shared, st) {
			return fmt.Errorf("sandboxes can write it, as it is in the volume %s; move it out of there, or add :ro "+
				"to the volume", s)
		}
	}
	// In a folder with the sticky bit, only a file's owner can move or remove it.
	if !t.others {
		return nil
	}
	why := t.writers(st)
	if ownedByServer(st) && (why == "" || st.Mode()&os.ModeSticky != 0) {
		return nil
	}
	return fmt.Errorf("others than the server's user can write it, as they can write the folder %s%s; "+
		"move it to a folder of the server's user, or take the right away (chown, chmod go-w)", path, because(why))
}

func (t *trust) file(path string, st os.FileInfo) error {
	if why := t.writers(st); t.others && (!ownedByServer(st) || why != "") {
		return fmt.Errorf("others than the server's user can write it%s; take the right away (chown, chmod go-w %s)",
			because(why), path)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Nlink > 1 && t.volumes {
		return errors.New("sandboxes may write it, as it has a second name (a hard link), which may be in a volume; " +
			"make it a file of its own")
	}
	return nil
}

// ownedByServer reports whether a file belongs to the server's user or to root.
func ownedByServer(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Getuid())
}

// writers returns a text that says who besides the server's user and root can write a file; empty:
// nobody.
func (t *trust) writers(st os.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch mode := st.Mode().Perm(); {
	case !ok || mode&0o002 != 0:
		return "everyone can"
	case mode&0o020 != 0:
		return t.otherMembers(int(sys.Gid), os.Getuid())
	}
	return ""
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return " (" + why + ")"
}

// trust returns a checker that knows the folders that sandboxes can write on this machine: volumes, and
// their own folders in the state folder.
func (c *Config) trust(others bool) *trust {
	t := &trust{others: others, accounts: machineAccounts}
	for _, v := range slices.Concat(c.Volumes, c.MCP.running) {
		if !v.ReadOnly {
			t.shared, t.volumes = append(t.shared, v.Source), true
		}
	}
	for _, name := range []string{"workspaces", "sandboxes", "roots"} {
		t.shared = append(t.shared, filepath.Join(c.Server.StateDir, name))
	}
	return t
}

// Untrusted returns an error if the settings file must not be used, since sandboxes can write it. A file
// at the default path, which the user has not named, must not be writable by other users of the machine
// either.
func (c *Config) Untrusted(file string, named bool) error {
	f, err := c.trust(!named).open(file)
	if err != nil {
		return err
	}
	return f.Close()
}
