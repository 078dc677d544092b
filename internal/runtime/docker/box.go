package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/carrier"
	"sandlot/internal/runtime/socket"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// box implements sandbox.Sandbox.
type box struct {
	runtime *Runtime
	dir     string
	name    string        // of the container
	exited  chan struct{} // closed when the container has ended
	unmade  bool          // the daemon was not asked for a container yet; only Create changes it, and calls Stop
	// unanswered: the daemon was asked for a container, and did not answer. It may still make one, which will not be
	// started. Only Create changes it.
	unanswered bool
	daemon     daemonID // which has the container; set before other goroutines use the box
	separate   bool     // the daemon does not see the server's files; set like daemon
	agent      string   // the path of the agent's program; set like daemon
	// agentVolume and volumePath are the name of the volume with the agent, and the folder of the sandbox's volume on
	// the daemon's machine. Only Create uses them, for a separate daemon.
	agentVolume, volumePath string

	tools socket.Tools

	mu      sync.Mutex
	spec    sandbox.Spec   // only Limits changes once other goroutines use the box
	socket  *socket.Folder // nil before listen, and for a separate daemon
	link    *carrier.Link  // nil before openLink
	reason  string         // why this runtime killed it
	stopped bool
}

func newBox(r *Runtime, spec sandbox.Spec) *box {
	return &box{runtime: r, dir: r.sandboxDir(spec.ID), name: "sandlot-" + spec.ID, spec: spec,
		exited: make(chan struct{})}
}

// socketDir is the folder of the socket that the agent dials.
func (b *box) socketDir() string { return filepath.Join(b.dir, "sock") }

// filesDir is the folder of the files that are mounted over the image's.
func (b *box) filesDir() string { return filepath.Join(b.dir, "files") }

// Spec implements sandbox.Sandbox.
func (b *box) Spec() sandbox.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec
}

func (b *box) listen() error {
	f, err := socket.Listen(b.socketDir())
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.socket = f
	return nil
}

// Connect implements sandbox.Sandbox.
func (b *box) Connect(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	f, l := b.socket, b.link
	b.mu.Unlock()
	if l != nil {
		return l.Accept(ctx)
	}
	return f.Accept(ctx)
}

// ChangeTools implements sandbox.Sandbox.
func (b *box) ChangeTools(change func(dir string) error) error {
	if b.separate {
		return errors.ErrUnsupported
	}
	return b.tools.Change(b.socketDir(), change)
}

// Admitted implements sandbox.Sandbox.
func (b *box) Admitted() error {
	b.mu.Lock()
	f := b.socket
	b.mu.Unlock()
	return f.RemoveSecret()
}

// wakeAgent makes the agent of a recovered sandbox dial at once. Without the signal it dials some seconds later.
func (b *box) wakeAgent() {
	ctx, cancel := context.WithTimeout(b.runtime.ctx, 5*time.Second)
	defer cancel()
	_, err := b.runtime.client.ContainerKill(ctx, b.name,
		client.ContainerKillOptions{Signal: fmt.Sprint(int(wire.WakeSignal))})
	if err != nil {
		b.runtime.Log.Debug("could not wake an agent", "sandbox", b.spec.ID, "error", err)
	}
}

// retryInterval is the pause between two questions to a daemon that does not answer.
const retryInterval = 100 * time.Millisecond

// inspect returns the state of the container; nil: there is none of this instance.
func (b *box) inspect(ctx context.Context) (*container.State, error) {
	instance, err := b.runtime.instanceID()
	if err != nil {
		return nil, err
	}
	found, err := b.runtime.client.ContainerInspect(ctx, b.name, client.ContainerInspectOptions{})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if found.Container.Config == nil || found.Container.Config.Labels[labelInstance] != instance {
		return nil, nil
	}
	return found.Container.State, nil
}

// awaitEnd waits until the container has ended, or the runtime closes. A daemon that does not answer says nothing
// about the container, which may live on without it.
func (b *box) awaitEnd() {
	ctx := b.runtime.ctx
	for {
		wait := b.runtime.client.ContainerWait(ctx, b.name,
			client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		// Not b.exited as well: the client's goroutine sends one of these, and would wait for ever. The wait ends with
		// the container, with the daemon, or with ctx.
		select {
		case <-wait.Result:
		case <-wait.Error:
		}
		// Only this answer counts: a wait also ends with the daemon.
		if state, err := b.inspect(ctx); err == nil && (state == nil || !state.Running) {
			b.markExited()
			return
		}
		select {
		case <-time.After(retryInterval):
		case <-b.exited:
			return
		case <-ctx.Done():
			return
		}
	}
}

// markExited records that the container has ended: it closes b.exited and the socket.
func (b *box) markExited() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.exited:
		return
	default:
	}
	close(b.exited)
	b.disconnect()
}

// Status implements sandbox.Sandbox.
func (b *box) Status(ctx context.Context) (sandbox.Status, error) {
	if b.unanswered {
		return sandbox.Status{State: sandbox.Dead}, nil
	}
	state, err := b.inspect(ctx)
	if err != nil {
		return sandbox.Status{}, fmt.Errorf("asking the Docker daemon about a sandbox: %w", err)
	}
	if state != nil && state.Running {
		st := sandbox.Status{State: sandbox.Running}
		st.MemoryBytes, st.CPU, err = b.usage(ctx)
		return st, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	st := sandbox.Status{State: sandbox.Dead, Reason: b.reason}
	switch {
	case st.Reason != "":
	case state == nil:
		st.Reason = "killed"
	case state.OOMKilled:
		st.Reason = "memory"
	case state.ExitCode == 128+9:
		st.Reason = "killed"
	default:
		st.Reason = "exited"
	}
	return st, nil
}

// maxStats bounds the daemon's answer about a container's usage, in bytes.
const maxStats = 1 << 20

// usage returns the memory and processor time that the container uses.
func (b *box) usage(ctx context.Context) (memory int64, cpu time.Duration, err error) {
	stats, err := b.runtime.client.ContainerStats(ctx, b.name, client.ContainerStatsOptions{})
	if err != nil {
		return 0, 0, err
	}
	defer stats.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(io.LimitReader(stats.Body, maxStats)).Decode(&s); err != nil {
		return 0, 0, err
	}
	used := s.MemoryStats.Usage
	for _, name := range []string{"total_inactive_file", "inactive_file"} { // cgroup versions 1 and 2
		if cache := s.MemoryStats.Stats[name]; cache < used {
			used -= cache
			break
		}
	}
	return int64(used), time.Duration(s.CPUStats.CPUUsage.TotalUsage), nil
}

// Resize implements sandbox.Sandbox. Not every daemon can change the limits of a container that runs.
func (b *box) Resize(ctx context.Context, l sandbox.Limits) error {
	if d := b.runtime.known(); d.isPodman || d.isGVisor || d.isRootless && !d.hasLimits {
		return errors.ErrUnsupported
	}
	resources := b.resources(l)
	resources.Ulimits = nil // the daemon changes no others
	_, err := b.runtime.client.ContainerUpdate(ctx, b.name, client.ContainerUpdateOptions{Resources: &resources})
	if err != nil {
		return fmt.Errorf("changing the limits of a container: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec.Limits = l
	return specfile.Write(b.dir, b.record())
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
		if err := b.removeContainer(ctx); err != nil {
			return err
		}
	}
	b.markExited()
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

// The pause between two attempts to remove a container doubles from the first to the last.
const (
	firstRemovalPause = 20 * time.Millisecond
	maxRemovalPause   = time.Second
)

// removeContainer removes the container with its volumes, until ctx ends. It touches no container of another
// instance that has the name.
func (b *box) removeContainer(ctx context.Context) error {
	removed := false
	for pause := firstRemovalPause; ; pause = min(2*pause, maxRemovalPause) {
		state, err := b.inspect(ctx)
		switch {
		case err != nil:
		case state != nil:
			_, err = b.runtime.client.ContainerRemove(ctx, b.name,
				client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			removed = err == nil
		case removed && !b.separate: // the daemon removes only volumes without a name
			return nil
		default:
			// A daemon that is killed while it makes or removes a container forgets it, and leaves its volumes.
			if err = b.runtime.volumes.RemoveAll(ctx, labelID, b.spec.ID); err == nil {
				return nil
			}
		}
		// A conflict: another call removes it already. The next round sees whether it is gone.
		if err != nil && !isMissing(err) && !errdefs.IsConflict(err) && !client.IsErrConnectionFailed(err) &&
			!errdefs.IsInternal(err) && !errors.Is(err, io.EOF) {
			return fmt.Errorf("removing the container: %w", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("removing the container: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// detach closes this process's socket of the sandbox. The sandbox lives on.
func (b *box) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disconnect()
}

// disconnect closes the sandbox's socket or link. The caller holds mu.
func (b *box) disconnect() {
	if b.socket != nil {
		b.socket.Close()
	}
	if b.link != nil {
		b.link.Close()
	}
}
