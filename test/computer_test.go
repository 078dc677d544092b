package test

import (
	"strings"
	"testing"
)

// A sandbox is used as a computer is: archives of others are unpacked, sudo runs its arguments, and programs start as
// many threads as there are processors for them.
func TestLikeAComputer(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.call("execute_command", args{"command": `python3 - <<'E'
import io, tarfile
with tarfile.open('a.tgz', 'w:gz') as t:
    for name, mode in ('d/f', 0o644), ('d/x', 0o755):
        i = tarfile.TarInfo(name)
        i.size, i.mode, i.uid, i.gid, i.uname, i.gname = 3, mode, 1001, 127, 'runner', 'docker'
        t.addfile(i, io.BytesIO(b'abc'))
E`, "session_id": "new", "flavor": "small"}).session()
	for command, want := range map[string]string{
		"tar xzf a.tgz && cat d/f && test -x d/x && stat -c ' %U' d/f":     "abc root",
		"cd /tmp && tar xpf /workspace/a.tgz && rm -r d && echo ok":        "ok",
		"sudo -E env A=b sh -c 'echo $A'":                                  "b",
		"sudo -u nobody true":                                              "sudo: all programs of this sandbox run as root; leave -u nobody out",
		"echo $OMP_NUM_THREADS $LOKY_MAX_CPU_COUNT $GOMAXPROCS $MAKEFLAGS": "1 1 1 -j1",
	} {
		if r := c.shell(id, command); r.Text != want {
			t.Errorf("%s: %q, want %q", command, r.Text, want)
		}
	}
	if r := c.code(id, "import os; os.environ['OMP_NUM_THREADS']"); !strings.Contains(r.Text, "1") {
		t.Errorf("%q", r.All)
	}
}
