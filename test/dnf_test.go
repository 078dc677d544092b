package test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/image/imagetest"
	"sandlot/internal/runtime/docker/dockertest"
)

// rpmSpecs are two packages: a program that greets, with a folder of another user and a script, and what it needs.
const rpmSpecs = `Name: greet
Version: 1.0
Release: %{?release}%{!?release:1}
Summary: Greets
License: MIT
BuildArch: noarch
AutoReqProv: no
Requires: needed-by-greet >= 1.0
%description
Greets.
%package -n needed-by-greet
Summary: What greet needs
Provides: /bin/sh
%description -n needed-by-greet
What greet needs.
%install
install -D -m 755 /dev/stdin %{buildroot}/usr/local/bin/greet <<'END'
#!/bin/sh
echo "hello from release %{release}, $(cat /usr/share/greet/name)"
END
echo apples | install -D -m 644 /dev/stdin %{buildroot}/usr/share/greet/name
mkdir -p %{buildroot}/var/lib/greet
%post
echo installed >> /var/lib/greet/log
%files
/usr/local/bin/greet
%attr(2750, games, mail) /var/lib/greet
%files -n needed-by-greet
/usr/share/greet/name
`

// TestDnf: in an image with dnf it installs, upgrades and removes packages of a repository that is reached by the
// sandbox's network, as root of the machine and without. What was installed sleeps, wakes, and is in a copy.
func TestDnf(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, ...string) *server{"root": start,
		"unprivileged": startUnprivileged} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDnf(t, begin)
		})
	}
}

func testDnf(t *testing.T, begin func(*testing.T, ...string) *server) {
	repository := shared(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.FileServer(http.Dir(repository))}
	go web.Serve(listener)
	t.Cleanup(func() { web.Close() })
	archive := imagetest.BaseArchive(t)
	s := begin(t, append(registries(), "SANDLOT_NETWORK_HOSTS=rpm.test=127.0.0.1")...)
	if out, errs, code := s.cli("image", "import", readable(t, archive), dockertest.BaseImage); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	s.settings(withMirrors(t, "default_template: rpm\nnetwork: {allow: [MIRRORS], allow_private: [PRIVATE, "+
		"{host: rpm.test, cidr: 127.0.0.0/8}]}\ntemplates: {rpm: {image: \""+dockertest.BaseImage+
		"\", packages: {apt: [dnf, rpm, createrepo-c]}, pool: 0}}\n", archive))
	if s.user != 0 {
		if err := os.Chown(filepath.Join(s.State, "sandlot.yaml"), s.user, s.user); err != nil {
			t.Fatal(err)
		}
	}
	s.restart()
	if out, errs, code := s.cli("template", "build", "rpm"); code != 0 {
		t.Fatalf("code %d, %.3000s%s", code, out, errs)
	}
	c := s.connect(older, "", nil)
	builder := c.shell("new", "mkdir -p repo").session()
	proven(t, c, builder)
	publish := func(release int) {
		t.Helper()
		c.call("sandbox_write_file", args{"path": "/workspace/greet.spec", "content": rpmSpecs, "session_id": builder})
		r := c.shell(builder, fmt.Sprintf("rpmbuild -bb --define '_topdir /tmp/rpm' --define 'release %d' greet.spec "+
			">log 2>&1 && cp /tmp/rpm/RPMS/noarch/*.rpm repo/ && createrepo_c -q repo >>log 2>&1 && "+
			"tar cf repo.tar repo && echo made || tail log", release))
		if r.Text != "made" {
			t.Fatalf("building: %q", r.All)
		}
		code, _, text := s.request("GET", "/v1/sessions/"+builder+"/files/workspace/repo.tar", nil)
		if code != 200 {
			t.Fatalf("HTTP %d %.300s", code, text)
		}
		unpackInto(t, repository, text)
	}
	publish(1)
	id := c.shell("new", fmt.Sprintf("mkdir -p /etc/yum.repos.d && printf '[greet]\\nname=greet\\nbaseurl=http://rpm.test:%d/repo\\ngpgcheck=0\\n"+
		"metadata_expire=0\\n' > /etc/yum.repos.d/greet.repo", listener.Addr().(*net.TCPAddr).Port)).session()
	dnf := func(what string) {
		t.Helper()
		r := c.shell(id, "dnf -y -q "+what+" >/tmp/dnf.log 2>&1; echo $?; tail -n 20 /tmp/dnf.log")
		if !strings.HasPrefix(r.Text, "0") {
			t.Fatalf("dnf %s: %q", what, r.All)
		}
	}
	has := func(in, release, log string) {
		t.Helper()
		want := "hello from release " + release + ", apples\n" + release + "\n2750 games mail\n" + log
		r := c.shell(in, "greet; rpm -q --qf '%{release}\\n' greet; cd /var/lib/greet && stat -c '%a %U %G' . && cat log")
		if r.Text != want {
			t.Errorf("%q, want %q", r.All, want)
		}
	}
	dnf("install greet")
	has(id, "1", "installed")
	s.restart()
	c = s.connect(older, "", nil)
	has(id, "1", "installed")
	copies, _ := c.call("fork_session", args{"session_id": id, "count": 1}).Fields["copies"].([]any)
	if len(copies) != 1 {
		t.Fatalf("copies: %v", copies)
	}
	publish(2)
	dnf("upgrade")
	has(id, "2", "installed\ninstalled")
	has(fmt.Sprint(copies[0]), "1", "installed")
	dnf("remove greet")
	r := c.shell(id, "command -v greet; rpm -q greet; ls /usr/local/bin/greet")
	if !strings.Contains(r.All, "not installed") || !strings.Contains(r.All, "No such file") {
		t.Errorf("removed: %q", r.All)
	}
}

// readable returns a file that every user of the machine can read, with the content of another.
func readable(t *testing.T, file string) string {
	t.Helper()
	path := filepath.Join(shared(t), filepath.Base(file))
	from, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); errors.Join(err, to.Close()) != nil {
		t.Fatal(err)
	}
	return path
}

// unpackInto unpacks the regular files of a tar archive into a folder.
func unpackInto(t *testing.T, dir, archive string) {
	t.Helper()
	for in := tar.NewReader(strings.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			continue
		}
		text, err := io.ReadAll(in)
		path := filepath.Join(dir, h.Name)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755)); err == nil {
			err = os.WriteFile(path, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
