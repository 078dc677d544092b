//go:build unix

package dockercommand

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"sandlot/internal/pathwalk"
)

// checkPlace returns an error unless there is a socket that belongs to this user or root: whoever answers gets all code
// and files of the sandboxes. The error is errNothing if there is none.
func checkPlace(address string) error {
	path, isPath := strings.CutPrefix(address, "unix://")
	if !isPath {
		return nil
	}
	st, err := os.Stat(path)
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
