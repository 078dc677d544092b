package doctor

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestWakeUp(t *testing.T) {
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	took, err := wakeUp()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("one processor")
	}
	if err != nil || took <= 0 || took > time.Second {
		t.Errorf("%v, %v", took, err)
	}
	// What earlier tests used may end meanwhile.
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before) {
		t.Errorf("%d open files, %d before", len(after), len(before))
	}
}

// What can be done is said where it helps, and only there.
func TestWakeUps(t *testing.T) {
	for _, tt := range []struct {
		took           time.Duration
		poll, governor string
		want           []string
		warns          bool
	}{
		{3 * time.Microsecond, "0", "haltpoll", []string{"3 µs"}, false},
		{50 * time.Microsecond, "0", "haltpoll", []string{"50 µs", "long", "echo 200000 > /sys/module/haltpoll/"},
			true},
		{50 * time.Microsecond, "0", "menu", []string{"50 µs", "long"}, false},
		{50 * time.Microsecond, "200000", "haltpoll", []string{"50 µs", "long"}, false},
		{50 * time.Microsecond, "", "", []string{"50 µs", "long"}, false},
		{50 * time.Microsecond, "N", "haltpoll", []string{"50 µs", "long"}, false},
	} {
		got := wakeUps(tt.took, tt.poll, tt.governor)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%q is not in %q", want, got)
			}
		}
		if strings.Contains(got, "WARNING") != tt.warns {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}
