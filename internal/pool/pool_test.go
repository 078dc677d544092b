package pool

import (
	"testing"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

// A build gets no shared folders of the machine: what it runs is of packages.
func TestBuildHasNoVolumes(t *testing.T) {
	workspaces, err := workspace.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, err := workspaces.New()
	if err != nil {
		t.Fatal(err)
	}
	shared := sandbox.Mount{Source: "/s", Target: "/share", Shared: true}
	p := New(Config{Runtime: &sandboxtest.Fake{}, Workspaces: workspaces, Log: sandboxtest.Log(t),
		Volumes: func() []sandbox.Mount { return []sandbox.Mount{shared} }})
	for build, want := range map[bool]int{false: 2, true: 1} {
		got := p.spec(Request{ID: "a", Workspace: ws, Template: &image.Template{Name: "t"}, Build: build}).Mounts
		if len(got) != want || got[0].Target != WorkspaceDir {
			t.Errorf("with Build %t the mounts are %+v", build, got)
		}
	}
}
