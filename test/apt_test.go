package test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAptInstall: in the template host apt-get installs over the machine's packages, into the sandbox alone. What was
// installed sleeps, wakes, and is in a fork; the machine has nothing of it.
func TestAptInstall(t *testing.T) { testAptInstall(t, start) }

// TestAptInstallUnprivileged is TestAptInstall on a server without root.
func TestAptInstallUnprivileged(t *testing.T) { testAptInstall(t, startUnprivileged) }

func testAptInstall(t *testing.T, begin func(*testing.T, ...string) *server) {
	if _, err := os.Stat("/var/lib/dpkg/status"); err != nil {
		t.Skip("the machine is not Debian")
	}
	t.Parallel()
	s := begin(t, append(registries(), "SANDLOT_PACKAGES_APT=true", "SANDLOT_POOL_SIZE=1", "SANDLOT_SNAPSHOTS=true")...)
	until(t, "the lists are fetched", func() bool { return strings.Contains(s.log.String(), "the ready packages are there") })
	c := s.connect(older, "", nil)
	id := ""
	until(t, "a new sandbox has them", func() bool {
		r := c.shell("new", "test -s /var/lib/dpkg/status && echo there")
		id = r.session()
		return r.Text == "there"
	})
	proven(t, c, id)
	canary := filepath.Join("/usr/local/share", "sandlot-canary-"+id)
	if err := os.WriteFile(canary, []byte("canary\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(canary)
	// hello is a small package of the archive, which no machine needs.
	installed := func() string { return c.shell(id, "hello; dpkg -s hello | grep Status").Text }
	_, had := os.Stat("/usr/bin/hello")
	r := c.call("execute_command", args{"command": "sudo apt-get update -q >/tmp/u 2>&1; echo $?; sudo apt-get install -y hello " +
		">/tmp/i 2>&1; echo $?; tail -5 /tmp/u /tmp/i", "session_id": id, "timeout": 280})
	if !strings.HasPrefix(r.Text, "0\n0\n") {
		t.Fatalf("%s", r.All)
	}
	const want = "Hello, world!\nStatus: install ok installed"
	if got := installed(); got != want {
		t.Errorf("installed: %q", got)
	}
	if _, err := os.Stat("/usr/bin/hello"); errors.Is(had, os.ErrNotExist) && err == nil {
		t.Error("the machine has it")
	}
	// System folders are the sandbox's own to change, and nobody else's.
	if r := c.shell(id, "cat "+canary+" && rm "+canary+" && mkdir "+canary+" && echo mine > "+canary+"/x && ls "+canary); r.Text != "canary\nx" {
		t.Errorf("%q", r.All)
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "canary\n" {
		t.Fatalf("a sandbox has changed the machine: %q %v", text, err)
	}
	if r := c.shell("new", "cat "+canary); r.Text != "canary" {
		t.Errorf("another session: %q", r.All)
	}
	s.restart()
	c = s.connect(older, "", nil)
	if got := installed(); got != want {
		t.Errorf("after a restart: %q", got)
	}
	// An update that gets nothing does not end well.
	if r := c.shell(id, "echo 'deb http://nobody.invalid/debian x main' > /etc/apt/sources.list; apt-get update >/dev/null 2>&1; echo $?"); r.Text == "0" {
		t.Errorf("an update without lists: %q", r.All)
	}
	if found, _ := filepath.Glob(filepath.Join(s.State, "packages/apt/*/dpkg/status")); len(found) != 1 {
		t.Errorf("%q", found)
	}
}
