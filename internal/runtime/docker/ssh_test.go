package docker

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/sandbox/sandboxtest"
)

// startSSH starts an SSH server for a daemon's machine, which is this one, on a port of the loopback. It returns the
// port, and puts an ssh before all others that knows the server and has the key of its user; it notes its arguments in
// calls.
func startSSH(t *testing.T, d *dockertest.Daemon, dir, calls string) (port int) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = free.Addr().(*net.TCPAddr).Port
	free.Close()
	for _, key := range []string{"host", "user"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, key)).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v\n%s; run `make tools`", err, out)
		}
	}
	public, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sshd_config": fmt.Sprintf("ListenAddress 127.0.0.1:%d\nHostKey %[2]s/host\n"+
			"AuthorizedKeysFile %[2]s/user.pub\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"+
			"PidFile none\nMaxStartups 100\n"+
			"SetEnv DOCKER_HOST=%[3]s\n", port, dir, d.Host),
		"known": fmt.Sprintf("[127.0.0.1]:%d %s", port, public),
		"ssh_config": fmt.Sprintf("Host daemon.example\n  HostName 127.0.0.1\n  IdentityFile %[1]s/user\n"+
			"  IdentitiesOnly yes\n  UserKnownHostsFile %[1]s/known\n  StrictHostKeyChecking yes\n", dir),
		"ssh": fmt.Sprintf("#!/bin/sh\necho \"$*\" >> %s\nexec /usr/bin/ssh -F %s/ssh_config \"$@\"\n", calls, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	server := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatalf("%v; run `make tools`", err)
	}
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGTERM)
		server.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", &log)
		}
	})
	for range 500 {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return port
}

// TestSSH: sandboxes of a daemon that is reached by ssh live, are recovered and leave nothing, and no ssh. Why ssh
// does not get there is said.
func TestSSH(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t, "--live-restore")
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	port := startSSH(t, d, dir, calls)
	s, c := subject(t, d, baseTemplate())
	c.Host = fmt.Sprintf("ssh://no-such-user@daemon.example:%d", port)
	refused, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := refused.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("an unknown user: %v", err)
	}
	refused.Close()
	c.Host = fmt.Sprintf("ssh://root@daemon.example:%d", port)
	separate(t, d, s, c)
	rt := s.Open(t)
	if err := rt.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	link := agent.New(b, sandboxtest.Log(t), nil)
	defer link.Close()
	if got := sum(t, link); got != "1" {
		t.Errorf("the interpreter counts %s", got)
	}
	link.Close()
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	rt = s.Open(t)
	all := sandboxtest.RecoverAll(t, rt)
	if len(all) != 1 || all[0].Spec().ID != b.Spec().ID {
		t.Fatalf("recovered %d", len(all))
	}
	mustStop(t, s, rt, all...)
	text, err := os.ReadFile(calls)
	want := fmt.Sprintf("-o BatchMode=yes -o ConnectTimeout=30 -T -l root -p %d -- daemon.example docker system "+
		"dial-stdio\n", port)
	if err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("ssh was called with %q, %v", text, err)
	}
	for range 200 {
		if !slices.ContainsFunc(proc.PIDs(), func(pid int) bool {
			return slices.Contains(proc.Args(pid), filepath.Join(dir, "ssh_config"))
		}) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("a program that reached the daemon lives on")
}
