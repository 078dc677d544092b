package pool

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

// keeping is a runtime that keeps the files of workspaces.
type keeping struct {
	*sandboxtest.Fake
	shared      bool // it sees the server's files now
	address, id string
	making      func() error // called by MakeVolume
	mu          sync.Mutex
	volumes     map[string]bool // by name: whether it is empty
	inUse       int             // so many times a volume is not removed, as a sandbox has it
}

func (k *keeping) Capabilities() sandbox.Capabilities {
	c := k.Fake.Capabilities()
	c.Storage = k
	return c
}

func (k *keeping) VolumeBytes(context.Context, string) (int64, time.Time, error) {
	return 0, time.Now(), nil
}

func (k *keeping) KeepsVolumes(context.Context) (bool, error) { return !k.shared, nil }

func (k *keeping) KeeperID(context.Context) (address, id string, err error) {
	return k.address, k.id, nil
}

func (k *keeping) MakeVolume(_ context.Context, name string, _, _ int) error {
	if k.making != nil {
		if err := k.making(); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, found := k.volumes[name]; !found {
		k.volumes[name] = true
	}
	return nil
}

func (k *keeping) VolumeEmpty(_ context.Context, name string, _ func(string, fs.FileMode) bool) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	empty, found := k.volumes[name]
	return empty || !found, nil
}

func (k *keeping) RemoveVolume(_ context.Context, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inUse > 0 {
		k.inUse--
		return errors.New("the volume is in use")
	}
	delete(k.volumes, name)
	return nil
}

func (k *keeping) HasVolume(_ context.Context, name string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, has := k.volumes[name]
	return has, nil
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
	k := &keeping{Fake: &sandboxtest.Fake{}, volumes: map[string]bool{}}
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
	if _, err := boot(kept, "plain"); !errors.Is(err, ErrElsewhere) {
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
	go func() { defer close(ended); p.RunVolumes(ctx, ofNobody) }()
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

func ofNobody(context.Context) ([]string, error) { return nil, nil }

// volumeTest is a server with a runtime that keeps the files of workspaces.
type volumeTest struct {
	t   *testing.T
	dir string
	k   *keeping
	*Pool
}

func newVolumeTest(t *testing.T) *volumeTest {
	t.Helper()
	v := &volumeTest{t: t, dir: t.TempDir(), k: &keeping{Fake: &sandboxtest.Fake{Called: "keeping"}, address: "there",
		id: "k", volumes: map[string]bool{}}}
	v.restart(v.k)
	return v
}

// restart makes a pool with those runtimes and the same workspaces.
func (v *volumeTest) restart(runtimes ...sandbox.Runtime) {
	v.t.Helper()
	workspaces, err := workspace.Open(v.dir)
	if err != nil {
		v.t.Fatal(err)
	}
	v.Pool = New(Config{Runtime: runtimes[0], Further: runtimes[1:], Workspaces: workspaces, Log: sandboxtest.Log(v.t),
		BootTimeout: 10 * time.Second})
}

func (v *volumeTest) boot(ws string) error {
	b, err := v.Boot(v.t.Context(), Request{Workspace: ws, Template: &image.Template{Name: "t"}})
	if err != nil {
		return err
	}
	return b.Destroy()
}

// workspace makes one, with a volume that is empty or not.
func (v *volumeTest) workspace(empty bool) string {
	v.t.Helper()
	id, err := v.Workspaces.New()
	if err == nil {
		err = v.boot(id)
	}
	if err != nil {
		v.t.Fatal(err)
	}
	v.k.volumes[id] = empty
	return id
}

// fails checks that a workspace gets no sandbox, does not count as empty, and keeps its volume.
func (v *volumeTest) fails(ws, what string, want error) {
	v.t.Helper()
	if err := v.boot(ws); !errors.Is(err, want) {
		v.t.Errorf("%s: a sandbox is booted: %v, want %v", what, err, want)
	}
	if empty, _ := v.WorkspaceEmpty(v.t.Context(), ws); empty {
		v.t.Errorf("%s: the workspace counts as empty", what)
	}
	if err := v.RemoveVolumes(v.t.Context(), ofNobody); err != nil {
		v.t.Errorf("%s: %v", what, err)
	}
}

// A workspace whose files are in a volume gets no sandbox that does not see them, and does not count as empty, whatever
// the settings of the next servers are.
func TestFilesStayInVolumes(t *testing.T) {
	v := newVolumeTest(t)
	ws := v.workspace(false)
	v.k.shared = true
	v.restart(v.k)
	v.fails(ws, "the runtime sees the server's files now", ErrElsewhere)
	v.restart(&sandboxtest.Fake{Called: "plain"})
	v.fails(ws, "the runtime is not among the settings", ErrElsewhere)
	other := &keeping{Fake: &sandboxtest.Fake{Called: "keeping"}, address: "elsewhere", id: "o",
		volumes: map[string]bool{}}
	v.restart(other)
	v.fails(ws, "another daemon", ErrElsewhere)
	if len(other.volumes) != 0 {
		t.Errorf("another daemon has got the volumes %v", other.volumes)
	}
	other.address = "there"
	v.fails(ws, "another daemon at the same address", ErrMissing)
	v.k.shared, v.k.address = false, "moved"
	v.restart(v.k)
	if empty, ok := v.k.volumes[ws]; empty || !ok {
		t.Fatalf("the volume is gone or empty: %v", v.k.volumes)
	}
	if err := v.boot(ws); err != nil {
		t.Errorf("the daemon has another address: %v", err)
	}
	v.k.id = "new"
	if err := v.boot(ws); err != nil {
		t.Errorf("the daemon, at that address, has another id: %v", err)
	}
	if empty, err := v.WorkspaceEmpty(t.Context(), ws); empty || err != nil {
		t.Errorf("with files, empty: %t, %v", empty, err)
	}
	v.k.volumes[ws] = true
	if empty, err := v.WorkspaceEmpty(t.Context(), ws); !empty || err != nil {
		t.Errorf("without files, empty: %t, %v", empty, err)
	}
	delete(v.k.volumes, ws)
	v.fails(ws, "the volume was removed", ErrMissing)
	if len(v.k.volumes) != 0 {
		t.Errorf("a volume that was removed is there again: %v", v.k.volumes)
	}
}

// Who keeps a workspace is noted before there is a volume; a volume that could not be made, or of which the note does
// not say that it was, is made later.
func TestVolumeNotMade(t *testing.T) {
	v := newVolumeTest(t)
	ws, err := v.Workspaces.New()
	if err != nil {
		t.Fatal(err)
	}
	want := workspace.Volume{Runtime: "keeping", Address: "there", Keeper: "k"}
	broken := errors.New("the disk is full")
	v.k.making = func() error {
		if noted, err := v.Workspaces.Volume(ws); err != nil || noted == nil || *noted != want {
			t.Errorf("noted: %v, %v", noted, err)
		}
		return broken
	}
	if err := v.boot(ws); !errors.Is(err, broken) {
		t.Error(err)
	}
	if empty, err := v.WorkspaceEmpty(t.Context(), ws); !empty || err != nil {
		t.Errorf("empty: %t, %v", empty, err)
	}
	v.k.making = nil
	if err := v.boot(ws); err != nil {
		t.Error(err)
	}
	want.Made = true
	if noted, err := v.Workspaces.Volume(ws); err != nil || noted == nil || *noted != want {
		t.Errorf("noted: %v, %v", noted, err)
	}
	// A backup may lack the note, and its files may be those of a volume.
	if err := errors.Join(v.Workspaces.Remove(ws), v.Workspaces.Forget(ws), v.Workspaces.Ensure(ws)); err != nil {
		t.Fatal(err)
	}
	v.k.making = func() error {
		if noted, err := v.Workspaces.Volume(ws); err != nil || noted == nil || *noted != want {
			t.Errorf("of a volume that is there, noted: %v, %v", noted, err)
		}
		return nil
	}
	if err := v.boot(ws); err != nil {
		t.Error(err)
	}
}

// The volume of a workspace that was removed while its runtime did not have its volumes is removed as soon as it has.
func TestVolumeRemovedLater(t *testing.T) {
	v := newVolumeTest(t)
	ws, again := v.workspace(false), v.workspace(false)
	v.k.shared = true
	v.restart(v.k)
	if err := errors.Join(v.RemoveWorkspace(ws), v.RemoveWorkspace(again), v.Workspaces.Ensure(again)); err != nil {
		t.Fatal(err)
	}
	other := &keeping{Fake: &sandboxtest.Fake{Called: "keeping"}, address: "elsewhere", id: "o",
		volumes: map[string]bool{ws: false}}
	for _, rt := range []sandbox.Runtime{v.k, &sandboxtest.Fake{Called: "plain"}, other} {
		v.restart(rt)
		if err := v.RemoveVolumes(t.Context(), ofNobody); err != nil {
			t.Error(err)
		}
	}
	if len(v.k.volumes) != 2 || len(other.volumes) != 1 {
		t.Errorf("volumes are gone too early: there are %v, and elsewhere %v", v.k.volumes, other.volumes)
	}
	v.k.shared = false
	v.restart(v.k)
	if err := v.RemoveVolumes(t.Context(), ofNobody); err != nil {
		t.Error(err)
	}
	if _, kept := v.k.volumes[again]; !kept || len(v.k.volumes) != 1 {
		t.Errorf("there are the volumes %v, want that of the workspace that is there again", v.k.volumes)
	}
	if removed, err := v.Workspaces.Removed(); err != nil || len(removed) != 1 {
		t.Errorf("it is not forgotten: %v, %v", removed, err)
	}
}

// A volume that is in use, as that of a dead server's sandbox is for a moment, is removed soon after.
func TestVolumeInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVolumeTest(t)
		if err := v.RemoveWorkspace(v.workspace(false)); err != nil {
			t.Fatal(err)
		}
		v.restart(v.k)
		v.k.inUse = 3
		go v.RunVolumes(t.Context(), ofNobody)
		time.Sleep(8 * time.Second) // 1 + 2 + 4, and a little
		if names, err := v.k.Volumes(t.Context()); err != nil || len(names) != 0 {
			t.Errorf("there are still %q, %v", names, err)
		}
	})
}

// A volume that belongs to no workspace is removed only if that has been so for long, and never if it is a session's.
func TestUnknownVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVolumeTest(t)
		v.k.volumes = map[string]bool{"of-nobody": false, "of-session": false}
		var broken error
		look := func(what string, want int, sessions ...string) {
			t.Helper()
			err := v.RemoveVolumes(t.Context(), func(context.Context) ([]string, error) { return sessions, broken })
			if !errors.Is(err, broken) || len(v.k.volumes) != want {
				t.Errorf("%s: %v; there are %v, want %d", what, err, v.k.volumes, want)
			}
		}
		look("at first", 2, "of-session")
		time.Sleep(unknownTime - time.Second)
		look("a second too early", 2, "of-session")
		look("known meanwhile", 2, "of-session", "of-nobody")
		time.Sleep(unknownTime)
		look("unknown again", 2, "of-session")
		time.Sleep(unknownTime)
		broken = errors.New("the store does not answer")
		look("nobody knows the sessions", 2)
		broken = nil
		look("then again at first", 2, "of-session")
		time.Sleep(unknownTime)
		look("at last", 1, "of-session")
		if _, kept := v.k.volumes["of-session"]; !kept {
			t.Error("the volume of a session was removed")
		}
	})
}
