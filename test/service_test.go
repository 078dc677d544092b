package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serviceUser has no name and no home on this machine. Its number is one for whom systemd keeps a journal.
const serviceUser = 12345

// userManager starts what a machine has when a user has logged in: the user's systemd and a journal, in namespaces of
// processes and mounts, and in cgroups of their own. $1 is the folder of cgroups, $2 the user, $3 the home folder.
const userManager = `set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/systemd/journal /run/user/$2
chown $2:$2 /run/user/$2
chmod 700 /run/user/$2
touch /run/systemd/journal/flushed
mount -t tmpfs tmpfs /var/log
mkdir -p /var/log/journal/$(cat /etc/machine-id)
for top in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
	[ -d $top/$1 ] || continue
	echo $$ > $top/$1/cgroup.procs
	own=$top/$1/user.slice/user-$2.slice/user@$2.service
	mkdir -p $own
	chown $2:$2 $own $own/cgroup.procs
	[ ! -e $own/tasks ] || chown $2:$2 $own/tasks
done
/lib/systemd/systemd-journald < /dev/null > /dev/null 2>&1 &
while :; do
	(
		for top in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
			own=$top/$1/user.slice/user-$2.slice/user@$2.service
			[ ! -d $own ] || echo 0 > $own/cgroup.procs
		done
		exec setpriv --reuid $2 --regid $2 --clear-groups env -i PATH="$PATH" HOME="$3" USER=me XDG_RUNTIME_DIR=/run/user/$2 \
			/lib/systemd/systemd --user
	) < /dev/null > /dev/null 2>&1
	echo log-out
done &
cat > /dev/null # until the test ends
`

// login is a user who has logged in.
type login struct {
	t    *testing.T
	home string
	pid  int           // of the first process in the namespaces
	out  chan struct{} // gets a value when the user's systemd has ended, which then starts again
}

// beginLogin logs a user in.
func beginLogin(t *testing.T) *login {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandlot-service-")
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "home")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(home, 0o700),
		os.Chown(home, serviceUser, serviceUser)); err != nil {
		t.Fatal(err)
	}
	// The variables of the user's services: no server of these tests installs packages.
	variables := filepath.Join(home, ".config/environment.d")
	if err := errors.Join(os.MkdirAll(variables, 0o755), os.WriteFile(filepath.Join(variables, "test.conf"),
		[]byte("SANDLOT_PACKAGES_PYTHON=none\nSANDLOT_PACKAGES_NODE=none\nSANDLOT_PACKAGES_GO=none\nSANDLOT_PACKAGES_APT=false\n"), 0o644),
		filepath.WalkDir(home, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, serviceUser, serviceUser))
		})); err != nil {
		t.Fatal(err)
	}
	group := filepath.Base(dir)
	tops := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/systemd"); err == nil {
		tops = []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}
	}
	var groups []string
	for _, top := range tops {
		if _, err := os.Stat(top); err == nil {
			groups = append(groups, filepath.Join(top, group))
			if err := os.Mkdir(filepath.Join(top, group), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := &login{t: t, home: home, out: make(chan struct{}, 10)}
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "bash", "-c",
		userManager, "bash", group, strconv.Itoa(serviceUser), home)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := &logBuffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.out <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		in.Close()
		cmd.Wait() // the first process of the namespaces has ended, and with it all of them
		for _, group := range groups {
			removeCgroups(t, group)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	poll(t, 20*time.Second, func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		if err != nil {
			return err
		}
		if l.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
			return err
		}
		if said, _, _ := l.run("systemctl", "--user", "is-system-running"); strings.TrimSpace(said) != "running" {
			return fmt.Errorf("systemd is %q: %s", said, log)
		}
		return nil
	})
	return l
}

// removeCgroups removes a cgroup and those in it, which have no process.
func removeCgroups(t *testing.T, group string) {
	t.Helper()
	poll(t, 10*time.Second, func() error {
		var all []string
		err := filepath.WalkDir(group, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append([]string{path}, all...)
			}
			return err
		})
		for _, path := range all {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	})
}

// poll tries something until there is no error, and says the last one.
func poll(t *testing.T, limit time.Duration, try func() error) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// command is a program that the user runs.
func (l *login) command(ctx context.Context, args ...string) *exec.Cmd {
	id := strconv.Itoa(serviceUser)
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(l.pid), "--mount", "--pid",
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "env", "-i", "--chdir=" + l.home,
		"PATH=" + os.Getenv("PATH"), "HOME=" + l.home, "USER=me", "XDG_RUNTIME_DIR=/run/user/" + id,
		"SANDLOT_MAX_SESSIONS=7"},
		args...)...)
}

// stdio begins a client of the user that starts `sandlot stdio`, which uses the service.
func (l *login) stdio(program string) *client {
	l.t.Helper()
	cmd, log := l.command(l.t.Context(), program, "stdio"), &logBuffer{}
	cmd.Stderr = log
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(l.t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, log)
	}
	return &client{l.t, c}
}

// run runs a program as the user.
func (l *login) run(args ...string) (stdout, stderr string, code int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	if ctx.Err() != nil {
		l.t.Errorf("%q does not end", args)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// want runs a program that ends with a code, and returns what it prints.
func (l *login) want(code int, args ...string) string {
	l.t.Helper()
	out, errs, got := l.run(args...)
	if got != code {
		l.t.Fatalf("%q: exit code %d, want %d\n%s%s", args, got, code, out, errs)
	}
	return out + errs
}

// says checks that a text has words.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in\n%s", word, text)
		}
	}
}

// program copies Sandlot's programs to a folder of the user, and returns the path of the command line.
func (l *login) program(folder string) string {
	l.t.Helper()
	dir := filepath.Join(l.home, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		l.t.Fatal(err)
	}
	for _, name := range []string{"sandlot", "sandlot-agent", "sandlot-runsc"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(binary(l.t)), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o755)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
	return filepath.Join(dir, "sandlot")
}

// serviceStatus is what `sandlot service status --json` prints.
type serviceStatus struct {
	Installed, Running       bool
	AtLogIn                  bool `json:"starts_at_log_in"`
	PID                      int
	Program, Version, State  string
	Serving                  string `json:"running_version"`
	Address, Definition, Log string
	StateDir                 string `json:"state_dir"`
	Notes                    []string
}

func (l *login) status(program string) (s serviceStatus) {
	l.t.Helper()
	out, errs, code := l.run(program, "service", "status", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil || (code == 0) != s.Running {
		l.t.Fatalf("%v, exit code %d\n%s%s", err, code, out, errs)
	}
	return s
}

// TestService: the service of a user's own, under a real systemd: it is installed, answers, starts again after a crash
// and at the next log-in, moves with its program, and keeps sessions in all of that. Clients that are connected when it is
// restarted, or crashes, do not notice.
func TestService(t *testing.T) {
	t.Parallel()
	l := beginLogin(t)
	sandlot := l.program("with space, 100% & $HOME")
	unit := filepath.Join(l.home, ".config/systemd/user/sandlot.service")
	port := strconv.Itoa(freePort(t))
	says(t, l.want(1, sandlot, "service", "status"), "No service is installed")
	says(t, l.want(0, sandlot, "service", "install", "--port", port, "--dry-run"), "+++ "+unit, "ExecStart=",
		"SANDLOT_MAX_SESSIONS of this shell does not reach the service")
	says(t, l.want(1, sandlot, "service", "install", "--port", port), "--yes")
	if _, err := os.Stat(unit); err == nil {
		t.Fatal("a unit was written without an answer")
	}
	l.refusesAnother(sandlot, port)

	says(t, l.want(0, sandlot, "service", "install", "--port", port, "--yes"), "The server runs",
		"loginctl enable-linger")
	first := l.status(sandlot)
	if !first.Installed || !first.Running || !first.AtLogIn || first.Program != sandlot || first.Definition != unit ||
		first.Serving != first.Version || first.Address != "http://localhost:"+port+"/mcp" {
		t.Errorf("%+v", first)
	}
	s := &server{t: t, URL: "http://127.0.0.1:" + port, State: first.StateDir, log: &logBuffer{}}
	session := s.remembers("", "x = 41")
	// Clients of each kind, which go on whatever happens to the server. The first one listens, too.
	held := map[string]*client{"stateful": s.connectAt("/mcp", older, "", true, nil), "stateless": s.connect(newer, "", nil),
		"stdio": l.stdio(sandlot)}
	goesOn := func(x string) {
		t.Helper()
		s.remembers(session, "assert x == "+x)
		transport.CloseIdleConnections()
		for who, c := range held {
			t.Log("the next call of a client that is ", who)
			c.want(session, "x", x)
		}
	}
	goesOn("41")
	says(t, l.want(0, sandlot, "service", "install", "--port", port, "--yes"), "nothing to write")
	says(t, l.want(0, sandlot, "service", "restart"), "The server runs")
	goesOn("41")
	s.remembers(session, "x = 42")
	before := l.status(sandlot).PID
	l.want(0, "systemctl", "--user", "restart", "sandlot")
	goesOn("42")
	if now := l.status(sandlot).PID; now == before {
		t.Errorf("systemd has not restarted %d", now)
	}
	s.remembers(session, "x = 43")
	l.want(0, "kill", "-9", strconv.Itoa(l.status(sandlot).PID))
	goesOn("43")
	for _, c := range held {
		c.Close()
	}
	l.logOut()
	s.remembers(session, "assert x == 43; x = 44")
	poll(t, 20*time.Second, func() error {
		if out, _, _ := l.run(sandlot, "service", "logs", "--lines", "1000"); strings.Count(out, "msg=serving") < 5 {
			return fmt.Errorf("the log:\n%s", out)
		}
		return nil
	})

	sandlot = l.moves(sandlot, unit, port)
	s.remembers(session, "assert x == 44; x = 45")
	l.saysWhyNot(sandlot, port)

	says(t, l.want(0, sandlot, "service", "remove"), "removed", first.StateDir)
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(unit), "*")); len(left) != 2 { // both are copies
		t.Errorf("left: %q", left)
	}
	if out := l.want(1, "systemctl", "--user", "is-enabled", "sandlot"); !strings.Contains(out, "No such file") {
		t.Error(out)
	}
	says(t, l.want(0, sandlot, "service", "remove"), "nothing to do")
	says(t, l.want(0, sandlot, "stop", "--sessions"), "0 sandboxes were ended", " sleep") // the clients have one, too
	if _, err := os.Stat(filepath.Join(first.StateDir, "sandlot.db")); err != nil {
		t.Error(err)
	}
	l.oddNames()
}

// awaitReady waits until a server accepts connections, and can make sandboxes.
func (s *server) awaitReady() {
	s.t.Helper()
	poll(s.t, 30*time.Second, func() error {
		r, err := (&http.Client{Transport: transport}).Get(s.URL + "/readyz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode != 200 {
				err = fmt.Errorf("/readyz: %s", r.Status)
			}
		}
		return err
	})
}

// remembers runs code in a session, when a server answers, and returns the session.
func (s *server) remembers(session, code string) string {
	s.t.Helper()
	a := args{"code": code, "template": "python"}
	if session != "" {
		a = args{"code": code, "session_id": session}
	}
	s.awaitReady()
	answer := s.bare("execute_code", a)
	if done, _ := answer.Result["code_success"].(bool); !done {
		s.t.Fatalf("%s: %+v", code, answer)
	}
	id, _ := answer.Result["session_id"].(string)
	return id
}

// refusesAnother: a server that somebody has started is left alone, and the service waits for its end.
func (l *login) refusesAnother(sandlot, port string) {
	l.t.Helper()
	l.want(0, "setsid", "--fork", "sh", "-c", `exec "$0" serve --port "$1" > serve.log 2>&1 < /dev/null`, sandlot, port)
	poll(l.t, 30*time.Second, func() error {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			return c.Close()
		}
		log, _ := os.ReadFile(filepath.Join(l.home, "serve.log"))
		return fmt.Errorf("%w\n%s", err, log)
	})
	says(l.t, l.want(1, sandlot, "service", "install", "--port", port, "--yes"), "a server runs already",
		"sandlot stop")
	l.want(0, sandlot, "stop", "--sessions")
}

// logOut ends the user's systemd, which starts again: the user logs in.
func (l *login) logOut() {
	l.t.Helper()
	l.want(0, "systemctl", "--user", "exit")
	select {
	case <-l.out:
	case <-time.After(60 * time.Second):
		l.t.Fatal("systemd does not end")
	}
}

// moves moves the program, and returns where it is. The service starts it from there when it is installed again, and
// what the user has changed in the unit is kept.
func (l *login) moves(sandlot, unit, port string) string {
	l.t.Helper()
	moved := filepath.Join(l.home, "moved")
	if err := os.Rename(filepath.Dir(sandlot), moved); err != nil {
		l.t.Fatal(err)
	}
	moved = filepath.Join(moved, "sandlot")
	if s := l.status(moved); !s.Running || s.Program != sandlot ||
		!strings.Contains(strings.Join(s.Notes, " "), "cannot start its program") {
		l.t.Errorf("%+v", s)
	}
	f, err := os.OpenFile(unit, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = io.WriteString(f, "[Service]\nEnvironment=MINE=1\n")
	}
	if err := errors.Join(err, f.Close()); err != nil {
		l.t.Fatal(err)
	}
	says(l.t, l.want(0, moved, "service", "install", "--port", port, "--yes"), "-Environment=MINE=1",
		"As it was before: "+unit+".bak-", "The server runs")
	backups, _ := filepath.Glob(unit + ".bak-*")
	if len(backups) != 1 {
		l.t.Fatalf("backups: %q", backups)
	}
	if text, err := os.ReadFile(backups[0]); err != nil || !strings.Contains(string(text), "MINE=1") {
		l.t.Errorf("%v\n%s", err, text)
	}
	if s := l.status(moved); !s.Running || s.Program != moved {
		l.t.Errorf("%+v", s)
	}
	return moved
}

// saysWhyNot: a server that cannot start is said to be one, with its log. A unit that somebody else has written is
// kept, too.
func (l *login) saysWhyNot(sandlot, port string) {
	l.t.Helper()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	defer used.Close()
	_, taken, _ := net.SplitHostPort(used.Addr().String())
	says(l.t, l.want(1, sandlot, "service", "install", "--port", taken, "--yes", "--host", "127.0.0.1"),
		"the server has ended", "sandlot service logs")
	poll(l.t, 20*time.Second, func() error {
		if out, _, _ := l.run(sandlot, "service", "logs"); !strings.Contains(out, "address already in use") {
			return fmt.Errorf("the log:\n%s", out)
		}
		return nil
	})
	poll(l.t, 20*time.Second, func() error { // systemd tries again now and then
		if s := l.status(sandlot); s.Running || !s.Installed {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	unit := filepath.Join(l.home, ".config/systemd/user/sandlot.service")
	if err := os.WriteFile(unit, []byte("[Service]\nExecStart=/bin/true\n"), 0o644); err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(time.Second) // the second copy has another name
	says(l.t, l.want(0, sandlot, "service", "install", "--port", port, "--yes"), "-ExecStart=/bin/true",
		"As it was before", "The server runs")
	says(l.t, l.want(0, sandlot, "service", "stop"), "The server has ended", "sandlot ps")
	if s := l.status(sandlot); s.Running || !s.AtLogIn {
		l.t.Errorf("%+v", s)
	}
	says(l.t, l.want(0, sandlot, "service", "start"), "The server runs")
}

// oddNames: each letter that systemd takes for something else is one of the program's path, or of its arguments.
func (l *login) oddNames() {
	l.t.Helper()
	sandlot := l.program("a \"b\" 'c' \\d\\n $HOME ${HOME} $$ 100%h %% ; <e> & #f\tg\nh")
	state := filepath.Join(l.home, "s \"'\\n $HOME $$ %h %% ; <&#\t\né") // such a path is short
	settings := filepath.Join(l.home, "$set tings%h\\.yaml")
	if err := errors.Join(os.Mkdir(state, 0o700), os.Chown(state, serviceUser, serviceUser),
		os.WriteFile(settings, []byte("pool_size: 0\n"), 0o644)); err != nil {
		l.t.Fatal(err)
	}
	port := strconv.Itoa(freePort(l.t))
	install := []string{sandlot, "--state-dir", state, "--config", settings, "service", "install", "--port", port,
		"--yes"}
	says(l.t, l.want(0, install...), "The server runs")
	if s := l.status(sandlot); !s.Running || s.Program != sandlot || s.StateDir != state {
		l.t.Errorf("%+v", s)
	}
	if _, err := os.Stat(filepath.Join(state, "sandlot.db")); err != nil {
		l.t.Error(err)
	}
	says(l.t, l.want(0, install...), "nothing to write")
	l.want(0, sandlot, "service", "remove")
}

// TestNoService: where no systemd runs for the user, and for root, nothing is written and the words say what to do.
func TestNoService(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd := exec.Command(binary(t), "service", "install", "--yes")
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("root has a service: %s", out)
	}
	says(t, string(out), "service of the system", "deploy.md")

	dir, err := os.MkdirTemp("", "sandlot-service-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l := &login{t: t, home: filepath.Join(dir, "home")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(l.home, 0o700),
		os.Chown(l.home, serviceUser, serviceUser)); err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(serviceUser)
	cmd = exec.Command("setpriv", "--reuid", id, "--regid", id, "--clear-groups", "env", "-i",
		"PATH="+os.Getenv("PATH"), "HOME="+l.home, l.program("bin"), "service", "install", "--yes")
	if out, err = cmd.CombinedOutput(); err == nil {
		t.Errorf("a service without systemd: %s", out)
	}
	says(t, string(out), "no service can be installed", "systemctl")
	if left, _ := os.ReadDir(filepath.Join(l.home, ".config")); len(left) > 0 {
		t.Errorf("written: %v", left)
	}
}
