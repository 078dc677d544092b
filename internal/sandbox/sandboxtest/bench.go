package sandboxtest

import (
	"bytes"
	"cmp"
	"context"
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
	"sandlot/internal/sandbox"
)

// Bench is a running sandbox of the tested runtime, with a workspace, a read-only folder, and a file of
// the host that the sandbox must never see.
type Bench struct {
	*agent.Client
	Box       sandbox.Sandbox
	Workspace string // on the host
	ReadOnly  string // on the host; the sandbox has it at /data
	Canary    string // a file of the host, outside of all mounts
	subject   *Subject
	runtime   sandbox.Runtime
}

const canary = "the host's own secret"

func (s *Subject) bench(t *testing.T) *Bench {
	t.Helper()
	b := &Bench{subject: s, runtime: s.Open(t), Canary: filepath.Join(t.TempDir(), "canary")}
	t.Cleanup(func() { s.clean(t) })
	spec := s.Spec()
	var workspace, readOnly sandbox.Mount
	workspace, b.Workspace = s.folder(t, "/workspace", false)
	readOnly, b.ReadOnly = s.folder(t, "/data", true)
	spec.Mounts = []sandbox.Mount{workspace, readOnly}
	t.Cleanup(func() { b.close(t) })
	for file, text := range map[string]string{b.Canary: canary, filepath.Join(b.ReadOnly, "data"): "data"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	uid, gid := HostUser(t, b.runtime, spec.Template.User)
	if err := os.Chown(b.Workspace, uid, gid); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.Box, err = b.runtime.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	b.Client = agent.New(b.Box, Log(t), nil)
	b.configure(t)
	// The tests attack the sandbox, so they first prove that they run in one.
	proof := cmp.Or(s.ProofCommand, "dmesg 2>/dev/null | head -3; cat /proc/version")
	if got := b.sh(t, proof); !strings.Contains(strings.ToLower(got), s.proof()) {
		t.Fatalf("this does not look like a sandbox of the runtime: %q", got)
	}
	return b
}

// HostUser returns the ids on the host of a user of a runtime's sandboxes: the server's own if that is not root.
func HostUser(t *testing.T, rt sandbox.Runtime, u image.User) (uid, gid int) {
	t.Helper()
	uid, gid = int(u.UID), int(u.GID)
	if os.Getuid() != 0 {
		return os.Getuid(), os.Getgid()
	}
	if users := rt.Capabilities().Users; users != nil {
		var err error
		if uid, gid, err = users.HostUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	return uid, gid
}

func (s *Subject) proof() string {
	if s.VersionText != "" {
		return strings.ToLower(s.VersionText)
	}
	return "gvisor"
}

func (b *Bench) configure(t *testing.T) {
	t.Helper()
	s := agent.Settings{Template: b.subject.Template, Limits: b.Box.Spec().Limits,
		Roots: []agent.FileRoot{{Path: "/workspace"}, {Path: "/data", ReadOnly: true}}}
	if err := b.Configure(t.Context(), s); err != nil {
		t.Fatal("configuring:", err)
	}
}

func (b *Bench) close(t *testing.T) {
	t.Helper()
	if b.Client != nil {
		b.Client.Close()
	}
	if b.Box != nil {
		if err := b.Box.Stop(context.Background()); err != nil {
			t.Error("stopping:", err)
		}
	}
	closeRuntime(t, b.runtime)
}

// exec runs a line of shell code, and waits for its end.
func (b *Bench) exec(t *testing.T, line string, timeout time.Duration) *agent.ExecResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout+20*time.Second)
	defer cancel()
	d, err := b.Exec(ctx, agent.Exec{Command: bash(line), Timeout: timeout,
		Inline: agent.InlineBounds{Head: 4096, Tail: 4096}}, agent.Observer{})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return d
}

// bash returns a command that runs a line of shell code.
func bash(line string) agent.Command { return agent.Command{Args: []string{"/bin/bash", "-c", line}} }

// sh runs a line of shell code and returns its output.
func (b *Bench) sh(t *testing.T, line string) string {
	t.Helper()
	d := b.exec(t, line, time.Minute) // on a busy machine
	return strings.TrimSpace(string(d.Stdout.Head) + string(d.Stdout.Tail) + string(d.Stderr.Head))
}

func (b *Bench) eval(t *testing.T, language, code string, timeout time.Duration) *agent.CodeResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout+30*time.Second)
	defer cancel()
	d, err := b.Evaluate(ctx, agent.Code{Language: language, Source: code, Timeout: timeout,
		Inline: agent.InlineBounds{Head: 4096, Tail: 4096}, ThroughAgent: true}, agent.Observer{})
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return d
}

// value returns the text of a cell's value; empty: there is none.
func value(d *agent.CodeResult) string {
	if d.Value == nil {
		return ""
	}
	return string(d.Value.Head)
}

func (b *Bench) want(t *testing.T, line, want string) {
	t.Helper()
	if got := b.sh(t, line); got != want {
		t.Errorf("%s: got %q, want %q", line, got, want)
	}
}

func commands(t *testing.T, b *Bench) {
	b.want(t, "echo out; echo err >&2", "out\nerr")
	b.want(t, "pwd", "/workspace")
	b.want(t, "echo a | tr a b && printf 'x\\0y' | wc -c", "b\n3")
	if d := b.exec(t, "exit 7", time.Minute); d.ExitCode != 7 {
		t.Errorf("exit 7: %v", d)
	}
	if d := b.exec(t, "kill -SEGV $$", time.Minute); d.ExitCode != 128+11 {
		t.Errorf("a signal: exit code %d", d.ExitCode)
	}
	d := b.exec(t, "head -c 50000000 /dev/zero | tr '\\0' x; echo END", time.Minute)
	if d.Stdout.Total != 50_000_004 || len(d.Stdout.Head) != 4096 || len(d.Stdout.Tail) != 4096 ||
		!bytes.HasSuffix(d.Stdout.Tail, []byte("xEND\n")) || d.Stdout.Path == "" {
		t.Errorf("long output: total %d, head %d, tail %d, path %q", d.Stdout.Total, len(d.Stdout.Head),
			len(d.Stdout.Tail), d.Stdout.Path)
	}
	if n := b.sh(t, "wc -c < "+d.Stdout.Path); n != fmt.Sprint(d.Stdout.Kept) || d.Stdout.Kept < 50_000_000 {
		t.Errorf("the whole output has %s bytes, and %d were announced", n, d.Stdout.Kept)
	}
	// The timeout ends the whole process group, also if it ignores signals.
	d = b.exec(t, "trap '' TERM INT HUP; (trap '' TERM INT HUP; while :; do sleep 0.1; done) & while :; do sleep "+
		"0.1; done", time.Second)
	if !d.TimedOut || d.ExitCode != 124 {
		t.Errorf("a command that ignores signals: %+v", d)
	}
	b.want(t, "pgrep -c sleep || true", "0")
}

func interpreters(t *testing.T, b *Bench) {
	for _, l := range b.subject.Template.Languages {
		switch l.Driver {
		case "python":
			b.eval(t, l.Name, "x = 40", time.Minute)
			if d := b.eval(t, l.Name, "x + 2", time.Minute); value(d) != "42" || !d.OK {
				t.Errorf("%s: %+v", l.Name, d)
			}
			d := b.eval(t, l.Name, "import time\ny = 1\ntime.sleep(60)", time.Second)
			if !d.TimedOut || d.StateLost {
				t.Errorf("%s, interrupted: %+v", l.Name, d)
			}
			if d := b.eval(t, l.Name, "x, y", time.Minute); value(d) != "(40, 1)" {
				t.Errorf("%s forgot: %+v", l.Name, d)
			}
			stopPrograms(t, b, l.Name, "import os, subprocess; left = subprocess.Popen(['sleep', '311'])",
				"os.system('setsid sleep 312')", "subprocess.run('sleep 312; true', shell=True, start_new_session=True)",
				"subprocess.run('sleep 312 | cat', shell=True)")
			d = b.eval(t, l.Name, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
				time.Second)
			if !d.TimedOut || !d.StateLost || d.Reason == "" {
				t.Errorf("%s that ignores interrupts: %+v", l.Name, d)
			}
			if d := b.eval(t, l.Name, "1 + 1", time.Minute); value(d) != "2" {
				t.Errorf("%s after that: %+v", l.Name, d)
			}
		case "node":
			b.eval(t, "node", "const x = 40", time.Minute)
			if l.Name == "typescript" {
				// The same interpreter, where its Node is new enough; else an error that says so.
				d := b.eval(t, l.Name, "const y: number = x + 2; y", time.Minute)
				if value(d) != "42" && !strings.Contains(d.Traceback, "TypeScript needs Node") {
					t.Errorf("%s: %+v", l.Name, d)
				}
				continue
			}
			if d := b.eval(t, l.Name, "await Promise.resolve(x + 2)", time.Minute); value(d) != "42" || !d.OK {
				t.Errorf("%s: %+v", l.Name, d)
			}
			stopPrograms(t, b, l.Name, "const cp = require('child_process'); cp.spawn('sleep', ['311'], { stdio: 'ignore' }); 1",
				"cp.execSync('setsid -w sleep 312')", "cp.execSync('sleep 312 | cat')")
		case "bash":
			b.eval(t, l.Name, "x=40; f() { echo $((x + 2)); }", time.Minute)
			stopPrograms(t, b, l.Name, "(cd / && sleep 311) &", "setsid -w sleep 312", "timeout 312 sleep 312", "sleep 312 | cat")
			if d := b.eval(t, l.Name, "f", time.Minute); string(d.Stdout.Head) != "42\n" || !d.OK {
				t.Errorf("%s: %+v", l.Name, d)
			}
		}
	}
}

// stopPrograms runs cells whose time ends while they wait for `sleep 312`, which has to end with them. The `sleep 311`
// that an earlier cell has started stays.
func stopPrograms(t *testing.T, b *Bench, language, before string, cells ...string) {
	t.Helper()
	b.eval(t, language, before, time.Minute)
	time.Sleep(4 * wire.StartError) // else its program counts as one of the next cell
	for _, code := range cells {
		if d := b.eval(t, language, code, time.Second); !d.TimedOut || d.StateLost {
			t.Errorf("%s, %q: %+v", language, code, d)
		}
		b.want(t, "for i in $(seq 50); do pgrep -x -f 'sleep 312' >/dev/null || break; sleep 0.1; done; pgrep -c -x -f 'sleep 312'; "+
			"pgrep -c -x -f 'sleep 311'", "0\n1")
	}
	b.sh(t, "pkill -x -f 'sleep 311'")
}

func (b *Bench) start(t *testing.T, line string) string {
	t.Helper()
	id, err := b.StartProcess(t.Context(), agent.Background{Command: bash(line), KeepStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func background(t *testing.T, b *Bench) {
	id := b.start(t, "while read l; do echo got $l; done; echo end; exit 3")
	if _, err := b.WriteProcess(t.Context(), id, []byte("one\ntwo\n"), true); err != nil {
		t.Fatal(err)
	}
	var out []byte
	cursor, code := int64(0), -1
	for running := true; running; {
		r, err := b.ReadProcess(t.Context(), id, cursor, 5, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		out, cursor, code = append(out, r.Data...), r.Cursor, r.ExitCode
		running = r.Running || len(r.Data) > 0
	}
	if string(out) != "got one\ngot two\nend\n" || code != 3 {
		t.Errorf("output %q, exit code %d", out, code)
	}
	id = b.start(t, "sleep 1000 & sleep 1000")
	running, code, err := b.StopProcess(t.Context(), id, syscall.SIGTERM, 5*time.Second)
	if err != nil || running || code != 128+15 {
		t.Errorf("stopping: running %v, exit code %d, %v", running, code, err)
	}
	inTerminal(t, b)
	b.want(t, "pgrep -c sleep || true", "0")
}

// inTerminal tests that a background process gets a terminal, into which one can type.
func inTerminal(t *testing.T, b *Bench) {
	c := bash("stty size; trap 'echo caught; exit 5' INT; read -rsp 'Password: ' x; echo; echo got $x; tty >/dev/tty; " +
		"while :; do sleep 0.05; done")
	c.Terminal = &agent.Size{Rows: 30, Cols: 120}
	id, err := b.StartProcess(t.Context(), agent.Background{Command: c, KeepStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	var out string
	cursor, exit := int64(0), 0
	for _, step := range [][2]string{{"30 120\r\nPassword: ", "word\n"}, {"got word\r\n/dev/pts/", "\x03"}, {"caught\r\n", ""}} {
		for running := true; !strings.Contains(out, step[0]); {
			r, err := b.ReadProcess(t.Context(), id, cursor, 1000, 10*time.Second)
			if err != nil || !running {
				t.Fatalf("%q, and not %q; %v", out, step[0], err)
			}
			out, cursor, running, exit = out+string(r.Data), r.Cursor, r.Running || len(r.Data) > 0, r.ExitCode
			if r.Terminal == nil || *r.Terminal != *c.Terminal {
				t.Fatalf("its terminal: %v", r.Terminal)
			}
		}
		if step[1] == "" {
			break
		}
		if _, err := b.WriteProcess(t.Context(), id, []byte(step[1]), false); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.ReadProcess(t.Context(), id, cursor, 1000, 10*time.Second)
	if exit = max(exit, r.ExitCode); err != nil || exit != 5 {
		t.Errorf("exit code %d, %v", exit, err)
	}
}

func files(t *testing.T, b *Bench) {
	data := []byte{0, 1, 2, 0xff, '\n', 0x80}
	if _, err := b.WriteFile(t.Context(), agent.FileWrite{Path: "dir/a", Data: data}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(b.Workspace, "dir/a")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("on the host: %v, %v", got, err)
	}
	part, size, err := b.ReadFile(t.Context(), "/workspace/dir/a", 2, 2)
	if err != nil || !bytes.Equal(part, data[2:4]) || size != 6 {
		t.Errorf("a range: %v of %d bytes, %v", part, size, err)
	}
	b.sh(t, "ln -s /etc/passwd out; ln -s dir/a in; ln -s ../etc up; ln -s /proc/1/environ env")
	for _, p := range []string{"out", "/etc/passwd", "../etc/passwd", "dir/../../etc/passwd", "up/passwd", "env",
		"/workspace-other/x"} {
		_, _, err := b.ReadFile(t.Context(), p, 0, 100)
		if agent.ReasonOf(err) != agent.OutsideRoot {
			t.Errorf("reading %s: %v", p, err)
		}
		_, err = b.WriteFile(t.Context(), agent.FileWrite{Path: p, Data: data})
		if agent.ReasonOf(err) != agent.OutsideRoot {
			t.Errorf("writing %s: %v", p, err)
		}
	}
	if _, _, err := b.ReadFile(t.Context(), "in", 0, 100); err != nil {
		t.Error("a link that stays inside:", err)
	}
	if _, err := b.WriteFile(t.Context(), agent.FileWrite{Path: "/data/new", Data: data}); err == nil {
		t.Error("wrote into a root that may only be read")
	}
}

func mounts(t *testing.T, b *Bench) {
	b.want(t, "cat /data/data", "data")
	b.want(t, "{ echo new > /data/data; } 2>/dev/null || echo refused", "refused")
	b.want(t, "echo hi > /workspace/f && cat /workspace/f", "hi")
	if got, err := os.ReadFile(filepath.Join(b.Workspace, "f")); err != nil || string(got) != "hi\n" {
		t.Errorf("on the host: %q, %v", got, err)
	}
	name := "/usr/.sandlot-canary-" + b.Box.Spec().ID
	b.want(t, "{ touch "+name+" && ls "+name+"; } 2>/dev/null || echo refused",
		map[bool]string{true: name, false: "refused"}[b.subject.WritableRoot])
	if _, err := os.Lstat(name); err == nil {
		t.Errorf("the machine has %s", name)
	}
	b.want(t, "echo t > /tmp/t && cat /tmp/t", "t")

	// The sandbox sees a change of the host in a mounted folder at once, also in a folder that it has
	// read before.
	for _, m := range []struct{ host, inside string }{{b.Workspace, "/workspace"}, {b.ReadOnly, "/data"}} {
		b.want(t, "ls "+m.inside+"/later 2>/dev/null || echo none; cat "+m.inside+"/later 2>/dev/null || echo none",
			"none\nnone")
		for _, text := range []string{"first", "second, longer", "3"} {
			making, name := filepath.Join(m.host, ".making"), filepath.Join(m.host, "later")
			if err := errors.Join(os.WriteFile(making, []byte(text), 0o644), os.Rename(making, name)); err != nil {
				t.Fatal(err)
			}
			b.want(t, fmt.Sprintf("stat -c %%s %s/later; cat %[1]s/later", m.inside),
				fmt.Sprintf("%d\n%s", len(text), text))
			if err := os.WriteFile(name, []byte(text+text), 0o644); err != nil {
				t.Fatal(err)
			}
			b.want(t, fmt.Sprintf("stat -c %%s %s/later; cat %[1]s/later", m.inside),
				fmt.Sprintf("%d\n%s", 2*len(text), text+text))
		}
		if err := os.Remove(filepath.Join(m.host, "later")); err != nil {
			t.Fatal(err)
		}
		b.want(t, "ls "+m.inside+"/later 2>/dev/null || echo none", "none")
	}
}

func terminal(t *testing.T, b *Bench) {
	s, err := b.Interactive(t.Context(), agent.Command{
		Args:     []string{"/bin/bash", "--norc", "-c", "tty; stty size; read l; echo \"[$l]\"; read m; exit 5"},
		Terminal: &agent.Size{Rows: 33, Cols: 77}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetDeadline(time.Now().Add(20 * time.Second))
	var out []byte
	sent := 0
	buf := make([]byte, wire.MaxFrame)
	for {
		kind, data, err := wire.ReadFrame(s, buf)
		if err != nil {
			t.Fatalf("%v after %q", err, out)
		}
		if kind == wire.FrameExit {
			if code := binary.BigEndian.Uint32(data); code != 5 {
				t.Errorf("exit code %d", code)
			}
			break
		}
		out = append(out, data...)
		if sent == 0 && bytes.Contains(out, []byte("33 77")) {
			wire.WriteFrame(s, wire.FrameStdin, []byte("hello\n"))
			sent = 1
		}
		if sent == 1 && bytes.Contains(out, []byte("[hello]")) {
			wire.WriteFrame(s, wire.FrameStdin, []byte("\n"))
			sent = 2
		}
	}
	if !bytes.Contains(out, []byte("/dev/pts/")) {
		t.Errorf("no terminal: %q", out)
	}
}

// memory tests that a program with too much memory is killed, and that the sandbox keeps running.
func memory(t *testing.T, b *Bench) {
	b.eval(t, "python", "kept = 1", time.Minute)
	d := b.exec(t, "exec python3 -c '\nl=[]\nwhile True: l.append(bytearray(8<<20))'", time.Minute)
	if d.ExitCode == 0 || d.TimedOut {
		t.Errorf("a memory bomb ended with %d, killed by %q, timed out %v", d.ExitCode, d.KilledBy, d.TimedOut)
	}
	if got := b.eval(t, "python", "kept", time.Minute); value(got) != "1" {
		t.Errorf("another process lost its state: %+v", got)
	}
}

func processes(t *testing.T, b *Bench) {
	d := b.exec(t, "for i in $(seq 1 400); do sleep 100 & done 2>/dev/null; jobs -p | wc -l; kill $(jobs -p) "+
		"2>/dev/null", 30*time.Second)
	if strings.TrimSpace(string(d.Stdout.Head)) == "400" {
		t.Error("400 processes were started where 128 are allowed")
	}
	// Fork bombs: each process starts two. They cannot leave the sandbox, and take no idle interpreter.
	bombs := []string{"f() { f | f & }; f; sleep 3"}
	if b.subject.SharedKernel { // where the kernel kills what has most, unless it is told otherwise
		bombs = append(bombs, "f() { local x=$(head -c 6000000 /dev/zero | tr '\\0' x); f | f & }; f; sleep 3")
	}
	b.eval(t, "python", "kept = 2", time.Minute)
	for _, bomb := range bombs {
		b.exec(t, bomb, 10*time.Second)
		if !b.recovers(t) {
			t.Fatalf("%s made the sandbox useless", bomb)
		}
		if got := b.eval(t, "python", "kept", time.Minute); value(got) != "2" {
			t.Errorf("%s took the interpreter: %+v", bomb, got)
		}
	}
}

// recovers waits until commands run again, which the agent makes so by killing what is too much.
func (b *Bench) recovers(t *testing.T) bool {
	for range 40 {
		if d := b.exec(t, "echo alive", time.Minute); d.ExitCode == 0 && string(d.Stdout.Head) == "alive\n" {
			return true
		}
		time.Sleep(250 * time.Millisecond)
	}
	return false
}

func disk(t *testing.T, b *Bench) {
	d := b.exec(t, "head -c 1500000000 /dev/zero > /var/big; ls -l /var/big | awk '{print $5}'; rm -f /var/big",
		time.Minute)
	if strings.Contains(string(d.Stdout.Head), "1500000000") {
		t.Error("1.5 GB fit into a root file system of 256 MB")
	}
	b.want(t, "echo alive", "alive")
}

// scratch: a sandbox whose folders for temporary files are full lives on, and so do its programs. Without a quota
// they are filled to just below the disk limit of 256 MB, for all of them together.
func scratch(t *testing.T, b *Bench) {
	b.eval(t, "python", "kept = 1", time.Minute)
	size := 250_000_000
	if b.subject.NoQuota {
		size = 60_000_000
	}
	b.exec(t, fmt.Sprintf("for d in /tmp /var/tmp ~ /dev/shm; do head -c %d /dev/zero > $d/scratch; done 2>/dev/null",
		size), time.Minute)
	b.want(t, "echo alive", "alive")
	d := b.exec(t, "exec python3 -c '\nl=[]\nwhile True: l.append(bytearray(8<<20))'", time.Minute)
	if d.ExitCode == 0 || d.TimedOut {
		t.Errorf("a memory bomb beside full folders ended with %d, killed by %q", d.ExitCode, d.KilledBy)
	}
	b.sh(t, "rm -f /tmp/scratch /var/tmp/scratch ~/scratch /dev/shm/scratch")
	if got := b.eval(t, "python", "kept", time.Minute); value(got) != "1" {
		t.Errorf("another process lost its state: %+v", got)
	}
}

// directory: a working directory that is missing is named, and not the program.
func directory(t *testing.T, b *Bench) {
	s := agent.Settings{Template: b.subject.Template, Limits: b.Box.Spec().Limits,
		Roots: []agent.FileRoot{{Path: "/workspace/missing"}}}
	if err := b.Configure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	_, err := b.Exec(t.Context(), agent.Exec{Command: bash("true"), Timeout: time.Minute}, agent.Observer{})
	if err == nil || !strings.Contains(err.Error(), "no folder /workspace/missing") {
		t.Errorf("a command without its folder: %v", err)
	}
	b.configure(t)
	b.want(t, "pwd", "/workspace")
	b.want(t, "git config --system init.defaultBranch", "main") // the agent writes it
}

func isolation(t *testing.T, b *Bench) {
	attacks := map[string]string{
		"cat " + b.Canary: canary,
		"cat /workspace/../../../../../../.." + b.Canary:         canary,
		"cat /proc/1/root" + b.Canary:                            canary,
		"ln -sf " + b.Canary + " /workspace/l; cat /workspace/l": canary,
		"ls /root /home": ".ssh",
	}
	if b.subject.Template.Image == "" { // an image has a file of its own
		attacks["cat /etc/shadow"] = "root:"
	}
	for line, never := range attacks {
		if got := b.sh(t, line); strings.Contains(got, never) {
			t.Errorf("%s: %q", line, got)
		}
	}
	// The host does not follow a symbolic link of the sandbox.
	if _, _, err := b.ReadFile(t.Context(), "/workspace/l", 0, 100); err == nil {
		t.Error("a file call followed a link out of the workspace")
	}
	has := "0000000000000000"
	if b.subject.Capable {
		has = capableSets
	}
	b.want(t, "awk '/^CapEff|^CapPrm|^CapBnd/ {print $2}' /proc/self/status | sort -u", has)
	b.want(t, "awk '/^CapAmb|^CapInh/ {print $2}' /proc/self/status | sort -u", "0000000000000000")
	b.want(t, "awk '/^NoNewPrivs/ {print $2}' /proc/self/status", "1")
	b.want(t, "ls /dev/sda /dev/vda /dev/kvm /dev/mem /dev/kmsg 2>/dev/null | wc -l", "0")
	b.want(t, "mknod /tmp/d b 8 0 2>/dev/null || echo refused", "refused")
	b.want(t, "mount -t tmpfs none /mnt 2>/dev/null || echo refused", "refused")
	b.want(t, "ls /sys/class/net 2>/dev/null | grep -v '^lo$' | wc -l", "0")
	b.want(t, "awk 'NR>2 {print $1}' /proc/net/dev | tr -d ' '", "lo:")
	b.want(t, "touch /run/sandlot/x 2>/dev/null || echo refused", "refused")
	b.want(t, "rm -f /run/sandlot/agent.sock 2>/dev/null; ls /run/sandlot", "agent.sock")
	// A connection to the socket needs the secret, which no program in the sandbox can read.
	b.want(t, "cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n' | grep -ci secret || true", "0")
	b.want(t, "env | grep -ci secret || true", "0")
	b.want(t, `python3 -c '
import socket
s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect("/run/sandlot/agent.sock")
s.sendall(b"SANDLOT1" + bytes(32))
try: print(s.recv(1) in (b"", b"\x15"))
except OSError: print(True)'`, "True")
	// The agent redirects each connection to the host, which refuses it; an address without a route has another
	// error.
	b.want(t, `python3 -c '
import errno, socket
# No packet is sent if it could leave the sandbox.
others = [l for l in open("/proc/net/dev").readlines()[2:] if not l.strip().startswith("lo:")]
for address in ("192.0.2.1", "198.51.100.1", "1.2.3.4", "5.6.7.8", "10.0.0.1", "20.1.2.3", "40.1.2.3", "93.184.216.34"):
    s = socket.socket(); s.settimeout(3)
    try:
        if others: raise SystemExit("there is a network")
        s.connect((address, 80)); s.recv(1); print("connected")
    except OSError as e:
        if e.errno == errno.ENETUNREACH: print(address, "has no route")
print("refused")'`, "refused")
	// After the connection with a wrong secret, the agent still answers.
	if _, err := b.Hello(t.Context()); err != nil {
		t.Error(err)
	}
}

// survivesHost tests that interpreters and processes outlive the server.
func survivesHost(t *testing.T, b *Bench) {
	b.eval(t, "python", "x = 5", time.Minute)
	id := b.start(t, "echo before; read l; echo after $l; sleep 1000")
	b.Client.Close()
	closeRuntime(t, b.runtime)

	b.runtime = b.subject.Open(t)
	found := RecoverAll(t, b.runtime)
	if len(found) != 1 {
		t.Fatalf("recovered %d", len(found))
	}
	b.Box = found[0]
	b.Client = agent.New(b.Box, Log(t), nil)
	if d := b.eval(t, "python", "x", time.Minute); value(d) != "5" {
		t.Errorf("the interpreter forgot: %+v", d)
	}
	if _, err := b.WriteProcess(t.Context(), id, []byte("now\n"), false); err != nil {
		t.Fatal(err)
	}
	for cursor := int64(0); ; {
		r, err := b.ReadProcess(t.Context(), id, cursor, 1000, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(string(r.Data), "after now\n") {
			break
		}
		if !r.Running {
			t.Fatalf("the process ended: %q", r.Data)
		}
		if len(r.Data) == 0 {
			t.Fatal("no output in 5 s")
		}
	}
}
