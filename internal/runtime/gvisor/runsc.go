package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
)

// command returns a runsc command. What it starts survives this process and its terminal,
// and gets nothing of this process's environment.
func (r *Runtime) command(ctx context.Context, b *box, args ...string) *exec.Cmd {
	flags := []string{"--root=" + r.runscRoot(), "--host-uds=open", "--platform=" + b.platform,
		"--host-settings=ignore", "--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(b.dir, "disk"), diskSize(b.spec.Limits)),
		fmt.Sprintf("--fdlimit=%d", maxDescriptors())}
	if b.root.Image != "" {
		flags = append(flags, "--allow-rootfs-tar-annotation")
	}
	if r.HostNetwork {
		flags = append(flags, "--network=host")
	} else {
		flags = append(flags, "--network=none", "--net-raw")
	}
	if r.Rootless {
		flags = append(flags, "--rootless", "--ignore-cgroups")
	} else if !b.cgroups.Usable() {
		flags = append(flags, "--ignore-cgroups")
	}
	cmd := exec.CommandContext(ctx, b.runsc(), append(flags, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + b.dir, "XDG_RUNTIME_DIR=" + b.dir}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// maxDescriptors is how many descriptors each of gVisor's two processes for a sandbox may
// have. Eleven sandboxes, the default limit of one user, take at most half of the
// machine's descriptors.
var maxDescriptors = sync.OnceValue(func() int {
	all := int64(1 << 20)
	if text, err := os.ReadFile("/proc/sys/fs/file-max"); err == nil {
		fmt.Sscan(string(text), &all)
	}
	return int(min(max(all/(2*2*11), 4096), 16384))
})

// runRunsc runs one of runsc's commands. An error contains the command's output.
func (r *Runtime) runRunsc(ctx context.Context, b *box, args ...string) error {
	return runCommand(r.command(ctx, b, args...), args[0])
}

// runBound is runRunsc with a command that ends when this process does: the next server removes what it has not
// finished, and `checkpoint` would make its folder again.
func (r *Runtime) runBound(ctx context.Context, b *box, args ...string) error {
	runtime.LockOSThread() // the signal comes when the thread ends
	defer runtime.UnlockOSThread()
	cmd := r.command(ctx, b, args...)
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	return runCommand(cmd, args[0])
}

func runCommand(cmd *exec.Cmd, name string) error {
	// The output of a command goes to a file in memory, not to a pipe, because the sandbox that `runsc run -detach` starts
	// inherits it. With a pipe, waiting for the end of the output is waiting for the end of the sandbox, and when the
	// server ends, SIGPIPE kills any process of the sandbox that writes to it. Once sealed, the file cannot grow.
	fd, err := unix.MemfdCreate("runsc", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	output := os.NewFile(uintptr(fd), "runsc's output")
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	if err = cmd.Run(); err == nil {
		_, err = unix.FcntlInt(output.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		return err // output after the seal is lost, and takes no memory
	}
	text := make([]byte, 8<<10)
	n, _ := output.ReadAt(text, 0)
	said := strings.TrimSpace(string(text[:n]))
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		err = fmt.Errorf("%w: %w: %w", sandbox.ErrLater, sandbox.ErrNoProcess, err)
	case lacksProcesses(said):
		err = fmt.Errorf("%w: %w", sandbox.ErrNoProcess, err)
	default:
		if passing := passingIn(said); passing != nil {
			err = fmt.Errorf("%w (%w)", err, passing)
		}
	}
	return fmt.Errorf("runsc %s: %w: %s", name, err, said)
}

// passingIn returns the error by which a command of gVisor failed, if that is one of a machine that cannot read or write
// at the moment; else nil.
func passingIn(said string) error {
	for _, e := range []syscall.Errno{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EROFS} {
		if strings.Contains(said, e.Error()) {
			return e
		}
	}
	return nil
}

// lacksProcesses reports whether a command of gVisor failed since it could start no process or thread.
func lacksProcesses(said string) bool {
	return strings.Contains(said, unix.EAGAIN.Error()) || strings.Contains(said, "failed to create new OS thread")
}

// killProcesses waits until the processes of a sandbox have ended, and kills those that do
// not end by themselves.
func (r *Runtime) killProcesses(ctx context.Context, id string) error {
	for try := 0; ; try++ {
		pids := r.findProcesses(id)
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

// findProcesses returns the ids of the sandbox's own processes and its gofer's. They are
// processes of this user whose command line has this instance's runsc root and the
// sandbox's id, which cannot be guessed.
func (r *Runtime) findProcesses(id string) []int {
	return slices.DeleteFunc(proc.PIDs(), func(pid int) bool {
		args := proc.Args(pid)
		return !r.isSandboxCommand(args, id) || slices.Contains(args, "delete") || pid == os.Getpid() ||
			proc.State(pid) == 'Z' || !proc.IsOwn(pid)
	})
}

// isSandboxCommand says whether a runsc command line has this instance's root and the sandbox's id.
// That proves nothing: any user can start a program with any command line.
func (r *Runtime) isSandboxCommand(args []string, id string) bool {
	return slices.Contains(args, "--root="+r.runscRoot()) && args[len(args)-1] == id
}

// maxGoferLead is how much earlier than a sandbox's own process its gofer may have started.
const maxGoferLead = 2 * time.Minute

// goferProcess is a sandbox's gofer: gVisor's process that serves the sandbox the host's
// files.
type goferProcess struct {
	pid     int
	id      string // of the sandbox
	started uint64 // start time of the sandbox's own process
}

// isGofer says whether the process is that gofer. The command line alone proves nothing,
// so the start time and the program are compared too: no process of another user has both.
func (r *Runtime) isGofer(s goferProcess) bool {
	if args := proc.Args(s.pid); !r.isSandboxCommand(args, s.id) || !slices.Contains(args, "gofer") {
		return false
	}
	at, err := proc.StartTicks(s.pid)
	return err == nil && at <= s.started && s.started-at < uint64(maxGoferLead/time.Second)*proc.TicksPerSecond &&
		proc.RunsProgram(s.pid, filepath.Base(r.Runsc))
}

// parseBootCommand returns the state folder and the id that the command line of a sandbox's own
// process has. Both are empty for any other command line.
func parseBootCommand(args []string) (stateDir, id string) {
	if len(args) < 3 || !slices.Contains(args, "boot") || !validID.MatchString(args[len(args)-1]) {
		return "", ""
	}
	for _, arg := range args {
		root, ok := strings.CutPrefix(arg, "--root=")
		if dir, found := strings.CutSuffix(root, "/runsc"); ok && found && filepath.IsAbs(dir) &&
			filepath.Clean(dir) == dir {
			return dir, args[len(args)-1]
		}
	}
	return "", ""
}
