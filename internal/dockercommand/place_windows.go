package dockercommand

import (
	"errors"
	"net"
	"os"
	"strings"

	"sandlot/internal/fileacl"
)

// resolve returns the path: pipes have no links.
func resolve(path string) string { return path }

// checkPlace returns an error unless there is a pipe of this user, the administrators or the system: whoever answers
// gets all code and files of the sandboxes. The error is errNothing if there is none.
func checkPlace(address string) error {
	path, isPipe := strings.CutPrefix(address, "npipe://")
	if !isPipe {
		return nil
	}
	owner, err := fileacl.Stranger(strings.ReplaceAll(path, "/", `\`))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errNothing
	case err != nil:
		return err
	case owner != "":
		return errors.New("it belongs to " + owner + ", and is not used; name it as docker.host to use it all the same")
	}
	return nil
}

// checkPeer returns nil: checkPlace has looked at the pipe's owner, and nobody else can take its name while it is there.
func checkPeer(net.Conn) error { return nil }
