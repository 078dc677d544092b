package sandboxtest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Subject is a runtime under test.
type Subject struct {
	// Open returns the runtime, as for a server that starts. Each call uses the same state folder.
	Open func(t *testing.T) sandbox.Runtime
	// Remains lists the processes, mounts, cgroups and files of sandboxes on the machine. It is empty when
	// no sandbox runs.
	Remains func() []string
	// Kill kills a sandbox, as the kernel does when memory is exhausted.
	Kill func(t *testing.T, b sandbox.Sandbox)
	// VersionText is a text that ProofCommand prints in a sandbox of the runtime. Without it
	// the suite runs nothing hostile. Default: "gvisor".
	VersionText string
	// ProofCommand is the shell line that prints VersionText in a sandbox of the runtime, and nowhere else. Default:
	// it reads /proc/version and the kernel log.
	ProofCommand string
	// WritableRoot: sandboxes can write everywhere in their root file system, and nobody else sees that.
	WritableRoot bool
	// SharedKernel: programs in the sandbox run on the host's kernel. They see the machine's memory and CPUs, and reach
	// sockets of the host in folders that are mounted.
	SharedKernel bool
	// NoQuota: the storage of the sandboxes has no quota. A sandbox over its disk limit is ended.
	NoQuota bool
	// NoLimits: nothing bounds the memory and the processes of sandboxes. What would use them up is skipped.
	NoLimits bool
	// Bridged: the agent's connections are carried over another one. Cells have no direct ones.
	Bridged bool
	// Capable: programs of root have wire.Capabilities.
	Capable bool
	// Again: another subject of the runtime runs the tests whose subject is the agent, whatever made the sandbox. They
	// are left out.
	Again bool
	// Folder makes what a sandbox is to have mounted, and returns it with its path on this machine. Default: it makes
	// a temporary folder.
	Folder func(t *testing.T) (sandbox.Mount, string)
	// Template is what to boot; nil for a runtime that cannot run programs: tests that need
	// them are skipped.
	Template *image.Template
}

// Run runs the suite.
func (s *Subject) Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *Subject){
		"Life":         life,
		"Recover":      recovery,
		"RecoverDead":  recoverDead,
		"Death":        death,
		"Cancel":       cancel,
		"Together":     together,
		"BadSpec":      badSpec,
		"LinkComesNew": linkComesNew,
		"Groups":       groups,
	} {
		t.Run(name, func(t *testing.T) { test(t, s); s.clean(t) })
	}
	if s.Template == nil {
		return
	}
	for name, test := range map[string]func(*testing.T, *Bench){
		"Commands":     commands,
		"Interpreters": interpreters,
		"Direct":       direct,
		"Background":   background,
		"Files":        files,
		"Mounts":       mounts,
		"HostFiles":    hostFiles,
		"Terminal":     terminal,
		"Memory":       memory,
		"Processes":    processes,
		"Disk":         disk,
		"Isolation":    isolation,
		"Scratch":      scratch,
		"Directory":    directory,
		"SurvivesHost": survivesHost,
		"Hibernate":    hibernate,
		"Capabilities": capabilities,
	} {
		if s.Again && slices.Contains([]string{"Commands", "Interpreters", "Direct"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if s.NoLimits && slices.Contains([]string{"Memory", "Processes", "Scratch"}, name) {
				t.Skip("nothing bounds this sandbox")
			}
			test(t, s.bench(t))
		})
	}
	t.Run("User", func(t *testing.T) { user(t, s.benchOfUser(t)) })
}

func (s *Subject) clean(t *testing.T) {
	t.Helper()
	var left []string
	for range 100 {
		if left = s.Remains(); len(left) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("this is left: %q", left)
}

// Spec returns a spec of a small sandbox of the subject.
func (s *Subject) Spec() sandbox.Spec {
	t := s.Template
	if t == nil {
		t = &image.Template{Name: "none"}
	}
	return sandbox.Spec{ID: secret.ID(), Template: t, Secret: secret.Bytes(wire.SecretLen),
		Limits: sandbox.Limits{CPUs: 1, MemoryBytes: 512 << 20, Processes: 128, DiskBytes: 256 << 20}}
}

// folder makes a folder for sandboxes, and returns its mount and its path on this machine.
func (s *Subject) folder(t *testing.T, target string, readOnly bool) (sandbox.Mount, string) {
	t.Helper()
	var m sandbox.Mount
	var path string
	if s.Folder != nil {
		m, path = s.Folder(t)
	} else {
		path = t.TempDir()
		m.Source = path
	}
	m.Target, m.ReadOnly = target, readOnly
	return m, path
}

func (s *Subject) create(t *testing.T, rt sandbox.Runtime) sandbox.Sandbox {
	t.Helper()
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// slowBoot is how long a sandbox may take to answer: an emulated machine boots slowly beside others.
const slowBoot = 5 * time.Minute

func hello(t *testing.T, b sandbox.Sandbox) string {
	t.Helper()
	c := agent.New(b, Log(t), nil)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), slowBoot)
	defer cancel()
	r, err := c.Hello(ctx)
	if err != nil {
		t.Fatal("the agent does not answer:", err)
	}
	return r
}

func stop(t *testing.T, b sandbox.Sandbox) {
	t.Helper()
	if err := b.Stop(t.Context()); err != nil {
		t.Error("stopping:", err)
	}
}

func closeRuntime(t *testing.T, rt sandbox.Runtime) {
	t.Helper()
	if err := rt.Close(); err != nil {
		t.Error("closing:", err)
	}
}

// life tests that a sandbox boots, answers and stops, and leaves nothing behind.
func life(t *testing.T, s *Subject) {
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	if err := rt.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := s.create(t, rt)
	hello(t, b)
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Running {
		t.Errorf("status of a living sandbox: %+v, %v", st, err)
	}
	if l := rt.List(); len(l) != 1 || l[0].Spec().ID != b.Spec().ID {
		t.Errorf("List: %v", l)
	}
	more := b.Spec().Limits
	more.MemoryBytes *= 2
	err := b.Resize(t.Context(), more)
	if !errors.Is(err, errors.ErrUnsupported) && (err != nil || b.Spec().Limits != more) {
		t.Errorf("resizing: %v, limits %+v", err, b.Spec().Limits)
	}
	stop(t, b)
	stop(t, b) // a second call is allowed
	if _, err := b.Connect(t.Context()); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("connecting to a stopped sandbox: %v", err)
	}
	if len(rt.List()) != 0 {
		t.Error("a stopped sandbox is listed")
	}
}

// RecoverAll recovers all sandboxes that an earlier server left running.
func RecoverAll(t *testing.T, rt sandbox.Runtime) []sandbox.Sandbox {
	t.Helper()
	ids, err := rt.Leftovers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var alive []sandbox.Sandbox
	for _, id := range ids {
		b, err := rt.Recover(t.Context(), id)
		switch {
		case err == nil:
			alive = append(alive, b)
		case !errors.Is(err, sandbox.ErrGone):
			t.Fatalf("recovering %s: %v", id, err)
		}
	}
	return alive
}

// recovery tests that the next server recovers the sandboxes of the previous one.
func recovery(t *testing.T, s *Subject) {
	rt := s.Open(t)
	b := s.create(t, rt)
	boot := hello(t, b)
	closeRuntime(t, rt)

	rt = s.Open(t)
	defer closeRuntime(t, rt)
	found := RecoverAll(t, rt)
	if len(found) != 1 {
		t.Fatalf("recovered %d sandboxes", len(found))
	}
	want, got := b.Spec(), found[0].Spec()
	if got.ID != want.ID || got.Limits != want.Limits || string(got.Secret) != string(want.Secret) ||
		got.Template.Name != want.Template.Name || !slices.Equal(got.Mounts, want.Mounts) {
		t.Errorf("the recovered spec is another: %+v, was %+v", got, want)
	}
	if again := hello(t, found[0]); again != boot {
		t.Errorf("the agent booted again: %s, was %s", again, boot)
	}
	stop(t, found[0])
}

// recoverDead tests that a sandbox that died while no server ran is removed.
func recoverDead(t *testing.T, s *Subject) {
	rt := s.Open(t)
	dead, alive := s.create(t, rt), s.create(t, rt)
	hello(t, dead)
	hello(t, alive)
	closeRuntime(t, rt)
	s.Kill(t, dead)
	rt = s.Open(t)
	defer closeRuntime(t, rt)
	found := RecoverAll(t, rt)
	if len(found) != 1 || found[0].Spec().ID != alive.Spec().ID {
		t.Fatalf("recovered %d sandboxes", len(found))
	}
	for _, left := range s.Remains() {
		if strings.Contains(left, dead.Spec().ID) {
			t.Error("of the dead one this is left:", left)
		}
	}
	stop(t, found[0])
}

// death tests that a call in progress fails when its sandbox dies.
func death(t *testing.T, s *Subject) {
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	b := s.create(t, rt)
	c := agent.New(b, Log(t), nil)
	defer c.Close()
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Kill(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), slowBoot)
	defer cancel()
	for {
		_, err := c.Hello(ctx)
		if errors.Is(err, sandbox.ErrGone) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("a call on a dead sandbox ends with", err)
		}
	}
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Dead || st.Reason == "" {
		t.Errorf("status of a dead sandbox: %+v, %v", st, err)
	}
	stop(t, b)
}

// cancel tests that a cancelled Create leaves nothing behind, and a cancelled Connect a sandbox that works.
func cancel(t *testing.T, s *Subject) {
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := rt.Create(ctx, s.Spec()); err == nil {
		stop(t, b) // it returned before the cancellation
	}
	b := s.create(t, rt)
	hello(t, b)
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for ctx.Err() == nil {
		c, err := b.Connect(ctx)
		if err == nil {
			c.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Connect that was given up:", err)
		}
	}
	hello(t, b)
	stop(t, b)
}

// together tests that many sandboxes can boot and stop at the same time.
func together(t *testing.T, s *Subject) {
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			b, err := rt.Create(t.Context(), s.Spec())
			if err != nil {
				t.Error(err)
				return
			}
			c := agent.New(b, Log(t), nil)
			defer c.Close()
			if _, err := c.Hello(t.Context()); err != nil {
				t.Error(err)
			}
			var stops sync.WaitGroup
			for range 2 {
				stops.Go(func() {
					if err := b.Stop(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			stops.Wait()
		})
	}
	all.Wait()
}

// badSpec tests that Create with an invalid spec fails, and leaves nothing behind.
func badSpec(t *testing.T, s *Subject) {
	if s.Template == nil {
		return
	}
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	missing := s.Spec()
	missing.Mounts = []sandbox.Mount{{Source: filepath.Join(t.TempDir(), "missing"), Target: "/workspace"}}
	short := s.Spec()
	short.Secret = short.Secret[:4]
	rude := s.Spec()
	rude.ID = "../" + rude.ID
	for name, spec := range map[string]sandbox.Spec{"missing mount": missing, "short secret": short,
		"id with a path": rude} {
		if b, err := rt.Create(t.Context(), spec); err == nil {
			t.Error("made in spite of:", name)
			stop(t, b)
		}
	}
}

// linkComesNew tests that the agent dials again after its link broke.
func linkComesNew(t *testing.T, s *Subject) {
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	b := s.create(t, rt)
	first := hello(t, b)
	for range 3 {
		if again := hello(t, b); again != first {
			t.Errorf("another agent answered: %s, was %s", again, first)
		}
	}
	stop(t, b)
}

// groups tests that the runtime has no group of capabilities that is a nil pointer: it would be asked.
func groups(t *testing.T, s *Subject) {
	rt := s.Open(t)
	defer closeRuntime(t, rt)
	all := reflect.ValueOf(rt.Capabilities())
	for i := range all.NumField() {
		if all.Field(i).Kind() != reflect.Interface {
			continue
		}
		if g := all.Field(i).Elem(); g.Kind() == reflect.Pointer && g.IsNil() {
			t.Errorf("%s is a nil pointer, and not nil", all.Type().Field(i).Name)
		}
	}
}

// Log returns a logger that writes to the test's log.
func Log(t testing.TB) *slog.Logger {
	if os.Getenv("SANDLOT_TEST_LOG") == "" {
		return slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}
