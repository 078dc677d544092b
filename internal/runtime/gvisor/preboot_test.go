package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/secret"
)

// imaging makes a preboot image of each kind before the first sandbox of it.
type imaging struct {
	*Runtime
	t     *testing.T
	first *sync.Mutex
}

func (c imaging) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if _, err := c.imageKind(spec); err != nil || len(spec.Secret) != wire.SecretLen || ctx.Err() != nil ||
		!validID.MatchString(spec.ID) {
		return c.Runtime.Create(ctx, spec)
	}
	for _, m := range spec.Mounts {
		if _, err := os.Stat(m.Source); err != nil {
			return c.Runtime.Create(ctx, spec)
		}
	}
	c.first.Lock() // those that come together wait for it
	if !c.HasImage(spec) {
		makeImage(c.t, c.Runtime, spec)
	}
	c.first.Unlock()
	b, err := c.Runtime.Create(ctx, spec)
	if err == nil && b.(*box).imageKind == "" {
		c.t.Errorf("a sandbox was booted, in spite of its preboot image")
	}
	return b, err
}

// makeImage makes a preboot image for spec, with empty folders for its mounts, and returns
// the secret of the sandbox that it is of.
func makeImage(t *testing.T, r *Runtime, spec sandbox.Spec) []byte {
	t.Helper()
	spec.ID, spec.Secret = secret.ID(), secret.Bytes(wire.SecretLen)
	mounts := spec.Mounts
	spec.Mounts = nil
	for _, m := range mounts {
		m.Source = t.TempDir()
		spec.Mounts = append(spec.Mounts, m)
	}
	b, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(context.WithoutCancel(t.Context()))
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	for _, l := range spec.Template.Warm {
		if err := c.StartInterpreter(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.MakeImage(t.Context(), b); err != nil {
		t.Fatal("making a preboot image:", err)
	}
	return spec.Secret
}

// TestPrebootedSuite runs the suite with sandboxes that start from preboot images.
func TestPrebootedSuite(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	s.Again = true
	open := s.Open
	s.Open = func(t *testing.T) sandbox.Runtime {
		r := open(t).(*Runtime)
		r.Preboot = true
		return imaging{r, t, new(sync.Mutex)}
	}
	s.Run(t)
}

func run(t *testing.T, c *agent.Client, code string) string {
	t.Helper()
	d, err := c.Evaluate(t.Context(), agent.Code{Language: "python", Source: code, Timeout: 20 * time.Second,
		Inline: agent.InlineBounds{Head: 4096, Tail: 4096}}, agent.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if !d.OK {
		t.Fatalf("%s: %s", code, d.Traceback)
	}
	if d.Value == nil {
		return ""
	}
	return string(d.Value.Head)
}

// TestPrebooted: sandboxes that start from one image share nothing.
func TestPrebooted(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	r := s.Open(t).(*Runtime)
	r.Preboot = true
	spec := func() sandbox.Spec {
		sp := s.Spec()
		sp.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
		return sp
	}
	old := makeImage(t, r, spec())
	if left := s.Remains(); len(left) > 0 {
		t.Errorf("making a preboot image left %q", left)
	}
	had := map[string]bool{}
	for _, f := range r.imageFor(spec()).Files {
		real, err := filepath.EvalSymlinks(f.Path)
		if err != nil { // a link of the root's, which leads into a mount
			continue
		}
		had[real] = true
		had[filepath.Base(real)] = true
		if strings.HasPrefix(real, r.sandboxesDir()) {
			t.Errorf("%s is a sandbox's own", real)
		}
	}
	python := ""
	for _, l := range s.Template.Languages {
		if l.Driver == "python" {
			real, err := filepath.EvalSymlinks(l.Command[0])
			if err != nil {
				t.Fatal(err)
			}
			python = real
		}
	}
	for _, want := range []string{python, r.Agent, "libc.so.6", "/usr/lib"} {
		if !had[want] {
			t.Errorf("the image does not know that it depends on %s", want)
		}
	}
	saw := map[string]map[string]bool{}
	for i := range 3 {
		sp := spec()
		b, err := r.Create(t.Context(), sp)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Stop(context.WithoutCancel(t.Context()))
		if b.(*box).imageKind == "" {
			t.Fatal("it was booted")
		}
		c := agent.New(b, sandboxtest.Log(t), nil)
		defer c.Close()
		h, err := c.Hello(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(b.(*box).dir, "sock", wire.SecretFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the secret is still beside the socket: %v", err)
		}
		unique := map[string]string{"boot of its agent": h, "random bytes": run(t, c, "import os; os.urandom(16).hex()"),
			"boot of its kernel": run(t, c, "open('/proc/sys/kernel/random/boot_id').read()"),
			"uuid":               run(t, c, "import uuid; uuid.uuid4()"), "random": run(t, c, "import random; random.random()")}
		for what, v := range unique {
			if saw[what] == nil {
				saw[what] = map[string]bool{}
			}
			saw[what][v] = true
		}
		// Nobody else's files, variables or secrets.
		got := run(t, c, fmt.Sprintf(`before = os.path.exists("/tmp/mine"), os.listdir("/workspace"), "x" in globals()
open("/tmp/mine", "w").write("x"); open("/workspace/%d", "w").write("x"); x = 1
before`, i))
		if got != "(False, ['.local'], False)" { // which the agent makes
			t.Errorf("sandbox %d found %s", i, got)
		}
		if names, _ := os.ReadDir(sp.Mounts[0].Source); len(names) != 2 || names[1].Name() != strconv.Itoa(i) {
			t.Errorf("sandbox %d wrote %v to its workspace", i, names)
		}
		now, err := strconv.ParseFloat(run(t, c, "import time; time.time()"), 64)
		if d := time.Since(time.UnixMilli(int64(now * 1000))).Abs(); err != nil || d > 10*time.Second {
			t.Errorf("its clock is off by %v, %v", d, err)
		}
	}
	for what, values := range saw {
		if len(values) != 3 {
			t.Errorf("three sandboxes have %d different values of %s", len(values), what)
		}
	}
	for _, b := range r.List() {
		// The secret of the sandbox that the image was made of is good for nothing.
		if bytes.Equal(b.Spec().Secret, old) {
			t.Error("a sandbox has the secret of the one that the image was made of")
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left := s.Remains(); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestBadImage: whatever is wrong with a preboot image, sandboxes boot.
func TestBadImage(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	r := s.Open(t).(*Runtime)
	defer r.Close()
	r.Preboot = true
	bin := t.TempDir()
	copyFile(t, r.Agent, filepath.Join(bin, "agent"))
	r.agent.Path = filepath.Join(bin, "agent")
	part := func(name string) string { return filepath.Join(r.imageFor(s.Spec()).dir, name) }
	for what, spoil := range map[string]func(){
		"empty pages":    func() { os.Truncate(part("pages.img"), 0) },
		"no state":       func() { os.Remove(part("checkpoint.img")) },
		"a broken state": func() { os.WriteFile(part("checkpoint.img"), bytes.Repeat([]byte("x"), 1<<16), 0o600) },
		"another agent": func() {
			later := time.Now().Add(time.Hour)
			os.Chtimes(r.agent.Path, later, later)
		},
		"an older format": func() {
			os.WriteFile(part(imageInfoFile), []byte(`{"kind":"other"}`), 0o600)
			r.images = map[string]*prebootImage{}
		},
		"a changed byte": func() {
			name := part("pages.img")
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{0xff, 0, 0xff}, 1<<20); err != nil {
				t.Fatal(err)
			}
			r.images = map[string]*prebootImage{} // a server that starts reads it
		},
		"a changed file": func() {
			i := r.imageFor(s.Spec())
			i.Files[0].Modified++
		},
	} {
		t.Run(what, func(t *testing.T) {
			makeImage(t, r, s.Spec())
			if !r.HasImage(s.Spec()) {
				t.Fatal("there is no image")
			}
			spoil()
			b, err := r.Create(t.Context(), s.Spec())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Stop(context.WithoutCancel(t.Context()))
			if b.(*box).imageKind != "" {
				t.Error("it was not booted")
			}
			c := agent.New(b, sandboxtest.Log(t), nil)
			defer c.Close()
			if got := run(t, c, "40+2"); got != "42" {
				t.Errorf("it answers %q", got)
			}
			if r.HasImage(s.Spec()) {
				t.Error("the image is still used")
			}
		})
	}
	if left := s.Remains(); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestNoImages: where there cannot be preboot images, none is made, and sandboxes boot.
func TestNoImages(t *testing.T) {
	for what, c := range map[string]Config{"open": {HostNetwork: true, Preboot: true}, "off": {}} {
		c.Runsc, c.Agent, c.StateDir, c.Log = "/runsc", "/agent", t.TempDir(), sandboxtest.Log(t)
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.CanPreboot(); err == nil || !strings.Contains(err.Error(), what) ||
			r.MakeImage(t.Context(), newBox(r, sandbox.Spec{})) == nil {
			t.Errorf("%s: there are images: %v", what, err)
		}
		r.Close()
	}
}

// TestPrune: images of older programs and settings are removed.
func TestPrune(t *testing.T) {
	r, err := New(Config{Runsc: "/runsc", Agent: "/agent", StateDir: t.TempDir(), Log: sandboxtest.Log(t),
		Preboot: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range 20 {
		at := filepath.Join(r.imagesDir(), strings.Repeat(fmt.Sprintf("%x", i%16), 4)+strconv.Itoa(i))
		if i == 19 {
			at = filepath.Join(r.imagesDir(), ".making-1")
		}
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		when := time.Unix(int64(1e9+i), 0)
		if err := os.Chtimes(at, when, when); err != nil {
			t.Fatal(err)
		}
	}
	r.images["00000"] = &prebootImage{} // the oldest, and in use
	r.pruneImages()
	entries, _ := os.ReadDir(r.imagesDir())
	if len(entries) != maxUnused+1 {
		t.Errorf("%d are left, not %d", len(entries), maxUnused+1)
	}
	for _, e := range entries {
		if i, err := e.Info(); err != nil || e.Name() != "00000" && i.ModTime().Unix() < 1e9+15 ||
			strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s is left", e.Name())
		}
	}
}
