package dockercommand

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// peer returns the user who made the socket at the other end of a connection (unix(7), SO_PEERCRED).
func peer(conn net.Conn) (uid uint32, err error) {
	err = control(conn, func(fd int) error {
		c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			uid = c.Uid
		}
		return err
	})
	return uid, err
}

// hasACL reports whether a file has access rights beside its mode (acl(5)), of which the mode shows the maximum alone.
func hasACL(path string) bool {
	n, err := unix.Lgetxattr(path, "system.posix_acl_access", nil)
	return n > 0 || err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP)
}
