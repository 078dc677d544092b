package dpkg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const status = `Package: base
Status: install ok installed
Maintainer: Ann <ann@debian.org>
Architecture: all
Depends: libold (>= 1) | libnew, virtual

Package: libold
Status: install ok installed
Maintainer: Somebody <x@debian.org>
Architecture: amd64
Multi-Arch: same

Package: provider
Status: install ok installed
Maintainer: Team <team@lists.ubuntu.com>
Provides: virtual (= 2)
Architecture: amd64

Package: corp-vpn
Status: install ok installed
Maintainer: Corp <it@corp-debian.org.example>
Original-Maintainer: Team <t@lists.debian.org>
Architecture: amd64
Provides: virtual
Depends: base

Package: gone
Status: deinstall ok config-files
Maintainer: Ann <ann@debian.org>
Architecture: amd64

Package: ../evil
Status: install ok installed
Architecture: amd64
`

func database(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{"status": status, "info/base.list": "/.\n", "info/base.postinst": "#!/bin/sh\n",
		"info/libold:amd64.list": "/.\n", "info/corp-vpn.postinst": "the password", "info/provider.list": "/.\n", "info/format": "1\n",
		"diversions": "/bin/a\n/bin/a.d\nbase\n/bin/b\n/bin/b.corp\ncorp-vpn\n", "alternatives/editor": "auto\n/usr/bin/editor\n", "lock": "",
		"alternatives/vpn": "auto\n/usr/bin/vpn\n\n/opt/corp/vpn\n10\n", "triggers/File": "/usr/share/man base/noawait\n/etc/corp corp-vpn\n", "arch": "amd64\ni386\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestKnown: what the archive has and what that needs are in the database of sandboxes; packages of others are not, nor
// anything that tells of them.
func TestKnown(t *testing.T) {
	from := database(t)
	all, err := Read(from)
	if err != nil {
		t.Fatal(err)
	}
	known := Known(all, map[string]bool{"base": true, "gone": true})
	var names []string
	for _, p := range known {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "base libold provider" {
		t.Errorf("known: %s", got)
	}
	dir := filepath.Join(t.TempDir(), "dpkg")
	if err := Write(dir, from, known); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"status", "info/base.list", "info/base.postinst", "info/libold:amd64.list", "info/provider.list",
		"info/format", "alternatives/editor", "updates", "triggers/File", "arch"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"info/corp-vpn.postinst", "lock"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "corp") {
			t.Errorf("%s tells of a package of somebody else: %s", path, text)
		}
		return nil
	})
	if again, err := Read(dir); err != nil || len(again) != 3 {
		t.Errorf("read again: %d, %v", len(again), err)
	}
}

// TestIsDistributions: who maintains a package says whether it is the distribution's.
func TestIsDistributions(t *testing.T) {
	for maintainer, want := range map[string]bool{"A <a@debian.org>": true, "T <t@lists.alioth.debian.org>": true,
		"U <u@lists.ubuntu.com>": true, "X <x@notdebian.org>": false, "Y <y@debian.org.example>": false, "Z": false} {
		p, _ := parse("Package: p\nStatus: install ok installed\nMaintainer: " + maintainer + "\n")
		if p.IsDistributions() != want {
			t.Errorf("%s: %v", maintainer, !want)
		}
	}
}

// TestConffiles: of /etc, files come along that are as their packages brought them.
func TestConffiles(t *testing.T) {
	if _, err := os.Stat(Dir + "/status"); err != nil {
		t.Skip("this is not Debian") // its packages are what is tested
	}
	all, err := Read(Dir)
	if err != nil {
		t.Fatal(err)
	}
	files := Conffiles(all)
	if len(files) < 10 {
		t.Errorf("only %d files of %d packages", len(files), len(all))
	}
	for name, text := range files {
		now, err := os.ReadFile("/" + name)
		if err != nil || string(now) != string(text) || !strings.HasPrefix(name, "etc/") {
			t.Errorf("%s: %v", name, err)
		}
	}
	forged := []Package{{Name: "p", conffiles: map[string]string{"/etc/../root/x": "d41d8cd98f00b204e9800998ecf8427e",
		"/etc/shadow": "d41d8cd98f00b204e9800998ecf8427e", "/etc/mtab": "x", "/etc/hostname": "wrong"}}}
	if got := Conffiles(forged); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestUsers: users and groups that the distribution's packages make come along, and nobody else of the machine.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "info"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "info/db.postinst"), []byte("adduser --system --group db-user\nchown x /home/ann.d\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	packages := []Package{{Name: "db"}}
	list := "root:x:0:0::/root:/bin/sh\ndb-user:x:110:110:Ann's database:/var/lib/db:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\n" +
		"corp:x:120:120::/:/bin/sh\nann2:x:121:1::/:/bin/sh\n"
	if got := string(Users([]byte(list), []byte("root:x:0:0:root:/root:/bin/bash\n"), UserScripts(dir, packages))); got !=
		"root:x:0:0:root:/root:/bin/bash\ndb-user:*:110:110::/var/lib/db:/bin/sh\n" {
		t.Errorf("%q", got)
	}
	if got := string(Users([]byte("db-user:x:110:ann,bob\n"), nil, UserScripts(dir, packages))); got != "\ndb-user:*:110:\n" {
		t.Errorf("%q", got)
	}
}
