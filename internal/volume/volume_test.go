package volume

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
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
	v := New(Config{LimitBytes: 16 << 20, Log: slog.New(slog.DiscardHandler),
		Mounts: []sandbox.Mount{{Source: dir, Target: "/share"}, {Source: fixed, Target: "/fixed", ReadOnly: true}},
		Seal: func(_ context.Context, source string, readOnly bool) int {
			calls <- call{source, readOnly}
			tries++
			return tries % 2 // the first does not do
		}})
	w := &watch{v: v, source: dir, s: v.states[dir]}
	step := func(want bool) {
		t.Helper()
		size := measure(t, dir)
		w.applyMeasurement(measurement{size, nil})
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

	w.applyMeasurement(measurement{tree.Size{Bytes: 1}, tree.ErrDepth})
	if u := v.Usage()[0]; !u.Full || u.Reason != Deep || u.UsedBytes != 1 {
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

// A volume that cannot be measured in time is full, whether the disk is slow or does
// not answer at all; so is one whose disk fills up. Nothing waits for the disk.
func TestDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := make(chan struct{})
		now := diskSpace{10 << 30, 100 << 30}
		var answer func(ctx context.Context) (tree.Size, error)
		var mu sync.Mutex
		v := New(Config{LimitBytes: 1 << 30, Log: slog.New(slog.DiscardHandler),
			Mounts: []sandbox.Mount{{Source: "/v", Target: "/share"}}})
		v.measure = func(ctx context.Context, _ string) (tree.Size, error) {
			mu.Lock()
			do := answer
			mu.Unlock()
			return do(ctx)
		}
		v.space = func(string) diskSpace { mu.Lock(); defer mu.Unlock(); return now }
		set := func(free uint64, do func(ctx context.Context) (tree.Size, error)) {
			mu.Lock()
			defer mu.Unlock()
			now.free, answer = free, do
		}
		quick := func(context.Context) (tree.Size, error) { return tree.Size{Bytes: 1 << 20}, nil }
		late := func(ctx context.Context) (tree.Size, error) { <-ctx.Done(); return tree.Size{}, ctx.Err() }
		gone := func(context.Context) (tree.Size, error) { <-dead; return tree.Size{}, nil }
		is := func(what string, want Reason) {
			t.Helper()
			synctest.Wait()
			if u := v.Usage()[0]; u.Reason != want || u.Full != (want != "") || v.Mounts()[0].ReadOnly != u.Full {
				t.Errorf("%s: %+v, want %q", what, u, want)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		set(10<<30, quick)
		go func() { defer close(ended); v.Run(ctx) }()
		time.Sleep(2 * time.Second)
		is("at first", "")
		set(1<<30-1, quick) // a hundredth of it
		time.Sleep(3 * time.Second)
		is("next to nothing is free", Disk)
		set(3<<29, quick)
		time.Sleep(20 * time.Second)
		is("a little is free", Disk)
		set(10<<30, quick)
		time.Sleep(20 * time.Second)
		is("there is room again", "")
		set(10<<30, late)
		time.Sleep(20 * time.Second)
		set(8<<30, late)
		time.Sleep(3 * time.Second)
		is("much is gone, by whomever", "")
		time.Sleep(time.Minute)
		is("more than the limit is gone while it is measured", Disk)
		time.Sleep(measureTimeout)
		is("slow", Slow)
		set(10<<30, quick)
		time.Sleep(2 * maxInterval)
		is("quick again", "")
		set(10<<30, gone)
		time.Sleep(measureTimeout + 20*time.Second)
		is("no answer", Slow)
		stop()
		began := time.Now()
		<-ended
		if took := time.Since(began); took > closeTimeout {
			t.Errorf("the end waits %s for a disk that does not answer", took)
		}
		close(dead)
	})
}

// Without a limit nothing is measured.
func TestNoLimit(t *testing.T) {
	v := New(Config{Mounts: []sandbox.Mount{{Source: "/nowhere", Target: "/x"}}})
	v.Run(t.Context())
	if u := v.Usage()[0]; u.Measured || u.Full || v.Mounts()[0].ReadOnly {
		t.Errorf("%+v", u)
	}
}
