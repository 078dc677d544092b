//go:build unix

package dockercommand

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sandlot/internal/pathwalk"
)

// resolve returns a path without links, or the path itself.
func resolve(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return path
}

// checkPlace returns an error unless there is a socket that belongs to this user or root, and that nobody else can have
// put there: whoever answers gets all code and files of the sandboxes. The error is errNothing if there is none.
func checkPlace(address string) error {
	path, isPath := strings.CutPrefix(address, "unix://")
	if !isPath {
		return nil
	}
	_, st, err := pathwalk.Walk(path, checkFolder, checkLink)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return errNothing
	case err != nil:
		return err
	case st.Mode().Type() != os.ModeSocket:
		return errors.New("it is not a socket")
	case !pathwalk.IsOwn(st):
		return errors.New("it is another user's, and is not used; name it as docker.host to use it all the same")
	}
	return nil
}

// checkLink returns an error if another user can make a link lead elsewhere.
func checkLink(path string, st os.FileInfo) error {
	if !pathwalk.IsOwn(st) {
		return fmt.Errorf("the link %s is another user's", path)
	}
	return nil
}

// checkFolder returns an error if another user can replace what is in a folder.
func checkFolder(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	mode := st.Mode()
	switch {
	case !mode.IsDir():
		return syscall.ENOTDIR
	case !pathwalk.IsOwn(st):
		return fmt.Errorf("its folder %s is another user's, and it is not used", path)
	case mode&os.ModeSticky != 0: // there, only its owner can replace a file
		return nil
	case mode&0o002 != 0:
		return fmt.Errorf("everyone can write its folder %s, and it is not used; take the right away (chmod o-w)", path)
	case mode&0o020 != 0 && (!isTrustedGroup(st) || hasACL(path)):
		return fmt.Errorf("others can write its folder %s, and it is not used; take the right away (chmod g-w)", path)
	}
	return nil
}

// daemonGroup is the group of the system's own programs, on Linux and macOS: a Mac's /var/run belongs to it.
const daemonGroup = 1

// isTrustedGroup reports whether a group that can write a folder has no other people: one of the system's own, on
// root's folder, or the user's own, which has the user's number.
func isTrustedGroup(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 && sys.Gid <= daemonGroup || sys.Gid == sys.Uid && int(sys.Uid) == os.Getuid())
}

// checkPeer returns an error unless whoever listens at the other end of a Unix socket is this user or root.
func checkPeer(conn net.Conn) error {
	uid, err := peer(conn)
	switch {
	case err != nil:
		return fmt.Errorf("whose socket it is cannot be found out: %w", err)
	case uid != 0 && int(uid) != os.Getuid():
		return errors.New("another user answers there, and it is not used; name it as docker.host to use it all the " +
			"same")
	}
	return nil
}

// control runs a function with the descriptor of a Unix socket.
func control(conn net.Conn, f func(fd int) error) error {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("it is no Unix socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}
