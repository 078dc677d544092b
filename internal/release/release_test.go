package release_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/release"
	"sandlot/internal/release/releasetest"
)

// TestChangelog: what is not released yet is part of the release that is made, and all earlier ones are there.
func TestChangelog(t *testing.T) {
	const text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n## [1.1.0] - 2026-11-01\n\n- Old.\n\n" +
		"## [1.0.0] - 2026-10-01\n\n- Oldest.\n"
	got, err := release.Changelog(text, "1.2.0")
	if err != nil || len(got) != 3 || got[0] != (release.Change{Version: "1.2.0", Text: "### Added\n\n- New."}) ||
		got[2] != (release.Change{Version: "1.0.0", Text: "- Oldest."}) {
		t.Errorf("%q, %v", got, err)
	}
	m := release.Manifest{Version: "1.2.0", Changes: got}
	for from, want := range map[string]int{"1.0.0": 2, "v1.1.0": 1, "1.2.0": 0, "1.2.0-rc.1": 1, "1a2b3c4": 3,
		"2.0.0": 0} {
		if n := len(m.Since(from)); n != want {
			t.Errorf("%d releases are newer than %s, want %d", n, from, want)
		}
	}
	if _, err := release.Changelog(text, "1.1.0"); err == nil ||
		!strings.Contains(err.Error(), "two sections of 1.1.0") {
		t.Errorf("something is not released, and the release is there: %v", err)
	}
	if _, err := release.Changelog(strings.Replace(text, "- New.", "", 1), "1.3.0"); err != nil {
		t.Errorf("a heading alone is text: %v", err)
	}
	if _, err := release.Changelog("# Changelog\n\n## [Unreleased]\n\n## [1.0.0]\n\n- x\n", "1.1.0"); err == nil {
		t.Error("a release of which nothing is said")
	}
}

// serve serves a folder on a loopback address.
func serve(t *testing.T, dir string) (url string) {
	t.Helper()
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	return s.URL
}

// install upgrades the programs in dir to those of a release, as far as package release does it.
func install(t *testing.T, at, signers, dir string) error {
	t.Helper()
	r, err := release.Open(t.Context(), at, signers)
	if err != nil {
		return err
	}
	u, err := release.Begin(dir)
	if err != nil {
		return err
	}
	defer u.Close()
	if err := u.Unpack(t.Context(), r); err != nil {
		return err
	}
	if err := u.Replace(); err != nil {
		return err
	}
	return u.Keep()
}

// installed makes a folder with programs.
func installed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sandlot", "sandlot-agent", "sandlot-runsc", "sandlot-notes.txt", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("old "+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// content are the files in a folder.
func content(t *testing.T, dir string) (all string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		data, readErr := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = readErr
		}
		all += e.Name() + "=" + string(bytes.TrimSpace(bytes.TrimPrefix(data, []byte("#!/bin/sh\n")))) + "\n"
	}
	if err != nil {
		t.Error(err)
	}
	return all
}

const (
	oldFiles = "other=old other\nsandlot=old sandlot\nsandlot-agent=old sandlot-agent\n" +
		"sandlot-notes.txt=old sandlot-notes.txt\nsandlot-runsc=old sandlot-runsc\n"
	newFiles = "other=old other\nsandlot=new main\nsandlot-notes.txt=old sandlot-notes.txt\nsandlot-runsc=new runsc\n"
)

func made(t *testing.T) string {
	t.Helper()
	return releasetest.Make(t, "1.2.3", map[string]string{"sandlot": releasetest.Script(t, "new main"),
		"sandlot-runsc": releasetest.Script(t, "new runsc"), "LICENSE": releasetest.Script(t, "text"),
		"../sandlot": releasetest.Script(t, "escaped")})
}

// TestReplace: programs are replaced, one that the release does not have goes, and other files stay.
func TestReplace(t *testing.T) {
	dir, from := installed(t), made(t)
	if err := install(t, from, "", dir); err != nil {
		t.Fatal(err)
	}
	if got := content(t, dir); got != newFiles {
		t.Error(got)
	}
	again := installed(t)
	if err := install(t, serve(t, from)+"/", "", again); err != nil {
		t.Fatal(err)
	}
	if got := content(t, again); got != newFiles {
		t.Error(got)
	}
}

// TestUndo: an upgrade that is not kept leaves the programs of before, also when it was killed between two
// of its steps.
func TestUndo(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *release.Upgrade, string){
		"closed": func(t *testing.T, u *release.Upgrade, _ string) {
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		},
		"killed": func(t *testing.T, u *release.Upgrade, dir string) {
			if _, err := release.Begin(dir); err == nil || !strings.Contains(err.Error(), "under way") {
				t.Errorf("two at a time: %v", err)
			}
			release.Abandon(u)
			next, err := release.Begin(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := next.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := installed(t)
			r, err := release.Open(t.Context(), made(t), "")
			if err != nil {
				t.Fatal(err)
			}
			u, err := release.Begin(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := u.Unpack(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if err := u.Replace(); err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(dir, "sandlot")); !strings.Contains(string(data), "new main") {
				t.Errorf("%q, %v", data, err)
			}
			end(t, u, dir)
			if got := content(t, dir); got != oldFiles {
				t.Error(got)
			}
		})
	}
}

// TestRefused: a release that is not what its checksums or its signer say changes nothing.
func TestRefused(t *testing.T) {
	change := func(t *testing.T, path string, f func([]byte) []byte) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, f(data), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flip := func(data []byte) []byte { data[len(data)/2] ^= 1; return data }
	half := func(data []byte) []byte { return data[:len(data)/2] }
	for name, c := range map[string]struct {
		harm func(t *testing.T, dir string) (signers string)
		want string
	}{
		"changed archive": {func(t *testing.T, dir string) string {
			change(t, releasetest.Archive(t, dir), flip)
			return ""
		}, "the checksum of sandlot_1.2.3_"},
		"half an archive": {func(t *testing.T, dir string) string {
			change(t, releasetest.Archive(t, dir), half)
			return ""
		}, "did not arrive whole"},
		"longer archive": {func(t *testing.T, dir string) string {
			change(t, releasetest.Archive(t, dir), func(data []byte) []byte { return append(data, data...) })
			return ""
		}, "has more bytes"},
		"changed manifest": {func(t *testing.T, dir string) string {
			change(t, filepath.Join(dir, release.ManifestName), flip)
			return ""
		}, "the checksum of release.json"},
		"half a list": {func(t *testing.T, dir string) string {
			change(t, filepath.Join(dir, release.SumsName), half)
			return ""
		}, "checksum"},
		"no list": {func(t *testing.T, dir string) string {
			os.Remove(filepath.Join(dir, release.SumsName))
			return ""
		}, "it has no checksums.txt"},
		"not signed": {func(t *testing.T, dir string) string {
			signers := releasetest.Sign(t, dir)
			os.Remove(filepath.Join(dir, release.SignatureName))
			return signers
		}, "is not signed"},
		"signed by another": {func(t *testing.T, dir string) string {
			signers := releasetest.Sign(t, dir)
			os.Remove(filepath.Join(dir, release.SignatureName))
			releasetest.Sign(t, dir)
			return signers
		}, "no signer in"},
		"changed after it was signed": {func(t *testing.T, dir string) string {
			signers := releasetest.Sign(t, dir)
			change(t, releasetest.Archive(t, dir), flip)
			releasetest.Describe(t, dir, "1.2.3", filepath.Base(releasetest.Archive(t, dir)))
			return signers
		}, "no signer in"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, from := installed(t), made(t)
			signers := c.harm(t, from)
			for _, at := range []string{from, serve(t, from)} {
				if err := install(t, at, signers, dir); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			}
			if got := content(t, dir); got != oldFiles {
				t.Error(got)
			}
		})
	}
	from := made(t)
	if err := install(t, serve(t, from), releasetest.Sign(t, from), installed(t)); err != nil {
		t.Errorf("signed: %v", err)
	}
}

// TestTransport: what is signed by nobody comes over HTTPS, or from this machine.
func TestTransport(t *testing.T) {
	if _, err := release.Open(t.Context(), "http://192.0.2.1/sandlot", ""); err == nil ||
		!strings.Contains(err.Error(), "use https") {
		t.Error(err)
	}
	var short http.HandlerFunc = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.Write([]byte("0123"))
	}
	s := httptest.NewServer(short)
	defer s.Close()
	if _, err := release.Open(t.Context(), s.URL, ""); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("a connection that is cut: %v", err)
	}
}

// TestCompare: a build from source is older than every version, also if the hash of its commit has digits only.
func TestCompare(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"1.2.3", "v1.2.3", 0}, {"1.10.0", "1.9.9", 1}, {"1.0.0-rc.1", "1.0.0", -1}, {"1.0.0+a", "1.0.0+b", 0},
		{"0.0.1", "3947336", 1}, {"0.0.1", "v3", 1}, {"0.0.1", "1.2", 1}, {"0.0.1", "dev", 1}, {"0.0.1", "", 1},
		{"3947336", "9947336", 0},
	} {
		if got := release.Compare(test.a, test.b); got != test.want {
			t.Errorf("%q and %q: %d, want %d", test.a, test.b, got, test.want)
		}
		if got := release.Compare(test.b, test.a); got != -test.want {
			t.Errorf("%q and %q: %d, want %d", test.b, test.a, got, -test.want)
		}
	}
}
