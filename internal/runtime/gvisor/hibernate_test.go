package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/image"
	"sandlot/internal/runtime/gvisor/frozen"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/gvisor/kept"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/secret"
)

const gigabyte = 1 << 30

// sleeping is a sandbox of a runtime whose programs, and one of whose folders, a test can change.
type sleeping struct {
	t       *testing.T
	subject *sandboxtest.Subject
	r       *Runtime
	spec    sandbox.Spec
	box     sandbox.Sandbox
	client  *agent.Client
	tools   string // a folder of the machine that the sandbox has at /opt/tools
}

// newSleeping boots a sandbox with x = 1 in its Python.
func newSleeping(t *testing.T) *sleeping {
	t.Helper()
	s := &sleeping{t: t, subject: subject(t, os.Getuid() != 0), tools: t.TempDir()}
	bin := t.TempDir()
	for _, name := range []string{"sandlot-runsc", "sandlot-agent"} {
		copyFile(t, filepath.Join(programs(t), name), filepath.Join(bin, name))
	}
	for _, name := range []string{"bin/mine", "third", "bin/deep/folder/mine"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(s.tools, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, "/bin/sleep", filepath.Join(s.tools, name))
	}
	if err := os.WriteFile(filepath.Join(s.tools, "bin", "second"), []byte("second"), 0o644); err != nil {
		t.Fatal(err)
	}
	host := *s.subject.Template
	host.Binds = append([]image.Bind{{Source: s.tools, Target: "/opt/tools"}}, host.Binds...)
	s.subject.Template = &host
	open := s.subject.Open
	s.subject.Open = func(t *testing.T) sandbox.Runtime {
		r := open(t).(*Runtime)
		r.Runsc, r.Agent = filepath.Join(bin, "sandlot-runsc"), filepath.Join(bin, "sandlot-agent")
		return r
	}
	s.r = s.subject.Open(t).(*Runtime)
	s.spec = s.subject.Spec()
	s.spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
	box, err := s.r.Create(t.Context(), s.spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	s.use(box)
	if got := shell(t, s.client, "cat /proc/version"); !strings.Contains(strings.ToLower(got), "gvisor") {
		t.Fatalf("this is no sandbox: %s", got)
	}
	run(t, s.client, "x = 1")
	return s
}

// use makes box the sandbox of the test.
func (s *sleeping) use(box sandbox.Sandbox) {
	s.box, s.client = box, agent.New(box, sandboxtest.Log(s.t), nil)
}

func (s *sleeping) end() {
	if s.client != nil {
		s.client.Close()
	}
	if s.box != nil {
		if err := s.box.Stop(context.Background()); err != nil {
			s.t.Error(err)
		}
	}
	if err := s.r.Close(); err != nil {
		s.t.Error(err)
	}
	if left := s.subject.Remains(); len(left) > 0 {
		s.t.Errorf("this is left: %q", left)
	}
}

// freeze writes the image, and ends the sandbox.
func (s *sleeping) freeze() sandbox.FrozenImage {
	s.t.Helper()
	s.client.Close()
	i, err := s.r.Freeze(s.t.Context(), s.box, "ann", gigabyte)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.box.Stop(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.box, s.client = nil, nil
	return i
}

func (s *sleeping) wake(i sandbox.FrozenImage) error {
	s.spec.ID, s.spec.Secret = secret.ID(), secret.Bytes(wire.SecretLen)
	box, err := s.r.Wake(s.t.Context(), s.spec, i.Name)
	if err == nil {
		s.use(box)
	}
	return err
}

func (s *sleeping) wantX(what string) {
	s.t.Helper()
	if got := run(s.t, s.client, "x"); got != "1" {
		s.t.Errorf("%s: x is %q", what, got)
	}
}

// TestUpgradeAsleep: a sandbox whose programs were replaced falls asleep and wakes with those that it runs on, also
// after the server was started again, and when it had been made of an image before. Kept programs that nobody needs are
// removed.
func TestUpgradeAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	for _, path := range []string{s.r.Runsc, s.r.Agent} { // the new version does not work at all
		if err := os.WriteFile(path+".new", []byte("#!/bin/false\n"+strings.Repeat("#", 100)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	i := s.freeze()
	for range 2 {
		if err := s.r.Close(); err != nil {
			t.Fatal(err)
		}
		s.r = s.subject.Open(t).(*Runtime)
		if err := s.wake(i); err != nil {
			t.Fatal(err)
		}
		s.wantX("after an upgrade")
		if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
			t.Fatal(err)
		}
		if got := shell(t, s.client, "test -x /.sandlot/agent; echo $?"); got != "0" {
			t.Errorf("the agent's program is gone: %q", got)
		}
		i = s.freeze()
	}
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(s.r.StateDir, "programs")); err != nil || len(left) > 0 {
		t.Errorf("programs that nobody needs: %v, %v", left, err)
	}
}

// TestChangedAsleep: what a sandbox cannot go on with is said. Files of the machine may come and go.
func TestChangedAsleep(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(s *sleeping, i sandbox.FrozenImage)
		says   string // empty: it wakes
	}{
		"another file": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.WriteFile(filepath.Join(s.tools, "other"), nil, 0o644)
		}, ""},
		"an upgraded program": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.tools, "bin", "mine"))
			copyFile(s.t, "/bin/cat", filepath.Join(s.tools, "bin", "mine"))
		}, ""},
		"a removed program": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.tools, "bin", "mine"))
		}, ""},
		"a program in whose place is a folder": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.tools, "bin", "mine"))
			os.Mkdir(filepath.Join(s.tools, "bin", "mine"), 0o755)
		}, "mine"},
		"all of it and a removed folder": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.tools, "bin", "mine"))
			os.RemoveAll(filepath.Join(s.tools, "bin", "deep"))
			copyFile(s.t, "/bin/cat", filepath.Join(s.tools, "bin", "second"))
		}, ""},
		"a kept file is not there": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.tools, "bin", "mine"))
			os.RemoveAll(filepath.Join(s.r.StateDir, "files"))
		}, "mine"},
		"other owners and other names": {func(s *sleeping, i sandbox.FrozenImage) {
			filepath.WalkDir(s.r.StateDir, func(path string, _ os.DirEntry, err error) error {
				return errors.Join(err, os.Lchown(path, os.Getuid(), os.Getgid()))
			})
			if err := os.Link(filepath.Join(s.tools, "bin", "mine"), filepath.Join(s.t.TempDir(), "copy")); err != nil {
				s.t.Error(err)
			}
		}, ""},
		"a file that is open was removed": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.spec.Mounts[0].Source, "open"))
		}, "open"},
		"a file that is open was changed": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.WriteFile(filepath.Join(s.spec.Mounts[0].Source, "open"), []byte("other"), 0o644)
		}, ""},
		"another folder": {func(s *sleeping, _ sandbox.FrozenImage) {
			s.spec.Mounts = append(s.spec.Mounts, sandbox.Mount{Source: s.tools, Target: "/shared", Shared: true})
		}, "shared folders"},
		"another template": {func(s *sleeping, _ sandbox.FrozenImage) {
			other := *s.spec.Template
			other.Name = "other"
			s.spec.Template = &other
		}, "its template"},
		"another machine": {func(s *sleeping, i sandbox.FrozenImage) {
			s.rewrite(i, `"host":[`, `"host":["other",`)
		}, "processors"},
		"no pages": {func(s *sleeping, i sandbox.FrozenImage) {
			os.Remove(filepath.Join(s.r.frozen.Dir, i.Name, "pages.img"))
		}, "incomplete"},
		"no state": {func(s *sleeping, i sandbox.FrozenImage) {
			os.WriteFile(filepath.Join(s.r.frozen.Dir, i.Name, "checkpoint.img"), make([]byte, 1<<20), 0o600)
		}, "runsc wake"},
		"its root file system is gone": {func(s *sleeping, i sandbox.FrozenImage) {
			s.rewriteFile(i, "config.json", `"path":"`+s.r.StateDir, `"path":"/moved`+s.r.StateDir)
		}, "root file system"},
		"a mounted folder is gone": {func(s *sleeping, i sandbox.FrozenImage) {
			if err := os.Rename(s.tools, s.tools+".aside"); err != nil {
				s.t.Error(err)
			}
		}, "the folder /opt/tools of the machine"},
		"no kept program": {func(s *sleeping, _ sandbox.FrozenImage) {
			os.RemoveAll(filepath.Join(s.r.StateDir, "programs"))
		}, "not there any more"},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSleeping(t)
			run(t, s.client, "import subprocess; p = subprocess.Popen(['/opt/tools/bin/mine', '1000'])")
			run(t, s.client, "q = subprocess.Popen(['/opt/tools/bin/deep/folder/mine', '1000'])")
			run(t, s.client, "second = open('/opt/tools/bin/second')")
			run(t, s.client, "f = open('/workspace/open', 'w+'); f.write('mine'); f.flush()")
			i := s.freeze()
			c.change(s, i)
			err := s.wake(i)
			if c.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				s.wantX(what)
				s.wantFiles()
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 2*maxReason {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// wantFiles wants what the programs of the sandbox have open to be what it was, and the sandbox to sleep and wake again.
func (s *sleeping) wantFiles() {
	s.t.Helper()
	for range 2 {
		const check = "p.poll(), q.poll(), second.seek(0), second.read()"
		if got := run(s.t, s.client, check); got != "(None, None, 0, 'second')" {
			s.t.Errorf("its files are others: %s", got)
		}
		if got := shell(s.t, s.client, "cat /opt/tools/bin/second"); got != "second" { // it looks the name up
			s.t.Errorf("the open file is another by name: %q", got)
		}
		i := s.freeze()
		if err := s.wake(i); err != nil {
			s.t.Fatal(err)
		}
	}
}

// rewrite changes what is stored of an image.
func (s *sleeping) rewrite(i sandbox.FrozenImage, from, to string) {
	s.rewriteFile(i, "frozen.json", from, to)
}

func (s *sleeping) rewriteFile(i sandbox.FrozenImage, name, from, to string) {
	path := filepath.Join(s.r.frozen.Dir, i.Name, name)
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), from) {
		s.t.Fatalf("%v: %s", err, text)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// TestUpgradedBeforeSleep: a sandbox whose files were replaced under it falls asleep, and wakes with those that it has
// open. One that has looked a name up since cannot, says so, and goes on.
func TestUpgradedBeforeSleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	run(t, s.client, "import subprocess; p = subprocess.Popen(['/opt/tools/bin/mine', '1000'])")
	run(t, s.client, "q = subprocess.Popen(['/opt/tools/bin/deep/folder/mine', '1000']); second = open('/opt/tools/bin/second')")
	if err := errors.Join(s.r.Replaced(s.box), s.r.Outdated(s.box), s.r.Replaced(s.box)); err != nil {
		t.Errorf("before anything is replaced: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.tools, "another"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.r.Replaced(s.box); err != nil {
		t.Errorf("when a folder has one file more: %v", err)
	}
	os.Remove(filepath.Join(s.tools, "bin", "mine"))
	copyFile(t, "/bin/cat", filepath.Join(s.tools, "bin", "mine"))
	os.RemoveAll(filepath.Join(s.tools, "bin", "deep"))
	if err := s.r.Replaced(s.box); err == nil || !strings.Contains(err.Error(), s.tools) {
		t.Errorf("a quick look does not see it: %v", err)
	}
	if err := s.r.Outdated(s.box); err == nil || !strings.Contains(err.Error(), s.tools) {
		t.Errorf("it is not outdated: %v", err)
	}
	if err := s.wake(s.freeze()); err != nil {
		t.Fatal(err)
	}
	s.wantFiles()
	shell(t, s.client, "cat /opt/tools/bin/second")
	run(t, s.client, "r = subprocess.Popen(['/opt/tools/third', '1000'])")
	os.Remove(filepath.Join(s.tools, "third"))
	copyFile(t, "/bin/cat", filepath.Join(s.tools, "third"))
	if err := s.r.Outdated(s.box); err == nil || errors.Is(err, sandbox.ErrReplaced) {
		t.Errorf("before the name is looked up: %v", err)
	}
	shell(t, s.client, "test -x /opt/tools/third")
	if err := s.r.Outdated(s.box); !errors.Is(err, sandbox.ErrReplaced) {
		t.Errorf("it is not said that it cannot sleep: %v", err)
	}
	s.client.Close()
	if _, err := s.r.Freeze(t.Context(), s.box, "ann", gigabyte); !errors.Is(err, sandbox.ErrReplaced) ||
		!errors.Is(err, sandbox.ErrLater) {
		t.Errorf("freezing: %v", err)
	}
	if err := s.r.Thaw(t.Context(), s.box); err != nil {
		t.Fatal("thawing:", err)
	}
	s.use(s.box)
	s.wantX("after a sleep that failed")
	run(t, s.client, "r.kill(); r.wait()")
	if err := s.wake(s.freeze()); err != nil {
		t.Errorf("without the program: %v", err)
	}
	s.wantX("without the program")
}

// TestUpgradedMachine: a sandbox of the template host sleeps and wakes while the machine's packages are upgraded: all
// files of the machine that its programs have open are replaced, while it is awake and while it sleeps, and one goes. No
// single file of the machine is mounted, as it would stay the old one. The machine is a copy, in a mount namespace of
// the test's own.
func TestUpgradedMachine(t *testing.T) {
	if !apart(t) {
		return
	}
	copied := []string{"/usr", "/etc"}
	for _, dir := range copied {
		upper, work := t.TempDir(), t.TempDir()
		if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	s := newSleeping(t)
	for _, m := range s.r.mounts(s.box.(*box)) {
		if st, err := os.Stat(m.Source); m.Type == "bind" && m.Destination != wire.AgentPath && m.Destination != bootIDPath &&
			(err != nil || !st.IsDir()) {
			t.Errorf("%s is mounted at %s, and is not a folder: %v", m.Source, m.Destination, err)
		}
	}
	run(t, s.client, "import ssl, zlib; zlib.crc32(b'a')")
	open, err := s.box.(*box).hostFiles(s.box.(*box).root.Path, withGrafts(s.r.mounts(s.box.(*box)), s.r.grafts(s.box.(*box)))).Files()
	if err != nil {
		t.Fatal(err)
	}
	upgrade := func() (replaced int) {
		for _, path := range append([]string{"/etc/ld.so.cache", "/etc/ld.so.conf"}, pathsOf(open)...) {
			isCopy := slices.ContainsFunc(copied, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
			if st, err := os.Lstat(path); !isCopy || err != nil || !st.Mode().IsRegular() {
				continue // such as the agent's program, which other tests use
			}
			copyFile(t, path, path+".new")
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
			replaced++
		}
		return replaced
	}
	if n := upgrade(); n < 5 {
		t.Fatalf("%d files were replaced", n)
	}
	for round := range 2 {
		i := s.freeze()
		upgrade()
		if round == 1 {
			for _, path := range pathsOf(open) {
				if strings.HasPrefix(path, "/usr/") && strings.HasPrefix(filepath.Base(path), "libz.so") {
					os.Remove(path)
				}
			}
		}
		if err := s.wake(i); err != nil {
			t.Fatal(err)
		}
		s.wantX("after an upgrade")
		if got := run(t, s.client, "zlib.crc32(b'a')"); got != "3904355907" {
			t.Errorf("its library answers %q", got)
		}
		if got := shell(t, s.client, "ls -d /usr/bin && echo new programs"); !strings.Contains(got, "new programs") {
			t.Errorf("new programs: %q", got)
		}
	}
}

func pathsOf(files []hostfile.File) (paths []string) {
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	return paths
}

// wantNoImage tries to put the sandbox to sleep in vain. It goes on.
func (s *sleeping) wantNoImage(limit int64, says string) {
	s.t.Helper()
	s.client.Close()
	if _, err := s.r.Freeze(s.t.Context(), s.box, "ann", limit); err == nil || !strings.Contains(err.Error(), says) ||
		len(err.Error()) > 2*maxReason {
		s.t.Errorf("freezing: %v", err)
	}
	if err := s.r.Thaw(s.t.Context(), s.box); err != nil {
		s.t.Fatal("thawing:", err)
	}
	s.use(s.box)
	s.wantX("after a sleep that failed")
	if left, _ := os.ReadDir(s.r.frozen.Dir); len(left) > 0 {
		s.t.Errorf("this is left: %v", left)
	}
}

// TestFullDiskAsleep: where the image does not fit, the sandbox goes on: when that is known before, and when gVisor
// fails in the middle.
func TestFullDiskAsleep(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	s := newSleeping(t)
	if err := os.MkdirAll(s.r.frozen.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		options, says string
		sealed        bool
	}{
		{"size=16m", "MB left", false}, {"size=16m", "MB left", true},
		{"size=1g,nr_inodes=4", "checkpoint", false}, // the root, the image's folder, and two of gVisor's files
		{"size=1g,nr_inodes=4", "no space left", true},
	} {
		s.r.SealImages(s.r.frozen.Keys, c.sealed)
		if err := unix.Mount("small", s.r.frozen.Dir, "tmpfs", 0, c.options); err != nil {
			t.Fatal(err)
		}
		s.wantNoImage(gigabyte, c.says)
		if err := unix.Unmount(s.r.frozen.Dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.r.SealImages(s.r.frozen.Keys, false)
	s.wantNoImage(1<<20, "hibernate.max_image_mb")
	run(t, s.client, "y = __import__('os').urandom(64 << 20)")
	s.wantNoImage(60<<20, "hibernate.max_image_mb")
}

// TestPackedAsleep: a sandbox wakes of a packed image, and of one that is being packed. What is broken is said, and
// where the disk has no room for the image it can be woken later.
func TestPackedAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	images := func() sandbox.FrozenImage {
		all, err := s.r.FrozenImages(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		return all[0]
	}
	booted := map[string]bool{run(t, s.client, "open('/proc/sys/kernel/random/boot_id').read()"): true}
	next := func(what string, i sandbox.FrozenImage) {
		t.Helper()
		if err := s.wake(i); err != nil {
			t.Fatal(what, err)
		}
		s.wantX(what)
		id := run(t, s.client, "open('/proc/sys/kernel/random/boot_id').read()")
		if len(id) != len("'01234567-89ab-cdef-0123-456789abcdef\\n'") || booted[id] {
			t.Errorf("%s: the id of its boot is %s, after %v", what, id, booted)
		}
		booted[id] = true
		if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(s.r.frozen.Dir); len(left) > 0 {
			t.Errorf("%s: this is left: %v", what, left)
		}
	}
	i := s.freeze()
	for range 2 { // the second time there is nothing to do
		if err := s.r.PackFrozen(t.Context(), i.Name); err != nil {
			t.Fatal(err)
		}
	}
	if p := images(); !p.Packed || p.Bytes > 4<<20 || p.Bytes > i.Bytes/2 || p.Made.Sub(i.Made).Abs() > time.Second {
		t.Errorf("%+v was %+v", p, i)
	}
	next("packed", i)

	run(t, s.client, "y = __import__('os').urandom(200 << 20)")
	i = s.freeze()
	if has, used, err := s.r.FrozenNeeds(t.Context(), i.Name); err != nil || has != s.spec.Limits || used < 200<<20 || used > 1<<30 {
		t.Errorf("it has had %+v, and %d bytes in use: %v", has, used, err)
	}
	packed := make(chan error, 1)
	go func() { packed <- s.r.PackFrozen(context.Background(), i.Name) }()
	for range 1000 { // until there is a packed file
		if begun, _ := filepath.Glob(filepath.Join(s.r.frozen.Dir, i.Name, "*.zst")); len(begun) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	next("while it is being packed", i)
	if err := <-packed; err == nil {
		t.Log("it was packed in time")
	}

	run(t, s.client, "y = None")
	i = s.freeze()
	if err := s.r.PackFrozen(t.Context(), i.Name); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		s.onSmallDisk(i)
	}
	s.r.frozen.Memory = frozen.MemoryDir
	file := filepath.Join(s.r.frozen.Dir, i.Name, "checkpoint.img.zst")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.wake(i); err == nil || !strings.Contains(err.Error(), "checkpoint.img.zst") {
		t.Errorf("a broken image: %v", err)
	}
}

// onSmallDisk tries to wake a packed image where it has no room to be unpacked.
func (s *sleeping) onSmallDisk(i sandbox.FrozenImage) {
	s.t.Helper()
	full := s.t.TempDir()
	if err := unix.Mount("small", full, "tmpfs", 0, "size=66m"); err != nil {
		s.t.Fatal(err)
	}
	if err := os.CopyFS(full, os.DirFS(s.r.frozen.Dir)); err != nil {
		s.t.Error(err)
	}
	if err := unix.Mount(full, s.r.frozen.Dir, "", unix.MS_BIND, ""); err != nil {
		s.t.Error(err)
	}
	s.r.frozen.Memory = "" // as on a machine whose memory has no room either
	if err := s.wake(i); !errors.Is(err, sandbox.ErrLater) || !strings.Contains(err.Error(), "MB left") {
		s.t.Errorf("without room: %v", err)
	}
	for _, dir := range []string{s.r.frozen.Dir, full} {
		if err := unix.Unmount(dir, 0); err != nil {
			s.t.Error(err)
		}
	}
}

// TestFullMachine: a sandbox that stands still goes on as soon as the machine has room for gVisor's processes.
func TestFullMachine(t *testing.T) {
	s := newSleeping(t)
	i, err := s.r.Freeze(t.Context(), s.box, "ann", gigabyte)
	if err != nil {
		t.Fatal(err)
	}
	// gVisor's commands fail twice, as they do on a full machine.
	b, script := s.box.(*box), filepath.Join(t.TempDir(), "runsc")
	text := "#!/bin/sh\ncd " + filepath.Dir(script) + "\n[ -e second ] && exec " + b.runsc() + " \"$@\"\n" +
		"[ -e first ] && touch second\ntouch first\n" +
		"echo 'runtime: failed to create new OS thread (have 2 already; errno=11)' >&2\nexit 2\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.useRunsc(script); err != nil {
		t.Fatal(err)
	}
	s.client.Close()
	if err := s.r.Thaw(t.Context(), s.box); err != nil {
		t.Fatal(err)
	}
	s.use(s.box)
	s.wantX("when it goes on")
	if _, err := os.Stat(filepath.Join(filepath.Dir(script), "second")); err != nil {
		t.Errorf("gVisor's commands did not fail: %v", err)
	}
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Fatal(err)
	}
	if err := s.wake(s.freeze()); err != nil {
		t.Fatal(err)
	}
	s.wantX("afterwards")
}

// TestFrozenIsPrivate: nobody but the server's user reads what users had in memory.
func TestFrozenIsPrivate(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	i := s.freeze()
	dir := filepath.Join(s.r.frozen.Dir, i.Name)
	for _, d := range []string{s.r.frozen.Dir, dir} {
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, st.Mode(), err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if st, err := f.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), st.Mode(), err)
		}
	}
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Error(err)
	}
}

// TestOrphanAsleep: the time asleep is not time without a server.
func TestOrphanAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	s.end()
	s.box = nil
	s.r = s.subject.Open(t).(*Runtime)
	s.spec.ID, s.spec.OrphanTimeout = secret.ID(), 6*time.Second
	box, err := s.r.Create(t.Context(), s.spec)
	if err != nil {
		t.Fatal(err)
	}
	s.use(box)
	for range 2 { // it may be frozen at any point of its dialing
		run(t, s.client, "x = 1")
		i := s.freeze()
		time.Sleep(6500 * time.Millisecond)
		if err := s.wake(i); err != nil {
			t.Fatal(err)
		}
		s.wantX("after its orphan timeout asleep")
		if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
	}
}

// TestResistsSleep: whatever a sandbox does to resist, it is asleep within the timeout, or goes on.
func TestResistsSleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	for _, c := range []struct{ what, code, undo, holds string }{
		{"processes that spin", `import subprocess
ps = [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True) for _ in range(3)]`,
			"[p.kill() for p in ps] and None", "all(p.poll() is None for p in ps)"},
		{"a loop of forks", `loop = "while :; do for i in 1 2 3 4 5; do true & done; wait; done"
p = subprocess.Popen(["sh", "-c", loop],
	start_new_session=True)`, "import os; os.killpg(p.pid, 9)", "p.poll() is None"},
		{"memory that grows", `import threading, time
grown, stop = [], False
def grow():
    while not stop and len(grown) < 64: grown.append(os.urandom(1 << 20)); time.sleep(0.001)
import os; th = threading.Thread(target=grow); th.start()`, "stop = True; th.join(); grown.clear()",
			"all(len(g) == 1 << 20 for g in grown)"},
		{"10,000 descriptors", `import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
fds = [os.open("/workspace/many", os.O_RDWR | os.O_CREAT) for _ in range(2000)]
fds += [os.dup(fds[0]) for _ in range(6000)]
fds += [fd for _ in range(1000) for fd in os.pipe()]`, "[os.close(fd) for fd in fds] and None",
			"all(os.fstat(fd) for fd in fds) and len(fds) == 10000"},
	} {
		run(t, s.client, c.code)
		began := time.Now()
		i := s.freeze()
		t.Logf("%s: asleep after %v, %d MB", c.what, time.Since(began), i.Bytes>>20)
		if err := s.wake(i); err != nil {
			t.Fatal(c.what, err)
		}
		s.wantX(c.what)
		if got := run(t, s.client, c.holds); got != "True" {
			t.Errorf("%s: %s: %q", c.what, c.holds, got)
		}
		if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
		run(t, s.client, c.undo)
	}
}

// TestSilentAsleep: an agent that lets nothing go, since it stands still, is put to sleep like any other, and goes on.
func TestSilentAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	if err := s.r.runRunsc(t.Context(), s.box.(*box), "pause", s.spec.ID); err != nil {
		t.Fatal(err)
	}
	s.client.Close()
	i, err := s.r.Freeze(t.Context(), s.box, "ann", gigabyte)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.r.RemoveFrozen(t.Context(), i.Name), s.r.Thaw(t.Context(), s.box)); err != nil {
		t.Fatal(err)
	}
	s.use(s.box)
	s.wantX("after it stood still")
	i = s.freeze()
	if err := s.wake(i); err != nil {
		t.Fatal(err)
	}
	s.wantX("after it slept")
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Error(err)
	}
}

// TestSealedAsleep: what a sandbox had in memory is in no file of the state folder while it sleeps, nor in a copy or a
// packed image, and it wakes of all of them. One that was damaged says so.
func TestSealedAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	const canary = "seen in memory alone"
	run(t, s.client, "y = ' '.join(['seen', 'in', 'memory', 'alone']) * 1000")
	if shell(t, s.client, "cat /proc/version") == "" {
		t.Fatal("this is no sandbox")
	}
	look := func(what string, want bool) {
		t.Helper()
		var found []string
		for _, dir := range []string{s.r.StateDir, frozen.MemoryDir} {
			if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if errors.Is(err, os.ErrNotExist) || err == nil && (!d.Type().IsRegular() ||
					dir == frozen.MemoryDir && !strings.Contains(path, "/sandlot-frozen-")) {
					return nil
				}
				text, err := os.ReadFile(path)
				if strings.Contains(string(text), canary) {
					found = append(found, path)
				}
				if errors.Is(err, unix.EINVAL) || errors.Is(err, os.ErrNotExist) { // a namespace, or it went meanwhile
					err = nil
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if (len(found) > 0) != want {
			t.Errorf("%s: these files have what was in memory: %q", what, found)
		}
	}
	again := func(what string, i sandbox.FrozenImage) {
		t.Helper()
		if err := s.wake(i); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		s.wantX(what)
		if got := run(t, s.client, "len(y)"); got != "20000" {
			t.Errorf("%s: y has %s", what, got)
		}
		if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
	}
	s.r.SealImages(s.r.frozen.Keys, false)
	i := s.freeze()
	look("an image that is not sealed", true)
	s.r.SealImages(s.r.frozen.Keys, true)
	again("one that is not sealed, as of an older version", i)
	i = s.freeze()
	look("asleep", false)
	copied, err := s.r.CopyFrozen(t.Context(), i.Name)
	if err != nil {
		t.Fatal(err)
	}
	look("copied", false)
	again("asleep", i)
	broken := s.freeze()
	if err := s.r.PackFrozen(t.Context(), copied.Name); err != nil {
		t.Fatal(err)
	}
	look("packed", false)
	again("a packed copy", copied)
	if err := s.r.RemoveFrozen(t.Context(), s.freeze().Name); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.r.frozen.Dir, broken.Name, "pages.img")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var says *sandbox.Explained
	if err := s.wake(broken); !errors.As(err, &says) || !strings.Contains(says.Words, "damaged") {
		t.Errorf("a damaged image: %v", err)
	}
}

// TestSealedNearLimit: a sandbox falls asleep whose memory limit has no room for its memory twice, and has its limit
// when it goes on.
func TestSealedNearLimit(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	s.r.SealImages(s.r.frozen.Keys, true)
	b := s.box.(*box)
	if !b.cgroups.Usable() {
		t.Skip("there are no cgroups, so that no memory is counted")
	}
	limits := s.box.Spec().Limits
	limits.MemoryBytes = 200 << 20
	if err := b.Resize(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	run(t, s.client, "y = __import__('os').urandom(180 << 20)")
	limit := func() string {
		text, err := os.ReadFile(filepath.Join(b.cgroups.Dirs(b.spec.ID)[0], "memory.max"))
		for _, dir := range b.cgroups.Dirs(b.spec.ID) {
			if v1, v1Err := os.ReadFile(filepath.Join(dir, "memory.limit_in_bytes")); v1Err == nil {
				text, err = v1, nil
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := limit()
	s.client.Close()
	i, err := s.r.Freeze(t.Context(), s.box, "ann", gigabyte)
	if err != nil {
		t.Fatal(err)
	}
	if now := limit(); now != before {
		t.Errorf("its limit is %q, and was %q", now, before)
	}
	if err := s.r.Thaw(t.Context(), s.box); err != nil {
		t.Fatal(err)
	}
	s.use(s.box)
	s.wantX("when it goes on")
	takeBack := b.lendMemory(64 << 20)
	limits.MemoryBytes = 300 << 20
	if err := b.Resize(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	larger := limit()
	if err := takeBack(); err != nil {
		t.Fatal(err)
	}
	if now := limit(); now != larger || now == before {
		t.Errorf("its limit is %q, and %q was set while it had memory lent", now, larger)
	}
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Fatal(err)
	}
}

// unread makes files that cannot be read: each reading of them is an input/output error. again puts them back.
func (s *sleeping) unread(pattern string) (again func()) {
	s.t.Helper()
	paths, err := filepath.Glob(filepath.Join(s.r.StateDir, pattern))
	if err != nil || len(paths) == 0 {
		s.t.Fatalf("%s: %v, %v", pattern, paths, err)
	}
	for _, path := range paths {
		if err := errors.Join(os.Rename(path, path+".aside"), os.Symlink("/proc/self/mem", path)); err != nil {
			s.t.Fatal(err)
		}
		if _, err := os.ReadFile(path); !errors.Is(err, unix.EIO) {
			s.t.Fatalf("%s can be read: %v", path, err)
		}
	}
	return func() {
		for _, path := range paths {
			if err := os.Rename(path+".aside", path); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// TestUnreadAsleep: that the machine cannot read what a sandbox is made of says nothing about the image. Nothing of it is
// removed meanwhile.
func TestUnreadAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	run(t, s.client, "import subprocess; p = subprocess.Popen(['/opt/tools/bin/mine', '1000'])")
	i := s.freeze()
	if err := os.Remove(filepath.Join(s.tools, "bin", "mine")); err != nil {
		t.Fatal(err)
	}
	copyFile(t, "/bin/cat", filepath.Join(s.tools, "bin", "mine"))
	for what, pattern := range map[string]string{
		"its record": "frozen/" + i.Name + "/frozen.json", "its bundle": "frozen/" + i.Name + "/config.json",
		"its agent": "programs/*/" + agentName, "its gVisor": "programs/*/" + filepath.Base(s.r.Runsc),
		"a kept file": "files/*/" + frozen.KeptName,
	} {
		again := s.unread(pattern)
		if err := s.wake(i); !errors.Is(err, sandbox.ErrLater) {
			t.Fatalf("%s: %v", what, err)
		}
		if err := s.r.CanWake(t.Context(), s.spec, i.Name); !errors.Is(err, sandbox.ErrLater) {
			t.Errorf("%s: whether it can wake: %v", what, err)
		}
		if all, err := s.r.FrozenImages(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("%s: %v, %v", what, all, err)
		}
		_ = s.r.RemoveFrozen(t.Context(), "another") // and what no image needs
		again()
	}
	if err := s.wake(i); err != nil {
		t.Fatal(err)
	}
	s.wantX("later")
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Error(err)
	}
}

// TestRecoveredWithoutDisk: a sandbox of an earlier server whose state the machine cannot read or write is neither ended
// nor given up, and is taken over later.
func TestRecoveredWithoutDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	s := newSleeping(t)
	id := s.box.Spec().ID
	dir := s.r.sandboxDir(id)
	s.client.Close()
	if err := s.r.Close(); err != nil {
		t.Fatal(err)
	}
	for what, m := range map[string]struct{ source, target, kind, options string }{
		"a full disk":            {"small", filepath.Join(dir, "sock"), "tmpfs", "nr_inodes=1"},
		"a record of a bad disk": {"/proc/self/mem", filepath.Join(dir, specfile.Name), "", ""},
	} {
		flags := uintptr(0)
		if m.kind == "" {
			flags = unix.MS_BIND
		}
		if err := unix.Mount(m.source, m.target, m.kind, flags, m.options); err != nil {
			t.Fatal(what, err)
		}
		r := s.subject.Open(t).(*Runtime)
		if ids, err := r.Leftovers(t.Context()); err != nil || len(ids) != 1 {
			t.Errorf("%s: %v, %v", what, ids, err)
		}
		if _, err := r.Recover(t.Context(), id); !atomicfile.IsPassing(err) || errors.Is(err, sandbox.ErrGone) {
			t.Errorf("%s: %v", what, err)
		}
		if err := errors.Join(r.Close(), unix.Unmount(m.target, unix.MNT_DETACH)); err != nil {
			t.Fatal(what, err)
		}
	}
	s.r = s.subject.Open(t).(*Runtime)
	box, err := s.r.Recover(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s.use(box)
	s.wantX("later")
}

// TestUnkeptAsleep: the files of which there is no copy are in what is known of the image, and the one that was replaced is
// named.
func TestUnkeptAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	s.r.frozen.Files = kept.NewBounded(t.TempDir(), 1, func(int64) error { return nil })
	run(t, s.client, "import subprocess; p = subprocess.Popen(['/opt/tools/bin/mine', '1000'])")
	i := s.freeze()
	if !slices.Contains(i.Unkept, "/opt/tools/bin/mine") {
		t.Errorf("not kept: %q", i.Unkept)
	}
	if all, err := s.r.FrozenImages(t.Context()); err != nil || len(all) != 1 || !slices.Equal(all[0].Unkept, i.Unkept) {
		t.Errorf("listed: %+v, %v", all, err)
	}
	if err := os.Remove(filepath.Join(s.tools, "bin", "mine")); err != nil {
		t.Fatal(err)
	}
	copyFile(t, "/bin/cat", filepath.Join(s.tools, "bin", "mine"))
	err := s.wake(i)
	if e, ok := errors.AsType[*sandbox.Explained](err); !ok || !strings.Contains(e.Words, "/opt/tools/bin/mine,") {
		t.Errorf("it says %v", err)
	}
	if err := s.r.RemoveFrozen(t.Context(), i.Name); err != nil {
		t.Error(err)
	}
}
