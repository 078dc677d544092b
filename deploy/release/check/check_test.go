package check

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/image/imagetest"
	"sandlot/internal/release"
)

const dir = "../../../dist/release"

// opened returns the release.
func opened(t *testing.T) *release.Release {
	t.Helper()
	r, err := release.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatalf("%v; run `make release`", err)
	}
	return r
}

// one returns the path of the only file of the release that matches.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v; run `make release`", pattern, found, err)
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a program that must succeed, and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestFiles: the release has all that it should have, and what describes it names each file.
func TestFiles(t *testing.T) {
	r := opened(t)
	cmd := exec.Command("sha256sum", "--strict", "--check", "--quiet", release.SumsName)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	var all, described []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	var kinds []string
	for _, f := range r.Files {
		described = append(described, f.Name)
		kinds = append(kinds, strings.TrimSuffix(f.Kind+" "+f.OS+"/"+f.Arch, " /"))
	}
	described = append(described, release.SumsName, release.ManifestName, release.ProvenanceName)
	slices.Sort(described)
	if !slices.Equal(all, described) {
		t.Errorf("there are\n%s, and described are\n%s", all, described)
	}
	for _, system := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64",
		"windows/arm64"} {
		for _, kind := range []string{"archive", "sbom"} {
			if !slices.Contains(kinds, kind+" "+system) {
				t.Errorf("there is no %s for %s", kind, system)
			}
		}
		others := func(kind string) bool { return kind != "package "+system }
		if n := len(slices.DeleteFunc(slices.Clone(kinds), others)); n != 2 && strings.HasPrefix(system, "linux") {
			t.Errorf("%d packages for %s", n, system)
		}
	}
	var provenance struct {
		Subject []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	text, err := os.ReadFile(filepath.Join(dir, release.ProvenanceName))
	if err == nil {
		err = json.Unmarshal(text, &provenance)
	}
	sums, sumsErr := release.Sums(dir)
	if err := errors.Join(err, sumsErr); err != nil {
		t.Fatal(err)
	}
	if len(provenance.Subject) != len(all)-2 { // without itself, and the checksums, which have its own
		t.Errorf("%d subjects of %d files", len(provenance.Subject), len(all))
	}
	for _, s := range provenance.Subject {
		if sums[s.Name] == "" || sums[s.Name] != s.Digest["sha256"] {
			t.Errorf("%s: %v", s.Name, s.Digest)
		}
	}
}

// TestForeignArchives: the archives for other systems have the program for their system.
func TestForeignArchives(t *testing.T) {
	magic := map[string]string{"darwin": "\xcf\xfa\xed\xfe", "windows": "MZ", "linux": "\x7fELF"}
	for _, f := range opened(t).Files {
		if f.Kind != release.KindArchive {
			continue
		}
		programs := map[string][]byte{}
		read := func(name string, from io.Reader) {
			data, err := io.ReadAll(from)
			if err != nil {
				t.Fatal(err)
			}
			programs[name] = data
		}
		file, err := os.Open(filepath.Join(dir, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		main := "sandlot"
		if f.OS == "windows" {
			main += ".exe"
			z, err := zip.NewReader(file, f.Size)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range z.File {
				from, err := e.Open()
				if err != nil {
					t.Fatal(err)
				}
				read(e.Name, from)
			}
		} else {
			z, err := gzip.NewReader(file)
			if err != nil {
				t.Fatal(err)
			}
			for entries := tar.NewReader(z); ; {
				header, err := entries.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				read(header.Name, entries)
			}
		}
		if !bytes.HasPrefix(programs[main], []byte(magic[f.OS])) || len(programs[main]) < 10<<20 ||
			programs["LICENSE"] == nil {
			t.Errorf("%s: %d bytes of %s, LICENSE: %v", f.Name, len(programs[main]), main, programs["LICENSE"] != nil)
		}
		for name, data := range programs { // they need no library
			if f.OS != "linux" || name == "LICENSE" {
				continue
			}
			program, err := elf.NewFile(bytes.NewReader(data))
			if err != nil {
				t.Fatal(name, err)
			}
			for _, p := range program.Progs {
				if p.Type == elf.PT_INTERP {
					t.Errorf("%s of %s is not static", name, f.Name)
				}
			}
		}
	}
}

// root is the root file system of another machine, in which programs run as root, in a mount and a process namespace of
// their own. It has the network of this one.
type root string

// newRoot makes a root file system of an archive; an empty path makes an empty one.
func newRoot(t *testing.T, archive string) root {
	t.Helper()
	r := root(t.TempDir())
	if archive != "" {
		run(t, "tar", "-xf", archive, "-C", string(r))
	}
	for _, d := range []string{"proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(string(r), d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// enterVariable makes this program enter a root file system and become another program.
const enterVariable = "SANDLOT_CHECK_ROOT"

func TestMain(m *testing.M) {
	if to := os.Getenv(enterVariable); to != "" {
		fmt.Fprintln(os.Stderr, enter(to, os.Args[1:]))
		os.Exit(127)
	}
	os.Exit(m.Run())
}

// enter makes a folder the root of this process, and becomes a program there. A chroot would not do: gVisor makes
// namespaces. Nor would programs of this machine: where they are not, they cannot run.
func enter(to string, args []string) error {
	err := errors.Join(unix.Mount(to, to, "", unix.MS_BIND, ""), unix.Mount("proc", to+"/proc", "proc", 0, ""),
		unix.Mount("/dev", to+"/dev", "", unix.MS_BIND|unix.MS_REC, ""), os.Chdir(to), unix.PivotRoot(".", "."),
		unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/"),
		os.Setenv("PATH", "/opt/sandlot:/usr/sbin:/usr/bin:/sbin:/bin"))
	if err != nil {
		return err
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return unix.Exec(program, args, []string{"PATH=" + os.Getenv("PATH"), "HOME=/tmp",
		"DEBIAN_FRONTEND=noninteractive"})
}

// command is a program in the root file system.
func (r root) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "--pid", "--fork",
		"--kill-child", os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), enterVariable+"="+string(r))
	return cmd
}

func (r root) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := r.command(ctx, args...).CombinedOutput()
	return string(out), err
}

func (r root) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.try(t, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

// copy copies a file of this machine into the root file system.
func (r root) copy(t *testing.T, from, to string) {
	t.Helper()
	run(t, "install", "-D", from, filepath.Join(string(r), to))
}

// working checks that Sandlot, which a package has installed, is whole, and makes sandboxes.
func (r root) working(t *testing.T, version, upgrade string) {
	t.Helper()
	if out := r.run(t, "sandlot", "version"); out != "sandlot "+version+"\n" {
		t.Error(out)
	}
	if out := r.run(t, "sandlot", "doctor"); strings.Contains(out, "FAIL") || !strings.Contains(out, "host: [") {
		t.Error(out)
	}
	if out := r.run(t, "stat", "-c", "%U %G %a", "/var/lib/sandlot"); out != "sandlot sandlot 700\n" {
		t.Error(out)
	}
	unit := filepath.Join(string(r), "usr/lib/systemd/system/sandlot.service")
	if text, err := os.ReadFile(unit); err != nil ||
		!strings.Contains(string(text), "ExecStart=/opt/sandlot/sandlot serve") {
		t.Errorf("%v\n%s", err, text)
	}
	by, err := os.ReadFile(filepath.Join(string(r), "opt/sandlot", release.ManagedName))
	if string(by) != upgrade+"\n" {
		t.Errorf("%q, %v", by, err)
	}
}

// gone checks that nothing is left of a package but the state.
func (r root) gone(t *testing.T) {
	t.Helper()
	for _, path := range []string{"usr/bin/sandlot", "opt/sandlot", "usr/lib/systemd/system/sandlot.service"} {
		if _, err := os.Lstat(filepath.Join(string(r), path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(string(r), "var/lib/sandlot")); err != nil {
		t.Error(err)
	}
}

// TestDebian: the package installs in a Debian, sandboxes work there, and it is removed.
func TestDebian(t *testing.T) {
	version := opened(t).Version
	const documents = "--path-include=/usr/share/doc/sandlot/*" // which this small Debian leaves out
	r := newRoot(t, imagetest.BaseArchive(t))
	r.copy(t, one(t, "sandlot_*_"+runtime.GOARCH+".deb"), "tmp/sandlot.deb")
	r.run(t, "dpkg", documents, "-i", "/tmp/sandlot.deb")
	r.working(t, version, "deb")
	if out := r.run(t, "dpkg", "--verify", "sandlot"); out != "" {
		t.Error(out)
	}
	r.run(t, "dpkg", documents, "-i", "/tmp/sandlot.deb") // an upgrade, to the same
	r.working(t, version, "deb")
	r.run(t, "dpkg", "-r", "sandlot")
	r.gone(t)
}

// TestRPM: rpm finds no fault with the package, and installs it into a root file system, in which sandboxes work. The
// root is that of a Debian without any RPM package: there is no Fedora where the tests run.
func TestRPM(t *testing.T) {
	version := opened(t).Version
	imagetest.Install(t, "rpm", "rpm")
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	file := one(t, "sandlot-*."+arch+".rpm")
	if out := run(t, "rpm", "--checksig", file); !strings.Contains(out, "digests OK") {
		t.Error(out)
	}
	for query, want := range map[string]string{"%{NAME} %{ARCH} %{LICENSE}": "sandlot " + arch + " Apache-2.0",
		"%{BUILDHOST}": "sandlot", "[%{REQUIRES}\n]": "/usr/sbin/useradd"} {
		if out := run(t, "rpm", "--query", "--queryformat", query, "--package", file); !strings.Contains(out, want) {
			t.Errorf("%s: %s", query, out)
		}
	}
	r := newRoot(t, imagetest.BaseArchive(t))
	rpm := func(args ...string) string {
		return run(t, "rpm", append([]string{"--root", string(r), "--dbpath", "/var/lib/rpm"}, args...)...)
	}
	rpm("--install", "--nodeps", file) // Debian's programs are those of no RPM package
	r.working(t, version, "rpm")
	if out := rpm("--verify", "--nodeps", "sandlot"); out != "" {
		t.Error(out)
	}
	rpm("--upgrade", "--nodeps", "--replacepkgs", file)
	r.working(t, version, "rpm")
	rpm("--erase", "sandlot")
	r.gone(t)
}

// imageRoot unpacks the release's image for this machine.
func imageRoot(t *testing.T) root {
	t.Helper()
	r, layout := newRoot(t, ""), t.TempDir()
	run(t, "tar", "-xf", one(t, "sandlot_*_image.tar"), "-C", layout)
	type index struct {
		Manifests []struct {
			Digest   string `json:"digest"`
			Platform struct {
				Architecture string `json:"architecture"`
			} `json:"platform"`
		} `json:"manifests"`
		Layers []struct {
			Digest string `json:"digest"`
		} `json:"layers"`
	}
	read := func(path string) (i index) {
		text, err := os.ReadFile(filepath.Join(layout, path))
		if err == nil {
			err = json.Unmarshal(text, &i)
		}
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	blob := func(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
	platforms := read(blob(read("index.json").Manifests[0].Digest)).Manifests
	if len(platforms) != 2 {
		t.Errorf("%v", platforms)
	}
	for _, m := range platforms {
		if m.Platform.Architecture == runtime.GOARCH {
			for _, l := range read(blob(m.Digest)).Layers {
				run(t, "tar", "-xzf", filepath.Join(layout, blob(l.Digest)), "-C", string(r))
			}
			return r
		}
	}
	t.Fatal("no image for this machine")
	return ""
}

// TestAlone: in a root file system with nothing but the image's files, as little as Alpine or any other Linux has, the
// server runs, and makes sandboxes of an image.
func TestAlone(t *testing.T) {
	r := imageRoot(t)
	if out := r.run(t, "/opt/sandlot/sandlot", "version"); out != "sandlot "+opened(t).Version+"\n" {
		t.Error(out)
	}
	r.copy(t, imagetest.BaseArchive(t), "tmp/base.tar")
	r.run(t, "/opt/sandlot/sandlot", "--state-dir", "/var/lib/sandlot", "image", "import", "/tmp/base.tar", "base:1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var log bytes.Buffer
	serve := r.command(ctx, "/opt/sandlot/sandlot", "--state-dir", "/var/lib/sandlot", "--config", "/etc/sandlot/",
		"serve", "--port", fmt.Sprint(port))
	settings := filepath.Join(string(r), "etc/sandlot/sandlot.yaml")
	const text = "sandbox_image: base:1\nnetwork:\n  registries: none\n"
	if err := os.WriteFile(settings, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { // all that it has started ends with its process namespace
		cancel()
		serve.Wait()
		if t.Failed() {
			t.Logf("the server's log:\n%s", &log)
		}
	}()
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code",` +
		`"arguments":{"code":"import os\nprint(6*7, os.path.exists('/opt/sandlot'))"}}}`
	address, answer := fmt.Sprintf("http://127.0.0.1:%d/mcp", port), ""
	for range 600 {
		response, err := http.Post(address, "application/json", strings.NewReader(call))
		if err == nil {
			body, readErr := io.ReadAll(response.Body)
			response.Body.Close()
			if answer = string(body); readErr == nil && strings.Contains(answer, "42 False") {
				return
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Errorf("the server answers %s", answer)
}

// TestImage: Podman loads the image, and runs it.
func TestImage(t *testing.T) {
	imagetest.Install(t, "podman", "podman", "runc")
	version, store := opened(t).Version, t.TempDir()
	podman := func(args ...string) string {
		return run(t, "podman", append([]string{"--root", store + "/root", "--runroot", store + "/run",
			"--storage-driver", "vfs"}, args...)...)
	}
	defer podman("system", "reset", "--force")
	podman("load", "--input", one(t, "sandlot_*_image.tar"))
	id := strings.TrimSpace(podman("images", "--quiet", "--no-trunc"))
	out := podman("inspect", "--format", "{{.Architecture}} {{.User}} {{.Config.Labels}}", id)
	if !strings.Contains(out, runtime.GOARCH+" 1000:1000 ") || !strings.Contains(out, version) {
		t.Error(out)
	}
}

// TestScript: the script of the release installs the release.
func TestScript(t *testing.T) {
	bin := t.TempDir()
	run(t, "sh", filepath.Join(dir, "install.sh"), "--from", dir, "--to", bin)
	if out := run(t, filepath.Join(bin, "sandlot"), "version"); out != "sandlot "+opened(t).Version+"\n" {
		t.Error(out)
	}
	if out := run(t, filepath.Join(bin, "sandlot"), "doctor"); strings.Contains(out, "FAIL") {
		t.Error(out)
	}
}
