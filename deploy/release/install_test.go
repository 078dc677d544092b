package main

import (
	"fmt"
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

// installer runs deploy/install.sh as a user whose home is a folder of the test.
type installer struct {
	home string
	path string // in front of the path
}

func (i installer) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"../install.sh"}, args...)...)
	cmd.Env = []string{"HOME=" + i.home, "PATH=" + i.path + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// names are those of the files in a folder, also of hidden ones.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func made(t *testing.T, version string) string {
	t.Helper()
	return releasetest.Make(t, version, map[string]string{
		"sandlot":       releasetest.Script(t, `[ "$1" = version ] && echo sandlot `+version),
		"sandlot-runsc": releasetest.Script(t, "echo runsc "+version)})
}

func serve(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// TestInstallIsNoDowngrade: an older release, signed or not, replaces no newer one unless that is asked for.
func TestInstallIsNoDowngrade(t *testing.T) {
	i := installer{home: t.TempDir()}
	for _, c := range []struct {
		present, release string
		refused          bool
	}{
		{"2.0.0", "1.0.0", true}, {"1.10.0", "1.9.9", true}, {"1.0.0", "1.0.0-rc.1", true},
		{"1.0.0-rc.10", "1.0.0-rc.9", true}, {"1.0.0-rc.1", "1.0.0-rc", true}, {"1.0.0-beta", "1.0.0-2", true},
		{"1.0.0", "1.0.0", false}, {"1.0.0-rc.9", "1.0.0-rc.10", false}, {"1.9.9", "1.10.0", false},
		{"1.0.0-rc.1", "1.0.0", false}, {"0.0.0+x", "0.0.0+y", false}, {"unknown", "1.0.0", false},
	} {
		bin := t.TempDir()
		program := "#!/bin/sh\necho sandlot " + c.present + "\n"
		if err := os.WriteFile(filepath.Join(bin, "sandlot"), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		release := made(t, c.release)
		args := []string{"--from", release, "--to", bin, "--signers", releasetest.Sign(t, release)}
		out, err := i.run(t, args...)
		if (err != nil) != c.refused || c.refused && !strings.Contains(out, "--downgrade") {
			t.Errorf("%s over %s: %v\n%s", c.release, c.present, err, out)
		}
		text, _ := os.ReadFile(filepath.Join(bin, "sandlot"))
		if kept := string(text) == program; kept != c.refused || names(t, bin) == "" {
			t.Errorf("%s over %s: the program of before is there: %v", c.release, c.present, kept)
		}
		if c.refused {
			if out, err := i.run(t, append(args, "--downgrade")...); err != nil {
				t.Errorf("%s over %s, as asked for: %v\n%s", c.release, c.present, err, out)
			}
		}
	}
}

// TestInstall: the script installs a release of a folder and of a web server, and replaces the programs that are there.
func TestInstall(t *testing.T) {
	i := installer{home: t.TempDir()}
	bin := filepath.Join(t.TempDir(), "with space", "bin")
	first, second := made(t, "1.2.3"), made(t, "1.3.0")
	signers := releasetest.Sign(t, second)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--from", first, "--to", bin}, "sandlot 1.2.3 is installed: " + bin + "/sandlot\n"},
		{[]string{"--from", serve(t, http.FileServer(http.Dir(second))) + "/", "--to", bin},
			"sandlot 1.3.0 is installed"},
		{[]string{"--from", first, "--to", bin, "--downgrade"}, "sandlot 1.2.3 is installed"},
		{[]string{"--from", second, "--to", bin, "--signers", signers}, "sandlot 1.3.0 is installed"},
	} {
		out, err := i.run(t, c.args...)
		if err != nil || !strings.Contains(out, c.want) || !strings.Contains(out, "is not on your PATH") {
			t.Fatalf("%v: %v\n%s", c.args, err, out)
		}
		if got := names(t, bin); got != "sandlot sandlot-runsc" {
			t.Fatalf("%v: %s", c.args, got)
		}
	}
	if out, err := exec.Command(filepath.Join(bin, "sandlot-runsc")).Output(); string(out) != "runsc 1.3.0\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestInstallAsUser: without --to a user's programs go into the user's own folder.
func TestInstallAsUser(t *testing.T) {
	i := installer{home: t.TempDir(), path: t.TempDir()}
	id := releasetest.Script(t, "echo 1000")
	if err := os.Rename(id, filepath.Join(i.path, "id")); err != nil {
		t.Fatal(err)
	}
	if out, err := i.run(t, "--from", made(t, "1.2.3")); err != nil ||
		!strings.Contains(out, i.home+"/.local/bin/sandlot\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInstallRefuses: where anything is wrong the script says what, and leaves everything as it was.
func TestInstallRefuses(t *testing.T) {
	edit := func(path string, f func([]byte) []byte) {
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
	good, changed, half := made(t, "1.2.3"), made(t, "1.2.3"), made(t, "1.2.3")
	edit(releasetest.Archive(t, changed), flip)
	edit(releasetest.Archive(t, half), func(data []byte) []byte { return data[:len(data)/2] })
	broken := releasetest.Make(t, "1.2.3", map[string]string{"sandlot": releasetest.Script(t, "exit 3")})
	choosy := releasetest.Make(t, "1.2.3", map[string]string{
		"sandlot":       releasetest.Script(t, "case $0 in */new/*) echo ok ;; *) exit 1 ;; esac"),
		"sandlot-agent": releasetest.Script(t, "echo agent")})
	unsigned := made(t, "1.2.3")
	signers := releasetest.Sign(t, unsigned)
	edit(filepath.Join(unsigned, release.SumsName), flip)
	byWeb := serve(t, http.FileServer(http.Dir(changed)))
	noArchive := t.TempDir()
	if err := os.WriteFile(filepath.Join(noArchive, "sandlot_1.2.3_plan9_amd64.tar.gz"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := release.WriteSums(noArchive); err != nil {
		t.Fatal(err)
	}
	// A server that stops in the middle of the archive, whose connection ends.
	cut := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(filepath.Join(good, filepath.Base(r.URL.Path)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if strings.HasSuffix(r.URL.Path, ".gz") {
			data = data[:len(data)/2]
		}
		w.Write(data)
	})
	// uname says what machine this is.
	machine := func(kernel, processor string) string {
		dir := t.TempDir()
		line := fmt.Sprintf(`case $1 in -s) echo %s ;; -m) echo %s ;; esac`, kernel, processor)
		if err := os.Rename(releasetest.Script(t, line), filepath.Join(dir, "uname")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, c := range map[string]struct {
		args []string
		path string
		want string
	}{
		"no release":           {nil, "", "which release?"},
		"unknown argument":     {[]string{"--form", good}, "", "unknown argument --form"},
		"changed":              {[]string{"--from", changed}, "", "the checksum of sandlot_1.2.3_"},
		"half":                 {[]string{"--from", half}, "", "the checksum of sandlot_1.2.3_"},
		"changed, by web":      {[]string{"--from", byWeb}, "", "the checksum of"},
		"cut":                  {[]string{"--from", serve(t, cut)}, "", "did not arrive whole"},
		"not there":            {[]string{"--from", serve(t, http.NotFoundHandler())}, "", "cannot be read"},
		"without HTTPS":        {[]string{"--from", "http://192.0.2.1/sandlot"}, "", "use https"},
		"does not start":       {[]string{"--from", broken}, "", "does not start here"},
		"does not start there": {[]string{"--from", choosy}, "", "are the old ones"},
		"not its signature":    {[]string{"--from", unsigned, "--signers", signers}, "", "no signer in"},
		"no signature":         {[]string{"--from", good, "--signers", signers}, "", "txt.sig cannot be read"},
		"no archive":           {[]string{"--from", noArchive}, "", "no archive for linux/"},
		"FreeBSD":              {[]string{"--from", good}, machine("FreeBSD", "amd64"), "no Sandlot for FreeBSD"},
		"Git Bash":             {[]string{"--from", good}, machine("MINGW64_NT-10.0", "x86_64"), "run this in WSL 2"},
		"RISC-V":               {[]string{"--from", good}, machine("Linux", "riscv64"), "of the kind riscv64"},
		"a Mac, of Linux": {[]string{"--from", good}, machine("Darwin", "arm64"),
			"no archive for darwin/arm64"},
	} {
		t.Run(name, func(t *testing.T) {
			i := installer{home: t.TempDir(), path: c.path}
			bin := t.TempDir()
			before := installer{home: i.home}
			if out, err := before.run(t, "--from", made(t, "1.0.0"), "--to", bin); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := i.run(t, append(c.args, "--to", bin)...)
			if err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v, want %q\n%s", err, c.want, out)
			}
			if got := names(t, bin); got != "sandlot sandlot-runsc" {
				t.Errorf("left: %s", got)
			}
			version, err := exec.Command(filepath.Join(bin, "sandlot"), "version").Output()
			if string(version) != "sandlot 1.0.0\n" {
				t.Errorf("%s, %v", version, err)
			}
		})
	}
}

// TestInstallManaged: what a package manager has installed is that one's to replace.
func TestInstallManaged(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, release.ManagedName), []byte("deb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := installer{home: t.TempDir()}.run(t, "--from", made(t, "1.2.3"), "--to", bin)
	if err == nil || !strings.Contains(out, "something else (deb)") || names(t, bin) != release.ManagedName {
		t.Errorf("%v\n%s", err, out)
	}
}
