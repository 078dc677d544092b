package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSettingsAppear: a settings file that was not there at the start is followed
// when it comes, goes and comes back, and what waits for a restart is told once.
func TestSettingsAppear(t *testing.T) {
	odd, err := filepath.Abs("servers/odd.py")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t)
	c := s.connect(newer, "", nil)
	file := filepath.Join(s.State, "sandlot.yaml")
	section := func(name, more string) string {
		return more + "mcp:\n  " + name + ": {command: python3, args: [" + odd + ", plain, " + name + "], where: host}\n"
	}
	put := func(text string) { // as editors do
		t.Helper()
		rewrite(t, file+".new", text)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	has := func(name string) func() bool {
		return func() bool { return c.toolNames()["ext_"+name+"_say"] != nil }
	}
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(s.log.String(), text) }
	}
	waits := `level=WARN msg="settings of the file hold from the next start of the server on" settings=`

	rewrite(t, file, "mcp: [nonsense\n")
	until(t, "a wrong file is told of", logged("the changed settings are wrong"))
	put(section("one", "max_sessions: 7\nflavors: {tiny: {cpus: 1, memory_mb: 256}}\nnetwork: {mode: none}\n"))
	until(t, "a file that appears is taken up", has("one"))
	until(t, "the log says what", logged(`msg="the settings file is taken up" file=`+file+` changed="mcp, network.mode"`))
	until(t, "and what waits", logged(waits+`"flavors, max_sessions"`))
	if out, errs, code := s.cli("network"); code != 0 || !strings.Contains(out, file) || !strings.Contains(out, "none") {
		t.Errorf("sandlot network: %d %s%s", code, out, errs)
	}

	put(section("two", "max_sessions: 8\nflavors: {tiny: {cpus: 1, memory_mb: 256}}\n"))
	until(t, "it is followed", func() bool { return has("two")() && !has("one")() })
	time.Sleep(200 * time.Millisecond) // for the log
	if n := strings.Count(s.log.String(), waits); n != 1 {
		t.Errorf("what waits is told %d times\n%s", n, s.log)
	}

	if err := os.Rename(file, file+".old"); err != nil {
		t.Fatal(err)
	}
	until(t, "the log says that it is gone", logged("the settings file is gone, or empty"))
	if !has("two")() {
		t.Error("a file that is gone took servers away")
	}
	if err := os.Rename(file+".old", file); err != nil {
		t.Fatal(err)
	}
	put(section("three", ""))
	until(t, "it is followed when it is back", func() bool { return has("three")() && !has("two")() })
	put(section("three", "max_sessions: 7\n"))
	until(t, "what waits again is told again", logged(waits+"max_sessions"))
}

// TestSettingsOfASandbox: a settings file that a sandbox can write is not taken
// up by a server that runs, wherever a start would read it.
func TestSettingsOfASandbox(t *testing.T) {
	shared, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	state, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, State: state, dir: shared, log: &logBuffer{}, program: binary(t)}
	s.begin([]string{"SANDLOT_VOLUMES=" + shared + ":/data"})
	c := s.connect(newer, "", nil)
	trap := filepath.Join(shared, "trap")
	c.code("", `open("/data/sandlot.yaml", "w").write("mcp: {evil: {command: touch, args: ['`+trap+`'], where: host}}\n")`)
	until(t, "the log says so", func() bool { return strings.Contains(s.log.String(), "sandboxes can write it") })
	if row := c.state("evil"); row != nil {
		t.Errorf("it was taken up: %v", row)
	}
	c.toolNames() // which starts servers
	if _, err := os.Stat(trap); err == nil {
		t.Error("a sandbox ran a program on the machine")
	}
}
