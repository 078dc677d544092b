package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/agent"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// TestBare: without capabilities root can give nothing away, and tar does not try to; with them it does. Builds have
// them always.
func TestBare(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	bin, state := programs(t), t.TempDir()
	r, err := New(Config{Runsc: filepath.Join(bin, "sandlot-runsc"), Agent: filepath.Join(bin, "sandlot-agent"),
		StateDir: state, Log: sandboxtest.Log(t), Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	const line = "grep CapBnd /proc/self/status; echo $TAR_OPTIONS; touch /tmp/x; chown 1 /tmp/x 2>/dev/null && echo given"
	for _, c := range []struct {
		r     sandbox.Runtime
		build bool
		want  string
	}{
		{r, false, "CapBnd:\t0000000000000000\n--no-same-owner"},
		{r, true, "CapBnd:\t00000000000404fb\n\ngiven"},
		{open(t, s), false, "CapBnd:\t00000000000404fb\n\ngiven"},
	} {
		spec, template := s.Spec(), *s.Template
		template.AddDefaultEnv()
		spec.Template, spec.Build = &template, c.build
		b, err := c.r.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		client := agent.New(b, sandboxtest.Log(t), nil)
		if got := shell(t, client, line); got != c.want {
			t.Errorf("build %v: %q, want %q", c.build, got, c.want)
		}
		client.Close()
		b.Stop(context.WithoutCancel(t.Context()))
	}
}
