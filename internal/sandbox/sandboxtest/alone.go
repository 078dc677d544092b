package sandboxtest

import (
	"os"
	"os/exec"
	"testing"
)

// Alone runs the test in a process of its own, and is true there: yamux keeps
// its timers for others to use, and those of a synctest bubble are of no use
// outside of it. Each test that has a Fake in a bubble needs it, and has one
// bubble.
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv("SANDLOT_TEST_ALONE") == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "SANDLOT_TEST_ALONE="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}
