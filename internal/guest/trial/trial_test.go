package trial

import (
	"bytes"
	"strings"
	"testing"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
)

// TestChecks: what works on this machine is no error.
func TestChecks(t *testing.T) {
	for _, check := range []func() error{faults, threads, sleep} {
		if err := check(); err != nil {
			t.Error(err)
		}
	}
	if took := call(); took <= 0 {
		t.Errorf("a call took %v", took)
	}
}

// TestOutside: a kernel that is not gVisor's fails, after the first line.
func TestOutside(t *testing.T) {
	if process.InGVisor() {
		t.Fatal("this test needs a kernel that is not gVisor's")
	}
	var out bytes.Buffer
	if err := Main(&out); err == nil || !strings.Contains(err.Error(), "not a kernel of gVisor") {
		t.Errorf("%v", err)
	}
	if out.String() != wire.TrialStarted+"\n" {
		t.Errorf("%q", out.String())
	}
}
