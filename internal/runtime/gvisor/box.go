package gvisor

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
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

// box implements sandbox.Sandbox and sandbox.Resizer.
type box struct {
	runtime *Runtime
	dir     string
	cgroups cgroups       // of none where it has no group
	gone    chan struct{} // closed when its process has ended
	// stale: an earlier server's, and not taken over. The process ids that runsc
	// wrote down may be those of others by now.
	stale bool
	// kind is that of the preboot image that the sandbox was started from; empty: none.
	kind string
	seal seal // of its shared folders

	mu       sync.Mutex
	spec     sandbox.Spec
	listener *net.UnixListener
	pid      int
	started  uint64
	pidfd    *os.File
	memory   []string // descriptors of gVisor's that hold the sandbox's memory
	reason   string   // why this runtime killed it
	stopped  bool
	spoken   bool // its agent has dialed
}

func newBox(r *Runtime, spec sandbox.Spec) *box {
	return &box{runtime: r, dir: r.path(spec.ID), cgroups: r.cgroups, spec: spec, gone: make(chan struct{})}
}

// Spec implements sandbox.Sandbox.
func (b *box) Spec() sandbox.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec
}

func (b *box) identity() (string, sandbox.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec.ID, b.spec.Limits
}

// listen opens the agent's socket. The sandbox sees its folder read-only. The
// path may be longer than a socket's address: it goes through a descriptor.
func (b *box) listen() error {
	dir := b.sock()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Remove(filepath.Join(dir, wire.Socket)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	l, err := net.ListenUnix("unix",
		&net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, wire.Socket)})
	if err != nil {
		return fmt.Errorf("opening the agent's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listener = l
	return nil
}

// wake makes the agent of a sandbox that was taken over dial at once, by a
// signal that gVisor delivers, as `runsc kill` would. Without it the agent dials
// some seconds later.
func (b *box) wake() {
	ctx, cancel := context.WithTimeout(b.runtime.ctx, 5*time.Second)
	defer cancel()
	path := filepath.Join(b.runtime.runscRoot(), "runsc-"+b.spec.ID+".sock")
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	call := map[string]any{"method": "containerManager.Signal",
		"arg": map[string]any{"CID": b.spec.ID, "Signo": int(wire.Wake)}}
	if json.NewEncoder(c).Encode(call) == nil {
		c.Read(make([]byte, 256)) // whatever it says
	}
}

// attend watches the sandbox's process.
func (b *box) attend(pid int, started uint64) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	}
	if err != nil {
		return err
	}
	if now, err := proc.Started(pid); err != nil || now != started {
		unix.Close(fd)
		if scarce(err) {
			return err
		}
		return sandbox.ErrGone
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	b.mu.Lock()
	b.pid, b.started, b.pidfd = pid, started, f
	b.mu.Unlock()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	b.runtime.work.Go(func() {
		ended := false
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			ended = err == nil && n > 0
			return ended
		})
		if err == nil && ended {
			b.ended()
		}
	})
	return nil
}

// ended closes what waits for a process that is no more.
func (b *box) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.gone:
		return
	default:
	}
	close(b.gone)
	if b.listener != nil {
		b.listener.Close()
	}
}

// Connect implements sandbox.Sandbox.
func (b *box) Connect(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	l := b.listener
	b.mu.Unlock()
	if l == nil {
		return nil, sandbox.ErrGone
	}
	l.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		c, err := l.AcceptUnix()
		if err == nil {
			b.hush()
			return c, nil
		}
		select {
		case <-b.gone:
			return nil, sandbox.ErrGone
		default:
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !scarce(err) {
			return nil, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
		}
		select { // the sandbox lives; the server has no room for one more connection now
		case <-time.After(20 * time.Millisecond):
		case <-b.gone:
		case <-ctx.Done():
		}
	}
}

// whisper tells the agent of a copy its secret, and hush takes that away when it
// has dialed: nothing else has run in the sandbox by then.
func (b *box) whisper() error {
	return os.WriteFile(filepath.Join(b.sock(), wire.SecretFile), []byte(hex.EncodeToString(b.spec.Secret)), 0o600)
}

func (b *box) hush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spoken {
		return
	}
	err := os.Remove(filepath.Join(b.sock(), wire.SecretFile))
	b.spoken = err == nil || errors.Is(err, os.ErrNotExist)
	if !b.spoken {
		b.runtime.Log.Error("could not remove a sandbox's secret from its folder", "sandbox", b.spec.ID, "error", err)
	}
}

// scarce says whether an error tells of the server's own want.
func scarce(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Status implements sandbox.Sandbox.
func (b *box) Status(context.Context) (sandbox.Status, error) {
	b.mu.Lock()
	pid, started, reason := b.pid, b.started, b.reason
	b.mu.Unlock()
	if now, err := proc.Started(pid); err == nil && now == started && pid != 0 {
		st := sandbox.Status{Life: sandbox.Running}
		st.MemoryBytes, st.CPU = b.cost(pid)
		return st, nil
	}
	st := sandbox.Status{Life: sandbox.Dead, Reason: reason}
	if st.Reason == "" && b.cgroups.oomKilled(b.spec.ID) {
		st.Reason = "memory"
	}
	if st.Reason == "" {
		st.Reason = "killed"
	}
	return st, nil
}

// Resize implements sandbox.Resizer.
func (b *box) Resize(_ context.Context, l sandbox.Limits) error {
	if b.cgroups.usable() {
		if err := b.cgroups.resize(b.spec.ID, l); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec.Limits = l
	return b.runtime.store(b.record())
}

// record is what is kept of the box. The lock is held, or nobody else has it yet.
func (b *box) record() record {
	return record{ID: b.spec.ID, Template: b.spec.Template.Name, Limits: b.spec.Limits, Mounts: b.spec.Mounts,
		Secret: hex.EncodeToString(b.spec.Secret), Open: b.runtime.Open, PID: b.pid, Started: b.started}
}

// kill ends the sandbox's process and says why, for Status.
func (b *box) kill(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pidfd == nil || b.stopped {
		return
	}
	if b.reason == "" {
		b.reason = reason
	}
	if raw, err := b.pidfd.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}

// Stop implements sandbox.Sandbox.
func (b *box) Stop(ctx context.Context) error {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return nil
	}
	b.mu.Unlock()
	b.kill("stopped")
	id := b.spec.ID
	var err error
	if !b.stale {
		// runsc's own removal takes its state, its cgroups and its mounts along,
		// and kills by process id.
		err = b.runtime.runsc(ctx, b, "delete", "-force", id)
		if err != nil && strings.Contains(err.Error(), "does not exist") {
			err = nil
		}
	}
	if kerr := b.runtime.exterminate(ctx, id); kerr != nil {
		return errors.Join(err, kerr)
	}
	b.ended()
	b.forsake()
	if cerr := b.cgroups.remove(ctx, id); cerr != nil {
		return errors.Join(err, cerr)
	}
	leftovers, _ := filepath.Glob(filepath.Join(b.runtime.runscRoot(), "*"+id+"*"))
	for _, f := range leftovers {
		os.Remove(f)
	}
	if rerr := os.RemoveAll(b.dir); rerr != nil {
		return errors.Join(err, rerr)
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.runtime.mu.Lock()
	delete(b.runtime.boxes, id)
	b.runtime.mu.Unlock()
	return nil
}

// forsake closes what this process holds of the sandbox, which lives on.
func (b *box) forsake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listener != nil {
		b.listener.Close()
	}
	if b.pidfd != nil {
		b.pidfd.Close()
	}
}

// exterminate kills the processes of a sandbox that runsc left, and waits until
// none is there.
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
	var pids []int
	for _, pid := range proc.All() {
		args := proc.Args(pid)
		if pid == os.Getpid() || len(args) == 0 || args[len(args)-1] != id || slices.Contains(args, "delete") {
			continue
		}
		if slices.Contains(args, "--root="+r.runscRoot()) && proc.State(pid) != 'Z' && proc.Mine(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
