package sandboxtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
)

// benchOfUser boots a sandbox whose template has a user other than root, or, where the runtime cannot
// run programs as one, with root in that user's place.
func (s *Subject) benchOfUser(t *testing.T) *Bench {
	t.Helper()
	c, template := *s, *s.Template
	template.User = image.User{UID: 61234, GID: 62345, Groups: []uint32{63456}, Name: "someone"}
	template.AddDefaultEnv()
	c.Template = &template
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	if u := rt.Capabilities().Users; u != nil && u.CanRunAs() != nil {
		c.Template = template.AsRoot()
	}
	return c.bench(t)
}

// user: programs and file calls have the rights of the template's user, and no others.
func user(t *testing.T, b *Bench) {
	u := b.subject.Template.User
	if u.IsRoot() {
		b.want(t, "id -u; echo $HOME $USER", "0\n/root root")
		return
	}
	t.Run("programs", func(t *testing.T) { programsOfUser(t, b, u) })
	t.Run("files", func(t *testing.T) { filesOfUser(t, b, u) })
	t.Run("attack", func(t *testing.T) { attackAsUser(t, b) })
}

// programsOfUser: all kinds of programs run as the user.
func programsOfUser(t *testing.T, b *Bench, u image.User) {
	uid := fmt.Sprint(u.UID)
	b.want(t, "id -u; id -g; id -G; echo $USER; pwd", fmt.Sprintf("%d\n%d\n%[2]d %d\n%s\n/workspace", u.UID, u.GID,
		u.Groups[0], u.Name))
	b.want(t, `touch ~/x && cd ~ && stat -c %u . x && test "$HOME" != /workspace`, uid+"\n"+uid)
	b.want(t, "awk '/^Cap/ {print $2}' /proc/self/status | sort -u", "0000000000000000")
	b.want(t, "echo out > /dev/stdout; echo err > /dev/stderr", "out\nerr")
	ids := map[string]string{"python": "import os\nos.getuid()", "node": "process.getuid()"}
	for _, l := range b.subject.Template.Languages {
		switch code, ok := ids[l.Driver]; {
		case ok && l.Name != "typescript":
			if d := b.eval(t, l.Name, code, time.Minute); value(d) != uid {
				t.Errorf("%s: %+v", l.Name, d)
			}
		case l.Driver == "bash" || l.Driver == "":
			if d := b.eval(t, l.Name, "id -u", time.Minute); string(d.Stdout.Head) != uid+"\n" {
				t.Errorf("%s: %+v", l.Name, d)
			}
		}
	}
	if d := b.eval(t, "bash", "kept=7; exit", time.Minute); !d.OK {
		t.Errorf("a shell that ends: %+v", d)
	}
	if d := b.eval(t, "bash", "echo $kept", time.Minute); string(d.Stdout.Head) != "7\n" {
		t.Errorf("the next shell: %+v", d)
	}
	if c := b.eval(t, "python", "import time\ntime.sleep(60)", time.Second); !c.TimedOut || c.StateLost {
		t.Errorf("an interrupted cell: %+v", c)
	}
	// From here on there is a direct connection, so no cell goes through the agent any more.
	d, err := b.Evaluate(t.Context(), agent.Code{Language: "python", Source: "import os; os.getuid()",
		Timeout: time.Minute, Inline: agent.InlineBounds{Head: 100, Tail: 100}}, agent.Observer{})
	if err != nil || value(d) != uid {
		t.Errorf("a cell over a direct connection: %+v, %v", d, err)
	}
	if e := b.exec(t, "trap '' TERM; sleep 100 & while :; do sleep 1; done", time.Second); !e.TimedOut {
		t.Errorf("a command with a timeout: %+v", e)
	}
	b.want(t, "pgrep -c sleep || true", "0")
	backgroundOfUser(t, b, uid)
	terminalOfUser(t, b, uid)
	inTerminal(t, b)
}

func backgroundOfUser(t *testing.T, b *Bench, uid string) {
	id := b.start(t, "id -u; sleep 1000")
	for cursor := int64(0); ; {
		r, err := b.ReadProcess(t.Context(), id, cursor, 100, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Data) == uid+"\n" {
			break
		}
		t.Fatalf("a background process: %q", r.Data)
	}
	if running, _, err := b.StopProcess(t.Context(), id, syscall.SIGTERM, 5*time.Second); err != nil || running {
		t.Errorf("stopping: running %v, %v", running, err)
	}
}

func terminalOfUser(t *testing.T, b *Bench, uid string) {
	s, err := b.Interactive(t.Context(), agent.Command{
		Args:     []string{"/bin/bash", "--norc", "-c", "id -u; echo again > $(tty)"},
		Terminal: &agent.Size{Rows: 20, Cols: 80}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetDeadline(time.Now().Add(20 * time.Second))
	var out []byte
	buf := make([]byte, wire.MaxFrame)
	for {
		kind, data, err := wire.ReadFrame(s, buf)
		if err != nil {
			t.Fatalf("%v after %q", err, out)
		}
		if kind == wire.FrameExit {
			if code := binary.BigEndian.Uint32(data); code != 0 || string(out) != uid+"\r\nagain\r\n" {
				t.Errorf("in a terminal: exit code %d, %q", code, out)
			}
			return
		}
		out = append(out, data...)
	}
}

// filesOfUser: file calls make files of the user, and open only what the user may open.
func filesOfUser(t *testing.T, b *Bench, u image.User) {
	at := func(name string) string { return filepath.Join(b.Workspace, name) }
	const secret = "root's own"
	err := errors.Join(os.WriteFile(at("secret"), []byte(secret), 0o600), os.Mkdir(at("locked"), 0o700),
		os.WriteFile(at("locked/secret"), []byte(secret), 0o644), os.Mkdir(at("shown"), 0o755),
		os.WriteFile(at("shown/plain"), []byte(secret), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	b.want(t, "ln -s secret link && ln -s locked/secret deep && ln -s /workspace/locked folder && "+
		"ln -s shown/plain plain; echo $?", "0")
	for _, p := range []string{"secret", "link", "locked/secret", "deep", "folder/secret"} {
		if data, _, err := b.ReadFile(t.Context(), p, 0, 100); err == nil {
			t.Errorf("reading %s: %q", p, data)
		}
		if c, _, err := b.Download(t.Context(), p, 0, 0); err == nil {
			c.Close()
			t.Errorf("%s was opened", p)
		}
	}
	for _, p := range []string{"shown/plain", "plain", "shown/new", "locked/new", "folder/new", "locked/secret"} {
		for _, w := range []agent.FileWrite{{Path: p, Data: []byte("x")}, {Path: p, Data: []byte("x"), Append: true}} {
			if _, err := b.WriteFile(t.Context(), w); err == nil {
				t.Errorf("%s was written", p)
			}
		}
	}
	w := agent.FileWrite{Path: "secret", Data: []byte("x"), Append: true}
	if _, err := b.WriteFile(t.Context(), w); err == nil {
		t.Error("a file of root's grew")
	}
	for _, p := range []string{"secret", "locked/secret", "shown/plain"} {
		if got, err := os.ReadFile(at(p)); err != nil || string(got) != secret {
			t.Errorf("%s has %q, %v", p, got, err)
		}
	}
	if _, _, err := b.ListFiles(t.Context(), "locked", 1, 10); err == nil {
		t.Error("a folder of root's was listed")
	}
	if err := b.RemoveFile(t.Context(), "locked", true, agent.Condition{}); err == nil {
		t.Error("a folder of root's was removed")
	}

	ownFilesOfUser(t, b, u)
}

// ownFilesOfUser: what file calls make belongs to the user.
func ownFilesOfUser(t *testing.T, b *Bench, u image.User) {
	if _, err := b.WriteFile(t.Context(), agent.FileWrite{Path: "of/the/user", Data: []byte("one")}); err != nil {
		t.Fatal(err)
	}
	uid, gid := HostUser(t, b.runtime, u)
	for _, p := range []string{"of", "of/the", "of/the/user"} {
		st, err := os.Lstat(filepath.Join(b.Workspace, p))
		if err != nil {
			t.Fatal(err)
		}
		if owner := st.Sys().(*syscall.Stat_t); owner.Uid != uint32(uid) || owner.Gid != uint32(gid) {
			t.Errorf("%s belongs to %d:%d", p, owner.Uid, owner.Gid)
		}
	}
	b.want(t, "echo two >> of/the/user; cat of/the/user; stat -c '%u %a' of/the/user",
		fmt.Sprintf("onetwo\n%d 644", u.UID))
	e := b.exec(t, "head -c 1000000 /dev/zero | tr '\\0' y", time.Minute)
	if e.Stdout.Path == "" {
		t.Fatalf("long output: %+v", e)
	}
	data, _, err := b.ReadFile(t.Context(), e.Stdout.Path, 0, 10)
	if err != nil || !bytes.Equal(data, []byte("yyyyyyyyyy")) {
		t.Errorf("the whole output: %q, %v", data, err)
	}
}

// attackAsUser: programs of the user get no other rights, and change nothing that the agent uses.
func attackAsUser(t *testing.T, b *Bench) {
	for _, line := range []string{"kill -0 1", "kill -9 1", "cat /proc/1/environ", "ls /proc/1/fd",
		"echo x > /.sandlot/agent", "touch /.sandlot/x", "mv /.sandlot /tmp/s", "touch /var/lib/sandlot/x",
		"mkdir -p /var/lib/sandlot/bin/x", "mv /var/lib/sandlot/output /tmp/o", "rm -r /var/lib/sandlot/output",
		"ln -s /tmp /var/lib/sandlot/y", "echo x >> /etc/gitconfig", "touch /etc/x", "echo x >> /etc/resolv.conf",
		"rm -f /etc/resolv.conf && test ! -e /etc/resolv.conf", "touch /run/sandlot/x", "cat /run/sandlot/secret",
		"mv /workspace /tmp/w",
		"touch /root/x", "touch /usr/x", "mount -t tmpfs none /tmp", "chown 0 /workspace",
		"python3 -c 'import os; os.setuid(0)'", "python3 -c 'import os; os.setresuid(0, 0, 0)'",
		"python3 -c 'import os; os.setgroups([0])'", "python3 -c 'import os; os.chroot(\"/tmp\")'",
		"for t in /proc/1/task/*; do kill -0 ${t##*/} && exit 0; done; exit 1",
		"cp /bin/true ~/suid && chmod 4755 ~/suid && chown 0 ~/suid"} {
		if d := b.exec(t, "{ "+line+"; } 2>/dev/null", 20*time.Second); d.ExitCode == 0 {
			t.Errorf("done: %s: %q", line, d.Stdout.Head)
		}
	}
	// The agent follows no link that programs put where it writes next.
	b.sh(t, "git --version >/dev/null; cp /etc/gitconfig /tmp/before; for i in $(seq 1 200); do "+
		"ln -s /tmp/target$i /var/lib/sandlot/output/$i-stdout.txt 2>/dev/null; done; true")
	b.exec(t, "head -c 1000000 /dev/zero | tr '\\0' y", time.Minute)
	b.want(t, "ls /tmp | grep -c target || true", "0")
	b.want(t, "cmp /etc/gitconfig /tmp/before && echo same", "same")
	// While file calls run, with threads that have the user's ids, programs try to signal these.
	id := b.start(t, "while :; do for t in /proc/1/task/*; do kill -STOP ${t##*/}; kill -9 ${t##*/}; done; done "+
		"2>/dev/null")
	for range 200 {
		if _, err := b.WriteFile(t.Context(), agent.FileWrite{Path: "target", Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := b.StopProcess(t.Context(), id, syscall.SIGKILL, time.Second); err != nil {
		t.Error(err)
	}
	if got := b.sh(t, "echo alive"); !strings.Contains(got, "alive") {
		t.Errorf("after the attack: %q", got)
	}
}
