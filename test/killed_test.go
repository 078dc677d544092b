package test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/runtime/gvisor/cgroup"
)

// killRunsc kills one process of the server's that is sandlot-runsc, if there is one.
func (s *server) killRunsc() {
	all := s.running()
	if len(all) == 0 {
		return
	}
	var pid int
	if _, err := fmt.Sscanf(all[rand.IntN(len(all))], "process %d", &pid); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// hit kills the server, one of its processes of sandlot-runsc (sandboxes among them), or both, and returns a client of
// the server that runs then, and what was killed.
func (s *server) hit(c *client) (*client, string) {
	what := rand.IntN(3)
	if what != 0 {
		s.killRunsc()
	}
	if what == 1 {
		return c, "runsc"
	}
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	return s.connect(older, "", nil), [...]string{0: "server", 2: "both"}[what]
}

// clearFiles is the pattern of the folders in which the server has the memory of sessions in clear while they fall asleep
// or wake.
func (s *server) clearFiles() string {
	sum := sha256.Sum256([]byte(filepath.Join(s.State, "frozen")))
	return "/dev/shm/sandlot-frozen-" + hex.EncodeToString(sum[:8]) + "-*"
}

// killClear kills the server at a moment at which the memory of a session is in clear, after begin. The next server, of
// which it returns a client, leaves nothing of that.
func (s *server) killClear(what string, c *client, begin func(c *client)) *client {
	s.t.Helper()
	for range 20 {
		begin(c)
		for seen, tries := 0, 0; seen == 0 && tries < 5000; tries++ {
			left, _ := filepath.Glob(s.clearFiles())
			seen = len(left)
			time.Sleep(time.Millisecond)
		}
		s.kill()
		clear, _ := filepath.Glob(s.clearFiles())
		transport.CloseIdleConnections()
		s.launch()
		c = s.connect(older, "", nil)
		for _, dir := range clear {
			if _, err := os.Lstat(dir); err == nil {
				s.t.Errorf("killed %s: the next server leaves %s", what, dir)
			}
		}
		if len(clear) > 0 {
			return c
		}
	}
	s.t.Errorf("%s: the server was never killed while memory was in clear", what)
	return c
}

// says runs code in a session, again if it ends with its sandbox, and returns what that says, and whether it is told
// that its variables are gone.
func (c *client) says(id, code string) (text string, told bool) {
	c.t.Helper()
	var r *result
	var err error
	for range 20 {
		r, err = c.try(c.t.Context(), "execute_code", args{"code": code, "session_id": id})
		if err == nil {
			return r.Text, told || strings.Contains(r.All, "are gone")
		}
		told = told || strings.Contains(err.Error(), "are gone")
		time.Sleep(200 * time.Millisecond)
	}
	c.t.Fatalf("%s: %v", id, err)
	return "", false
}

// TestKilledAsleep kills the server, or processes of sandlot-runsc, sandboxes among them, again and again while
// sessions fall asleep and wake. Each session has its variables afterwards, or its user is told that they are gone;
// nothing is left.
func TestKilledAsleep(t *testing.T) {
	t.Parallel()
	s := start(t, append(sleepy[:len(sleepy):len(sleepy)], "SANDLOT_HIBERNATE_SEAL=true")...)
	c := s.connect(older, "", nil)
	sessions := map[string]int{} // what x is
	for range 3 {
		sessions[c.code("new", "x = 0\nopen('/workspace/f', 'w').write('kept')").session()] = 0
	}
	kept, slept, lost, rounds := 0, 0, 0, numberOf(t, "SANDLOT_KILLS", 8)
	for round := range rounds {
		time.Sleep(time.Duration(500+rand.IntN(1500)) * time.Millisecond)
		c, _ = s.hit(c)
		for id, x := range sessions {
			if sessionStatus(c, id) == "hibernated" {
				slept++
			}
			switch text, told := c.says(id, "globals().get('x')"); {
			case told:
				lost++
			case text == fmt.Sprint(x):
				kept++
			default:
				t.Errorf("round %d: x is %q, not %d, and nobody was told", round, text, x)
			}
			sessions[id] = round
			if r := c.code(id, fmt.Sprintf("x = %d; open('/workspace/f').read()", round)); !strings.Contains(r.All,
				"'kept'") {
				t.Errorf("round %d: its files are gone: %q", round, r.All)
			}
		}
	}
	ids := slices.Collect(maps.Keys(sessions))
	c = s.killClear("while sessions fall asleep", c, func(c *client) {
		for _, id := range ids {
			c.says(id, "0")
		}
	})
	s.killClear("while a session wakes", c, func(c *client) {
		for _, id := range ids {
			until(t, "it sleeps", func() bool { return sessionStatus(c, id) == "hibernated" })
		}
		go func() { _, _ = c.try(t.Context(), "execute_code", args{"code": "0", "session_id": ids[0]}) }()
	})
	t.Logf("variables were kept %d times, and lost %d times; %d times a session slept", kept, lost, slept)
	if kept < rounds || slept == 0 {
		t.Errorf("variables were kept %d times, and %d times a session slept", kept, slept)
	}
}

// TestKilledCopying kills the server, or processes of sandlot-runsc, again and again while snapshots are made and
// restored, and sessions copied. Each session, new ones too, and each snapshot has one of its states afterwards, or its
// user is told that variables are gone, and nothing is left of what was not finished.
func TestKilledCopying(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=true")
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 0; _ = open('/workspace/f', 'w').write('0')").session()
	c.call("snapshot_session", args{"session_id": id, "name": "zero"})
	const zero = "(0, '0')"
	seen := map[string]int{}
	for round := 1; round <= numberOf(t, "SANDLOT_KILLS", 5); round++ {
		state := fmt.Sprintf("(%d, '%d')", round, round)
		c.says(id, fmt.Sprintf("x = %d; _ = open('/workspace/f', 'w').write('%d')", round, round))
		op := []struct {
			tool string
			args args
		}{{"snapshot_session", args{"session_id": id, "name": "made"}}, {"restore_snapshot", args{"name": "zero"}},
			{"fork_session", args{"session_id": id, "count": 2}},
			{"restore_snapshot", args{"name": "zero", "session_id": "new"}},
		}[round%4]
		ended := make(chan string)
		go func(c *client) {
			r, err := c.try(t.Context(), op.tool, op.args)
			if err != nil {
				ended <- err.Error()
				return
			}
			notice, _ := r.Fields["notice"].(string)
			ended <- notice
		}(c)
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
		var killed string
		c, killed = s.hit(c)
		said := <-ended
		what := fmt.Sprintf("round %d, %s, killed %s", round, op.tool, killed)
		for _, id := range c.others("") {
			text, told := c.says(id, "globals().get('x'), open('/workspace/f').read()")
			if told = told || strings.Contains(said, "are gone"); !told && text != state && text != zero {
				t.Errorf("%s: %q in %s, and nobody was told (the call said %q)", what, text, id, said)
			}
			seen[fmt.Sprintf("%s, killed %s: told %t", op.tool, killed, told)]++
		}
		c.says("home", "1") // it may be what was hit
		s.ownsAll(t, c, what, id)
		s.restores(c, what, state, said)
	}
	t.Log(seen)
	c.call("restore_snapshot", args{"name": "zero"})
	c.want(id, "x, open('/workspace/f').read()", zero)
	s.dropSnapshots(c)
}

// others are the ids of the client's sessions, without its home and that one.
func (c *client) others(id string) (found []string) {
	for _, e := range c.call("get_sessions", nil).Fields["sessions"].([]any) {
		if m := e.(map[string]any); m["session_id"] != id && m["home"] != true {
			found = append(found, m["session_id"].(string))
		}
	}
	return found
}

// restores checks that the snapshot of TestKilledCopying, if it was made, is whole, and removes it. It has no variables
// where the call said so: what was killed was killed before.
func (s *server) restores(c *client, what, state, said string) {
	s.t.Helper()
	if !strings.Contains(fmt.Sprint(c.call("list_snapshots", nil).Fields["snapshots"]), "name:made") {
		return
	}
	r := c.call("restore_snapshot", args{"name": "made", "session_id": "new"})
	text, _ := c.says(r.session(), "globals().get('x'), open('/workspace/f').read()")
	if _, file, _ := strings.Cut(state, ", "); text != state &&
		(text != "(None, "+file || !strings.Contains(said, "are gone")) {
		s.t.Errorf("%s: the snapshot has %q, not %q; the call said %q", what, text, state, said)
	}
	c.call("stop_session", args{"session_id": r.session()})
	c.call("remove_snapshot", args{"name": "made"})
}

// ownsAll ends all sessions but one, and checks that each image, workspace and sandbox belongs to a snapshot or a
// session, and each cgroup and each process to a sandbox.
func (s *server) ownsAll(t *testing.T, c *client, what, id string) {
	t.Helper()
	for _, other := range c.others(id) {
		c.call("stop_session", args{"session_id": other})
	}
	count := func(tool, list string) []any { return c.call(tool, nil).Fields[list].([]any) }
	var images, workspaces, sandboxes, strays []string
	var sessions, snapshots []any
	for range 300 {
		sessions, snapshots = count("get_sessions", "sessions"), count("list_snapshots", "snapshots")
		images, _ = filepath.Glob(filepath.Join(s.State, "frozen", "*"))
		workspaces, _ = filepath.Glob(filepath.Join(s.State, "workspaces", strings.Repeat("?", 26)))
		sandboxes, strays = s.folders(), s.strays()
		if len(images) == len(snapshots) && len(workspaces) == len(snapshots)+len(sessions) &&
			len(sandboxes) == len(sessions) && len(strays) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s: sessions %v, snapshots %v, images %q, workspaces %q, sandboxes %q, and these are nobody's: %q", what,
		sessions, snapshots, images, workspaces, sandboxes, strays)
}

// strays are the processes of sandlot-runsc and the cgroups that belong to no sandbox of the server's.
func (s *server) strays() (found []string) {
	folders := s.folders()
	owned := func(text string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return strings.Contains(text, filepath.Base(f)) })
	}
	for _, p := range s.running() {
		line, err := os.ReadFile("/proc/" + strings.TrimPrefix(p, "process ") + "/cmdline")
		if err == nil && len(line) > 0 && !owned(string(line)) {
			found = append(found, p)
		}
	}
	for _, g := range s.cgroups() {
		if !owned(g) {
			found = append(found, "cgroup "+g)
		}
	}
	return found
}

// cgroups are the cgroups of sandboxes of the server's.
func (s *server) cgroups() (found []string) {
	for _, instance := range cgroup.Find(s.State).Dirs("") {
		groups, _ := filepath.Glob(filepath.Join(instance, strings.Repeat("[a-z0-9]", 26)))
		found = append(found, groups...)
	}
	return found
}
