package docker

import (
	"testing"
	"time"
)

// TestLook: folders are measured when the sandbox has worked, and else after a while: what takes room on the disk need
// not take processor time.
func TestLook(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		last look
		cpu  time.Duration
		want bool
	}{
		{look{}, 0, true},
		{look{time.Second, now}, time.Second, false},
		{look{time.Second, now}, time.Second + busyCPU, true},
		{look{time.Second, now.Add(-idleInterval / 2)}, time.Second + busyCPU/2, false},
		{look{time.Second, now.Add(-idleInterval)}, time.Second, true},
	} {
		if got := tt.last.isOld(tt.cpu, idleInterval); got != tt.want {
			t.Errorf("%+v, with %v by now: %t", tt.last, tt.cpu, got)
		}
	}
}
