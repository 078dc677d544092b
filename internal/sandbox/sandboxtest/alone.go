package sandboxtest

import (
	"os"
	"os/exec"
	"testing"
)

// Alone runs the test in a process of its own, and returns true there and false in the first process. A
// test with a Fake in a synctest bubble needs it, and may have only one bubble: yamux reuses its timers,
// and those of a bubble cannot be used outside of it.
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
