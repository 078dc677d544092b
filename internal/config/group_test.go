package config

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A group's members count as others, however they are its members, but for the user
// and root.
func TestGroups(t *testing.T) {
	dir := t.TempDir()
	a := accountFiles{filepath.Join(dir, "passwd"), filepath.Join(dir, "group")}
	for file, text := range map[string]string{
		a.passwd: "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:,,,:/home/ann:/bin/sh\n" +
			"bob:x:1001:1001::/:/bin/sh\ncarl:x:1002:100::/:/bin/sh\n" +
			"# comment:x:1:1000\nbroken\n",
		a.group: "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nusers:x:100:\n" +
			"team:x:200:ann,bob\nboth:x:201:ann,root\nelsewhere:x:202:ann,ldapuser\nempty:x:203:\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for gid, want := range map[int]string{
		1000: "", // her own alone
		201:  "", // with root
		203:  "", // nobody's
		0:    "", // root's
		1001: "bob", 100: "carl", 200: "bob", 202: "ldapuser",
		4711: "not known",
	} {
		if got := a.otherMembers(gid, 1000); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("group %d: %q, want %q", gid, got, want)
		}
	}
	if got := (accountFiles{filepath.Join(dir, "none"), a.group}).otherMembers(1000, 1000); got == "" {
		t.Error("without a list of users nobody is known to be alone")
	}
}

// A settings file that its group can write is refused if the group has others.
func TestGroupWritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	shared := filepath.Join(dir, "group")
	if err := os.WriteFile(file, []byte("port: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o664); err != nil {
		t.Fatal(err)
	}
	gid := strconv.Itoa(os.Getgid())
	for line, want := range map[string]string{"mine:x:" + gid + ":\n": "", "mine:x:" + gid +
		":root,mallory\n": `"mallory"`, "other:x:1:\n": "not known"} {
		if err := os.WriteFile(shared, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Default()
		judge := c.fileChecker(true)
		judge.accountFiles.group = shared
		f, err := judge.open(file)
		if err == nil {
			f.Close()
		}
		if (err == nil) != (want == "") ||
			err != nil && (!strings.Contains(err.Error(), "users other than the server's can write it") ||
				!strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", line, err)
		}
	}
}
