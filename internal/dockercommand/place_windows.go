package dockercommand

import (
	"errors"
	"os"
	"strings"

	"sandlot/internal/fileacl"
)

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
