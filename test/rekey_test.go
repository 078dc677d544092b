package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRekey: the key of secrets is changed when no server runs, and they, sleeping sessions and snapshots are there
// with the new one. What sessions had in memory is in no file. Without the key they have their files, and it is said.
func TestRekey(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=false", "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_HIBERNATE_SEAL=true")
	key := filepath.Join(s.State, "secrets.key")
	if out, errs, code := s.cliIn("hunter2", "secret", "set", "A"); code != 0 {
		t.Fatal(out, errs)
	}
	first, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, errs, code := s.cli("secret", "rekey"); code != 1 ||
		!strings.Contains(errs, "another server uses the state folder") {
		t.Errorf("while a server runs: %d %s", code, errs)
	}
	c := s.connect(older, "", nil)
	id := c.code("new", "x = '-'.join(['in', 'memory', 'alone']) * 100; open('/workspace/f', 'w').write('kept')").session()
	c.call("snapshot_session", args{"session_id": id, "name": "kept"})
	s.stop() // the session sleeps
	s.holds("in-memory-alone")
	images := func() int {
		all, err := os.ReadDir(filepath.Join(s.State, "frozen"))
		if err != nil || len(all) < 2 {
			t.Fatalf("there are %d images of a session and a snapshot: %v", len(all), err)
		}
		return len(all)
	}
	out, errs, code := s.cli("secret", "rekey")
	if code != 0 || !strings.Contains(out, fmt.Sprintf("stored with it: %d; removed: 0", 1+images())) {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if second, err := os.ReadFile(key); err != nil || string(second) == string(first) {
		t.Errorf("the key is as it was: %v", err)
	}
	s.launch()
	if out, errs, code := s.cli("secret", "list"); code != 0 || strings.Contains(out, "cannot be read") ||
		!strings.HasPrefix(out, "A ") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	c = s.connect(older, "", nil)
	c.want(id, "x[:15]", "'in-memory-alone'")
	if r := c.call("restore_snapshot", args{"session_id": id, "name": "kept"}); !strings.Contains(r.All, "is what it was") {
		t.Errorf("the snapshot: %q", r.All)
	}
	c.want(id, "x[:15]", "'in-memory-alone'")
	s.stop()
	lostImages := images()
	lost, err := os.ReadFile(key)
	if err == nil {
		err = os.Remove(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.launch()
	if log := s.log.String(); !strings.Contains(log, "key of secrets that is gone") || !strings.Contains(log, fmt.Sprintf("lost=%d", lostImages)) {
		t.Errorf("what is lost is not said at the start: %s", log)
	}
	c = s.connect(older, "", nil)
	if r := c.code(id, "open('/workspace/f').read(), 'x' in globals()"); !strings.Contains(r.All, "('kept', False)") ||
		!strings.Contains(r.All, "sealed with a key that is gone") {
		t.Errorf("without the key: %q", r.All)
	}
	c.call("remove_snapshot", args{"name": "kept"})
	s.stop()
	if err := os.WriteFile(key, lost, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := s.cli("serve"); code != 1 || !strings.Contains(errs, "chmod 600 "+key) {
		t.Errorf("a key that all can read: %d %s", code, errs)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	s.launch()
}

// TestKeyOfTheEnvironment: the key of secrets comes from the environment; a wrong one, and none, are said at the start,
// and it is changed to another one.
func TestKeyOfTheEnvironment(t *testing.T) {
	t.Parallel()
	first, second := strings.Repeat("1f", 32), strings.Repeat("2e", 32)
	s := start(t, "SANDLOT_SNAPSHOTS=false", "SANDLOT_LOG_LEVEL=DEBUG",
		"SANDLOT_SECRETS_KEY="+first)
	if out, errs, code := s.cliIn("hunter2", "secret", "set", "A"); code != 0 {
		t.Fatal(out, errs)
	}
	if _, err := os.Stat(filepath.Join(s.State, "secrets.key")); err == nil {
		t.Error("there is a file")
	}
	s.stop()
	env := s.env
	with := func(settings ...string) { s.env = append(env[:len(env)-1:len(env)-1], settings...) }
	with("SANDLOT_SECRETS_KEY=" + second)
	if _, errs, code := s.cli("serve"); code == 0 || !strings.Contains(errs, "opens none of the 1 stored secrets") {
		t.Errorf("with a wrong key: %d %s", code, errs)
	}
	with("SANDLOT_SECRETS_KEY=" + first[2:])
	if _, errs, code := s.cli("serve"); code == 0 || !strings.Contains(errs, "32 random bytes") ||
		strings.Contains(errs, first[2:]) {
		t.Errorf("with no key: %d %s", code, errs)
	}
	with("SANDLOT_SECRETS_KEY=" + first)
	if _, errs, code := s.cli("secret", "rekey"); code == 0 || !strings.Contains(errs, "SANDLOT_SECRETS_NEW_KEY") {
		t.Errorf("without a new one: %d %s", code, errs)
	}
	with("SANDLOT_SECRETS_KEY="+first, "SANDLOT_SECRETS_NEW_KEY="+second)
	if out, errs, code := s.cli("secret", "rekey"); code != 0 || !strings.Contains(out,
		"stored with it: 1; removed: 0") || !strings.Contains(out, "SANDLOT_SECRETS_KEY") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	with("SANDLOT_SECRETS_KEY=" + second)
	s.launch()
	if got, errs, code := s.cli("exec", "--session", "home", "--env", "A=${secret:A}", "--", "sh", "-c",
		"echo $A"); code != 0 || got != "hunter2\n" {
		t.Errorf("%d %s%s", code, got, errs)
	}
	for _, value := range []string{first, second, "hunter2"} {
		s.holds(value)
	}
	if out, _, _ := s.cli("config"); strings.Contains(out, second) {
		t.Errorf("the settings show it: %s", out)
	}
}
