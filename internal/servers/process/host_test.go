package process

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/fault"
)

// A program on the machine is never root by oversight; as another user it has
// nothing of the server's.
func TestProgramsOnTheHostHaveAUser(t *testing.T) {
	t.Setenv("HOME", "/root-of-the-server")
	t.Setenv("XDG_RUNTIME_DIR", "/run/of-the-server")
	t.Setenv("SERVERS_OWN", "s3cret")
	script := `id -u; id -g; id -G; echo "$HOME"; pwd; ps -o pgid= -p $$ | tr -d ' '; echo $$; env`
	run := func(user string) ([]string, error) {
		t.Helper()
		var log Log
		p, err := OnHost(Command{Name: "x", Argv: []string{"/bin/sh", "-c", script},
			Env: map[string]string{"OWN": "given"}}, user, &log)
		if err != nil {
			return nil, err
		}
		defer p.Stop()
		out, err := io.ReadAll(p.stdout)
		<-p.done
		if said, _ := log.Tail(0); err != nil || said != "" {
			t.Errorf("%v %s", err, said)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
	}
	_, err := run("no-such-user")
	if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "no-such-user") {
		t.Errorf("a user that there is not: %v", err)
	}
	if os.Getuid() != 0 {
		if out, err := run(""); err != nil || out[0] == "0" {
			t.Errorf("%v %v", out, err)
		}
		if _, err := run("root"); !fault.Is(err, fault.Configuration) {
			t.Errorf("somebody else, without being root: %v", err)
		}
		return
	}
	if _, err := run(""); !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "user: nobody") {
		t.Errorf("root without being named: %v", err)
	}
	for _, name := range []string{"nobody", "65534"} {
		out, err := run(name)
		if err != nil || len(out) < 8 {
			t.Fatalf("%s: %v %v", name, out, err)
		}
		if out[0] != "65534" || out[1] == "0" || slices.Contains(strings.Fields(out[2]),
			"0") || out[3] == "/root-of-the-server" || out[4] != "/" || out[5] != out[6] {
			t.Errorf("%s: %v", name, out)
		}
		env := strings.Join(out[7:], "\n")
		if strings.Contains(env, "of-the-server") || strings.Contains(env, "s3cret") || !strings.Contains(env,
			"OWN=given") || !strings.Contains(env, "USER=nobody") {
			t.Errorf("%s has the environment\n%s", name, env)
		}
	}
	out, err := run("root")
	if err != nil || out[0] != "0" || out[3] != "/root-of-the-server" {
		t.Errorf("root by name: %v %v", out, err)
	}
	// It ends with what it started, whoever's that is.
	p, err := OnHost(Command{Name: "x", Argv: []string{"/bin/sh", "-c",
		"trap '' TERM; sleep 1000 & echo $!; sleep 1000"}}, "nobody", new(Log))
	if err != nil {
		t.Fatal(err)
	}
	child, _ := bufio.NewReader(p.stdout).ReadString('\n')
	p.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(child) + "/stat")
		if child != "" && (err != nil || strings.Contains(string(stat), ") Z ")) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("what it started has not ended")
		}
	}
}
