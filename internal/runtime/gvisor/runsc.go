package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
)

// command makes a runsc command that survives this process and its terminal,
// with nothing of this process's environment.
func (r *Runtime) command(ctx context.Context, b *box, args ...string) *exec.Cmd {
	global := []string{"--root=" + r.runscRoot(), "--host-uds=open", "--platform=systrap",
		"--host-settings=ignore", "--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(b.dir, "disk"),
			max(b.spec.Limits.DiskBytes, 16<<20)),
		fmt.Sprintf("--fdlimit=%d", hostDescriptors())}
	if r.Open {
		global = append(global, "--network=host")
	} else {
		global = append(global, "--network=none", "--net-raw")
	}
	if r.Rootless {
		global = append(global, "--rootless", "--ignore-cgroups")
	} else if !b.cgroups.usable() {
		global = append(global, "--ignore-cgroups")
	}
	cmd := exec.CommandContext(ctx, r.Runsc, append(global, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + b.dir, "XDG_RUNTIME_DIR=" + b.dir}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// hostDescriptors is how many descriptors each of gVisor's two processes for a
// sandbox may have: so many that eleven sandboxes, which is what one user has by
// default, take half of the machine's at most.
var hostDescriptors = sync.OnceValue(func() int {
	all := int64(1 << 20)
	if text, err := os.ReadFile("/proc/sys/fs/file-max"); err == nil {
		fmt.Sscan(string(text), &all)
	}
	return int(min(max(all/(2*2*11), 4096), 16384))
})

// runsc runs one of runsc's commands. Its output is in the error.
func (r *Runtime) runsc(ctx context.Context, b *box, args ...string) error {
	// The output of a command goes to memory, not to a pipe: the sandbox that it
	// starts inherits it, and would be killed by writing to a pipe without reader.
	fd, err := unix.MemfdCreate("runsc", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	output := os.NewFile(uintptr(fd), "runsc's output")
	defer output.Close()
	cmd := r.command(ctx, b, args...)
	cmd.Stdout, cmd.Stderr = output, output
	if err = cmd.Run(); err == nil {
		_, err = unix.FcntlInt(output.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		return err // later output is lost, and takes no memory
	}
	text := make([]byte, 8<<10)
	n, _ := output.ReadAt(text, 0)
	return fmt.Errorf("runsc %s: %w: %s", args[0], err, strings.TrimSpace(string(text[:n])))
}

// exterminate kills the processes of a sandbox that runsc left, and waits until
// there are none.
func (r *Runtime) exterminate(ctx context.Context, id string) error {
	for try := 0; ; try++ {
		pids := r.processes(id)
		if len(pids) == 0 {
			return nil
		}
		if try > 2 {
			for _, pid := range pids {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		select {
		case <-time.After(time.Duration(min(try+1, 20)) * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("processes %v of sandbox %s do not end: %w", pids, id, ctx.Err())
		}
	}
}

// processes finds the sandbox's and its file server's processes: this user's, with
// this instance's root and the unguessable id on their command line.
func (r *Runtime) processes(id string) []int {
	return slices.DeleteFunc(proc.All(), func(pid int) bool {
		args := proc.Args(pid)
		return !r.names(args, id) || slices.Contains(args, "delete") || pid == os.Getpid() ||
			proc.State(pid) == 'Z' || !proc.Mine(pid)
	})
}

// names says whether a command line of runsc's names this instance and the sandbox.
// Whoever may start a program can give it any command line.
func (r *Runtime) names(args []string, id string) bool {
	return slices.Contains(args, "--root="+r.runscRoot()) && args[len(args)-1] == id
}

// serverLead is how much earlier than a sandbox's own process its file server may have
// started.
const serverLead = 2 * time.Minute

// fileServer is the process of gVisor's file server for a sandbox.
type fileServer struct {
	pid     int
	id      string // of the sandbox
	started uint64 // when the sandbox's own process did
}

// isServer says whether the process is that file server. A command line proves
// nothing; no other user's process has the other things that are compared.
func (r *Runtime) isServer(s fileServer) bool {
	if args := proc.Args(s.pid); !r.names(args, s.id) || !slices.Contains(args, "gofer") {
		return false
	}
	at, err := proc.Started(s.pid)
	return err == nil && at <= s.started && s.started-at < uint64(serverLead/time.Second)*proc.TicksPerSecond &&
		proc.Runs(s.pid, filepath.Base(r.Runsc))
}

// sandboxOf reads the command line of a sandbox's own process: its state folder and
// its id, or nothing.
func sandboxOf(args []string) (stateDir, id string) {
	if len(args) < 3 || !slices.Contains(args, "boot") || !validID.MatchString(args[len(args)-1]) {
		return "", ""
	}
	for _, arg := range args {
		root, ok := strings.CutPrefix(arg, "--root=")
		if dir, isOurs := strings.CutSuffix(root, "/runsc"); ok && isOurs && filepath.IsAbs(dir) &&
			filepath.Clean(dir) == dir {
			return dir, args[len(args)-1]
		}
	}
	return "", ""
}
