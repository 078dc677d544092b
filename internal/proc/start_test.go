package proc

import (
	"errors"
	"os"
	"testing"
	"time"
)

// Every system says when this process started and whose it is, and that a process that there is not is ending.
func TestStart(t *testing.T) {
	own, err := StartTicks(os.Getpid())
	if err != nil || own == 0 {
		t.Fatal(own, err)
	}
	if since := time.Since(TicksToTime(own)); since < -2*time.Second || since > time.Hour {
		t.Errorf("this process started %v ago", since)
	}
	if IsEnding(os.Getpid(), own) || !IsEnding(os.Getpid(), own+1) {
		t.Error("this process ends, or is one with another start")
	}
	if uid, err := Owner(os.Getpid()); err != nil || uid != os.Getuid() {
		t.Errorf("the user %d, %v", uid, err)
	}
	const none = 1<<22 + 4
	if at, err := StartTicks(none); err == nil || !IsEnding(none, 1) {
		t.Errorf("a process that there is not: %d, %v", at, errors.Unwrap(err))
	}
}
