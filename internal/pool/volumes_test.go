package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

// keeping is a runtime that keeps the files of workspaces.
type keeping struct {
	*sandboxtest.Fake
	mu      sync.Mutex
	volumes map[string]bool // by name: whether it is empty
}

func (k *keeping) KeepsVolumes(context.Context) (bool, error) { return true, nil }

func (k *keeping) MakeVolume(_ context.Context, name string, _, _ int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, found := k.volumes[name]; !found {
		k.volumes[name] = true
	}
	return nil
}

func (k *keeping) VolumeEmpty(_ context.Context, name string, _ func(string) bool) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	empty, found := k.volumes[name]
	return empty || !found, nil
}

func (k *keeping) RemoveVolume(_ context.Context, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.volumes, name)
	return nil
}

func (k *keeping) Volumes(context.Context) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.volumes)), nil
}

// The sandboxes of a runtime that keeps the files of workspaces have volumes, which go with the workspaces; a runtime
// that does not see a workspace's files gets no sandbox with it.
func TestVolumes(t *testing.T) {
	workspaces, err := workspace.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k := &keeping{Fake: &sandboxtest.Fake{}, volumes: map[string]bool{"of-nobody": false}}
	plain := &sandboxtest.Fake{Called: "plain"}
	p := New(Config{Runtime: k, Further: []sandbox.Runtime{plain}, Workspaces: workspaces, Log: sandboxtest.Log(t),
		BootTimeout: 10 * time.Second})
	boot := func(ws, runtime string) ([]sandbox.Mount, error) {
		b, err := p.Boot(t.Context(), Request{Workspace: ws, Template: &image.Template{Name: "t", Runtime: runtime}})
		if err != nil {
			return nil, err
		}
		return b.Box.Spec().Mounts, b.Destroy()
	}
	kept, err := workspaces.New()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		m, err := boot(kept, "")
		if err != nil || len(m) != 1 || m[0] != (sandbox.Mount{Volume: kept, Target: WorkspaceDir}) {
			t.Errorf("mounts %+v, %v", m, err)
		}
	}
	if _, err := boot(kept, "plain"); !errors.Is(err, errElsewhere) {
		t.Errorf("another runtime has the workspace without its files: %v", err)
	}
	if empty, err := p.WorkspaceEmpty(t.Context(), kept); err != nil || !empty {
		t.Errorf("empty: %t, %v", empty, err)
	}
	k.mu.Lock()
	k.volumes[kept] = false
	k.mu.Unlock()
	if empty, err := p.WorkspaceEmpty(t.Context(), kept); err != nil || empty {
		t.Errorf("with files, empty: %t, %v", empty, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.RunVolumes(ctx) }()
	has := func(what string, want ...string) {
		t.Helper()
		for range 500 {
			if names, _ := k.Volumes(ctx); slices.Equal(names, want) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		names, _ := k.Volumes(ctx)
		t.Errorf("%s there are the volumes %q, want %q", what, names, want)
	}
	has("after the start", kept)
	if err := p.RemoveWorkspace(kept); err != nil {
		t.Error(err)
	}
	has("after the workspace was removed")
	stop()
	<-ended
}
