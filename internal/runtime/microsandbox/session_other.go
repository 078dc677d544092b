//go:build unix && !linux

package microsandbox

import (
	"os/exec"
	"syscall"
)

// run runs a command in a session of its own: a machine that it starts survives the server and its terminal.
func run(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Run()
}
