package processgroup

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Roles of this test's program, which it starts itself, so that the test runs on every system.
const roleVariable = "PROCESSGROUP_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "parent": // starts a child that has the same standard output, and ends or waits
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleVariable+"=child")
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			os.Exit(3)
		}
		if os.Getenv(roleVariable+"_WAITS") != "" {
			child.Wait()
		}
		os.Exit(0)
	case "child":
		io.WriteString(os.Stdout, "child\n")
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

// startParent starts a program that starts another one, which has the output open, and waits until both run.
func startParent(t *testing.T, env string) (*exec.Cmd, *Group, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=parent", env)
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	cmd.Stdout = w
	g, err := Start(cmd)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "child\n" {
		g.Kill()
		t.Fatalf("%q, %v", line, err)
	}
	return cmd, g, lines
}

// Killing a group ends a program and what it has started: nothing has its output open any more.
func TestKill(t *testing.T) {
	cmd, g, lines := startParent(t, roleVariable+"_WAITS=1")
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the program ended by itself")
	}
}

// What a program has left behind ends, too.
func TestKillLeft(t *testing.T) {
	cmd, g, lines := startParent(t, roleVariable+"_NONE=1")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// A program that there is not leaves nothing.
func TestStartMissing(t *testing.T) {
	if _, err := Start(exec.Command("no-such-program-anywhere")); err == nil {
		t.Error("it started")
	}
}
