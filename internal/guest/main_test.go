package guest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/guesttest"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		os.Exit(child(what))
	}
	guesttest.Main(m)
}

// rig is an agent without a host, that works in a folder of its own.
type rig struct {
	*Agent
	guesttest.Folder
}

func newRig(t *testing.T) *rig { return newRigOf(t, nil) }

// newRigOf returns a rig with that user.
func newRigOf(t *testing.T, u *user.User) *rig {
	t.Helper()
	a := New(Config{User: u, Socket: filepath.Join(t.TempDir(), "none.sock"), Secret: make([]byte, wire.SecretLen),
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"}})
	a.output.dir = t.TempDir()
	r := &rig{a, guesttest.NewFolder(t)}
	r.configure(&agentv1.FileRoot{Path: r.Path})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

func (r *rig) configure(roots ...*agentv1.FileRoot) {
	r.T.Helper()
	_, err := r.Configure(r.T.Context(), &agentv1.ConfigureRequest{FileRoots: roots, Languages: languages()})
	if err != nil {
		r.T.Fatal(err)
	}
}

// languages are the machine's own.
func languages() []*agentv1.Language {
	all := []*agentv1.Language{{Name: "sh", Command: []string{"/bin/sh"}, Extension: ".sh"},
		{Name: "bad", Command: []string{"/bin/sh"}, Extension: "/../x"}}
	if p := guesttest.Python(); p != "" {
		all = append(all, &agentv1.Language{Name: "python", Driver: "python", Command: []string{p}})
	}
	return all
}

func evaluateRun(q *agentv1.EvaluateRequest) *agentv1.RunRequest {
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Evaluate{Evaluate: q}}
}

func execRun(q *agentv1.ExecRequest) *agentv1.RunRequest {
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Exec{Exec: q}}
}

func readStream(q *agentv1.ReadStream) *agentv1.StreamOpen {
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_ReadFile{ReadFile: q}}
}

func writeStream(q *agentv1.WriteStream) *agentv1.StreamOpen {
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_WriteFile{WriteFile: q}}
}

func dialStream(to net.Addr) *agentv1.StreamOpen {
	port := to.(*net.TCPAddr).Port
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: uint32(port)}}
}
