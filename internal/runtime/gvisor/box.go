package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/gvisor/root"
	"sandlot/internal/runtime/socket"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// box implements sandbox.Sandbox. Its mu is taken after all locks of seal and
// of Runtime, and after tools.
type box struct {
	runtime *Runtime
	dir     string
	cgroups cgroup.Groups // zero where the box has no group
	exited  chan struct{} // closed when its process has ended
	// stale: an earlier server made this sandbox, and it could not be recovered. Other programs may
	// have the process ids in runsc's state by now, so Stop does not let runsc kill by them.
	stale bool
	// imageKind is the kind of the preboot image that the sandbox was started from; empty: it booted.
	imageKind string
	root      root.FS      // its root file system; after Recover only its Image
	agent     string       // the path of its agent's program; empty before findAgent
	kept      keptPrograms // the programs of one that was made of a frozen image
	platform  string       // of gVisor
	seal      sealState    // which of its mounts of shared folders are read-only now
	tools     socket.Tools

	mu     sync.Mutex
	spec   sandbox.Spec   // only Limits changes once other goroutines use the box
	socket *socket.Folder // nil before listen
	bootProcess
	pidfd       *os.File
	memoryFiles []hostfile.Open // gVisor's memfds that hold the sandbox's memory
	seen        hostfile.Seen   // what Outdated saw last; nil: nothing yet
	reason      string          // why this runtime killed it
	stopped     bool
}

// bootProcess is a sandbox's own process.
type bootProcess struct {
	pid     int
	started uint64 // its start time
}

func newBox(r *Runtime, spec sandbox.Spec) *box {
	b := &box{runtime: r, dir: r.sandboxDir(spec.ID), cgroups: r.cgroups, spec: spec, exited: make(chan struct{}),
		platform: systrap}
	if chosen := r.platform.Load(); chosen != nil {
		b.platform = *chosen
	}
	return b
}

// socketDir is the folder of the socket that the agent dials.
func (b *box) socketDir() string { return filepath.Join(b.dir, "sock") }

// bootIDPath is where a sandbox reads the id of its boot, which nobody else may have.
const bootIDPath = "/proc/sys/kernel/random/boot_id"

// bootIDFile is the file that a sandbox sees at bootIDPath.
func (b *box) bootIDFile() string { return filepath.Join(b.dir, "boot_id") }

// writeBootID gives the sandbox an id of its own, unless it has one: it keeps that from one server to the next.
func (b *box) writeBootID() error {
	if isFile(b.bootIDFile()) {
		return nil
	}
	return errors.Join(os.WriteFile(b.bootIDFile(), []byte(uuid()+"\n"), 0o600), os.Chmod(b.bootIDFile(), 0o444))
}

// uuid returns a random UUID.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// process returns the id and the start time of the sandbox's process. The id is 0 while
// the sandbox boots.
func (b *box) process() (pid int, started uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pid, b.started
}

// Spec implements sandbox.Sandbox.
func (b *box) Spec() sandbox.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec
}

// ChangeTools implements sandbox.Sandbox.
func (b *box) ChangeTools(change func(dir string) error) error {
	pid, _ := b.process()
	return b.tools.Change(b.socketDir(), hostfile.UnlessHeld(pid, change))
}

// listen opens the socket that the agent, and interpreters as any user, dial. The sandbox sees its folder
// read-only; on the host, that is in a folder of the server's own.
func (b *box) listen() error {
	dir := b.socketDir()
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return err
	}
	if err := b.writeBootID(); err != nil {
		return err
	}
	f, err := socket.Listen(dir)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.socket = f
	return nil
}

// wakeAgent makes the agent of a recovered sandbox dial at once, by a signal that gVisor
// delivers, as `runsc kill` would. Without the signal the agent dials some seconds later.
func (b *box) wakeAgent() {
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
		"arg": map[string]any{"CID": b.spec.ID, "Signo": int(wire.WakeSignal)}}
	if json.NewEncoder(c).Encode(call) == nil {
		c.Read(make([]byte, 256)) // the signal is delivered; the answer does not matter
	}
}

// supervise waits for the end of the sandbox's process, in the background.
func (b *box) supervise(pid int, started uint64) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	}
	if err != nil {
		return err
	}
	if now, err := proc.StartTicks(pid); err != nil || now != started {
		unix.Close(fd)
		if socket.IsTemporary(err) {
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
	b.runtime.background.Go(func() {
		ended := false
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			ended = err == nil && n > 0
			return ended
		})
		if err == nil && ended {
			b.markExited()
		}
	})
	return nil
}

// markExited records that the sandbox's process is gone: it closes b.exited and the socket.
func (b *box) markExited() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.exited:
		return
	default:
	}
	close(b.exited)
	if b.socket != nil {
		b.socket.Close()
	}
}

// Connect implements sandbox.Sandbox.
func (b *box) Connect(ctx context.Context) (net.Conn, error) { return b.folder().Accept(ctx) }

// Admitted implements sandbox.Sandbox.
func (b *box) Admitted() error { return b.folder().RemoveSecret() }

func (b *box) folder() *socket.Folder {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.socket
}

// Status implements sandbox.Sandbox.
func (b *box) Status(context.Context) (sandbox.Status, error) {
	b.mu.Lock()
	pid, started, reason := b.pid, b.started, b.reason
	b.mu.Unlock()
	now, err := proc.StartTicks(pid)
	if err == nil && now == started && pid != 0 {
		st := sandbox.Status{State: sandbox.Running}
		st.MemoryBytes, st.CPU = b.hostUsage(pid)
		return st, nil
	}
	if pid != 0 && socket.IsTemporary(err) { // that says nothing about the process
		return sandbox.Status{}, err
	}
	st := sandbox.Status{State: sandbox.Dead, Reason: reason}
	if st.Reason == "" && b.cgroups.OOMKilled(b.spec.ID) {
		st.Reason = "memory"
	}
	if st.Reason == "" {
		st.Reason = "killed"
	}
	return st, nil
}

// Resize implements sandbox.Sandbox.
func (b *box) Resize(_ context.Context, l sandbox.Limits) error {
	if b.cgroups.Usable() {
		if err := b.cgroups.Resize(b.spec.ID, l); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec.Limits = l
	return specfile.Write(b.dir, b.record())
}

// record returns the box's record. The caller holds b.mu, or no other goroutine has the box yet.
func (b *box) record() record {
	return record{Record: specfile.Of(b.spec, b.runtime.agent.Kept(b.agent)), HostNetwork: b.runtime.HostNetwork,
		PID: b.pid, Started: b.started, Image: b.root.Image, Kept: b.kept, Platform: b.platform}
}

// findAgent finds the agent's program that the sandbox has, or is to have.
func (b *box) findAgent() (err error) {
	if b.agent == "" {
		b.agent, err = b.runtime.agent.File(runtime.GOARCH)
	}
	return err
}

// kill kills the sandbox's process. Status returns the first reason.
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
	stopped := b.stopped
	b.mu.Unlock()
	if stopped {
		return nil
	}
	b.kill("stopped")
	r, id := b.runtime, b.spec.ID
	if !validID.MatchString(id) { // what follows would be done to all sandboxes
		return fmt.Errorf("gvisor: the sandbox in %s has no id", b.dir)
	}
	var err error
	if !b.stale {
		// "runsc delete" also removes runsc's state, cgroups and mounts of the sandbox. It
		// kills by process id.
		err = r.runRunsc(ctx, b, "delete", "-force", id)
		if err != nil && strings.Contains(err.Error(), "does not exist") {
			err = nil
		}
	}
	if kerr := r.killProcesses(ctx, id); kerr != nil {
		return errors.Join(err, kerr)
	}
	b.markExited()
	b.detach()
	if cerr := b.cgroups.Remove(ctx, id); cerr != nil {
		return errors.Join(err, cerr)
	}
	leftovers, _ := filepath.Glob(filepath.Join(r.runscRoot(), "*"+id+"*"))
	for _, f := range leftovers {
		os.Remove(f)
	}
	if rerr := b.tools.Remove(b.dir); rerr != nil {
		return errors.Join(err, rerr)
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	r.mu.Lock()
	delete(r.boxes, id)
	r.mu.Unlock()
	return nil
}

// detach closes this process's descriptors of the sandbox. The sandbox lives on.
func (b *box) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.socket != nil {
		b.socket.Close()
	}
	if b.pidfd != nil {
		b.pidfd.Close()
	}
}

// hostFiles tells which of the host's files the sandbox holds open; root and mounts belong to its bundle.
func (b *box) hostFiles(root string, mounts []specs.Mount) hostfile.Sandbox {
	pid, _ := b.process()
	return hostfile.Sandbox{PID: pid, Root: root, Image: b.root.Image, SocketDir: b.socketDir(), Mounts: mounts}
}
