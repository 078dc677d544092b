package process

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/guest/user"
)

// Reaper starts processes and reaps them. In process 1 it also reaps the orphans of all other
// processes. Nothing else in the agent waits for children.
type Reaper struct {
	reapAll bool       // reap all children, also those that it has not started: this is process 1
	user    *user.User // of the programs that it starts

	mu           sync.Mutex
	children     map[int]chan syscall.WaitStatus
	maxProcesses uint64 // of the sandbox, threads included; 0: no limit
}

// NewReaper returns a reaper of the processes that it starts as that user, or, with all, of every
// child.
func NewReaper(all bool, u *user.User) *Reaper {
	return &Reaper{reapAll: all, user: u, children: map[int]chan syscall.WaitStatus{}}
}

// Run reaps until stop is closed.
func (r *Reaper) Run(stop <-chan struct{}) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	defer signal.Stop(c)
	for {
		r.reap()
		select {
		case <-c:
		case <-time.After(5 * time.Second): // a signal may be lost in a checkpoint
		case <-stop:
			return
		}
	}
}

func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reapAll {
		for pid := range r.children {
			r.wait(pid)
		}
		return
	}
	for r.wait(-1) {
	}
}

// wait reaps one child that has ended, and reports whether there was one. The caller holds mu.
func (r *Reaper) wait(pid int) bool {
	var st syscall.WaitStatus
	ended, err := syscall.Wait4(pid, &st, syscall.WNOHANG, nil)
	for errors.Is(err, syscall.EINTR) {
		ended, err = syscall.Wait4(pid, &st, syscall.WNOHANG, nil)
	}
	if err != nil || ended <= 0 {
		return false
	}
	if c := r.children[ended]; c != nil {
		delete(r.children, ended)
		c <- st
	}
	return true
}

// SetLimit sets how many processes and threads the sandbox may have; 0: no limit.
func (r *Reaper) SetLimit(maxProcesses uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.maxProcesses = maxProcesses
}

// Start starts a program in a new session. The channel receives the program's exit status.
func (r *Reaper) Start(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	var path string
	err := r.user.Do(func() (err error) {
		path, err = lookup(argv[0], attr.Env, attr.Dir)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	if attr.Sys == nil {
		attr.Sys = &syscall.SysProcAttr{}
	}
	attr.Sys.Setsid, attr.Sys.Credential = true, r.user.Credential()
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := r.fork(path, argv, attr)
	if err != nil {
		return 0, nil, &os.PathError{Op: "start", Path: argv[0], Err: err}
	}
	c := make(chan syscall.WaitStatus, 1)
	r.children[pid] = c
	return pid, c, nil
}

// fork starts the program with the sandbox's limit of processes (RLIMIT_NPROC). The agent's own
// limit is higher: otherwise it would die when it cannot start a thread, because the programs
// have reached the limit. Outside gVisor the limit would count the processes of a user in all
// sandboxes and on the host; there the runtime limits the processes of the sandbox. The caller
// holds mu.
func (r *Reaper) fork(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	var agentLimit unix.Rlimit
	if r.maxProcesses == 0 || !InGVisor() || unix.Getrlimit(unix.RLIMIT_NPROC, &agentLimit) != nil ||
		agentLimit.Max <= r.maxProcesses {
		return syscall.ForkExec(path, argv, attr)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: r.maxProcesses, Max: agentLimit.Max}); err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	unix.Setrlimit(unix.RLIMIT_NPROC, &agentLimit)
	if err == nil {
		_ = unix.Prlimit(pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: r.maxProcesses, Max: r.maxProcesses}, nil)
	}
	return pid, err
}

// lookup finds a program as execvp does, with the child's PATH and directory.
func lookup(name string, env []string, dir string) (string, error) {
	if name == "" {
		return "", &os.PathError{Op: "start", Path: name, Err: exec.ErrNotFound}
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", &os.PathError{Op: "start", Path: name, Err: exec.ErrNotFound}
}

// exitCode returns an exit code as a shell does: 128+n after signal n.
func exitCode(st syscall.WaitStatus) int32 {
	if st.Signaled() {
		return 128 + int32(st.Signal())
	}
	return int32(st.ExitStatus())
}
