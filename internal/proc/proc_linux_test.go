package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A process is told by what the kernel says of it, not by its command line.
func TestProcesses(t *testing.T) {
	self := os.Getpid()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	started, err := StartTicks(self)
	if err != nil || IsEnding(self, started) || !IsEnding(self, started+1) || time.Since(TicksToTime(started)).
		Abs() > time.Hour {
		t.Errorf("started %d, %v", started, err)
	}
	if !slices.Contains(PIDs(), self) || !IsOwn(self) || !RunsProgram(self, filepath.Base(exe)) ||
		RunsProgram(self, "sleep") ||
		Args(self)[0] != os.Args[0] {
		t.Error("this process is not what it is")
	}
	before := BytesWritten(self)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := null.Write(make([]byte, 1<<20)); err != nil || BytesWritten(self)-before < 1<<20 ||
		BytesWritten(1<<30) != 0 {
		t.Errorf("a process has written %d more, %v", BytesWritten(self)-before, err)
	}
	if !InOwnPIDNamespace(self) || Parent(self) != os.Getppid() || InOwnPIDNamespace(0) {
		t.Error("this process is not here")
	}
	cmd := exec.Command("sleep", "600", "2")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if os.Getuid() == 0 && (IsOwn(pid) || RunsProgram(pid, "sleep")) {
		t.Error("another user's process is mine")
	}
	if got := Args(pid); !slices.Equal(got, []string{"sleep", "600", "2"}) {
		t.Errorf("%q", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if State(pid) == 'Z' {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := StartTicks(pid); err == nil || State(pid) != 'Z' {
		t.Errorf("a dead one has started, %v", err)
	}
	_ = cmd.Wait()
	if os.Getuid() == 0 { // one in a namespace of its own, as in a container
		inner := exec.Command("sleep", "600")
		inner.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := inner.Start(); err != nil {
			t.Fatal(err)
		}
		if InOwnPIDNamespace(inner.Process.Pid) || Parent(inner.Process.Pid) != self {
			t.Error("a process of a container is here")
		}
		_ = inner.Process.Kill()
		_ = inner.Wait()
	}
	if IsOwn(pid) || Args(pid) != nil || CPUTime(pid) != 0 || State(pid) != 'Z' {
		t.Error("what is gone is there")
	}
}
