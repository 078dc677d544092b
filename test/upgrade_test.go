package test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/release"
	"sandlot/internal/release/releasetest"
)

// buildVersion builds the server's program with another version, and returns its path.
func buildVersion(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandlot")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w -X sandlot/internal/app.Version="+version, "-o", path,
		"./cmd/sandlot")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// changedAgent returns a copy of an agent that differs: the one that a session has is replaced by it.
func changedAgent(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	changed := filepath.Join(t.TempDir(), "sandlot-agent")
	if err == nil {
		err = os.WriteFile(changed, append(data, 0), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// install copies the programs of `make build` into a folder, and returns their names.
func install(t *testing.T, dir string) (names []string) {
	t.Helper()
	built, err := filepath.Glob(filepath.Join(filepath.Dir(binary(t)), "sandlot*"))
	if err != nil || len(built) == 0 {
		t.Fatal(built, err)
	}
	for _, path := range built {
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Base(path))
	}
	return names
}

// laterVersion is the version of releases that tests upgrade to.
const laterVersion = "9.9.9"

// laterPrograms returns the programs of a later version, by their names.
func laterPrograms(t *testing.T) map[string]string {
	t.Helper()
	programs := map[string]string{}
	dir := t.TempDir()
	for _, name := range install(t, dir) {
		programs[name] = filepath.Join(dir, name)
	}
	programs["sandlot"] = buildVersion(t, laterVersion)
	programs["sandlot-agent"] = changedAgent(t, programs["sandlot-agent"])
	return programs
}

// laterRelease makes a release of a later version, and returns its folder.
func laterRelease(t *testing.T) string {
	t.Helper()
	return releasetest.Make(t, laterVersion, laterPrograms(t))
}

// TestUpgrade: a release replaces the programs of a server that runs, and its sessions live on in the next server. What
// is damaged, or does not work, changes nothing.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := install(t, dir)
	s := prepare(t)
	s.program = filepath.Join(dir, "sandlot")
	s.begin(nil)
	c := s.connect(newer, "", nil)
	session := c.code("home", "import os\nx = 'kept'\npid = os.getpid()\nopen('/workspace/f', 'w').write(x)").session()
	// Clients that are there before and after.
	held := map[string]*client{"stateful": s.connect(older, "", nil), "stateless": c, "stdio": s.stdio()}
	before, err := release.Sums(dir)
	if err != nil {
		t.Fatal(err)
	}

	programs := laterPrograms(t)
	good := releasetest.Make(t, "9.9.9", programs)
	programs["sandlot-runsc"] = releasetest.Script(t, "exit 1")
	unusable := releasetest.Make(t, "9.9.9", programs)
	// Of these no program is used, or none but the one that says its version.
	small := map[string]string{"sandlot": releasetest.Script(t, `echo '{"version":"9.9.9"}'`)}
	other := releasetest.Make(t, "9.9.8", small)
	half := releasetest.Make(t, "9.9.9", small)
	archive := releasetest.Archive(t, half)
	if info, err := os.Stat(archive); err != nil || os.Truncate(archive, info.Size()/2) != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.FileServer(http.Dir(good)))
	defer web.Close()

	for _, f := range []struct{ what, at, want string }{
		{"half an archive", half, "did not arrive whole"},
		{"another version", other, "and not 9.9.8"},
		{"no sandboxes", unusable, "the programs of before are put back"},
		{"no release", dir, "is not a release"},
		{"an address that anybody on the way can answer", "http://192.0.2.1/", "use https"},
	} {
		if _, errs, code := s.cli("upgrade", f.at, "--yes"); code != 1 || !strings.Contains(errs, f.want) {
			t.Errorf("%s: %d, want %q\n%s", f.what, code, f.want, errs)
		}
	}
	out, errs, code := s.cli("upgrade", web.URL, "--check")
	if code != 0 || !strings.Contains(out, "Sandlot 9.9.9, of 2026-11-24.") ||
		!strings.Contains(out, "- What is new in 9.9.9.") {
		t.Errorf("--check: %d %s %s", code, out, errs)
	}
	if _, errs, code := s.cli("upgrade", web.URL); code != 1 || !strings.Contains(errs, "--yes") {
		t.Errorf("nobody was there to ask: %d %s", code, errs)
	}
	same := func() bool {
		now, err := release.Sums(dir)
		if err != nil {
			t.Fatal(err)
		}
		equal := len(now) == len(before)
		for name, sum := range before {
			equal = equal && now[name] == sum
		}
		return equal
	}
	if !same() {
		t.Error("a program has changed")
	}

	out, errs, code = s.cli("upgrade", web.URL, "--yes")
	if code != 0 || !strings.Contains(out, "This is Sandlot 9.9.9 now.") ||
		!strings.Contains(out, "The server that runs is the one of before.") {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(names) || same() {
		t.Errorf("%v, %v", entries, err)
	}
	c.want(session, "x, pid == os.getpid()", "('kept', True)") // the server of before
	s.stop()
	transport.CloseIdleConnections()
	s.launch()
	until(t, "the new server says its version", func() bool { return strings.Contains(s.log.String(), "version=9.9.9") })
	for who, c := range held {
		t.Log("the next call of a client that is ", who)
		c.want(session, "x, pid == os.getpid()", "('kept', True)")
	}
	c = s.connect(older, "", nil)
	c.want(session, "x, pid == os.getpid(), open('/workspace/f').read()", "('kept', True, 'kept')")
	c.want(session, "import subprocess; subprocess.check_output(['echo', x])", `b'kept\n'`)
	c.want("new", "6*7", "42")
	if out, errs, code := s.cli("upgrade", web.URL, "--yes"); code != 0 || !strings.Contains(out, "already") {
		t.Errorf("again: %d %s %s", code, out, errs)
	}
	older := releasetest.Make(t, "9.9.8", small)
	if _, errs, code := s.cli("upgrade", older, "--yes"); code != 1 || !strings.Contains(errs, "older than this one") {
		t.Errorf("back: %d %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, release.ManagedName), []byte("deb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	newest := releasetest.Make(t, "9.10.0", small)
	if out, errs, code := s.cli("upgrade", newest, "--yes"); code != 1 || !strings.Contains(errs, "apt install") ||
		!strings.Contains(out, "What is new in 9.10.0") {
		t.Errorf("of a package: %d %s %s", code, out, errs)
	}
}
