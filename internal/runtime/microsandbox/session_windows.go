package microsandbox

import "os/exec"

// run runs a command.
func run(cmd *exec.Cmd) error { return cmd.Run() }
