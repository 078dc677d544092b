package test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAgentInside: a server without the program sandlot-agent beside it has its own, in one file for all sandboxes. Of
// what earlier versions have left there, it removes what no sandbox has.
func TestAgentInside(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	dir, agents := t.TempDir(), filepath.Join(s.State, "agents")
	for _, name := range []string{"sandlot", "sandlot-runsc"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(binary(t)), name))
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	old := filepath.Join(agents, "sandlot-agent-amd64-0123456789abcdef")
	past := time.Now().Add(-24 * time.Hour)
	if err := errors.Join(os.Mkdir(agents, 0o700), os.WriteFile(old, nil, 0o755),
		os.Chtimes(old, past, past)); err != nil {
		t.Fatal(err)
	}
	s.program = filepath.Join(dir, "sandlot")
	s.begin([]string{"SANDLOT_SNAPSHOTS=false"})
	c := s.connect(newer, "", nil)
	id := c.want("new", "x = 6 * 7; x", "42").session()
	c.want("home", "6 * 7", "42")
	file := func() string {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(agents, "*"))
		if err != nil || len(left) != 1 || left[0] == old {
			t.Fatalf("in the folder of agents: %q, %v", left, err)
		}
		return left[0]
	}
	first := file()
	records, _ := filepath.Glob(filepath.Join(s.State, "sandboxes", "*", "sandbox.json"))
	for _, r := range records {
		if text, err := os.ReadFile(r); err == nil && !strings.Contains(string(text), filepath.Base(first)) {
			t.Errorf("a record does not name the agent: %s", text)
		}
	}
	if len(records) < 2 {
		t.Errorf("%d records", len(records))
	}

	s.kill()
	// As if the server that follows were of a later version.
	earlier := filepath.Join(agents, "sandlot-agent-amd64-fedcba9876543210")
	text, err := os.ReadFile(records[0])
	renamed := strings.ReplaceAll(string(text), filepath.Base(first), filepath.Base(earlier))
	if err = errors.Join(err, os.WriteFile(records[0], []byte(renamed), 0o600), os.WriteFile(earlier, nil, 0o755),
		os.Chtimes(earlier, past, past), os.WriteFile(old, nil, 0o755), os.Chtimes(old, past, past)); err != nil {
		t.Fatal(err)
	}
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(newer, "", nil)
	c.want(id, "x", "42")
	c.want("new", "6 * 7", "42")
	if _, err := os.Stat(earlier); err != nil {
		t.Errorf("the agent of an earlier server's sandbox: %v", err)
	}
	if err := os.Remove(earlier); err != nil {
		t.Fatal(err)
	}
	if again := file(); again != first {
		t.Errorf("the agent is %s, and was %s", again, first)
	}
}
