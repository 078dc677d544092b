package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRekey: the key of secrets is changed when no server runs, and they are there
// with the new one.
func TestRekey(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false")
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
	s.stop()
	out, errs, code := s.cli("secret", "rekey")
	if code != 0 || !strings.Contains(out, "stored with it: 1; removed: 0") {
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
	s.stop()
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
