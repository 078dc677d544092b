package test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// soak is how long TestSoak runs; SANDLOT_SOAK=10m makes it long.
func soak(t *testing.T) time.Duration {
	d, err := time.ParseDuration(os.Getenv("SANDLOT_SOAK"))
	if err != nil {
		d = 10 * time.Second
	}
	return d
}

// numberOf is how many of something a test has: what the variable says, with which the campaign makes them many.
func numberOf(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(variable), strconv.Itoa(otherwise)))
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is not a number", variable, os.Getenv(variable))
	}
	return n
}

// usage is what the server holds of the machine.
type usage struct {
	memory                       int64
	goroutines, files, sandboxes int
}

func use(t *testing.T, s *server) usage {
	t.Helper()
	return useAs(t, s, s.token("eye", "--metrics"))
}

// useAs is use with a token that may see the metrics.
func useAs(t *testing.T, s *server, eye string) usage {
	t.Helper()
	u := usage{memory: memory(t, s.cmd.Process.Pid), sandboxes: len(boxes(t, s))}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	u.files = len(fds)
	_, _, text := s.request("GET", "/metrics", nil, "Authorization", "Bearer "+eye)
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			fmt.Sscan(v, &u.goroutines)
		}
	}
	return u
}

// TestSoak has 20 clients at work, in sessions that come and go. At the end the
// server holds no more than at the beginning.
func TestSoak(t *testing.T) {
	t.Parallel()
	s := start(t, append(asShipped, "MSB_MAX_SESSIONS=100", "MSB_CLEANUP_INTERVAL=1")...)
	users := make([]string, 4)
	for i := range users {
		users[i] = s.token(fmt.Sprintf("user%d", i))
	}
	round := func(c *client, session string, n int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		for tool, a := range map[string]args{
			"execute_code":       {"code": fmt.Sprintf("x = %d\nx + 1", n)},
			"execute_command":    {"command": "echo hi; echo there >&2"},
			"sandbox_write_file": {"path": "f", "content": strings.Repeat("x", 1000)},
			"list_processes":     {},
		} {
			a["session_id"] = session
			if r, err := c.try(ctx, tool, a); err != nil || r.IsError {
				return fmt.Errorf("%s: %v %v", tool, r, err)
			}
		}
		if r, err := c.try(ctx, "execute_code", args{"code": "x", "session_id": session}); err != nil ||
			r.Text != fmt.Sprint(n) {
			return fmt.Errorf("x is %v, %v, want %d", r, err, n)
		}
		return nil
	}
	var calls atomic.Int64
	spell := func(d time.Duration) {
		var all sync.WaitGroup
		stop := time.Now().Add(d)
		for i := range 20 {
			all.Go(func() {
				c := s.connect(map[bool]string{true: older, false: newer}[i%2 == 0], users[i%len(users)], nil)
				defer c.Close()
				for n := 0; time.Now().Before(stop); n++ {
					r, err := c.try(context.Background(), "execute_code", args{"code": "1", "session_id": "new"})
					if err != nil {
						t.Error(err)
						return
					}
					id := r.session()
					for range 5 {
						if err := round(c, id, n); err != nil {
							t.Error(err)
							return
						}
						calls.Add(5)
					}
					c.try(context.Background(), "stop_session", args{"session_id": id})
				}
			})
		}
		all.Wait()
		transport.CloseIdleConnections()
	}
	quiet := func() usage {
		var u usage
		for range 100 { // until what ended is gone, and the pool is full
			if u = use(t, s); u.sandboxes == 2+len(users) || u.sandboxes == 2 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		return u
	}
	spell(10 * time.Second)
	before := quiet()
	spell(soak(t))
	after := quiet()
	t.Logf("%d calls; before %+v, after %+v", calls.Load(), before, after)
	if after.goroutines > before.goroutines+40 || after.files > before.files+30 || after.memory > before.memory+
		80<<20 || after.sandboxes > before.sandboxes {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// TestManySessions has many live sessions at once. SANDLOT_SESSIONS=100 makes them more.
func TestManySessions(t *testing.T) {
	t.Parallel()
	many := numberOf(t, "SANDLOT_SESSIONS", 15)
	s := start(t, "MSB_MAX_SESSIONS=200")
	c := s.connect(older, "", nil)
	ids := make([]string, many)
	var all sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.NumCPU())
	began := time.Now()
	for i := range many {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			r, err := c.try(context.Background(), "execute_code",
				args{"code": fmt.Sprintf("x = %d", i), "session_id": "new"})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = r.session()
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d sessions after %v", many, time.Since(began).Round(time.Millisecond))
	for i, id := range ids {
		c.want(id, "x", fmt.Sprint(i))
	}
	live := 0
	for _, e := range c.call("get_sessions", nil).Fields["sessions"].([]any) {
		if e.(map[string]any)["status"] != "stopped" {
			live++
		}
	}
	if live < many {
		t.Errorf("%d sessions are live", live)
	}
}
