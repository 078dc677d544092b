//go:build unix

package vault

import (
	"fmt"
	"os"
	"syscall"
)

// giveToOwner makes a new file belong to the owner of another one, if that exists and is another user's.
func giveToOwner(f *os.File, like string) error {
	if st, err := os.Stat(like); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
			return f.Chown(int(sys.Uid), int(sys.Gid))
		}
	}
	return nil
}

// CheckPrivate returns an error if another user than its owner can read a file with a key or a secret.
func CheckPrivate(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	mode := st.Mode().Perm()
	group := mode&0o070 != 0 && !(ok && (sys.Gid == 0 || int(sys.Gid) == os.Getgid()) && mode&0o030 == 0)
	if mode&0o007 != 0 || group {
		return fmt.Errorf("others can read it (mode %04o), so it may be known: chmod 600 %s, and take a new one", mode, path)
	}
	return nil
}
