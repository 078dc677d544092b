package microsandbox

import (
	"os/exec"
	"runtime"
	"syscall"
)

// run runs a command in a session of its own: a machine that it starts survives the server and its terminal. The
// command itself ends with the server, since the next one removes what a command has not finished.
func run(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the signal comes when the thread ends
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}
