package gvisor

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/image/imagetest"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

//go:embed testdata/image.py
var imageAttacks string

// made has the files that all tests of this process take copies of, since each takes seconds to make.
var made struct {
	dir       string // of TestMain
	image     sync.Once
	smallBase sync.Once
}

// TestMain gives the tests a folder for what is made once.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sandlot-gvisor-")
	if err != nil {
		panic(err)
	}
	made.dir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil && code == 0 {
		panic(err)
	}
	os.Exit(code)
}

// once returns the path of a file that the first test makes. It fails when that test could not.
func once(t *testing.T, once *sync.Once, name string, make func(file string)) string {
	t.Helper()
	file := filepath.Join(made.dir, name)
	once.Do(func() { make(file + ".new"); os.Rename(file+".new", file) })
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	return file
}

// testImage returns an EROFS file with Debian, and with what an attacker puts into an image: programs that would
// become another user, and device nodes. It belongs to this test, and is removed at its end.
func testImage(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.erofs")
	from := os.Getenv("SANDLOT_TEST_IMAGE") // by root, for an unprivileged user
	if from == "" {
		from = once(t, &made.image, "image.erofs", func(file string) { makeTestImage(t, file) })
	}
	copyFile(t, from, file)
	return file
}

func makeTestImage(t *testing.T, file string) {
	t.Helper()
	base := imagetest.BaseArchive(t)
	add := func(typ byte, name string, mode int64, content string) imagetest.Entry {
		return imagetest.Entry{Header: tar.Header{Typeflag: typ, Name: name, Mode: mode}, Content: []byte(content)}
	}
	bash := programOf(t, base, "usr/bin/bash")
	setuid := add(tar.TypeReg, "attack/other", 0o6755, bash)
	setuid.Uid, setuid.Gid = 1000, 1000
	entries := []imagetest.Entry{add(tar.TypeDir, "attack", 0o777, ""), setuid,
		add(tar.TypeReg, "attack/root", 0o4755, bash), add(tar.TypeReg, "attack/data", 0o666, "of the image"),
		add(tar.TypeReg, "attack/large", 0o644, strings.Repeat("large\n", 20<<20))}
	for name, device := range map[string][2]int64{"mem": {1, 1}, "kmsg": {1, 11}, "kvm": {10, 232}, "fuse": {10, 229},
		"tun": {10, 200}, "console": {5, 1}} {
		e := add(tar.TypeChar, "attack/"+name, 0o666, "")
		e.Devmajor, e.Devminor = device[0], device[1]
		entries = append(entries, e)
	}
	disk := add(tar.TypeBlock, "attack/disk", 0o666, "")
	disk.Devmajor = 8
	imagetest.Write(t, file, imagetest.File(base), imagetest.Archive(t, append(entries, disk)...))
}

// programOf returns a file of an archive.
func programOf(t *testing.T, archive, name string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s in the archive: %v", name, err)
		}
		if strings.TrimPrefix(h.Name, "./") == name {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
	}
}

// imageSubject is a subject whose sandboxes are made of an image.
func imageSubject(t *testing.T, rootless bool) *sandboxtest.Subject {
	t.Helper()
	s := subject(t, rootless)
	s.Template = &image.Template{Name: "debian", Image: "debian", RootfsImage: testImage(t), Warm: []string{"python"},
		Env: map[string]string{"TERM": "xterm"}, Languages: []image.Language{
			{Name: "python", Driver: "python", Command: []string{"/usr/bin/python3"}, Extension: ".py"},
			{Name: "node", Driver: "node", Command: []string{"/usr/bin/node"}, Extension: ".mjs"},
			{Name: "bash", Driver: "bash", Command: []string{"/bin/bash"}, Extension: ".sh"}}}
	s.Template.AddDefaultEnv()
	s.WritableRoot = true
	return s
}

// TestOCIImageSuite runs the suite with sandboxes of an image, as root, and, when the process is an unprivileged
// user's, rootless.
func TestOCIImageSuite(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	s.Again = true // TestRootless runs TestSuite
	s.Run(t)
}

// TestImagePrebootedSuite runs it with sandboxes that start from preboot images.
func TestImagePrebootedSuite(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	s.Again = true
	open := s.Open
	s.Open = func(t *testing.T) sandbox.Runtime {
		r := open(t).(*Runtime)
		r.Preboot = true
		return imaging{r, t, new(sync.Mutex)}
	}
	s.Run(t)
}

func boot(t *testing.T, r *Runtime, spec sandbox.Spec) *agent.Client {
	t.Helper()
	b, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Stop(context.Background()) })
	c := agent.New(b, sandboxtest.Log(t), nil)
	t.Cleanup(func() { c.Close() })
	if got := shell(t, c, "cat /proc/version"); !strings.Contains(strings.ToLower(got), "gvisor") {
		t.Fatalf("this is no sandbox: %s", got)
	}
	return c
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// TestImageIsShared: nothing that a sandbox does to the files of its image is seen by another sandbox, before or
// after it, or on the host. What an attacker has put into the image is of no use.
func TestImageIsShared(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	r := open(t, s)
	t.Cleanup(func() { r.Close() })
	spec := s.Spec()
	before := hashOf(t, spec.Template.RootfsImage)
	const state = "cat /attack/data; stat -c '%a %u %s' /attack/data /attack/other /etc/passwd /usr/bin/python3.*; " +
		"ls -a / /attack /etc /usr | sha256sum; sha256sum < /etc/passwd; find /usr/lib/python3 /usr/sbin | sha256sum"
	attacker, bystander := boot(t, r, spec), boot(t, r, s.Spec())
	untouched := shell(t, bystander, state)
	if got := shell(t, attacker, state); got != untouched {
		t.Fatalf("two sandboxes of an image differ:\n%s\n%s", got, untouched)
	}
	if got := shell(t, attacker, "timeout 25 python3 - <<'END'\n"+imageAttacks+"\nEND"); got != "tried" {
		t.Error(got)
	}
	if got := shell(t, attacker, state); got == untouched {
		t.Error("the attacker could not write its own files")
	}
	if got := shell(t, bystander, state); got != untouched {
		t.Errorf("another sandbox sees\n%s\nin place of\n%s", got, untouched)
	}
	if got := shell(t, boot(t, r, s.Spec()), state); got != untouched {
		t.Errorf("a later sandbox sees\n%s\nin place of\n%s", got, untouched)
	}
	if hashOf(t, spec.Template.RootfsImage) != before {
		t.Error("the image was changed")
	}
}

// TestImageDisk: a sandbox of an image writes no more than its limit, on the host's disk, and reading a large file
// takes none of its memory.
func TestImageDisk(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	r := open(t, s)
	t.Cleanup(func() { r.Close() })
	spec := s.Spec()
	spec.Limits.DiskBytes, spec.Limits.MemoryBytes = 48<<20, 256<<20
	c := boot(t, r, spec)
	b := r.List()[0].(*box)
	if got := shell(t, c, "df --output=size -B1 / | tail -1"); strings.TrimSpace(got) != fmt.Sprint(48<<20) {
		t.Errorf("the root file system has %s bytes", got)
	}
	// A process may write no file that is larger than the limit: it takes several.
	got := shell(t, c, "for i in 1 2 3; do head -c 30000000 /dev/urandom > /var/big$i; done 2>&1; "+
		"du -sb --total /var/big* | tail -1")
	var size int64
	fmt.Sscan(got[strings.LastIndex(got, "\n")+1:], &size)
	if size < 30_000_000 || size > 48<<20 || !strings.Contains(got, "No space left on device") {
		t.Errorf("it wrote %d bytes: %s", size, got)
	}
	files, err := hostfile.OpenBy(b.pid)
	if err != nil {
		t.Fatal(err)
	}
	stored := int64(0)
	for _, f := range files {
		if st, err := hostfile.Stat(f.Path, true); err == nil && strings.Contains(f.Target, "/runsc-filestore-") {
			if !strings.HasPrefix(f.Target, filepath.Join(b.dir, "disk")+"/") {
				t.Errorf("what it writes is in %s", f.Target)
			}
			stored = max(stored, int64(st.Size))
		}
	}
	if stored < 30_000_000 {
		t.Errorf("on the host's disk there are %d bytes of it", stored)
	}
	shell(t, c, "rm /var/big*; wc -c < /etc/passwd")
	before := b.footprint(b.pid)
	if got := shell(t, c, "for i in 1 2 3; do cat /attack/large; done | wc -c"); got != fmt.Sprint(3*120<<20) {
		t.Errorf("a large file of the image: %s", got)
	}
	if grown := b.footprint(b.pid) - before; grown > 32<<20 {
		t.Errorf("reading it took %d bytes of memory", grown)
	}
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Running {
		t.Errorf("after that its status is %+v, %v", st, err)
	}
}

// TestImageIsRemoved: a sandbox goes on with its image when that was removed, also under the next server, and its
// image does not count as what it has written.
func TestImageIsRemoved(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	r := open(t, s)
	spec := s.Spec()
	spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
	if _, err := r.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(spec.Template.RootfsImage); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), s.Spec()); err == nil {
		t.Error("a sandbox was made of an image that is gone")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = open(t, s)
	defer r.Close()
	found := sandboxtest.RecoverAll(t, r)
	if len(found) != 1 {
		t.Fatalf("recovered %d sandboxes", len(found))
	}
	b := found[0]
	defer b.Stop(context.WithoutCancel(t.Context()))
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	if got := shell(t, c, "head -c 12 /attack/data; find /usr/lib | wc -l"); !strings.HasPrefix(got, "of the image") {
		t.Errorf("it says %q", got)
	}
	recovered := b.(*box)
	pid, _ := recovered.process()
	u := diskQuery{pid, spec.Limits.DiskBytes, spec.Mounts, recovered.root.Image}
	if size := unlinkedSize(u); size > 1<<20 {
		t.Errorf("%d bytes of deleted files count", size)
	}
	u.image = ""
	if size := unlinkedSize(u); size < 100<<20 {
		t.Errorf("the image has %d bytes", size) // else the test above cannot fail
	}
}

// TestImageChanges: a preboot image is of no use once the image that it was made of is another file.
func TestImageChanges(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	r := open(t, s)
	defer r.Close()
	r.Preboot = true
	makeImage(t, r, s.Spec())
	if !r.HasImage(s.Spec()) {
		t.Fatal("there is no preboot image")
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(s.Template.RootfsImage, later, later); err != nil {
		t.Fatal(err)
	}
	if r.HasImage(s.Spec()) {
		t.Error("the image has changed, and the preboot image is still used")
	}
}

// TestExport: what a sandbox has written and removed is in the archive, and what it only read is not.
func TestExport(t *testing.T) {
	t.Parallel()
	s := imageSubject(t, os.Getuid() != 0)
	r := open(t, s)
	t.Cleanup(func() { r.Close() })
	spec := s.Spec()
	spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
	c := boot(t, r, spec)
	shell(t, c, "echo new > /opt/new; echo >> /attack/data; rm /usr/bin/perl; rm -r /usr/sbin; mkdir /usr/sbin; "+
		"echo private > /workspace/private; cat /etc/passwd")
	var archive bytes.Buffer
	if err := r.Export(t.Context(), r.List()[0], &archive); err != nil {
		t.Fatal(err)
	}
	found := map[string]*tar.Header{}
	for in := tar.NewReader(&archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h
	}
	for name, typ := range map[string]byte{"./opt/new": tar.TypeReg, "./attack/data": tar.TypeReg,
		"./usr/bin/perl": tar.TypeChar, "./usr/sbin/": tar.TypeDir} {
		if h := found[name]; h == nil || h.Typeflag != typ || typ == tar.TypeChar && h.Devmajor|h.Devminor != 0 {
			t.Errorf("%s is %+v", name, h)
		}
	}
	if h := found["./usr/sbin/"]; h != nil && h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] != "y" {
		t.Errorf("a folder that replaces another has %v", h.PAXRecords)
	}
	if found["./etc/passwd"] != nil || found["./workspace/private"] != nil {
		t.Error("what it did not write is there")
	}
	err := r.Export(t.Context(), r.List()[0], brokenWriter{})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("to a broken writer: %v", err)
	}
	if got := shell(t, c, "cat /opt/new"); got != "new" {
		t.Errorf("after that it says %q", got)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

// TestImageBundle: the limit of the disk is where runsc looks for it.
func TestImageBundle(t *testing.T) {
	r, err := New(Config{Runsc: "/runsc", Agent: "/agent", StateDir: t.TempDir(), Log: sandboxtest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	file := filepath.Join(t.TempDir(), "image.erofs")
	imagetest.Write(t, file, imagetest.Archive(t))
	spec := sandbox.Spec{ID: "x", Template: &image.Template{Name: "x", RootfsImage: file}, Secret: make([]byte, 32),
		Limits: sandbox.Limits{DiskBytes: 77 << 20}}
	b := newBox(r, spec)
	if b.root, err = r.roots.For(spec.Template); err != nil {
		t.Fatal(err)
	}
	bundle, err := r.ociSpec(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(bundle)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"dev.gvisor.spec.rootfs.options":"size=80740352"`,
		`"dev.gvisor.spec.rootfs.overlay":"dir=/`, `"dev.gvisor.spec.rootfs.type":"erofs"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the bundle lacks %s: %s", want, text)
		}
	}
}

// TestFolderIsReadOnly: a template's own root file system needs no mount points, and nothing is written into it.
func TestFolderIsReadOnly(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	r := open(t, s)
	t.Cleanup(func() { r.Close() })
	folder := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	// What is listed twice, and removed, is not more than what tells.
	unpack := exec.CommandContext(t.Context(), "tar", "-xf", baseArchive(t), "-C", folder, "--exclude=./dev/*",
		"--exclude=./usr/share/*", "--exclude=./usr/local/*", "--exclude=./usr/lib/python3/*", "--exclude=./usr/lib/git-core",
		"--exclude=./usr/lib/*-linux-gnu/perl*", "--exclude=./var/lib/dpkg/*", "--no-same-owner")
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := errors.Join(os.RemoveAll(filepath.Join(folder, "proc")), os.RemoveAll(filepath.Join(folder, "run")),
		os.Chmod(folder, 0o555))
	if err != nil {
		t.Fatal(err)
	}
	list := func() string {
		out, err := exec.CommandContext(t.Context(), "find", folder, "-printf", "%p %m %s %T@ %C@\n").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	before := list()
	spec := s.Spec()
	env := map[string]string{"PATH": "/usr/bin:/bin", wire.EnvPrefix + "NEW": "hostile"}
	for _, name := range wire.EnvNames { // as an image may have them; the agent would not start
		env[name] = "hostile"
	}
	spec.Template = &image.Template{Name: "own", Rootfs: folder, Env: env}
	c := boot(t, r, spec)
	const look = "env | grep SANDLOT_AGENT_; id -u; grep CapBnd /proc/self/status"
	if got := shell(t, c, look); got != "0\nCapBnd:\t0000000000000000" {
		t.Errorf("with variables of the agent in the template: %q", got)
	}
	const use = "touch /usr/bin/new /workspace/new && ls -d /proc/self /run/sandlot && python3 -c 'print(6*7)'"
	if got := shell(t, c, use); got != "/proc/self\n/run/sandlot\n42" {
		t.Errorf("it says %q", got)
	}
	if list() != before {
		t.Error("the operator's folder was changed")
	}
	if err := os.Chmod(folder, 0o755); err != nil { // so that it can be removed
		t.Fatal(err)
	}
}

// baseArchive returns the archive with Debian, as an unprivileged user finds it.
func baseArchive(t *testing.T) string {
	if made := os.Getenv("SANDLOT_TEST_BASE"); made != "" {
		return made
	}
	return imagetest.BaseArchive(t)
}
