package test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// keptKinds are the kinds of what a server with sessions that sleep and wake holds of the machine.
var keptKinds = []string{"MB", "goroutines", "descriptors", "processes", "mounts", "cgroups", "files"}

// keeps counts how much of each kind there is.
func (s *server) keeps(eye string) map[string]float64 {
	u := useAs(s.t, s, eye)
	k := map[string]float64{"MB": float64(u.memory >> 20), "goroutines": float64(u.goroutines),
		"descriptors": float64(u.files)}
	for _, l := range s.left() {
		switch kind, _, _ := strings.Cut(l, " "); kind {
		case "process":
			k["processes"]++
		case "mount":
			k["mounts"]++
		}
	}
	k["cgroups"] = float64(len(s.cgroups()))
	_ = filepath.WalkDir(s.State, func(string, fs.DirEntry, error) error { k["files"]++; return nil })
	return k
}

// TestSoakAsleep has sessions that sleep and wake at random, with work in between. The server holds no more in the last
// third of the time than in the first. It is slow on purpose, as other tests run beside it; SANDLOT_SOAK=1h makes it
// long, with 200 sessions and a call each second.
func TestSoakAsleep(t *testing.T) {
	t.Parallel()
	many, pause, long := 10, time.Second, 30*time.Second
	if d, err := time.ParseDuration(os.Getenv("SANDLOT_SOAK")); err == nil {
		many, pause, long = 200, time.Second, d
	}
	s := start(t, append(sleepy, fmt.Sprintf("MSB_MAX_SESSIONS=%d", 2*many))...)
	s.awaitImage()
	eye, c := s.token("eye", "--metrics"), s.connect(older, s.token("ann"), nil)
	ids, x := make([]string, many), make([]int, many)
	each(many, 2, func(i int) {
		ids[i] = c.code("new", "x = 0; _ = open('f', 'w').write('0'), open('g', 'w').write('0')").session()
	})
	s.allSleep(many)
	work := func() {
		i := rand.IntN(many)
		c.want(ids[i], "x, open('f').read()", fmt.Sprintf("(%d, '%d')", x[i], x[i]))
		x[i]++
		c.code(ids[i], fmt.Sprintf("x = %d; _ = open('f', 'w').write(str(x))", x[i]))
		if rand.IntN(4) == 0 {
			c.call("execute_command", args{"command": "cat f > g; sleep 1", "session_id": ids[i]})
		}
	}
	var samples []map[string]float64
	for began := time.Now(); time.Since(began) < long && !t.Failed(); time.Sleep(pause) {
		work()
		if len(samples) < int(time.Since(began)/pause) {
			samples = append(samples, s.keeps(eye))
		}
	}
	third := len(samples) / 3
	if third == 0 {
		t.Fatal("there was no time to see anything")
	}
	allowed := map[string]float64{"MB": 60, "goroutines": 15, "descriptors": 15, "processes": 6, "mounts": 2,
		"cgroups": 12, "files": 60}
	for _, kind := range keptKinds {
		early, late := mean(samples[:third], kind), mean(samples[len(samples)-third:], kind)
		t.Logf("%s: %.1f early, %.1f late", kind, early, late)
		if late > early+allowed[kind] {
			t.Errorf("%s grew from %.1f to %.1f", kind, early, late)
		}
	}
}

func mean(samples []map[string]float64, kind string) (sum float64) {
	for _, s := range samples {
		sum += s[kind]
	}
	return sum / float64(len(samples))
}
