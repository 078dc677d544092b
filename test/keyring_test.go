package test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// keyringUser is a user's D-Bus session with gnome-keyring, of the test alone: its files and its bus are in a folder,
// and the bus starts no service by itself.
type keyringUser struct {
	t       *testing.T
	dir     string
	keyring *exec.Cmd
}

func newKeyringUser(t *testing.T) *keyringUser {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandlot-keyring-")
	if err != nil {
		t.Fatal(err)
	}
	u := &keyringUser{t: t, dir: dir}
	t.Cleanup(u.gone)
	config := fmt.Sprintf(`<busconfig><type>session</type><listen>unix:path=%s/bus</listen><policy context="default">
		<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`,
		dir)
	if err := os.WriteFile(filepath.Join(dir, "bus.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	u.start("", "dbus-daemon", "--nofork", "--nopidfile", "--config-file="+filepath.Join(dir, "bus.conf"))
	until(t, "the bus is there", func() bool { _, err := os.Stat(filepath.Join(dir, "bus")); return err == nil })
	u.unlock()
	return u
}

// bus is the variable that names the user's session.
func (u *keyringUser) bus() string { return "DBUS_SESSION_BUS_ADDRESS=unix:path=" + u.dir + "/bus" }

func (u *keyringUser) command(stdin, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + u.dir, "XDG_RUNTIME_DIR=" + u.dir, u.bus()}
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// start starts a daemon that ends with the test.
func (u *keyringUser) start(stdin, program string, args ...string) *exec.Cmd {
	u.t.Helper()
	cmd := u.command(stdin, program, args...)
	if err := cmd.Start(); err != nil {
		u.t.Fatalf("%v; run `make tools`", err)
	}
	u.t.Cleanup(func() { endGroup(cmd) })
	return cmd
}

func endGroup(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	}
}

// unlock starts the keyring, unlocked; lock starts it again, locked.
func (u *keyringUser) unlock() { u.run("hunter2 of the keyring", "--unlock") }
func (u *keyringUser) lock()   { u.run("") }

func (u *keyringUser) run(password string, flags ...string) {
	u.t.Helper()
	if u.keyring != nil {
		endGroup(u.keyring)
	}
	u.keyring = u.start(password, "gnome-keyring-daemon", append([]string{"--foreground", "--components=secrets"},
		flags...)...)
	until(u.t, "the keyring answers", func() bool {
		return u.command("", "dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.secrets",
			"/org/freedesktop/secrets", "org.freedesktop.DBus.Peer.Ping").Run() == nil
	})
}

// secretTool runs the system's program for keyrings.
func (u *keyringUser) secretTool(stdin string, args ...string) string {
	out, _ := u.command(stdin, "secret-tool", args...).Output()
	return string(out)
}

// entry is the text of an entry; empty: there is none.
func (u *keyringUser) entry(name string) string {
	return u.secretTool("", "lookup", "service", "sandlot", "username", name)
}

// gone checks that no process of the user is left, and removes the folder.
func (u *keyringUser) gone() {
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && bytes.Contains(env, []byte("HOME="+u.dir+"\x00")) {
			u.t.Errorf("the process %s is left", e.Name())
		}
	}
	if err := os.RemoveAll(u.dir); err != nil {
		u.t.Error(err)
	}
}

// TestKeyring: the key of secrets is in the keyring of the server's user, and never on the disk. It is changed, moved
// there from a file, and what is wrong with the keyring is said at the start.
func TestKeyring(t *testing.T) {
	t.Parallel()
	u := newKeyringUser(t)
	s := start(t, "SANDLOT_SNAPSHOTS=false", "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_STORE=")
	file := filepath.Join(s.State, "secrets.key")
	if _, errs, code := s.cliIn("hunter2", "secret", "set", "A"); code != 0 {
		t.Fatal(errs)
	}
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	refuses := func(what, want string) {
		t.Helper()
		if _, errs, code := s.cli("serve"); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", what, code, errs)
		}
	}
	env := append(s.env, "SANDLOT_SECRETS_KEYRING=test")
	s.env = append(env, "DBUS_SESSION_BUS_ADDRESS=unix:path="+u.dir+"/none")
	refuses("no session", "secrets.key_file")
	s.env = append(env, u.bus())
	refuses("the key is in a file", "sandlot secret rekey")
	u.lock()
	refuses("a locked keyring", "it is locked")
	u.unlock()

	rekey := func() string {
		t.Helper()
		out, errs, code := s.cli("secret", "rekey")
		if code != 0 || !strings.Contains(out, "stored with it: 1; removed: 0") ||
			!strings.Contains(out, "service sandlot, username test") {
			t.Fatalf("%d %s%s", code, out, errs)
		}
		if left := u.entry("test.new"); left != "" {
			t.Error("the new key is there twice")
		}
		return u.entry("test")
	}
	works := func() {
		t.Helper()
		s.launch()
		if got, errs, code := s.cli("exec", "--session", "home", "--env", "A=${secret:A}", "--", "sh", "-c",
			"echo $A"); code != 0 || got != "hunter2\n" {
			t.Errorf("%d %s%s", code, got, errs)
		}
		if got, errs, code := s.cli("exec", "--session", "home", "--", "env"); code != 0 ||
			!strings.Contains(got, "PATH=") || strings.Contains(got, "DBUS") {
			t.Errorf("a program in a sandbox knows the session: %s%s", got, errs)
		}
		s.stop()
	}
	first := rekey()
	if _, err := os.Stat(file); err == nil {
		t.Error("the key is in a file too")
	}
	works()
	second := rekey()
	works()
	for _, key := range []string{first, second} {
		raw, err := hex.DecodeString(key)
		if err != nil || len(raw) != 32 || bytes.Equal(raw, old) || first == second {
			t.Errorf("the keys are %q, %q: %v", first, second, err)
		}
		s.holds(key)
		s.holds(string(raw))
	}
	u.secretTool("", "clear", "service", "sandlot", "username", "test")
	refuses("the key is gone", "store the key again")
	u.secretTool(first, "store", "--label=Sandlot", "service", "sandlot", "username", "test")
	refuses("an earlier key", "opens none of the 1 stored secrets")
	u.secretTool(second, "store", "--label=Sandlot", "service", "sandlot", "username", "test")
	works()
	s.env = append(env, u.bus(), "SANDLOT_SECRETS_KEY="+second)
	refuses("two places", "set one of them")
	s.env = append(env, u.bus())
	s.launch()
}
