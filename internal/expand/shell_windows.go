package expand

import (
	"context"
	"os/exec"
)

// shellCommand returns an error: commands are written for /bin/sh.
func shellCommand(context.Context, string) (*exec.Cmd, error) {
	return nil, commandError("a command in $(…) needs /bin/sh, which Windows does not have; put the value into a " +
		"variable of the server's environment, and name that: ${NAME}")
}
