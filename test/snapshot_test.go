package test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSnapshot: a session goes back to what it was, with variables, processes and files, and copies of it live.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	testSnapshot(t, start(t, "SANDLOT_SNAPSHOTS=true"))
}

// TestSnapshotUnprivileged is the same with the server of a user who is not root.
func TestSnapshotUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("TestSnapshot is that already: this is an unprivileged user")
	}
	t.Parallel()
	testSnapshot(t, startUnprivileged(t, "SANDLOT_SNAPSHOTS=true"))
}

// ordinary is what a session of testSnapshot has, and returns it.
const ordinary = "x, y, open('/workspace/f').read(), open('/tmp/f').read(), f.read(), f.seek(0), " +
	"subprocess.run('pgrep -c sleep', shell=True, capture_output=True).stdout"

func testSnapshot(t *testing.T, s *server) {
	c := s.connect(older, "", nil)
	id := c.code("new", "import random, secrets, ssl, subprocess, uuid; x = 1; y = [x]\n"+
		"for p in '/workspace/f', '/tmp/f': open(p, 'w').write('old')\n"+
		"f = open('/workspace/f'); random.seed(7); _ = ssl.RAND_bytes(1)").session()
	if r := c.shell(id, "cat /proc/version"); !strings.Contains(strings.ToLower(r.All), "gvisor") {
		t.Fatalf("this is no sandbox: %q", r.All)
	}
	c.call("execute_command", args{"command": "sleep 1000", "background": true, "session_id": id})
	c.call("execute_code", args{"code": "const y = 1", "language": "javascript", "session_id": id})
	c.call("execute_code", args{"code": "Z=kept; RANDOM=5", "language": "bash", "session_id": id})
	const old = `(1, [1], 'old', 'old', 'old', 0, b'1\n')`
	c.want(id, ordinary, old)

	if out, errs, code := s.cli("snapshot", "create", id, "first"); code != 0 || out != "first\n" {
		t.Fatalf("making a snapshot: %d %q %q", code, out, errs)
	}
	c.want(id, ordinary, old) // it goes on
	s.goesBack(t, c, id, old)
	s.isCopied(t, c, id)
	s.staysAfterTheEnd(t, c, id, old)

	out, errs, code := s.cli("events", "--since", "1h", "--json")
	for _, e := range []string{"session.snapshotted", "session.restored", "session.forked"} {
		if code != 0 || !strings.Contains(out, `"`+e+`"`) {
			t.Errorf("the events have no %s: %d %q", e, code, errs)
		}
	}
}

// goesBack: what a session does after a snapshot is undone, whatever it is.
func (s *server) goesBack(t *testing.T, c *client, id, old string) {
	t.Helper()
	r := c.call("execute_code", args{"session_id": id, "snapshot_before": true, "code": "x = 2; y.append(2)\n" +
		"for p in '/workspace/f', '/tmp/f': open(p, 'w').write('new')\n" +
		"_ = subprocess.run('pkill sleep; rm /workspace/f', shell=True)"})
	before, _ := r.Fields["snapshot"].(string)
	if !strings.HasPrefix(before, "before-") || !strings.Contains(r.All, "snapshot before this call: "+before) {
		t.Errorf("a snapshot before a call: %q %q", before, r.All)
	}
	c.want(id, "x, y", "(2, [1, 2])")
	random := []string{}
	for _, name := range []string{"first", before, "first"} {
		if r := c.call("restore_snapshot", args{"name": name}); r.session() != id || r.IsError ||
			r.Fields["notice"] != nil {
			t.Fatalf("going back: %q", r.All)
		}
		c.want(id, ordinary, old)
		random = append(random, c.code(id, "random.random(), ssl.RAND_bytes(8)").Text)
		c.code(id, "x = 3; _ = subprocess.run('pkill sleep; rm /workspace/f', shell=True)")
	}
	if random[0] == random[2] || random[0] == random[1] {
		t.Errorf("the random numbers repeat: %q", random)
	}
	s.staysWhatItIs(t, c, id)
	c.call("restore_snapshot", args{"name": "first"})
}

// staysWhatItIs: a snapshot whose sandbox does not start takes nothing from a session that lives.
func (s *server) staysWhatItIs(t *testing.T, c *client, id string) {
	t.Helper()
	images := func() []string {
		all, _ := filepath.Glob(filepath.Join(s.State, "frozen", "*"))
		return all
	}
	before := images()
	c.call("snapshot_session", args{"session_id": id, "name": "damaged"})
	made := slices.DeleteFunc(images(), func(i string) bool { return slices.Contains(before, i) })
	if len(made) != 1 {
		t.Fatalf("the images of one snapshot: %q", made)
	}
	if err := os.WriteFile(filepath.Join(made[0], "checkpoint.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c.code(id, "x = 4")
	if _, err := c.try(t.Context(), "restore_snapshot", args{"name": "damaged"}); err == nil ||
		!strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("restoring what is damaged: %v", err)
	}
	if r := c.code(id, "x, y"); r.Text != "(4, [1])" || r.Fields["notice"] != nil {
		t.Errorf("after that: %q", r.All)
	}
	c.call("remove_snapshot", args{"name": "damaged"})
}

// randoms print random numbers of all kinds, each after "R:".
var randoms = map[string]string{
	"python": "for r in (random.random(), random.getrandbits(64), secrets.token_hex(8), ssl.RAND_bytes(8).hex(), " +
		"uuid.uuid4(), uuid.uuid1()): print('R:', r, sep='')\n" +
		"_ = subprocess.run('echo R:$(openssl ecparam -name prime256v1 -genkey -noout | sha256sum); " +
		"echo R:$(cat /proc/sys/kernel/random/uuid)', shell=True)",
	"bash": "echo R:$RANDOM$RANDOM$RANDOM; echo R:$(cat /proc/sys/kernel/random/uuid); " +
		"echo R:$(cat /proc/sys/kernel/random/boot_id)",
	"javascript": "const c = require('crypto'); for (const r of [Math.random(), c.randomBytes(8).toString('hex'), " +
		"c.randomUUID()]) console.log('R:' + r)",
}

var randomNumber = regexp.MustCompile(`R:(\S+)`)

// isCopied: copies have what the original has, do not share anything with it, and have random numbers of their own.
func (s *server) isCopied(t *testing.T, c *client, id string) {
	t.Helper()
	c.call("execute_code", args{"code": "z = 1", "language": "javascript", "session_id": id})
	r := c.call("fork_session", args{"session_id": id, "count": 3})
	all := []string{id}
	for _, copied := range r.Fields["copies"].([]any) {
		all = append(all, copied.(string))
	}
	if len(all) != 4 {
		t.Fatalf("there are these: %q", all)
	}
	if r := c.call("execute_code", args{"code": "z", "language": "javascript", "session_id": all[1]}); r.
		Fields["state_lost"] != true || !strings.Contains(r.All, "is a copy") {
		t.Errorf("JavaScript in a copy: %q", r.All)
	}
	for language, code := range randoms {
		seen := map[string]string{}
		for _, session := range all {
			r := c.call("execute_code", args{"code": code, "language": language, "session_id": session})
			numbers := randomNumber.FindAllString(r.All, -1)
			if r.IsError || len(numbers) < 2 {
				t.Errorf("%s in %s: %q", language, session, r.All)
			}
			for _, n := range numbers {
				if other, ok := seen[n]; ok {
					t.Errorf("%s and %s have the same random number in %s: %s", session, other, language, n)
				}
				seen[n] = session
			}
		}
	}
	for i, session := range all {
		if r := c.call("execute_code", args{"code": "echo $Z", "language": "bash", "session_id": session}); r.
			Text != "kept" {
			t.Errorf("bash in %s: %q", session, r.All)
		}
		c.code(session, fmt.Sprintf("x = %d; _ = open('/workspace/own', 'w').write('%d')", i, i))
	}
	for i, session := range all {
		c.want(session, "x, y, open('/workspace/own').read(), open('/workspace/f').read()",
			fmt.Sprintf("(%d, [1], '%d', 'old')", i, i))
	}
	for _, copied := range all[1:] {
		c.call("stop_session", args{"session_id": copied})
	}
	c.want(id, "x", "0")
	if out, errs, code := s.cli("sessions", "fork", id); code != 0 || len(strings.TrimSpace(out)) != 26 {
		t.Errorf("sandlot sessions fork: %d %q %q", code, out, errs)
	} else {
		c.call("stop_session", args{"session_id": strings.TrimSpace(out)})
	}
}

// staysAfterTheEnd: a snapshot outlives its session and the server, and is gone when it was removed.
func (s *server) staysAfterTheEnd(t *testing.T, c *client, id, old string) {
	t.Helper()
	c.call("stop_session", args{"session_id": id})
	s.stop()
	s.launch()
	c = s.connect(older, "", nil)
	if _, err := c.try(t.Context(), "restore_snapshot", args{"name": "first"}); err == nil ||
		!strings.Contains(err.Error(), "is gone") {
		t.Errorf("restoring into a session that is gone: %v", err)
	}
	r := c.call("restore_snapshot", args{"name": "first", "session_id": "new"})
	c.want(r.session(), ordinary, old)
	if r.session() == id || r.Fields["session_created"] != true {
		t.Errorf("a new session of a snapshot: %q", r.All)
	}
	out, errs, code := s.cli("snapshot", "list")
	if code != 0 || strings.Count(out, id) != 2 || !strings.Contains(out, "first  ") {
		t.Errorf("the list: %d %q %q", code, out, errs)
	}
	s.dropSnapshots(c)
	if out, errs, code := s.cli("snapshot", "list"); code != 0 || strings.Contains(out, id) {
		t.Errorf("the list is not empty: %d %q %q", code, out, errs)
	}
	until(t, "no image is left when the home has woken", func() bool {
		return !slices.ContainsFunc(s.left(), func(f string) bool { return strings.HasPrefix(f, "image") })
	})
	c.want(r.session(), "x", "1") // removing the snapshot takes nothing from it
}

func (s *server) dropSnapshots(c *client) {
	s.t.Helper()
	for _, e := range c.call("list_snapshots", nil).Fields["snapshots"].([]any) {
		if out, errs, code := s.cli("snapshot", "remove", e.(map[string]any)["name"].(string)); code != 0 {
			s.t.Errorf("removing a snapshot: %d %q %q", code, out, errs)
		}
	}
}

// TestSnapshotsOfOthers: nobody sees, restores, removes or copies what is another user's.
func TestSnapshotsOfOthers(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=true")
	ann, eve := s.token("ann"), s.token("eve")
	c, attacker := s.connect(older, ann, nil), s.connect(older, eve, nil)
	id := c.code("new", "key = 'secret'").session()
	c.call("snapshot_session", args{"session_id": id, "name": "mine"})
	own := attacker.code("home", "key = 'none'").session()
	for tool, a := range map[string]args{
		"snapshot_session": {"session_id": id, "name": "stolen"}, "fork_session": {"session_id": id},
		"restore_snapshot": {"name": "mine", "session_id": "new"}, "remove_snapshot": {"name": "mine"},
		"execute_code": {"session_id": id, "snapshot_before": true, "code": "key"},
	} {
		if r, err := attacker.try(t.Context(), tool, a); err == nil {
			t.Errorf("%s of another user: %q", tool, r.All)
		}
	}
	attacker.call("snapshot_session", args{"session_id": own, "name": "mine"}) // the name is another one
	if _, err := attacker.try(t.Context(), "restore_snapshot", args{"name": "mine", "session_id": id}); err == nil {
		t.Error("a snapshot went into another user's session")
	}
	for _, path := range []string{"/snapshots", "/fork"} {
		if code, _, text := s.request("POST", "/v1/sessions/"+id+path, nil, credentials(eve)...); code !=
			http.StatusNotFound {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if r := attacker.call("list_snapshots", nil); strings.Contains(r.All, id) || !strings.Contains(r.All, own) {
		t.Errorf("the attacker's list: %q", r.All)
	}
	attacker.call("restore_snapshot", args{"name": "mine"})
	attacker.want(own, "key", "'none'")
	attacker.call("remove_snapshot", args{"name": "mine"})
	c.call("restore_snapshot", args{"name": "mine"})
	c.want(id, "key", "'secret'")
	c.call("remove_snapshot", args{"name": "mine"})

	// A token that may run code alone makes no snapshot on the way.
	scoped := s.connect(older, s.token("ann", "--scope", "code.execute"), nil)
	a := args{"session_id": id, "snapshot_before": true, "code": "key"}
	if _, err := scoped.try(t.Context(), "execute_code", a); err == nil || !strings.Contains(err.Error(),
		"snapshot.create") {
		t.Errorf("a snapshot outside of the token's scope: %v", err)
	}
}

// TestCannotCopy: what cannot be copied says why.
func TestCannotCopy(t *testing.T) {
	t.Parallel()
	for says, setting := range map[string]string{"network.mode: open": "SANDLOT_NETWORK_MODE=open",
		"hibernate.enabled": "SANDLOT_HIBERNATE_ENABLED=false"} {
		s := start(t, "SANDLOT_AUTH=required", setting)
		c := s.connect(older, s.token("ann"), nil)
		id := c.code("home", "x = 1").session()
		for _, tool := range []string{"snapshot_session", "fork_session"} {
			_, err := c.try(t.Context(), tool, args{"session_id": id})
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s with %s: %v", tool, setting, err)
			}
		}
		c.want(id, "x", "1")
	}
}
