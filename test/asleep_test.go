package test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestManyAsleep has many sessions asleep at once, which 20 clients wake in random order. Each has its variable, the
// server stays small, and a session that is awake goes on answering meanwhile. SANDLOT_ASLEEP=1000 makes them many.
func TestManyAsleep(t *testing.T) {
	t.Parallel()
	many := numberOf(t, "SANDLOT_ASLEEP", 15)
	s := start(t, append(sleepy, fmt.Sprintf("MSB_MAX_SESSIONS=%d", 2*many))...)
	c := s.connect(older, "", nil)
	ids := make([]string, many)
	began := time.Now()
	each(many, 4, func(i int) {
		for i-s.asleep() > 100 { // those that are awake fit into the machine
			time.Sleep(200 * time.Millisecond)
		}
		r, err := c.try(t.Context(), "execute_code", args{"code": fmt.Sprintf("x = %d", i), "session_id": "new"})
		if err != nil {
			t.Errorf("session %d: %v", i, err)
			return
		}
		ids[i] = r.session()
	})
	if t.Failed() {
		return
	}
	s.allSleep(many)
	t.Logf("%d sessions sleep after %v; their images have %.1f MB each, the server has %d MB", many,
		time.Since(began).Round(time.Second), float64(diskOf(t, filepath.Join(s.State, "frozen")))/float64(many)/1e6,
		memory(t, s.cmd.Process.Pid)>>20)
	watched := c.code("new", "y = 0").session()
	quiet := c.watch(watched, func() { time.Sleep(3 * time.Second) })
	began = time.Now()
	var most atomic.Int64
	busy := c.watch(watched, func() {
		clients := make([]*client, 20)
		for i := range clients {
			clients[i] = s.connect(older, "", nil)
		}
		order := rand.Perm(many)
		each(many, len(clients), func(i int) {
			c, id := clients[i%len(clients)], ids[order[i]]
			r, err := c.try(t.Context(), "execute_code", args{"code": "x", "session_id": id})
			if err != nil || r.Text != fmt.Sprint(order[i]) {
				t.Errorf("session %d: %v %+v", order[i], err, r)
			}
			if _, err := c.try(t.Context(), "stop_session", args{"session_id": id}); err != nil {
				t.Errorf("session %d does not end: %v", order[i], err)
			}
			if m := memory(t, s.cmd.Process.Pid); m > most.Load() {
				most.Store(m)
			}
		})
	})
	t.Logf("all were woken, asked and ended in %v; the server had %d MB at most; calls of one that is awake took "+
		"%v before and %v meanwhile (medians of %d and %d)", time.Since(began).Round(time.Second), most.Load()>>20,
		middle(quiet), middle(busy), len(quiet), len(busy))
	if most.Load() > 512<<20 {
		t.Errorf("the server had %d MB", most.Load()>>20)
	}
	if len(busy) < 10 {
		t.Errorf("only %d calls were answered while sessions woke", len(busy))
	}
}

// allSleep waits until so many sessions sleep, which takes long where they are many: each has a minute.
func (s *server) allSleep(many int) {
	s.t.Helper()
	for slept := s.asleep(); slept < many; slept = s.asleep() {
		until(s.t, fmt.Sprintf("more than %d sessions sleep", slept), func() bool { return s.asleep() > slept })
	}
}

// each calls do for each number below n, so many at once.
func each(n, atOnce int, do func(i int)) {
	var next atomic.Int64
	var work sync.WaitGroup
	for range atOnce {
		work.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	work.Wait()
}

// watch makes calls in a session while meanwhile runs, and returns how long each took. Each has to succeed.
func (c *client) watch(id string, meanwhile func()) (took []time.Duration) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		meanwhile()
	}()
	for n := 0; ; n++ {
		select {
		case <-over:
			return took
		case <-time.After(50 * time.Millisecond):
		}
		began := time.Now()
		a := args{"code": "y += 1; y - y", "session_id": id}
		if r, err := c.try(c.t.Context(), "execute_code", a); err != nil || r.Text != "0" {
			c.t.Errorf("the session that is awake: %v %+v", err, r)
			<-over
			return took
		}
		took = append(took, time.Since(began))
	}
}

func middle(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2].Round(100 * time.Microsecond)
}

// asleep counts the sessions that sleep by their images, which costs less than to ask for all sessions.
func (s *server) asleep() int {
	s.t.Helper()
	found, _ := filepath.Glob(filepath.Join(s.State, "frozen", "[^.]*"))
	return len(found)
}

// diskOf is how many bytes the files below a folder have.
func diskOf(t *testing.T, dir string) (total int64) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil {
			if st, err := e.Info(); err == nil && st.Mode().IsRegular() {
				total += st.Size()
			}
		}
		return nil
	})
	return total
}
