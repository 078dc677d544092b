//go:build linux && !mac

package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/carrier"
	"sandlot/internal/sandbox"
)

// box implements sandbox.Sandbox.
type box struct {
	runtime *Runtime
	dir     string
	spec    sandbox.Spec
	record  record
	control *control
	exited  chan struct{} // closed when QEMU has ended

	stopping sync.Mutex // while Stop works

	mu      sync.Mutex
	pid     int           // of QEMU; 0: it was not started
	link    *carrier.Link // nil: not open
	linked  bool          // its agent has said its secret to this server
	reason  string        // why it is dead; empty: not known
	stopped bool
}

func newBox(r *Runtime, spec sandbox.Spec) *box {
	dir := r.sandboxDir(spec.ID)
	return &box{runtime: r, dir: dir, spec: spec, control: newControl(dir), exited: make(chan struct{})}
}

// Spec implements sandbox.Sandbox.
func (b *box) Spec() sandbox.Spec { return b.spec }

// Connect implements sandbox.Sandbox.
func (b *box) Connect(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	l := b.link
	b.mu.Unlock()
	if l == nil {
		return nil, sandbox.ErrGone
	}
	return l.Accept(ctx)
}

// Admitted implements sandbox.Sandbox.
func (b *box) Admitted() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.linked = true
	return nil
}

// Resize implements sandbox.Sandbox.
func (b *box) Resize(context.Context, sandbox.Limits) error { return errors.ErrUnsupported }

// ChangeTools implements sandbox.Sandbox. A machine sees no folder of the host.
func (b *box) ChangeTools(func(dir string) error) error { return errors.ErrUnsupported }

// Status implements sandbox.Sandbox.
func (b *box) Status(context.Context) (sandbox.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.exited:
		reason := b.reason
		if reason == "" {
			reason = "killed"
		}
		return sandbox.Status{State: sandbox.Dead, Reason: reason}, nil
	default:
	}
	st := sandbox.Status{State: sandbox.Running, CPU: proc.CPUTime(b.pid), MemoryBytes: residentBytes(b.pid)}
	return st, nil
}

// residentBytes returns how much memory a process uses.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident int64
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// follow waits in the background for the end of a QEMU that this process has started.
func (b *box) follow(cmd *exec.Cmd) {
	b.setPID(cmd.Process.Pid)
	go func() { // not counted: Close does not wait for sandboxes to end
		_ = cmd.Wait()
		reason := "killed"
		if cmd.ProcessState.Exited() {
			reason = "exited"
		}
		b.markExited(reason)
	}()
}

// watch waits in the background for the end of a QEMU that an earlier server has started.
func (b *box) watch(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	b.setPID(pid)
	b.runtime.background.Go(func() {
		defer unix.Close(fd)
		for b.runtime.ctx.Err() == nil {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, watchPause); n > 0 || err != nil && err != unix.EINTR {
				b.markExited("")
				return
			}
		}
	})
	return nil
}

// watchPause is how long one look at a process waits for its end, in milliseconds.
const watchPause = 200

func (b *box) setPID(pid int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pid = pid
}

// markExited records that QEMU has ended.
func (b *box) markExited(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.exited:
		return
	default:
	}
	if b.reason == "" {
		b.reason = reason
	}
	close(b.exited)
	if b.link != nil {
		b.link.Close()
	}
}

// openLink begins to carry the agent's connections.
func (b *box) openLink() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.link = carrier.New(b.runtime.ctx, b.control.carry, func() {}, b.runtime.Log)
	b.runtime.background.Go(b.link.Run)
}

// detach closes this process's connections to the sandbox, which lives on.
func (b *box) detach() {
	b.mu.Lock()
	l := b.link
	b.mu.Unlock()
	if l != nil {
		l.Close()
	}
	b.control.close()
}

const (
	// offTimeout is how long a machine may take to write all to its disks before it is killed.
	offTimeout = 15 * time.Second
	// killTimeout is how long QEMU may take to end after it was killed.
	killTimeout = 20 * time.Second
)

// Stop implements sandbox.Sandbox.
func (b *box) Stop(ctx context.Context) error {
	b.stopping.Lock()
	defer b.stopping.Unlock()
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return nil
	}
	if b.reason == "" {
		b.reason = "stopped"
	}
	pid, linked, link := b.pid, b.linked, b.link
	b.mu.Unlock()
	if pid != 0 {
		if linked {
			b.switchOff(ctx)
		}
		if err := b.end(ctx, pid); err != nil {
			return err
		}
	}
	if link != nil {
		link.Close()
	}
	b.control.close()
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	r := b.runtime
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.boxes[b.spec.ID] == b {
		delete(r.boxes, b.spec.ID)
	}
	return nil
}

// switchOff makes the machine write all to its disks, and waits for its end.
func (b *box) switchOff(ctx context.Context) {
	select {
	case <-b.exited:
		return
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, offTimeout)
	defer cancel()
	if err := b.control.call(ctx, wire.MachineCall{Do: wire.MachineStop}); err != nil {
		b.runtime.Log.Debug("a machine was not switched off, and is killed", "sandbox", b.spec.ID, "error", err)
		return
	}
	select {
	case <-b.exited:
	case <-ctx.Done():
	}
}

// end kills QEMU, and waits until it has ended.
func (b *box) end(ctx context.Context, pid int) error {
	select {
	case <-b.exited:
		return nil
	default:
	}
	if findProcess(b.dir) == pid {
		kill(pid)
	}
	for began := time.Now(); ; {
		select {
		case <-b.exited:
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		if locked, err := isLocked(b.dir); err == nil && !locked {
			return nil
		}
		if time.Since(began) > killTimeout || ctx.Err() != nil && time.Since(began) > time.Second {
			return fmt.Errorf("QEMU (process %d) does not end: %w", pid, errors.Join(ctx.Err(), syscall.EBUSY))
		}
	}
}

// console returns the last words of the machine's kernel and of its first process.
func (b *box) console(ctx context.Context) string {
	m, err := openMonitor(ctx, b.dir)
	if err != nil {
		return ""
	}
	defer m.close()
	var text string
	if m.do("ringbuf-read", map[string]any{"device": "console", "size": maxConsole}, &text) != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// maxConsole bounds what is read of a console, in bytes.
const maxConsole = 16 << 10
