package volume

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

// A volume that reaches its limit is read-only, for new sandboxes and, as often as
// it takes, for those that run; and no more when there is room again.
func TestLimit(t *testing.T) {
	dir, fixed := t.TempDir(), t.TempDir()
	write := func(megabytes int) {
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, megabytes<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type call struct {
		source   string
		readOnly bool
	}
	calls := make(chan call, 100)
	tries := 0
	v := New(Config{LimitBytes: 16 << 20, Log: slog.New(slog.DiscardHandler), Mounts: []sandbox.Mount{{Source: dir, Target: "/share"}, {Source: fixed, Target: "/fixed", ReadOnly: true}},
		Seal: func(_ context.Context, source string, readOnly bool) int {
			calls <- call{source, readOnly}
			tries++
			return tries % 2 // the first does not do
		}})
	step := func(want bool) {
		t.Helper()
		s := v.states[dir]
		size := measure(t, dir)
		v.measured(dir, s, size, nil)
		if got := v.Mounts()[0]; got.ReadOnly != want || !got.Shared || !v.Mounts()[1].ReadOnly {
			t.Errorf("with %d bytes: %+v", size.Bytes, got)
		}
		if u := v.Usage()[0]; u.Full != want || u.UsedBytes != size.Bytes || u.LimitBytes != 16<<20 || u.ReadOnly {
			t.Errorf("usage %+v", u)
		}
	}
	write(8)
	step(false)
	write(17)
	step(true)
	write(16) // not yet well below it
	step(true)
	write(8)
	step(false)

	v.measured(dir, v.states[dir], tree.Size{Bytes: 1}, tree.ErrDepth)
	if u := v.Usage()[0]; !u.Full || !u.Odd || u.UsedBytes != 1 {
		t.Errorf("too deep: %+v", u)
	}
	step(false)
	write(17)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); v.Run(ctx) }()
	for range 3 { // also when all are: others start
		select {
		case c := <-calls:
			if c != (call{dir, true}) {
				t.Errorf("%+v", c)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the running sandboxes were not sealed")
		}
	}
	stop()
	<-ended
	if u := v.Usage()[0]; !u.Full {
		t.Errorf("%+v", u)
	}
}

func measure(t *testing.T, dir string) tree.Size {
	t.Helper()
	size, err := tree.Measure(t.Context(), dir, tree.Limits{Entries: 1 << 30, Depth: 4096})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// Without a limit nothing is measured.
func TestNoLimit(t *testing.T) {
	v := New(Config{Mounts: []sandbox.Mount{{Source: "/nowhere", Target: "/x"}}})
	v.Run(t.Context())
	if u := v.Usage()[0]; u.Measured || u.Full || v.Mounts()[0].ReadOnly {
		t.Errorf("%+v", u)
	}
}
