//go:build unix

package microsandbox

import (
	"os/exec"
	"syscall"
)

// ownSession gives a command a session of its own: what it starts survives the server and its terminal.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
