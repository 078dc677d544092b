package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/sandbox/sandboxtest"
)

// proven says that the session is a sandbox: nothing hostile runs anywhere
// else.
func proven(t *testing.T, c *client, session string) {
	t.Helper()
	if daemonOf(t) != nil {
		provenContainer(t, c, session)
		return
	}
	r := c.shell(session, "cat /proc/version; dmesg 2>/dev/null | head -1; ls /dev/sda /dev/vda /root/.ssh 2>&1 | "+
		"grep -c 'No such'")
	if !strings.Contains(strings.ToLower(r.Text), "gvisor") || !strings.HasSuffix(strings.TrimSpace(r.Text), "3") {
		t.Fatalf("this is no sandbox: %q", r.All)
	}
}

// breath is the time between two calls of a user beside others. A user who takes none makes the machine busy, and the
// calls of all others slow.
const breath = 50 * time.Millisecond

// bystander is a second user, who makes calls while the test runs. It reports
// how long they took; each has to go well.
func bystander(t *testing.T, s *server, token string) (end func()) {
	t.Helper()
	c := s.connect(older, token, nil)
	id := c.code("new", "1").session()
	ctx, cancel := context.WithCancel(context.Background())
	var took []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			limited, done := context.WithTimeout(context.Background(), 10*time.Second)
			r, err := c.try(limited, "execute_code", args{"code": "6*7", "session_id": id})
			done()
			if err != nil || r.Text != "42" {
				t.Errorf("the second user's call: %v %v", r, err)
				return
			}
			took = append(took, time.Since(began))
			time.Sleep(breath)
		}
	})
	end = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if len(took) == 0 {
			t.Error("the second user made no call")
			return
		}
		slices.Sort(took)
		t.Logf("the second user's %d calls: P50 %v, P99 %v, longest %v", len(took), took[len(took)/2],
			took[len(took)*99/100], took[len(took)-1])
	})
	t.Cleanup(end)
	return end
}

// attacksOfPlaces are the attacks whose end depends on where a sandbox is: what they fill is a volume, or their output
// comes through `sandlot-agent connect`.
var attacksOfPlaces = []string{"workspace filler", "output flood"}

// TestAttacks runs hostile code of one user beside the calls of another. After
// each the attacker's own session answers again, or says what was lost.
func TestAttacks(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_DISK_MB=512", "SANDLOT_MAX_PROCESSES=256")
	mallory := s.token("mallory")
	end := bystander(t, s, s.token("victim"))
	t.Run("each", func(t *testing.T) { runAttacks(t, s, mallory) })
	end()
}

func runAttacks(t *testing.T, s *server, mallory string) {
	for _, a := range []struct {
		name, language, code string
		timeout              int
	}{
		{"fork bomb", "bash", "f() { f | f & }; f; sleep 2", 10},
		{"thread bomb", "python", "import threading, time\nwhile True:\n  try: threading.Thread(target=time.sleep, " +
			"args=(100,)).start()\n  except RuntimeError: time.sleep(0.1)", 4},
		{"memory bomb", "python", "l = []\nwhile True: l.append(bytearray(16 << 20))", 20},
		{"memory bomb in many processes", "bash",
			"for i in $(seq 20); do python3 -c 'l=[]\nimport time\nfor i in range(12): l.append(bytearray(16 << " +
				"20)); time.sleep(0.05)\ntime.sleep(20)' & done; wait", 15},
		{"disk filler", "bash", "i=0; while :; do i=$((i+1)); head -c 20000000 /dev/zero > /tmp/f$i || break; done; " +
			"rm -f /tmp/f*", 15},
		{"workspace filler", "bash", "i=0; n=0; while [ $n -lt 10 ]; do i=$((i+1)); head -c 50000000 /dev/zero > /workspace/f$i " +
			"|| n=$((n+1)); done", 30},
		{"output flood", "bash", "yes 0123456789012345678901234567890123456789", 2},
		{"stderr flood", "python", "import os\nwhile True: os.write(2, b'x' * 65536)", 2},
		{"busy loops", "bash", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait", 2},
		{"many files", "python", "import os\nos.makedirs('/workspace/d', exist_ok=True)\nfor i in range(10**6): " +
			"open(f'/workspace/d/{i}', 'w').close()", 4},
		{"signals ignored", "python", "import signal, os\nfor n in range(1, 65):\n  try: signal.signal(n, " +
			"signal.SIG_IGN)\n  except Exception: pass\nwhile True: pass", 2},
		{"closed descriptors", "python",
			"import os\nfor fd in range(0, 64):\n  try: os.close(fd)\n  except OSError: pass\nwhile True: pass", 2},
		{"false replies", "python", "import os\nfor i in range(50000): os.write(4, b'{\"id\": %d, \"ok\": true, " +
			"\"result\": \"forged\"}\\n' % i)", 10},
		{"huge result", "python", "'x' * (400 << 20)", 20},
		{"deep recursion", "python", "def f(x): return f(x)\nimport sys\nsys.setrecursionlimit(10**9)\nf(1)", 5},
		{"many rich values", "python",
			"class P:\n  def _repr_png_(self): return b'x' * (1 << 20)\nfor i in range(1000): display(P())", 20},
	} {
		if isLikeAMac(t) && !slices.Contains(attacksOfPlaces, a.name) {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			s := *s
			s.t = t
			c := s.connect(older, mallory, nil)
			id := c.code("new", "kept = 'variables'\nopen('/workspace/kept', 'w').write('files')").session()
			proven(t, c, id)
			ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
			defer cancel()
			r, err := c.try(ctx, "execute_code", args{"code": a.code, "language": a.language, "timeout": a.timeout,
				"session_id": id})
			switch {
			case ctx.Err() != nil:
				t.Error("the call never ended")
			case err != nil:
				t.Logf("fault: %v", err)
			default:
				t.Logf("result: isError %v, %d bytes, ends with %q", r.IsError, len(r.All), tail(r.All, 300))
				if len(r.All) > 3<<20 {
					t.Errorf("the result has %d bytes", len(r.All))
				}
			}
			// The attacker's own session is there, or was made again.
			again, err := c.try(ctx, "execute_code",
				args{"code": "import os; print(os.path.exists('/workspace/kept'), 'kept' in globals())",
					"session_id": id, "timeout": 60})
			if err != nil || !strings.Contains(again.All, "True") {
				t.Errorf("afterwards: %v %v", again, err)
			} else {
				t.Logf("afterwards: %q", tail(again.All, 200))
			}
			c.call("stop_session", args{"session_id": id})
		})
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// TestEscapes tries to reach what is the host's, or another's.
func TestEscapes(t *testing.T) {
	t.Parallel()
	escape(t, start(t))
}

// TestEscapesUnprivileged does the same on a server that is not root.
func TestEscapesUnprivileged(t *testing.T) {
	t.Parallel()
	escape(t, startUnprivileged(t))
}

// shared returns a folder of the test that all users of the machine can read.
func shared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandlot-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func escape(t *testing.T, s *server) {
	canary := filepath.Join(shared(t), "canary")
	const secret = "canary-of-the-host-7361"
	if err := os.WriteFile(canary, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	victim, mallory := s.connect(older, s.token("victim"), nil), s.connect(older, s.token("mallory"), nil)
	const treasure = "treasure-of-the-victim-9917"
	v := victim.code("home", "t = '"+treasure+"'\nopen('/workspace/treasure', 'w').write(t)").session()
	m := mallory.code("new", "1").session()
	proven(t, mallory, m)
	shadow, err := os.ReadFile("/etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	passwords := []string{"root:$", "root:*"}
	if isLikeAMac(t) { // an image has such a file, too
		passwords = []string{string(shadow)}
	}
	isPassword := func(text string) bool {
		return slices.ContainsFunc(passwords, func(p string) bool { return strings.Contains(text, p) })
	}
	for _, line := range []string{
		"cat " + canary, "cat /proc/1/root" + canary, "cat /proc/self/root" + canary,
		"ln -sfn / /workspace/root; cat /workspace/root" + canary,
		"cat " + s.State + "/workspaces/*/treasure; ls " + s.State,
		"cat /workspace/../*/treasure /workspace/../../*/*/treasure",
		"cat /run/sandlot/* ; ls -la /run/sandlot/..",
		"find / \\( -path /usr -o -path /proc \\) -prune -o -name treasure -print -o -name canary -print 2>/dev/null | xargs cat",
		"cat /etc/shadow; cat /root/.ssh/*; cat /home/*/.ssh/*",
		"cat /proc/*/environ | tr '\\0' '\\n' | grep -i -e secret -e token",
		"mount -t proc none /mnt; mount --bind / /mnt; chroot / true; unshare -r true",
		"python3 -c 'import ctypes; l = ctypes.CDLL(None); print(l.setuid(0), l.ptrace(16, 1, 0, 0), " +
			"open(\"/proc/1/mem\", \"rb\"))'",
		"dd if=/dev/mem bs=1 count=1; dd if=/dev/vda bs=1 count=1; dd if=/dev/sda bs=1 count=1",
	} {
		r := mallory.shell(m, line)
		if strings.Contains(r.All, secret) || strings.Contains(r.All, treasure) || isPassword(r.All) {
			t.Errorf("%s: %q", line, r.All)
		}
	}
	if daemonOf(t) == nil { // elsewhere root has no capabilities
		misuseCapabilities(t, map[*client]string{mallory: m, victim: v}, canary)
	}
	// Links that the sandbox makes are not followed by the file tools, and not
	// by the API, even while they are swapped.
	mallory.shell(m, "mkdir -p /workspace/sub; ln -sfn "+filepath.Dir(canary)+" /workspace/out; ln -sfn "+canary+
		" /workspace/file")
	mallory.call("execute_command",
		args{"command": "while :; do rm -rf /workspace/swap; mkdir /workspace/swap; rm -rf /workspace/swap; ln -s " +
			filepath.Dir(canary) + " /workspace/swap; done", "background": true, "session_id": m})
	token := s.token("mallory")
	for i := range 60 {
		for _, p := range []string{"file", "out/canary", "swap/canary"} {
			if r, err := mallory.try(t.Context(), "sandbox_read_file", args{"path": p, "session_id": m}); err == nil &&
				strings.Contains(r.All, secret) {
				t.Fatalf("%s was read", p)
			}
			mallory.try(t.Context(), "sandbox_write_file", args{"path": p, "content": "overwritten", "session_id": m})
			if i < 10 {
				s.request("PUT", "/v1/sessions/"+m+"/files/workspace/"+p, strings.NewReader("overwritten"),
					"Authorization", "Bearer "+token)
			}
		}
	}
	if got, err := os.ReadFile(canary); err != nil || string(got) != secret {
		t.Errorf("the host's file is now %q, %v", got, err)
	}
	victim.want(v, "t, open('/workspace/treasure').read() == t", "('"+treasure+"', True)")
}

// misuseCapabilities tries in the sessions of several users at once what root's capabilities must not give: as root, and
// as another user of the sandbox.
func misuseCapabilities(t *testing.T, sessions map[*client]string, canary string) {
	t.Helper()
	var all sync.WaitGroup
	for c, session := range sessions {
		proven(t, c, session)
		for _, as := range []string{"", "nobody"} {
			all.Go(func() {
				a := args{"command": "timeout 100 python3 - " + canary, "stdin": sandboxtest.CapableAttacks,
					"session_id": session, "timeout": 110}
				if as != "" {
					a["user"] = as
				}
				if r, err := c.try(t.Context(), "execute_command", a); err != nil || r.Text != "tried" {
					t.Errorf("capabilities, as %q: %v %v", as, r, err)
				}
			})
		}
	}
	all.Wait()
}

// TestUsers: two users and an attacker, each with a token, at the same time.
func TestUsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	tokens := map[string]string{"ann": s.token("ann"), "bob": s.token("bob"), "eve": s.token("eve")}
	ids, processes := map[string]string{}, map[string]string{}
	for _, user := range []string{"ann", "bob"} {
		c := s.connect(newer, tokens[user], nil)
		ids[user] = c.code("home", "secret = '"+user+"'").session()
		processes[user], _ = c.call("execute_command", args{"command": "echo of " + user + "; sleep 1000",
			"background": true, "session_id": "home"}).Fields["process_id"].(string)
	}
	if ids["ann"] == ids["bob"] {
		t.Fatal("two users have one home")
	}
	var all sync.WaitGroup
	for user, token := range tokens {
		all.Go(func() {
			c := s.connect(older, token, nil)
			for other, id := range ids {
				if other == user {
					continue
				}
				for tool, a := range map[string]args{
					"execute_code":       {"code": "secret", "session_id": id},
					"execute_command":    {"command": "ls", "session_id": id},
					"sandbox_read_file":  {"path": "x", "session_id": id},
					"sandbox_write_file": {"path": "x", "content": "x", "session_id": id},
					"sandbox_list_files": {"session_id": id}, "list_processes": {"session_id": id},
					"get_sessions": {"session_id": id},
				} {
					_, err := c.try(t.Context(), tool, a)
					wantFault(t, err, -32602, "SESSION_NOT_FOUND")
				}
				for _, tool := range []string{"read_process", "stop_process"} {
					if r, err := c.try(t.Context(), tool, args{"process_id": processes[other]}); err == nil {
						t.Errorf("%s of %s's process by %s: %q", tool, other, user, r.All)
					}
				}
				if r := c.call("stop_session", args{"session_id": id}); r.Text != "Session "+id+" not found" {
					t.Errorf("%s stops %s's: %q", user, other, r.All)
				}
				for _, uri := range []string{"sandlot://sessions/" + id + "/files/workspace/x"} {
					if code, _, text := s.request("GET", "/v1/sessions/"+id, nil, "Authorization", "Bearer "+
						token); code != 404 || strings.Contains(text, `"`+other+`"`) {
						t.Errorf("%s: HTTP %d %s", uri, code, text)
					}
				}
			}
			if user != "eve" {
				for range 20 {
					c.want("home", "secret", "'"+user+"'")
				}
			}
			if l := c.call("get_sessions", nil); strings.Contains(l.All, ids["ann"]) != (user == "ann") ||
				strings.Contains(l.All, ids["bob"]) != (user == "bob") {
				t.Errorf("%s sees %q", user, l.All)
			}
		})
	}
	all.Wait()
	// Without a token, with a wrong and a revoked one, there is nothing at all.
	for _, header := range [][]string{nil, {"Authorization", "Bearer slt_wrong"},
		{"Authorization", "Basic " + tokens["ann"]}} {
		for _, path := range []string{"/mcp", "/v1/sessions", "/metrics"} {
			code, h, text := s.request(map[bool]string{true: "POST", false: "GET"}[path == "/mcp"], path,
				strings.NewReader("{}"), append([]string{"Content-Type", "application/json"}, header...)...)
			if code != 401 || !strings.HasPrefix(h.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%v %s: HTTP %d %q", header, path, code, text)
			}
		}
	}
	list, _, _ := s.cli("token", "list", "--json")
	for _, token := range tokens {
		if strings.Contains(list, token) {
			t.Error("a token is listed")
		}
	}
	db, _ := filepath.Glob(filepath.Join(s.State, "*.db*"))
	for _, f := range db {
		if text, _ := os.ReadFile(f); bytes.Contains(text, []byte(tokens["ann"])) {
			t.Errorf("%s holds a token", f)
		}
	}
	out, _, _ := s.cli("token", "list")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && strings.Contains(line, "eve") {
			s.cli("token", "revoke", f[0])
		}
	}
	if code, _, _ := s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+tokens["eve"]); code != 401 {
		t.Errorf("a revoked token: HTTP %d", code)
	}
}

// TestHostileAgent has a hostile program in the agent's place: it knows the
// secret, and speaks the wire wrongly. The server must end its calls, hold
// little, and serve the others.
func TestHostileAgent(t *testing.T) {
	t.Parallel()
	agent := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-o", agent, "./hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := start(t, "SANDLOT_AGENT="+agent)
	mallory := s.token("mallory")
	end := bystander(t, s, s.token("victim"))
	try := func(mode string) {
		t.Run(mode, func(t *testing.T) {
			s := *s
			s.t = t
			c := s.connect(older, mallory, nil)
			id := c.code("new", "1").session()
			proven(t, c, id)
			before := memory(t, s.cmd.Process.Pid)
			order, done := context.WithTimeout(context.Background(), 10*time.Second)
			// it may not come back
			c.try(order, "execute_command", args{"command": "echo " + mode + " > /tmp/.hostile", "session_id": id})
			done()
			time.Sleep(200 * time.Millisecond)
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			began := time.Now()
			r, err := c.try(ctx, "execute_code", args{"code": "1", "session_id": id, "timeout": 1})
			// Where the order's own call did not come back, the session has been
			// renewed, and says so.
			if ctx.Err() != nil || err == nil && !r.IsError && r.Fields["notice"] == nil {
				t.Errorf("the call: %v, %v", r, err)
			}
			t.Logf("after %v: %v", time.Since(began).Round(time.Millisecond), err)
			if grown := memory(t, s.cmd.Process.Pid) - before; grown > 256<<20 {
				t.Errorf("the server grew by %d MB", grown>>20)
			}
			// A link that breaks may be an accident: it takes a moment until the
			// sandbox is given up.
			for ctx.Err() == nil {
				if r, err = c.try(ctx, "execute_code", args{"code": "1+1", "session_id": id,
					"timeout": 2}); err == nil {
					break
				}
				time.Sleep(breath)
			}
			if err != nil || !strings.Contains(r.All, "2") {
				t.Errorf("afterwards: %v %v", r, err)
			}
			c.call("stop_session", args{"session_id": id})
		})
	}
	var slow sync.WaitGroup // they use up the time limits of calls, so all at once
	for _, mode := range []string{"silent", "deaf", "endless-events"} {
		slow.Go(func() { try(mode) })
	}
	slow.Wait()
	for _, mode := range []string{"noise", "huge-frames", "pings", "streams", "hangs-up", "claims", "wrong-kind",
		"empty-event", "large-result", "bytes"} {
		try(mode)
	}
	end()
}

func memory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, rss int64
	fmt.Sscan(string(text), &size, &rss)
	return rss * int64(os.Getpagesize())
}
