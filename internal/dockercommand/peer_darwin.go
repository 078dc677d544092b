package dockercommand

import (
	"net"

	"golang.org/x/sys/unix"
)

// peer returns the user who made the socket at the other end of a connection (unix(4), LOCAL_PEERCRED).
func peer(conn net.Conn) (uid uint32, err error) {
	err = control(conn, func(fd int) error {
		c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err == nil {
			uid = c.Uid
		}
		return err
	})
	return uid, err
}

// hasACL returns false: the mode of a file does not show its access control list here, and that of a folder which is
// given to others is its owner's doing.
func hasACL(string) bool { return false }
