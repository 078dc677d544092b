package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/guesttest"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

const testUID, testGID = 61234, 62345

// child runs what a test needs a process of its own for, and is called by TestMain.
func child(what string) int {
	switch what {
	case "threads":
		reserveThreads()
		time.Sleep(100 * time.Millisecond)
		text, err := os.ReadFile("/proc/self/status")
		fmt.Println(string(text), err)
	case "capabilities":
		fmt.Println(dropBoundingSet(nil))
	case "inheritable":
		err := clearInheritable()
		text, rerr := os.ReadFile("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/status")
		fmt.Println(string(text), err, rerr)
	default:
		return 1
	}
	return 0
}

// childEnv names what child is to run.
const childEnv = "SANDLOT_TEST_CHILD"

func runChild(t *testing.T, what string, attr *syscall.SysProcAttr) string {
	t.Helper()
	// A user who may not enter the folder of the test's program starts it by its descriptor.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles, cmd.Env, cmd.Dir, cmd.SysProcAttr = []*os.File{self}, []string{childEnv + "=" + what}, "/", attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestReserveThreads(t *testing.T) {
	out := runChild(t, "threads", nil)
	_, after, _ := strings.Cut(out, "Threads:")
	if n, err := strconv.Atoi(strings.Fields(after + " none")[0]); err != nil || n < spareThreads {
		t.Errorf("%d threads, %v", n, err)
	}
}

// An agent that cannot drop capabilities says so, and does not run.
func TestNoSETPCAP(t *testing.T) {
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: testUID, Gid: testGID}
	}
	if out := runChild(t, "capabilities", attr); !strings.Contains(out, "CAP_SETPCAP") {
		t.Errorf("without the capability: %s", out)
	}
}

// Capabilities that a daemon has made inheritable, or ambient, are taken from all that the agent starts; an agent
// that cannot do that says so (such as one with C code, as under the race detector).
func TestInheritable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can have ambient capabilities; CI is root")
	}
	out := runChild(t, "inheritable", &syscall.SysProcAttr{AmbientCaps: []uintptr{unix.CAP_NET_RAW}})
	const none = ":\t0000000000000000\n"
	if cleared := strings.Contains(out, "CapInh"+none) && strings.Contains(out, "CapAmb"+none); cleared ==
		strings.Contains(out, "clearing the inheritable capabilities") {
		t.Errorf("the agent has: %s", out)
	}
}

// A folder of the agent's is shared with the user, and never one to which an image or the user has made a link.
func TestSharedFolderFollowsNoLink(t *testing.T) {
	r := newUserRig(t)
	if err := os.Chown(r.Path, 0, 0); err != nil {
		t.Fatal(err)
	}
	tree(t, r.Path, "other/sub/")
	for _, name := range []string{"link", "parent/link"} {
		tree(t, r.Path, filepath.Dir(name)+"/")
		if err := os.Symlink(filepath.Join(r.Path, "other"), filepath.Join(r.Path, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(r.Path, "theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(r.Path, "theirs"), testUID, testGID); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "parent/link/sub", "parent/link/new", "theirs"} {
		if err := makeShared(filepath.Join(r.Path, name), r.user); err == nil {
			t.Errorf("%s was shared", name)
		}
	}
	for _, name := range []string{"other", "other/sub", "theirs"} {
		if st, err := os.Lstat(filepath.Join(r.Path, name)); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(r.Path, "other/new")); err == nil {
		t.Error("a folder was made behind a link")
	}
	for range 2 {
		name := filepath.Join(r.Path, "a/b")
		if err := makeShared(name, r.user); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Lstat(name); err != nil || st.Mode() != os.ModeDir|os.ModeSticky|0o777 {
			t.Errorf("the folder: %v, %v", st, err)
		}
	}
}

// No interpreter starts before the host has removed the file with the secret.
func TestWarmAwaitsSecret(t *testing.T) {
	dir := t.TempDir()
	a := New(Config{Socket: filepath.Join(dir, wire.Socket), Secret: make([]byte, wire.SecretLen)})
	secret := filepath.Join(dir, wire.SecretFile)
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { defer close(gone); a.awaitSecretGone(t.Context()) }()
	select {
	case <-gone:
		t.Error("the file is there")
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	<-gone
}

// newUserRig is a rig whose user is not root, with a folder of that user's.
func newUserRig(t *testing.T) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user; CI is root")
	}
	u, err := user.New(testUID, testGID, nil, "someone", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOf(t, u)
	for dir := r.Path; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(r.Path, testUID, testGID); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) printed(argv ...string) string {
	r.T.Helper()
	d, err := r.execute(r.T.Context(), &agentv1.ExecRequest{Command: &agentv1.Command{Argv: argv},
		TimeoutMillis: 20_000}, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	return strings.TrimSpace(string(d.Stdout.Head) + string(d.Stderr.Head))
}

// On Linux without gVisor, too, programs and file calls have the user's rights.
func TestUser(t *testing.T) {
	r := newUserRig(t)
	r.Write("secret", "root's")
	if err := os.Chmod(filepath.Join(r.Path, "secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.printed("sh", "-c", "id -u; id -g; id -G; cat secret; touch made; echo x > /dev/stderr"); got !=
		"61234\n62345\n62345\ncat: secret: Permission denied\nx" {
		t.Errorf("a command: %q", got)
	}
	d, err := r.runFile(t.Context(), languages()[0], &agentv1.EvaluateRequest{Code: "id -u"}, nil)
	if err != nil || string(d.Stdout.Head) != "61234\n" {
		t.Errorf("a file with code: %v, %v", d, err)
	}
	if _, err := r.WriteFile(t.Context(), &agentv1.WriteFileRequest{Path: "d/file", Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"made", "d", "d/file"} {
		st, err := os.Lstat(filepath.Join(r.Path, name))
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != testUID {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
	_, err = r.ReadFile(t.Context(), &agentv1.ReadFileRequest{Path: "secret", Limit: 10})
	guesttest.Refused(t, err, connect.CodePermissionDenied, "Permission denied")
	if _, _, err := r.Open("secret"); err == nil {
		t.Error("a file of root's was opened")
	}
	e, err := r.execute(t.Context(), &agentv1.ExecRequest{TimeoutMillis: 200, Command: &agentv1.Command{
		Argv: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}}}, nil)
	if err != nil || !e.TimedOut {
		t.Errorf("a command that ignores signals: %v, %v", e, err)
	}
}

// The agent's own folders are the user's as far as that is needed.
func TestUserFolders(t *testing.T) {
	r := newUserRig(t)
	root := r.Path
	if err := os.Chown(root, 0, 0); err != nil {
		t.Fatal(err)
	}
	tree(t, root, "usr/bin/python3.11", "root/", "usr/local/lib/python3.11/site-packages/")
	h := home{root: root, user: r.user, env: map[string]string{"PYTHONUSERBASE": "/workspace/.local", "HOME": "/root",
		"PATH": "/usr/bin:" + programsDir}}
	h.takeFolders("/workspace", "/var/lib/sandlot/output")
	dir := h.userHome()
	h.env["HOME"] = dir
	h.prepare([]string{"/usr/bin/python3.11"})
	if dir != "/var/lib/sandlot/home/61234" || h.userHome() != dir {
		t.Errorf("the home is %s", dir)
	}
	writable := map[string]bool{"workspace": true, "workspace/.local/bin": true, dir: true,
		"var/lib/sandlot/output": true, ".venv": true, "var/lib/sandlot": false, "var/lib/sandlot/bin": false,
		".": false, "root": false, "usr/bin": false}
	for name, want := range writable {
		err := r.user.Do(func() error { return canWrite(filepath.Join(root, name)) })
		if (err == nil) != want {
			t.Errorf("%s: %v, writable should be %v", name, err, want)
		}
	}
	for _, name := range []string{dir + "/.local", ".venv/pyvenv.cfg", "workspace/.local/lib", "workspace"} {
		if st, err := os.Lstat(filepath.Join(root, name)); err != nil || st.Sys().(*syscall.Stat_t).Uid != testUID {
			t.Errorf("%s is not the user's: %v", name, err)
		}
	}
	h.user.Home = "/own"
	tree(t, root, "own/")
	if err := os.Chown(filepath.Join(root, "own"), testUID, testGID); err != nil {
		t.Fatal(err)
	}
	h.env["HOME"] = "/root"
	if got := h.userHome(); got != "/own" {
		t.Errorf("the home of the image is not used, but %s", got)
	}
}

// A folder that programs cannot start in is named.
func TestWorkingFolder(t *testing.T) {
	r := newUserRig(t)
	closed := filepath.Join(r.Path, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{closed: "may not enter", filepath.Join(r.Path, "none"): "no folder"} {
		r.configure(&agentv1.FileRoot{Path: dir})
		_, err := r.execute(t.Context(), &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"true"}}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("in %s: %v", dir, err)
		}
	}
}
