//go:build unix

package config

import (
	"fmt"
	"os"
	"syscall"

	"sandlot/internal/pathwalk"
)

// With O_NONBLOCK, opening a named pipe does not block.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// resolve resolves a path as the kernel does, and checks each folder and each link on the way.
func (t *fileChecker) resolve(abs string) (string, os.FileInfo, error) {
	return pathwalk.Walk(abs, t.checkFolder, t.checkLink)
}

func (t *fileChecker) checkLink(path string, st os.FileInfo) error {
	if t.checkUsers && !pathwalk.IsOwn(st) {
		return fmt.Errorf("users other than the server's can write it: the link %s is another user's; name the "+
			"file itself", path)
	}
	return nil
}

// otherWriters returns a text that says who besides the server's user and root can write a file; empty:
// nobody.
func (t *fileChecker) otherWriters(st os.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch mode := st.Mode().Perm(); {
	case !ok || mode&0o002 != 0:
		return "everyone can"
	case mode&0o020 != 0:
		return t.otherMembers(int(sys.Gid), os.Getuid())
	}
	return ""
}

// privateFolder reports whether nobody besides the server's user and root can move what is in a folder; else the
// reason. In a folder with the sticky bit, only a file's owner can move or remove it.
func (t *fileChecker) privateFolder(_ string, st os.FileInfo) (reason string, private bool) {
	reason = t.otherWriters(st)
	return reason, pathwalk.IsOwn(st) && (reason == "" || st.Mode()&os.ModeSticky != 0)
}

// privateFile reports whether nobody besides the server's user and root can write a file; else the reason.
func (t *fileChecker) privateFile(_ string, st os.FileInfo) (reason string, private bool) {
	reason = t.otherWriters(st)
	return reason, pathwalk.IsOwn(st) && reason == ""
}

// hasSecondName reports whether a file has another name, a hard link.
func hasSecondName(_ string, st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink > 1
}

// isServersFile reports whether a settings file belongs to the server's user or to root.
func isServersFile(_ string, st os.FileInfo) bool { return pathwalk.IsOwn(st) }
