package sandboxtest

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// capableSets is what /proc/self/status has of wire.Capabilities.
const capableSets = "00000000000404fb"

// CapableAttacks is a program in Python that tries what the capabilities must not give, with the path of a canary of
// the host as its argument. It prints what is done, and at last "tried".
//
//go:embed testdata/capable.py
var CapableAttacks string

//go:embed testdata/neighbour.py
var neighbourAttacks string

// capabilities: root gives files to other users and becomes them, and can do nothing to the agent, the network's rules
// or the machine by that. Where the runtime gives no capabilities, it says so.
func capabilities(t *testing.T, b *Bench) {
	if !b.subject.Capable {
		if got := b.sh(t, "/.sandlot/agent as 1234 id -u 2>&1; echo $?"); !strings.Contains(got, "cannot become another user") ||
			!strings.HasSuffix(got, "125") {
			t.Errorf("another user: %s", got)
		}
		b.want(t, "/.sandlot/agent as root id -u", "0")
		return
	}
	t.Run("work", func(t *testing.T) { capableWork(t, b) })
	t.Run("users", func(t *testing.T) { otherUsers(t, b) })
	t.Run("attack", func(t *testing.T) { attackWithCapabilities(t, b) })
	t.Run("neighbours", func(t *testing.T) { attackNeighbour(t, b) })
}

// capableWork is what failed without capabilities.
func capableWork(t *testing.T, b *Bench) {
	const archive = "mkdir own && echo x > own/f && chown -R 1234:2345 own && tar cf own.tar own && rm -r own && " +
		"tar xf own.tar && cat own/f && cp -a own other; echo $?"
	b.want(t, "mkdir /tmp/a && cd /tmp/a && "+archive+"; stat -c %u:%g own/f other", "x\n0\n1234:2345\n1234:2345")
	b.want(t, "mkdir -p /workspace/a && cd /workspace/a && "+archive, "x\n0")
	b.want(t, "chown -R 1234 /workspace/a && chmod -R u=rwX,go= /workspace/a; echo $?", "0")
	b.want(t, "setpriv --reuid 1234 --regid 2345 --clear-groups sh -c 'id -u; id -g; touch /tmp/theirs'; "+
		"stat -c %u:%g /tmp/theirs", "1234\n2345\n1234:2345")
	b.want(t, "python3 -c 'import os; os.setgroups([5]); os.setgid(7); os.setuid(8); print(os.getresuid(), os.getgroups())'",
		"(8, 8, 8) [5]")
	b.want(t, "mkdir -p /tmp/jail && chroot / id -u", "0")
	b.want(t, "mkdir /tmp/closed && chmod 0 /tmp/closed && chown 99 /tmp/closed && touch /tmp/closed/in && ls /tmp/closed", "in")
	uid, _ := HostUser(t, b.runtime, b.subject.Template.User)
	err := filepath.WalkDir(b.Workspace, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := e.Info()
		if err == nil && path != b.Workspace && i.Sys().(*syscall.Stat_t).Uid != uint32(uid) {
			t.Errorf("%s belongs to %d on the host", path, i.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(b.Workspace, "a/own/f")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("a file with an owner in the workspace: %v %v", st, err)
	}
}

// otherUsers: the agent runs programs as other users, ends them, and bounds what they start.
func otherUsers(t *testing.T, b *Bench) {
	b.want(t, "/.sandlot/agent as 1234:77 sh -c 'id -u; id -g; echo $HOME ${USER-none}'", "1234\n77\n/ none")
	b.want(t, "/.sandlot/agent as nobody sh -c 'id -u; echo $USER; touch /root/x 2>/dev/null || echo refused'",
		"65534\nnobody\nrefused")
	b.want(t, "awk '/^Cap(Eff|Prm|Amb)/ {print $2}' /proc/self/status | sort -u", "0000000000000000\n"+capableSets)
	b.want(t, "/.sandlot/agent as nobody awk '/^Cap(Eff|Prm|Amb)/ {print $2}' /proc/self/status | sort -u",
		"0000000000000000")
	b.want(t, "/.sandlot/agent as nobody-here true 2>&1; echo $?", `sandlot: there is no user "nobody-here" in /etc/passwd; `+
		"useradd makes one\n125")
	b.want(t, "/.sandlot/agent as nobody no-program 2>&1; echo $?", "sandlot: no-program: command not found\n127")
	// All that a command leaves behind ends with it, whoever runs it.
	if e := b.exec(t, "setsid /.sandlot/agent as 1234 sleep 987 & /.sandlot/agent as 1235 sleep 987", time.Second); !e.TimedOut {
		t.Errorf("a command with a timeout: %+v", e)
	}
	b.want(t, "pgrep -fc 'sleep 98[7]' || true", "0")
	id := b.start(t, "exec /.sandlot/agent as 1234 sleep 986")
	if running, _, err := b.StopProcess(t.Context(), id, syscall.SIGTERM, 5*time.Second); err != nil || running {
		t.Errorf("stopping: running %v, %v", running, err)
	}
	b.want(t, "pgrep -fc 'sleep 98[6]' || true", "0")
	if b.subject.NoLimits {
		return
	}
	// The kernel bounds the processes of each user, the agent those of all: 128 are allowed here.
	got := b.sh(t, `timeout 60 python3 -c '
import os, time
assert "gvisor" in open("/proc/version").read()
for uid in range(3000, 3022):
    if os.fork() == 0:
        os.setsid()
        if uid % 2: os.setuid(uid)
        else: os.setresuid(uid, 0, 0) # root still, but counted as another
        for n in range(16):
            try:
                if os.fork() == 0: os.setsid(); os.execvp("sleep", ["sleep", "985"])
            except OSError: pass
        os._exit(0)
    time.sleep(0.3) # with all at once the memory of the sandbox is used up first, which ends it
time.sleep(4)
'; for i in $(seq 60); do n=$(pgrep -fc "sleep 98[5]"); [ $n -le 128 ] && break; sleep 0.5; done; echo $n`)
	if n, err := strconv.Atoi(got); err != nil || n > 128 {
		t.Errorf("%s processes of other users are left", got)
	}
	b.want(t, "echo alive", "alive")
}

// attackWithCapabilities tries, as root and as other users, what the capabilities must not give; and those of a user
// namespace, which every program may make in a sandbox with a kernel of its own.
func attackWithCapabilities(t *testing.T, b *Bench) {
	before, err := os.ReadDir(b.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, as := range []string{"", "/.sandlot/agent as 1000 ", "/.sandlot/agent as 65531 ", "/.sandlot/agent as nobody "} {
		for _, where := range []string{"", " apart"} {
			got := b.sh(t, as+"timeout 60 python3 - "+b.Canary+where+" <<'END'\n"+CapableAttacks+"\nEND")
			if got != "tried" {
				t.Errorf("%q%s: %s", as, where, got)
			}
		}
	}
	b.want(t, "ls /run/sandlot", "agent.sock")
	if _, err := b.Hello(t.Context()); err != nil {
		t.Error("the agent does not answer:", err)
	}
	if text, err := os.ReadFile(b.Canary); err != nil || string(text) != canary {
		t.Errorf("the canary: %q, %v", text, err)
	}
	if after, err := os.ReadDir(b.ReadOnly); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a folder that only may be read has %v, %v", after, err)
	}
}

// attackNeighbour tries, as one user of a sandbox, to reach a program, files and ids of another.
func attackNeighbour(t *testing.T, b *Bench) {
	b.want(t, "echo 'u2001:x:2001:2001::/:/bin/sh' >> /etc/passwd && install -d -m 700 -o 2001 -g 2001 /var/tmp/of2001 && "+
		"chmod 1777 /var/tmp; echo $?", "0")
	id := b.start(t, `exec env TREASURE=treasure-of-2001 /.sandlot/agent as 2001:2001 python3 -c '
import os, pty, socket, time
os.umask(0o077)
treasure = "treasure-of-2001"
for path in "/var/tmp/of2001/own", "/var/tmp/file2001": open(path, "w").write(treasure)
os.chdir("/var/tmp/of2001")
s = socket.socket(socket.AF_UNIX)
s.bind("socket")
s.listen()
terminal = pty.openpty()
open("ready", "w").write(str(os.getpid()))
time.sleep(1000)'`)
	pid := b.sh(t, "for i in $(seq 200); do test -s /var/tmp/of2001/ready && break; sleep 0.05; done; cat /var/tmp/of2001/ready")
	before := b.sh(t, "sha256sum /var/tmp/of2001/own /var/tmp/file2001; stat -c '%a %u' /var/tmp/of2001/own /var/tmp/file2001")
	for _, as := range []string{"2002", "nobody"} {
		got := b.sh(t, "/.sandlot/agent as "+as+" timeout 60 python3 - "+pid+" <<'END'\n"+neighbourAttacks+"\nEND")
		if got != "tried" {
			t.Errorf("as %s: %s", as, got)
		}
	}
	b.want(t, "sha256sum /var/tmp/of2001/own /var/tmp/file2001; stat -c '%a %u' /var/tmp/of2001/own /var/tmp/file2001", before)
	b.want(t, "awk '/^State/ {print $2}' /proc/"+pid+"/status", "S")
	if running, _, err := b.StopProcess(t.Context(), id, syscall.SIGKILL, 5*time.Second); err != nil || running {
		t.Errorf("stopping: running %v, %v", running, err)
	}
}
