package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"sandlot/internal/atomicfile"
	"sandlot/internal/dockercommand"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// Process is a living sandbox, as other programs than its server can see it.
type Process struct {
	ID          string
	Template    string
	PID         int // of its agent; 0: it is not known on this machine
	Since       time.Time
	MemoryBytes int64
}

// Inspect lists the living sandboxes of the state folder of c, whether or not a server runs, and changes nothing. It
// asks the daemon only if the folder has sandboxes on it.
func Inspect(ctx context.Context, c Config) ([]Process, error) {
	r := &Runtime{Config: c}
	folders, err := os.ReadDir(r.sandboxesDir())
	if err != nil || len(folders) == 0 { // none, or those of another user
		return nil, nil
	}
	instance, err := atomicfile.Read(r.instanceFile(), maxInstance)
	if err != nil || !validID.Match(instance) {
		return nil, err
	}
	r.instance = string(instance)
	var mu sync.Mutex
	var alive []Process
	seesProcesses := sync.OnceValue(func() bool { return r.seesProcesses() }) // the client is eachRunning's
	err = r.eachRunning(ctx, labelInstance+"="+r.instance, func(labels map[string]string) {
		if !validID.MatchString(labels[labelID]) {
			return
		}
		b := newBox(r, sandbox.Spec{ID: labels[labelID]})
		p, running := b.process(ctx, labels)
		if !running {
			return
		}
		if !seesProcesses() {
			p.PID = 0
		}
		mu.Lock()
		defer mu.Unlock()
		alive = append(alive, p)
	})
	return alive, err
}

// process returns what the daemon says of a container with these labels, if it runs.
func (b *box) process(ctx context.Context, labels map[string]string) (p Process, running bool) {
	state, err := b.inspect(ctx)
	if err != nil || state == nil || !state.Running {
		return p, false
	}
	p = Process{ID: b.spec.ID, Template: labels[labelTemplate], PID: state.Pid}
	p.Since, _ = time.Parse(time.RFC3339Nano, state.StartedAt)
	p.MemoryBytes, _, _ = b.usage(ctx)
	return p, true
}

// Lost returns the living sandboxes whose records are gone, for example because their state folder was deleted, by the
// state folder in their labels. It asks the daemon, and finds only those whose processes are on this machine.
func Lost(ctx context.Context, c Config) (map[string][]Process, error) {
	var mu sync.Mutex
	found := map[string][]Process{}
	err := eachLost(ctx, c, labelState, func(b *box, p Process) {
		mu.Lock()
		defer mu.Unlock()
		found[b.runtime.StateDir] = append(found[b.runtime.StateDir], p)
	})
	return found, err
}

// EndLost ends the sandboxes of the state folder of c whose records are gone, and returns how many there were.
func EndLost(ctx context.Context, c Config) (ended int, err error) {
	var mu sync.Mutex
	var failed error
	err = eachLost(ctx, c, labelState+"="+c.StateDir, func(b *box, p Process) {
		err := b.removeContainer(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("sandbox %s: %w", p.ID, err))
			return
		}
		ended++
	})
	return ended, errors.Join(err, failed)
}

// eachLost calls f with each sandbox that runs, has that label, and has lost its record, of several at a time.
func eachLost(ctx context.Context, c Config, label string, f func(*box, Process)) error {
	r := &Runtime{Config: c}
	return r.eachRunning(ctx, label, func(labels map[string]string) {
		id, dir := labels[labelID], labels[labelState]
		if !validID.MatchString(id) || !filepath.IsAbs(dir) || !validID.MatchString(labels[labelInstance]) {
			return
		}
		owner := &Runtime{Config: Config{StateDir: dir}, client: r.client, instance: labels[labelInstance]}
		b := newBox(owner, sandbox.Spec{ID: id})
		if _, err := os.Lstat(filepath.Join(b.dir, specfile.Name)); !errors.Is(err, os.ErrNotExist) {
			return
		}
		if p, running := b.process(ctx, labels); running && b.socketDeleted(p.PID) {
			f(b, p)
		}
	})
}

// StateDirs returns the state folders that the daemon's running containers name. That proves nothing: whoever may use
// the daemon can name any.
func StateDirs(ctx context.Context, c Config) ([]string, error) {
	var mu sync.Mutex
	var dirs []string
	r := &Runtime{Config: c}
	err := r.eachRunning(ctx, labelState, func(labels map[string]string) {
		mu.Lock()
		defer mu.Unlock()
		if dir := labels[labelState]; filepath.IsAbs(dir) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	})
	return dirs, err
}

// eachRunning calls f with the labels of each container that runs and has that label, of several at a time: some
// daemons take a second to say what a container uses.
func (r *Runtime) eachRunning(ctx context.Context, label string, f func(labels map[string]string)) (err error) {
	if r.client, err = dockercommand.ClientAfter(daemonFile(r.StateDir), r.Host, r.Context); err != nil {
		return err
	}
	defer r.client.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	list, err := r.client.ContainerList(ctx, client.ContainerListOptions{
		Filters: make(client.Filters).Add("label", label)})
	var calls errgroup.Group
	calls.SetLimit(32)
	for _, container := range list.Items {
		calls.Go(func() error { f(container.Labels); return nil })
	}
	return errors.Join(err, calls.Wait())
}
