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

// trust judges a file whose text counts as the operator's own, and so can have
// programs started: nobody else may be able to write it, to put another one in its
// place, or to lead its name elsewhere.
type trust struct {
	shared  []string // folders that sandboxes write
	volumes bool     // the operator's own are among them
	others  bool     // other users of the machine are looked for too
	links   int      // that were followed
	accounts
}

// maxLinks is how many links a name may lead through; the kernel has as many.
const maxLinks = 40

// open opens the file that was judged. The error says why it must not be read,
// and what to do.
func (t *trust) open(file string) (*os.File, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	real, judged, err := t.follow(abs)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0) // a pipe must not hold the server
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

// follow walks to the file as the kernel does, and judges each folder and each
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

// folder judges one that the name leads through.
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
	// In a folder with the sticky bit only its owner moves or removes a file.
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

// ownedByServer says whether a file is the server's user's, or root's.
func ownedByServer(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Getuid())
}

// writers says in words who beside the server's user and root can write: empty for
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

// trust returns a judge that knows what sandboxes write on this machine: volumes,
// and the folders of sandboxes in the state folder.
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

// Untrusted says why the settings file must not be taken up, or returns nil. What
// a sandbox can write has no say over the server. Of a file that nobody named,
// which is where a start would look for one, other users of the machine can write
// nothing either.
func (c *Config) Untrusted(file string, named bool) error {
	f, err := c.trust(!named).open(file)
	if err != nil {
		return err
	}
	return f.Close()
}
