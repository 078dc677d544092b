package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// folder is a state folder as `sandlot ps --json` shows it.
type folder struct {
	Path   string `json:"path"`
	Server *struct {
		PID int `json:"pid"`
	} `json:"server"`
	Sandboxes []shownSandbox    `json:"sandboxes"`
	Asleep    []sleepingSession `json:"asleep"`
}

// sleepingSession is a session that sleeps as `sandlot ps --json` shows it.
type sleepingSession struct {
	Session string    `json:"session"`
	Since   time.Time `json:"since"`
	Paused  bool      `json:"paused"`
}

// shownSandbox is a sandbox as `sandlot ps --json` shows it.
type shownSandbox struct {
	ID          string `json:"id"`
	Session     string `json:"session"`
	Runtime     string `json:"runtime"`
	PID         int    `json:"pid"`
	MemoryBytes int64  `json:"memory_bytes"`
	Held        bool   `json:"held"`
	Lost        bool   `json:"lost"`
}

// ps shows the server's state folder; with all, it is picked from what runs on
// the machine.
func (s *server) ps(all bool) folder {
	s.t.Helper()
	cmd := s.as(exec.Command(s.program, "ps", "--json"))
	cmd.Env = s.env
	if !all {
		cmd.Args = append(cmd.Args, "--state-dir", s.State)
	}
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%v: %v", cmd.Args, err)
	}
	var shown struct {
		Folders []folder `json:"state_folders"`
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	for _, f := range shown.Folders {
		if f.Path == s.State {
			return f
		}
	}
	if !all {
		s.t.Fatalf("%s is not shown", s.State)
	}
	return folder{}
}

// isOwnProcess reports whether a sandbox's process is one of the server's machine, or 0: on a Mac there is none.
func isOwnProcess(t *testing.T, pid int) bool {
	if isLikeAMac(t) {
		return pid == 0
	}
	return pid > 1 && syscall.Kill(pid, 0) == nil
}

// running are the processes of the server's sandboxes.
func (s *server) running() (found []string) {
	for _, l := range s.left() {
		if strings.HasPrefix(l, "process ") {
			found = append(found, l)
		}
	}
	return found
}

// TestPsAndStop: what runs is shown with and without a server, and ended on
// demand, and nothing else is.
func TestPsAndStop(t *testing.T) {
	t.Parallel()
	s := start(t, append(asShipped, "SANDLOT_ON_STOP=keep")...)
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1\nopen('/workspace/f', 'w').write('kept')").session()
	check := func(f folder, server int) {
		t.Helper()
		if (f.Server == nil) != (server == 0) || f.Server != nil && f.Server.PID != server {
			t.Errorf("the server: %+v, want %d", f.Server, server)
		}
		for _, b := range f.Sandboxes {
			if b.Session == id && b.Held == (server != 0) && b.MemoryBytes > 1<<20 && isOwnProcess(t, b.PID) {
				return
			}
		}
		t.Errorf("the session is not shown as it is: %+v", f.Sandboxes)
	}
	check(s.ps(false), s.cmd.Process.Pid)
	check(s.ps(true), s.cmd.Process.Pid)
	near := exec.Command(s.program, "ps", "--state-dir", filepath.Base(s.State)) // by a relative name
	near.Env, near.Dir = s.env, filepath.Dir(s.State)
	if out, err := near.Output(); err != nil || !strings.Contains(string(out), id) {
		t.Errorf("%q, %v", out, err)
	}
	if out, _, _ := s.cli("ps"); !strings.Contains(out, id) ||
		!strings.Contains(out, fmt.Sprintf("server %d", s.cmd.Process.Pid)) {
		t.Errorf("%q", out)
	}
	s.kill()
	check(s.ps(false), 0)
	check(s.ps(true), 0)

	// A record of a process that has the id of a sandbox's by chance.
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { bystander.Process.Kill(); bystander.Wait() }()
	forged := filepath.Join(s.State, "sandboxes", "forged") // Docker has no processes by their ids
	if s.docker != nil {
		forged = filepath.Join(s.State, "docker", "sandboxes", "forged")
	}
	text := fmt.Sprintf(`{"id":"forged","template":"host","secret":"%064d","pid":%d,"started":1}`, 0,
		bystander.Process.Pid)
	if err := os.Mkdir(forged, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(forged, "sandbox.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range s.ps(false).Sandboxes {
		if b.ID == "forged" {
			t.Error("another's process is shown as a sandbox")
		}
	}
	// Without --sessions nothing of the sessions is touched.
	if out, errs, code := s.cli("stop"); code != 0 || !strings.Contains(out, "has no server") ||
		!strings.Contains(out, "live on") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	check(s.ps(false), 0)
	if out, errs, code := s.cli("stop", "--sessions"); code != 0 || !strings.Contains(out, "were ended") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if rest := s.left(); len(rest) > 0 {
		t.Errorf("this is left: %q", rest)
	}
	if f := s.ps(false); len(f.Sandboxes) > 0 {
		t.Errorf("%+v", f)
	}
	if err := syscall.Kill(bystander.Process.Pid, 0); err != nil || procState(t, bystander.Process.Pid) == "Z" {
		t.Error("a process that is no sandbox was ended")
	}
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	if r := c.code(id, "open('/workspace/f').read() + str('x' in globals())"); !strings.Contains(r.All, "keptFalse") ||
		!strings.Contains(r.All, "while the server was away") {
		t.Errorf("%q", r.All)
	}
	// The server that runs, and with it the pool's sandboxes, but no session's.
	if out, errs, code := s.cli("stop"); code != 0 ||
		!strings.Contains(out, fmt.Sprintf("process %d, has ended", s.cmd.Process.Pid)) ||
		!strings.Contains(out, "live on") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	s.cmd.Wait()
	f := s.ps(false)
	check(f, 0)
	for _, b := range f.Sandboxes {
		if b.Session == "" {
			t.Errorf("a sandbox of the pool outlives the server: %+v", b)
		}
	}
	transport.CloseIdleConnections()
	s.launch()
	if out, errs, code := s.cli("stop", "--sessions"); code != 0 ||
		!strings.Contains(out, fmt.Sprintf("process %d, has ended", s.cmd.Process.Pid)) ||
		!strings.Contains(out, "were ended") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	s.cmd.Wait()
	if rest := s.left(); len(rest) > 0 {
		t.Errorf("this is left: %q", rest)
	}
	transport.CloseIdleConnections()
	s.launch()
}

func procState(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "Z"
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
}

// TestDeletedStateFolder: sandboxes whose records, or whole state folder, were deleted
// under them are shown, and ended on demand; programs that pretend are neither.
func TestDeletedStateFolder(t *testing.T) {
	t.Parallel()
	s := start(t)
	pretender := exec.Command("bash", "-c", "read x", "x", "--root="+s.State+"/runsc", "boot",
		"aaaaaaaaaaaaaaaaaaaaaaaaaa")
	if _, err := pretender.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := pretender.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { pretender.Process.Kill(); pretender.Wait() }()
	for _, deleted := range []string{filepath.Join(s.State, "sandboxes"), s.State} {
		s.connect(older, "", nil).code("home", "1")
		s.kill()
		if deleted == s.State { // root has a network namespace mounted in it, which rm leaves
			syscall.Unmount(filepath.Join(s.State, "runsc", "null-netns"), 2) // MNT_DETACH
		}
		until(t, "the folder is removed", func() bool { // what the killed server had begun may write for a moment
			return os.RemoveAll(deleted) == nil
		})
		f := s.ps(true)
		if len(f.Sandboxes) != 1 || !f.Sandboxes[0].Lost || f.Sandboxes[0].MemoryBytes < 1<<20 {
			t.Errorf("without %s: %+v", deleted, f)
		}
		if out, _, _ := s.cli("ps"); deleted == s.State && out != "" {
			t.Logf("%s", out)
		}
		if out, errs, code := s.cli("stop", "--sessions"); code != 0 ||
			!strings.Contains(out, "1 sandbox was ended") {
			t.Errorf("without %s: %d %q %q", deleted, code, out, errs)
		}
		if got := s.ps(true); len(got.Sandboxes) > 0 {
			t.Errorf("it lives on: %+v", got)
		}
		if err := syscall.Kill(pretender.Process.Pid, 0); err != nil || procState(t, pretender.Process.Pid) == "Z" {
			t.Error("a process that is no sandbox was ended")
		}
		transport.CloseIdleConnections()
		s.launch()
	}
}

// TestOrphanTimeout: sandboxes that have no server for that long end themselves,
// the session's and the pool's; while there is one they live.
func TestOrphanTimeout(t *testing.T) {
	t.Parallel()
	s := start(t, append(asShipped, "SANDLOT_ORPHAN_TIMEOUT=4")...)
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1").session()
	time.Sleep(6 * time.Second)
	c.want(id, "x", "1")
	s.kill()
	if len(s.running()) == 0 {
		t.Fatal("the sandboxes end with the server")
	}
	for deadline := time.Now().Add(time.Minute); len(s.running()) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("they live on: %q", s.running())
		}
	}
	transport.CloseIdleConnections()
	s.launch()
	if r := s.connect(older, "", nil).code(id, "'x' in globals()"); !strings.Contains(r.All, "False") ||
		!strings.Contains(r.All, "while the server was away") {
		t.Errorf("%q", r.All)
	}
}

// TestKilledWhileRecovering: servers that are killed, or stopped, while they take
// over what the last one left lose no session, and leave nothing to nobody.
func TestKilledWhileRecovering(t *testing.T) {
	t.Parallel()
	const sessions = 6
	s := start(t, "SANDLOT_SNAPSHOTS=true", "SANDLOT_ON_STOP=keep", fmt.Sprintf("SANDLOT_MAX_SESSIONS=%d", sessions+1))
	if s.docker == nil {
		s.awaitImage() // a sandbox makes it, which would be counted
	}
	c := s.connect(older, "", nil)
	var ids, before []string
	for i := range sessions {
		r := c.code("new", fmt.Sprintf("import os, threading\nkept = %d\nopen('/workspace/f%d', "+
			"'w').write('kept')\nos.getpid()", i, i))
		ids = append(ids, r.session())
		before = append(before, r.Text)
	}
	boxed := map[string]string{} // sandboxes, by session
	for _, b := range s.ps(false).Sandboxes {
		boxed[b.Session] = b.ID
	}
	processes := len(s.running())
	ask := func(i int) error {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"kept","session_id":%q}}}`, ids[i])
		r, err := http.Post(s.URL+"/mcp", "application/json", strings.NewReader(body))
		if err == nil {
			r.Body.Close()
		}
		return err
	}
	for round := range 6 {
		old := s.cmd // the next one may come before the kernel has closed what it had
		old.Process.Kill()
		transport.CloseIdleConnections()
		s.launch()
		old.Wait()
		asked := make(chan struct{})
		go func() { ask(round % sessions); close(asked) }() // for one that is on its way
		time.Sleep(time.Duration(round) * 40 * time.Millisecond)
		if round == 3 {
			s.stop()
		} else {
			s.kill()
		}
		<-asked
		s.launch()
	}
	// Where the folder of the socket is gone no agent comes back: the session is
	// told so, and goes on.
	lost := sessions - 1
	s.kill()
	for _, folder := range s.folders() {
		if filepath.Base(folder) == boxed[ids[lost]] {
			if err := os.RemoveAll(filepath.Join(folder, "sock")); err != nil {
				t.Fatal(err)
			}
		}
	}
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	for i, id := range ids[:lost] {
		if r := c.code(id, "(kept, os.getpid())"); r.Text != fmt.Sprintf("(%d, %s)", i, before[i]) {
			t.Errorf("session %d: %q", i, r.All)
		}
	}
	why := "stopped answering"
	if s.docker != nil {
		why = "while the server was away" // which ended it
	}
	there := "('kept', False)"
	if isLikeAMac(t) { // the socket is in no folder of the server's
		there, why = "('kept', True)", ""
	}
	if r := c.code(ids[lost], fmt.Sprintf("(open('/workspace/f%d').read(), 'kept' in globals())",
		lost)); !strings.Contains(r.All, there) || !strings.Contains(r.All, why) {
		t.Errorf("%q", r.All)
	}
	var now []string
	for range 100 { // until what ended is gone
		if now = s.running(); len(now) == processes {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(now) != processes {
		t.Errorf("%d processes of sandboxes, want %d: %q", len(now), processes, now)
	}
	for _, b := range s.ps(false).Sandboxes {
		if b.Session != ids[lost] && boxed[b.Session] != b.ID {
			t.Errorf("session %q has another sandbox, or none has this: %+v", b.Session, b)
		}
	}
}
