package microsandbox

import "os/exec"

// ownSession does nothing: msb is not used on Windows.
func ownSession(*exec.Cmd) {}
