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
        i.size, i.mode, i.uid, i.gid, i.uname, i.gname = 3, mode, 1001, 127, 'runner', 'runners'
        t.addfile(i, io.BytesIO(b'abc'))
E`, "session_id": "new", "flavor": "small"}).session()
	for _, x := range []struct{ command, want string }{
		{"tar xzf a.tgz && cat d/f && test -x d/x && echo ' ok'", "abc ok"},
		{"cd /tmp && tar xpf /workspace/a.tgz && stat -c %u:%g d/f", "1001:127"},
		{"mkdir o && echo x > o/f && chown -R 5:6 o && cp -a o e && cat e/f && chown root o/f && echo ok", "x\nok"},
		{"sudo -E env A=b sh -c 'echo $A'", "b"},
		{"sudo -u nobody id -un; sudo -Hu nobody sh -c 'echo $HOME'", "nobody\n/nonexistent"},
		{"sudo -u nobody-here true", `sandlot: there is no user "nobody-here" in /etc/passwd; useradd makes one`},
		{"useradd -m worker && su worker -c 'cd; id -un; pwd; touch x; stat -c %U x'", "worker\n/home/worker\nworker"},
		{"mkdir /tmp/mine && chown worker /tmp/mine && setpriv --reuid worker --clear-groups touch /tmp/mine/x && echo ok", "ok"},
		{"echo $OMP_NUM_THREADS $LOKY_MAX_CPU_COUNT $GOMAXPROCS $MAKEFLAGS", "1 1 1 -j1"},
	} {
		if r := c.shell(id, x.command); r.Text != x.want {
			t.Errorf("%s: %q, want %q", x.command, r.Text, x.want)
		}
	}
	// Programs that refuse root.
	for user, want := range map[string]string{"nobody": "nobody", "1234": "1234", "1234:99": "1234", "root": "root"} {
		r := c.call("execute_command", args{"command": "id -un 2>/dev/null | grep -v 1234 || id -u", "session_id": id, "user": user})
		if r.Text != want {
			t.Errorf("as %s: %q", user, r.All)
		}
	}
	if r := c.call("execute_command", args{"command": "id", "session_id": id, "user": "nobody-here"}); !r.IsError ||
		!strings.Contains(r.Text, "there is no user") {
		t.Errorf("as a user that is not there: %q", r.All)
	}
	if out, errs, code := s.cli("exec", "--session", id, "--user", "nobody", "--", "id", "-un"); out != "nobody\n" || code != 0 {
		t.Errorf("sandlot exec --user: %q %q %d", out, errs, code)
	}
	if r := c.code(id, "import os; os.environ['OMP_NUM_THREADS']"); !strings.Contains(r.Text, "1") {
		t.Errorf("%q", r.All)
	}
}

// Lists of processes show the user's programs: an interpreter of cells has one short line, in which none of the words is
// that people look for.
func TestListsOfProcesses(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.call("execute_code", args{"code": "1", "session_id": "new"}).session()
	for _, language := range []string{"node", "bash"} {
		if r := c.call("execute_code", args{"code": "1 || true", "language": language, "session_id": id}); r.IsError {
			t.Fatalf("%s: %s", language, r.All)
		}
	}
	c.call("execute_command", args{"command": "exec -a uvicorn sleep 600", "background": true, "session_id": id})
	r := c.shell(id, "ps aux")
	if len(r.Text) > 4<<10 {
		t.Errorf("ps aux prints %d bytes: %.2000s", len(r.Text), r.Text)
	}
	for _, program := range []string{"python", "node", "bash"} {
		if r := c.shell(id, "ps -eo args | grep sandlot-cell[s] | grep '^[^ ]*"+program+"'"); !strings.Contains(r.Text, program) ||
			strings.Contains(r.Text, "\n") {
			t.Errorf("not one line says what the interpreter of %s is: %q", program, r.All)
		}
	}
	for _, word := range []string{"uvicor[n]", "panda[s]", "matplotli[b]", "readlin[e]", "typescrip[t]", "asynci[o]"} {
		want := map[bool]string{true: "1", false: "0"}[word == "uvicor[n]"]
		if r := c.shell(id, "cat /proc/[0-9]*/cmdline | tr '\\0\\n' ' \\n' | grep -c '"+word+"' || true"); r.Text != want {
			t.Errorf("%s: %q, want %s", word, r.All, want)
		}
	}
}
