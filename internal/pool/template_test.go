package pool

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// settle waits until the pool is as it wants to be with these templates, and returns its sizes.
func settle(p *Pool, rt *prebooter, templates ...*image.Template) map[string]int {
	rt.templates.Store(&templates)
	p.Refresh()
	time.Sleep(time.Minute)
	return p.Sizes()
}

// drop removes a sandbox that was taken.
func drop(t *testing.T, p *Pool, b *Booted) {
	t.Helper()
	if err := errors.Join(b.Destroy(), p.Workspaces.Remove(b.Workspace)); err != nil {
		t.Error(err)
	}
}

// Each template has as many warm sandboxes as it says, of its own flavor.
func TestSizesOfTemplates(t *testing.T) {
	rt := &prebooter{cannot: true, change: func(c *Config) { c.Flavors = sandboxtest.Flavors }}
	within(t, rt, 2, func(t *testing.T, p *Pool) {
		none, four := 0, 4
		plain, big := &image.Template{Name: "plain"}, &image.Template{Name: "big", Pool: &four, Flavor: "large"}
		got := settle(p, rt, plain, &image.Template{Name: "none", Pool: &none}, big)
		if want := (map[string]int{"plain": 2, "none": 0, "big": 4}); !maps.Equal(got, want) {
			t.Errorf("sizes %v, want %v", got, want)
		}
		if b := p.Take(big, sandboxtest.Flavors[2]); b == nil || b.Flavor.Name != "large" {
			t.Errorf("took %+v", b)
		} else {
			drop(t, p, b)
		}
		if p.Take(big, sandboxtest.Flavors[0]) != nil {
			t.Error("a large sandbox was given for a small one")
		}
		newer := &image.Template{Name: "plain"} // it was built again
		settle(p, rt, newer)
		if b := p.Take(newer, p.Flavor); b == nil || b.Template != newer {
			t.Error("a sandbox of the earlier template was given")
		} else {
			drop(t, p, b)
		}
		settle(p, rt)
		if _, alive := rt.Count(); alive != 0 {
			t.Errorf("%d sandboxes of templates that are gone live on", alive)
		}
	})
}

// A sandbox that boots while its template is replaced is destroyed, and does not take the place of one of the new
// template.
func TestReplacedWhileBooting(t *testing.T) {
	rt := &prebooter{cannot: true}
	within(t, rt, 1, func(t *testing.T, p *Pool) {
		settle(p, rt)
		rt.BootDelay = 10 * time.Second
		old, newer := &image.Template{Name: "plain"}, &image.Template{Name: "plain"}
		rt.templates.Store(&[]*image.Template{old})
		p.Refresh()
		time.Sleep(time.Second)
		settle(p, rt, newer)
		if _, alive := rt.Count(); alive != 1 {
			t.Errorf("%d sandboxes live, want 1", alive)
		}
		if b := p.Take(newer, p.Flavor); b == nil || b.Template != newer {
			t.Errorf("took %+v", b)
		} else {
			drop(t, p, b)
		}
	})
}

// All warm sandboxes together have no more memory than the bound, and no template is without one as long as another
// has two.
func TestMemoryOfAllPools(t *testing.T) {
	rt := &prebooter{cannot: true, change: func(c *Config) {
		c.Flavors, c.WarmMemoryMB = sandboxtest.Flavors, 6<<10 // one large and two small ones
	}}
	within(t, rt, 2, func(t *testing.T, p *Pool) {
		four := 4
		got := settle(p, rt, &image.Template{Name: "big", Pool: &four, Flavor: "large"}, &image.Template{Name: "plain"})
		if want := (map[string]int{"plain": 2, "big": 1}); !maps.Equal(got, want) {
			t.Errorf("sizes %v, want %v", got, want)
		}
	})
}

// A sandbox that belongs to no session is the pool's until it is released, and leaves nothing.
func TestBootTemporary(t *testing.T) {
	rt := &prebooter{cannot: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		b, release, err := p.BootTemporary(t.Context(), oneAndTwo[0], p.Flavor)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Owns(b.ID) {
			t.Error("it belongs to nobody")
		}
		if err := release(); err != nil || p.Owns(b.ID) {
			t.Errorf("after its release: %v", err)
		}
		rt.CreateErr = errors.New("no sandboxes today")
		if _, _, err := p.BootTemporary(t.Context(), oneAndTwo[0], p.Flavor); err == nil {
			t.Error("it booted")
		}
	})
}

// slowBox is a sandbox whose end takes a while, as that of a container with many files does.
type slowBox struct {
	sandbox.Sandbox
	takes time.Duration
}

func (b *slowBox) Stop(ctx context.Context) error {
	select {
	case <-time.After(b.takes):
		return b.Sandbox.Stop(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// What a build has written may take minutes to be removed, but not for a server that stops.
func TestSlowRemovalOfBuild(t *testing.T) {
	rt := &prebooter{cannot: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		for _, stops := range []bool{false, true} {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			b, release, err := p.BootTemporary(ctx, oneAndTwo[0], p.Flavor)
			if err != nil {
				t.Fatal(err)
			}
			box := b.Box
			b.Box = &slowBox{box, 2 * time.Minute}
			if stops {
				time.AfterFunc(10*time.Second, stop)
			}
			if err := release(); (err != nil) != stops {
				t.Errorf("the server stops %v: %v", stops, err)
			}
			if err := box.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Why a start command failed stands first, whatever it printed before.
func TestStartErrorBeginsWithCause(t *testing.T) {
	r := &agent.ExecResult{ExitCode: 3}
	r.Stdout.Tail = []byte(strings.Repeat("step\n", 1000))
	r.Stderr.Tail = []byte("warning: slow\nfatal: no such repository\n")
	if got := startError("git clone x", r).Error(); !strings.HasPrefix(got,
		"the template's start command \"git clone x\" ended with code 3: fatal: no such repository\n") {
		t.Errorf("%.200s", got)
	}
}
