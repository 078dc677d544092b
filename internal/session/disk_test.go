package session

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
	quotas "sandlot/internal/quota"
	"sandlot/internal/session/usage"
)

// put writes a file of so many MB into the workspace of a session, as its programs do.
func (w *testSessions) put(l *Lease, name string, megabytes int) {
	w.t.Helper()
	path := filepath.Join(w.Pool.Workspaces.Path(l.record().Workspace), name)
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, megabytes<<20), 0o600); err != nil {
		w.t.Fatal(err)
	}
	l.disk.Changed() // as the end of a call says
}

// measured waits until the workspaces of a principal are measured to have so many MB.
func (w *testSessions) measured(owner string, megabytes int) {
	w.t.Helper()
	for range 1000 {
		if int(w.usage.DiskBytes(owner)>>20) == megabytes {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("the workspaces have %d bytes, want %d MB", w.usage.DiskBytes(owner), megabytes)
}

// wantDiskReached checks the fault of a quota of the disk of 10 MB.
func wantDiskReached(t *testing.T, err error, used int) {
	t.Helper()
	if f := fault.From(err); err == nil || f.Kind != fault.ResourceLimit || f.Context["resource_type"] != "disk_mb" ||
		f.Context["current_usage"] != used || f.Context["limit"] != 10 ||
		!strings.Contains(err.Error(), "quota is 10 MB") {
		t.Errorf("%v, want %d of 10 MB", err, used)
	}
}

// The workspaces of all sessions of a principal count, stopped ones too, and what is about to be written; what was
// removed makes room. A server that begins knows what the one before has measured. What uses a session that there is
// goes on.
func TestDiskQuota(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions = 10 }, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{DiskMB: 10}})
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { w.runMeasure(ctx) })
		home, other, bobs := w.use(ann, OpenRequest{}), w.use(ann, OpenRequest{ID: "new"}), w.use(bob, OpenRequest{})
		w.put(home, "a", 4)
		w.put(other, "b", 3)
		w.put(bobs, "c", 9)
		if err := home.ReserveDisk("d", 11<<20); err == nil {
			t.Error("a file larger than the quota is admitted")
		}
		home.Release()
		other.Release()
		bobs.Release()
		w.stopUnused(t.Context(), other.Session, "")
		w.measured(ann.ID, 7)
		w.measured(bob.ID, 9)
		wantDiskReached(t, home.ReserveDisk("/workspace/d", 4<<20), 7)
		if err := home.ReserveDisk("/shared/d", 1<<30); err != nil {
			t.Errorf("a shared folder: %v", err)
		}
		if err := home.ReserveDisk("d", 3<<20-1<<19); err != nil {
			t.Error(err)
		}
		w.put(home, "d", 4) // its programs may write more than is admitted
		l := w.use(ann, OpenRequest{})
		l.Release()
		w.measured(ann.ID, 11)
		_, err := w.Open(t.Context(), ann, OpenRequest{ID: "new"})
		wantDiskReached(t, err, 11)
		wantDiskReached(t, w.DiskReached(ann.ID), 11)
		w.use(ann, OpenRequest{ID: other.ID()}).Release()
		if text := w.QuotaText(ann.ID); text != "11 of 10 MB of disk" {
			t.Errorf("in use are %s", text)
		}
		cancel()
		work.Wait()
		w.storeCounts(t.Context())
		limits := w.Quotas
		w.again()
		w.Quotas = limits
		_, err = w.Open(t.Context(), ann, OpenRequest{ID: "new"})
		wantDiskReached(t, err, 11)
		w.Stop(t.Context(), ann, other.ID())
		if err := w.DiskReached(ann.ID); err != nil {
			t.Errorf("after the end of a session: %v", err)
		}
		w.use(ann, OpenRequest{ID: "new"})
	})
}

// Writes at once get no more than the quota together.
func TestReserveDiskAtOnce(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{DiskMB: 10}})
		l := w.use(ann, OpenRequest{})
		var all sync.WaitGroup
		admitted := make(chan bool, 100)
		for range 50 {
			all.Go(func() {
				if l.ReserveDisk("x", 1<<20) == nil {
					admitted <- true
				}
			})
		}
		all.Wait()
		if n := len(admitted); n != 10 {
			t.Errorf("%d writes of 1 MB are admitted where 10 MB are allowed", n)
		}
		for _, size := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1} {
			if err := l.ReserveDisk("x", size); err == nil || w.usage.DiskBytes(ann.ID) < 0 {
				t.Errorf("a write of %d bytes: %v", size, err)
			}
		}
	})
}

// A workspace that takes long to measure is not measured all the time, and one of each principal at once.
func TestDueSessions(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions = 10 }, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		first, second, bobs := w.use(ann, OpenRequest{}), w.use(ann, OpenRequest{ID: "new"}), w.use(bob, OpenRequest{})
		for _, l := range []*Lease{first, second, bobs} {
			l.Release()
		}
		due := func(at time.Time) int { return len(w.dueSessions(at)) }
		now := time.Now()
		if n := due(now); n != 0 {
			t.Errorf("%d are due without a quota", n)
		}
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{DiskMB: 1}})
		if n := due(now); n != 2 {
			t.Errorf("%d are due, want one of each principal", n)
		}
		for _, l := range []*Lease{first, second, bobs} {
			l.measure(t.Context())
		}
		if n := due(now.Add(time.Hour)); n != 2 {
			t.Errorf("%d are due while their sandboxes live", n)
		}
		if n := due(now); n != 0 {
			t.Errorf("%d are due again at once", n)
		}
		first.disk.Changed()
		if n := due(now); n != 0 {
			t.Error("it is due before its pause has ended")
		}
		if n := due(now.Add(31 * time.Second)); n != 1 {
			t.Error("it is not due though it was used")
		}
	})
}

// What has not arrived of uploads counts, however often the workspace is measured meanwhile; what has arrived counts
// once; what never arrives does not count when the upload has ended.
func TestUploadsCount(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{DiskMB: 100}})
		l := w.use(ann, OpenRequest{})
		reserve := func(megabytes int64) *usage.Upload {
			t.Helper()
			u, err := l.ReserveUpload("x", megabytes<<20)
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		counts := func(when string, megabytes int64) {
			t.Helper()
			if got := w.usage.DiskBytes(ann.ID) >> 20; got != megabytes {
				t.Errorf("%s %d MB count, want %d", when, got, megabytes)
			}
		}
		slow, other := reserve(50), reserve(40)
		l.measure(t.Context())
		counts("before anything arrives", 90)
		if _, err := l.ReserveUpload("y", 20<<20); err == nil {
			t.Error("uploads get more than the quota together")
		}
		w.put(l, "x", 30)
		for range 30 {
			slow.Sent(1 << 20)
		}
		counts("when a part has arrived", 90)
		l.measure(t.Context())
		counts("when it was measured, and some may be on the way,", 30+20+8+40)
		other.Close()
		other.Close()
		counts("when an upload has broken", 30+20+8)
		w.put(l, "x", 50)
		slow.Sent(20 << 20)
		slow.Done()
		slow.Close()
		l.measure(t.Context())
		counts("when it is done", 50)
		var none *usage.Upload
		none.Sent(1)
		none.Done()
		none.Close()
		l.Release()
	})
}

// The store has the traffic of this day alone, when the periodic work was done.
func TestOldDaysAreRemoved(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		today := egress.Today()
		w.store.days = map[string]egress.Day{"user:ann": {Number: today}, "user:bob": {Number: today - 1}}
		w.sweep(t.Context(), time.Now())
		if len(w.store.days) != 1 || w.store.days["user:ann"].Number != today {
			t.Errorf("the store has %v", w.store.days)
		}
		w.store.days["user:bob"] = egress.Day{Number: today - 1}
		w.removedDays, w.store.broken = today-1, errors.New("no disk") // as on the day before
		w.sweep(t.Context(), time.Now())
		if w.removedDays == today {
			t.Error("it is not tried again")
		}
		w.store.broken = nil
		w.sweep(t.Context(), time.Now())
		if len(w.store.days) != 1 || w.removedDays != today {
			t.Errorf("a day later the store has %v", w.store.days)
		}
	})
}
