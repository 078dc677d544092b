package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sandlot/internal/runtime/carrier"
	"sandlot/internal/runtime/socket"
	"sandlot/internal/sandbox"
)

// socketFolder is the name of the folder of a sandbox that its machine sees at wire.SocketDir.
const socketFolder = "sock"

// box implements sandbox.Sandbox.
type box struct {
	runtime *Runtime
	dir     string
	name    string        // of the machine
	agent   string        // path of its agent's program; empty after Recover
	exited  chan struct{} // closed when the machine has ended
	unmade  bool          // msb was not asked for a machine yet; only Create changes it

	tools socket.Tools

	mu      sync.Mutex
	spec    sandbox.Spec
	socket  *socket.Folder // nil before listen
	link    *carrier.Link  // nil before openLink
	dialed  bool           // the machine has dialed before
	status  string         // the last that msb said of a machine that does not run
	reason  string         // why this runtime ended it
	stopped bool
}

func newBox(r *Runtime, spec sandbox.Spec) *box {
	return &box{runtime: r, dir: r.sandboxDir(spec.ID), name: machineName(spec.ID), spec: spec,
		exited: make(chan struct{})}
}

// machineName returns what msb calls the machine of a sandbox.
func machineName(id string) string { return namePrefix + id }

const namePrefix = "sandlot-"

func (b *box) socketDir() string { return filepath.Join(b.dir, socketFolder) }

// Spec implements sandbox.Sandbox.
func (b *box) Spec() sandbox.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec
}

func (b *box) listen() error {
	f, err := socket.Listen(b.socketDir())
	if err != nil {
		return explainErrno(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.socket = f
	return nil
}

// agentPatience is how long a stream from a machine is kept on which nobody has said the secret: every program in the
// machine may dial the port, and the agent waits behind it.
const agentPatience = 10 * time.Second

// openLink starts to carry the agent's connections.
func (b *box) openLink() {
	l := carrier.New(b.runtime.ctx, b.accept, func() {}, b.runtime.Log)
	l.Patience = agentPatience
	b.mu.Lock()
	b.link = l
	b.mu.Unlock()
	b.runtime.background.Go(l.Run)
}

// accept waits for the next connection of the machine. A machine that ends closes its connection, and makes no other
// one: so msb is asked only while there is none.
func (b *box) accept(ctx context.Context) (io.ReadWriteCloser, error) {
	b.mu.Lock()
	f, patience := b.socket, firstPatience
	if b.dialed {
		patience = laterPatience
	}
	b.dialed = true
	b.mu.Unlock()
	for ctx.Err() == nil {
		soon, cancel := context.WithTimeout(ctx, patience)
		c, err := f.Accept(soon)
		cancel()
		if err == nil {
			return c.(io.ReadWriteCloser), nil
		}
		if errors.Is(err, sandbox.ErrGone) {
			return nil, err
		}
		if status, lookErr := b.runtime.status(ctx, b.name); lookErr == nil && hasEnded(status) {
			b.markExited(status)
			return nil, sandbox.ErrGone
		}
	}
	return nil, ctx.Err()
}

// firstPatience is how long nothing is asked of a machine that has not dialed yet, and laterPatience of one that has.
const firstPatience, laterPatience = 2 * time.Second, 200 * time.Millisecond

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

// ChangeTools implements sandbox.Sandbox.
func (b *box) ChangeTools(change func(dir string) error) error {
	return b.tools.Change(b.socketDir(), change)
}

// Admitted implements sandbox.Sandbox. The agent has read its environment, too.
func (b *box) Admitted() error {
	b.mu.Lock()
	f := b.socket
	b.mu.Unlock()
	err := os.Remove(filepath.Join(b.socketDir(), environmentFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.RemoveSecret())
}

// Resize implements sandbox.Sandbox. A machine has the processors and the memory with which it has booted.
func (b *box) Resize(context.Context, sandbox.Limits) error { return errors.ErrUnsupported }

// Status implements sandbox.Sandbox.
func (b *box) Status(ctx context.Context) (sandbox.Status, error) {
	select {
	case <-b.exited:
		return b.deadStatus(), nil
	default:
	}
	status, err := b.runtime.status(ctx, b.name)
	if err == nil && hasEnded(status) {
		b.markExited(status)
		return b.deadStatus(), nil
	}
	if err == nil && status != running {
		err = fmt.Errorf("its machine is %q", status)
	}
	var all map[string]usage
	if err == nil {
		all, err = b.runtime.measure(ctx)
	}
	if err != nil {
		return sandbox.Status{}, fmt.Errorf("asking msb about a sandbox: %w", err)
	}
	u := all[b.name]
	return sandbox.Status{State: sandbox.Running, MemoryBytes: u.Memory, CPU: time.Duration(u.CPU)}, nil
}

func (b *box) deadStatus() sandbox.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := sandbox.Status{State: sandbox.Dead, Reason: b.reason}
	if st.Reason == "" {
		st.Reason = "killed"
		if b.status == "Stopped" {
			st.Reason = "exited"
		}
	}
	return st
}

// markExited records that the machine has ended, and what msb says of it.
func (b *box) markExited(status string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.exited:
		return
	default:
	}
	b.status = status
	close(b.exited)
	b.closeLink()
}

// Stop implements sandbox.Sandbox.
func (b *box) Stop(ctx context.Context) error {
	b.mu.Lock()
	stopped := b.stopped
	if b.reason == "" {
		b.reason = "stopped"
	}
	b.mu.Unlock()
	if stopped {
		return nil
	}
	if !b.unmade {
		if err := b.remove(ctx); err != nil {
			return err
		}
	}
	b.markExited("")
	if err := b.tools.Remove(b.dir); err != nil {
		return err
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.runtime.mu.Lock()
	delete(b.runtime.boxes, b.spec.ID)
	b.runtime.mu.Unlock()
	return nil
}

// remove ends and removes the machine, until ctx ends. A machine that is asked to end may take for ever: it is killed.
func (b *box) remove(ctx context.Context) error {
	var err error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err = b.runtime.run(ctx, "remove", "--force", b.name)
		if err == nil {
			return nil
		}
		if isMissing(err) { // or a part of msb is
			if all, listErr := b.runtime.list(ctx); listErr == nil && all[b.name] == "" {
				return nil
			}
		}
		if _, ok := errors.AsType[*complaint](err); !ok {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("removing a machine: %w", errors.Join(ctx.Err(), explain(err)))
		}
	}
}

// disconnect closes this process's socket of the sandbox. The sandbox lives on.
func (b *box) disconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeLink()
}

// closeLink closes the link and the socket. The caller holds mu.
func (b *box) closeLink() {
	if b.link != nil {
		b.link.Close()
	}
	if b.socket != nil {
		b.socket.Close()
	}
}

// isBelow reports whether a path is the root, or one of the folders, or in one of them.
func isBelow(name string, folders []string) bool {
	for _, f := range folders {
		if name == "/" || name == f || strings.HasPrefix(name, f+"/") {
			return true
		}
	}
	return false
}
