package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// hostileImage is an image with a program of its own where a link, or a volume of the image, may bring it to the
// agent's path. The program is a copy of the agent, so that it runs.
type hostileImage struct {
	program string
	links   map[string]string
	volumes []string
	refused string // what is in the error; empty: sandboxes are made of the image
}

var hostileImages = map[string]hostileImage{
	"none": {program: "/.sandlot/agent", links: map[string]string{"/opt/link": "/.sandlot"}},
	"link at a volume of the sandbox": {program: "/.sandlot/agent", refused: "/var/lib/sandlot is a symbolic link",
		links: map[string]string{"/var/lib/sandlot": "/.sandlot"}},
	"link above a volume of the sandbox": {program: "/.sandlot/agent", refused: "/var/lib is a symbolic link",
		links: map[string]string{"/var/lib": "/lib2", "/lib2/sandlot": "../.sandlot"}},
	"link at its own volume": {program: "/.sandlot/agent", refused: "/x/y/z is a symbolic link",
		links: map[string]string{"/x/y/z": "/.sandlot"}, volumes: []string{"/x/y/z"}},
	"volume at the agent": {program: "/.sandlot/agent", volumes: []string{"/.sandlot"},
		refused: "(VOLUME) at /.sandlot"},
	"link at the agent's folder": {program: "/tmp/agent", refused: "/.sandlot is a symbolic link",
		links: map[string]string{"/.sandlot": "/tmp"}},
	"link at the agent": {program: "/x/y/z/agent", refused: "/.sandlot/agent is a symbolic link",
		links: map[string]string{"/.sandlot/agent": "/x/y/z/agent"}, volumes: []string{"/x/y/z"}},
	"link at a file of the server": {program: "/opt/agent", refused: "leads to /run/sandlot/agent.sock by",
		links: map[string]string{"/etc/gitignore": "../run/sandlot/agent.sock"}},
	"links at a file of the server": {program: "/opt/agent", refused: "leads to /.sandlot/agent by",
		links: map[string]string{"/etc/gitconfig": "/opt/x", "/opt/x": "y/agent", "/opt/y": "/.sandlot"}},
	"link at the server's name servers": {program: "/opt/agent",
		links: map[string]string{"/etc/resolv.conf": "/opt/resolv.conf"}},
	"link at the home of root": {program: "/opt/agent", refused: "/root is a symbolic link",
		links: map[string]string{"/root": "/opt/root"}},
	"link at the homes": {program: "/opt/agent", refused: "/home is a symbolic link",
		links: map[string]string{"/home": "/var/home"}},
	"link at the workspace": {program: "/.sandlot/agent", refused: "/workspace is a symbolic link",
		links: map[string]string{"/workspace": "/.sandlot"}},
	"link at the temporary folder": {program: "/.sandlot/agent", refused: "/tmp is a symbolic link",
		links: map[string]string{"/tmp": "/.sandlot"}},
	"file at a folder of the sandbox": {program: "/workspace", refused: "not a directory"},
	"file at the agent's folder":      {program: "/.sandlot", refused: "not a directory"},
	"folder at a file of the server":  {program: "/etc/gitconfig/agent", refused: "not a directory"},
	"link that leads to itself": {program: "/opt/agent", refused: "too many l",
		links: map[string]string{"/etc/gitconfig": "gitconfig"}},
	"link to the socket": {program: "/opt/agent", refused: "/x/y/z is a symbolic link",
		links: map[string]string{"/x/y/z": "/run"}, volumes: []string{"/x/y/z"}},
}

// load gives the daemon the image.
func (h hostileImage) load(t *testing.T, d *dockertest.Daemon, name, agent string) {
	t.Helper()
	program, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, content []byte) {
		h.Name, h.Mode, h.Size = strings.TrimPrefix(h.Name, "/"), 0o755, int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Write(content)
	}
	folders := []string{"/opt", "/var", "/var/lib", "/tmp", "/lib2"}
	for link := range h.links {
		for dir := path.Dir(link); dir != "/"; dir = path.Dir(dir) {
			folders = append(folders, dir)
		}
	}
	folders = append(folders, path.Dir(h.program))
	slices.Sort(folders)
	for _, dir := range slices.Compact(folders) {
		if h.links[dir] == "" && dir != "/" {
			add(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir}, nil)
		}
	}
	for _, link := range slices.Sorted(maps.Keys(h.links)) {
		add(tar.Header{Name: link, Linkname: h.links[link], Typeflag: tar.TypeSymlink}, nil)
	}
	add(tar.Header{Name: h.program, Typeflag: tar.TypeReg}, append(program, "another"...))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var changes []string
	for _, v := range h.volumes {
		changes = append(changes, "VOLUME "+v)
	}
	answer, err := d.Client.ImageImport(t.Context(), client.ImageImportSource{Source: &archive, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(answer); err != nil || strings.Contains(out.String(), `"error"`) {
		t.Fatalf("importing an image: %v %s", err, out.String())
	}
}

// imposeImages: the first process of a sandbox is the agent, whatever the image has.
func imposeImages(t *testing.T, d *dockertest.Daemon) {
	s, c := subject(t, d, baseTemplate())
	rt := s.Open(t)
	impostors := 0
	for name, h := range hostileImages {
		template := *baseTemplate()
		template.Image = "sandlot-test/hostile:" + strings.Trim(strings.Map(func(r rune) rune {
			if r < 'a' || r > 'z' {
				return '-'
			}
			return r
		}, name), "-")
		template.Languages = nil
		h.load(t, d, template.Image, c.Agent)
		spec := s.Spec()
		spec.Template = &template
		spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
		b, err := rt.Create(t.Context(), spec)
		switch {
		case err == nil && h.refused != "" && !rt.(*Runtime).known().isPodman: // whose agent isAgent looks for
			t.Errorf("%s: a sandbox was made", name)
		case err != nil && (h.refused == "" || !strings.Contains(err.Error(), h.refused) &&
			!strings.Contains(err.Error(), "is something else") &&
			!strings.Contains(err.Error(), "Podman does not prepare the container")):
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && h.refused != "" && strings.Contains(err.Error(), h.refused) {
			if _, told := errors.AsType[*sandbox.Explained](err); !told && !rt.(*Runtime).known().isPodman {
				t.Errorf("%s: the users of the template are not told: %v", name, err)
			}
			build := spec
			build.ID, build.Build = secret.ID(), true
			if b, err := rt.Create(t.Context(), build); err == nil {
				t.Errorf("%s: a template of it can be built", name)
				b.Stop(t.Context())
			}
		}
		if err == nil {
			if is, err := isAgent(t, d, b, c.Agent); err != nil || !is {
				t.Errorf("%s: the first process is not the agent: %v", name, err)
			}
			if err := b.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if !startsUnseen(t, d, rt.(*Runtime), spec) {
			impostors++
		}
	}
	if impostors == 0 {
		t.Error("no image has brought its program to the agent's path, and the test proves nothing")
	}
	mustStop(t, s, rt)
}

// isAgent reports whether the first process of a sandbox runs the agent, once it has been started.
func isAgent(t *testing.T, d *dockertest.Daemon, b sandbox.Sandbox, agent string) (bool, error) {
	t.Helper()
	pid := d.PID(t, nameOf(b))
	for range 500 {
		if args := proc.Args(pid); len(args) == 0 || args[0] == wire.AgentPath {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	var first, want unix.Stat_t
	err := errors.Join(unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &first), unix.Stat(agent, &want))
	return first.Dev == want.Dev && first.Ino == want.Ino, err
}

// startsUnseen starts a container without a look at the paths of its image, and reports whether its first process is
// the agent. If it is not, checkAgent has to say so.
func startsUnseen(t *testing.T, d *dockertest.Daemon, r *Runtime, spec sandbox.Spec) bool {
	t.Helper()
	spec.ID = "unseen"
	b := newBox(r, spec)
	b.agent = r.Agent
	image, err := r.imageOf(t.Context(), spec.Template)
	if err = errors.Join(err, os.Mkdir(b.dir, 0o700), b.makeFolders(), b.listen()); err != nil {
		t.Fatal(err)
	}
	if err := b.socket.WriteSecret(spec.Secret, 0o644); err != nil {
		t.Fatal(err)
	}
	options, err := r.container(b, image, r.instance)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(t.Context())
	if _, err := r.client.ContainerCreate(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.ContainerStart(t.Context(), b.name, client.ContainerStartOptions{}); err != nil {
		return true // nothing runs
	}
	checkErr := b.checkAgent(t.Context())
	is, err := isAgent(t, d, b, r.Agent)
	if err != nil {
		return true // it found no secret, and ended
	}
	if !is && checkErr == nil {
		t.Errorf("the program of %s took the agent's place, and nobody noticed", spec.Template.Image)
	}
	return is
}

// mountBelow: what is mounted on the machine in a folder that sandboxes have read-only is read-only for them, too,
// or the folder is refused.
func mountBelow(t *testing.T, d *dockertest.Daemon) {
	source := t.TempDir()
	below := filepath.Join(source, "a b/disk")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", below, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(below, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(below, "canary"), []byte("machine"), 0o666); err != nil {
		t.Fatal(err)
	}
	template := baseTemplate()
	template.Binds = append(template.Binds, image.Bind{Source: source, Target: "/opt/tools"})
	s, _ := subject(t, d, template)
	rt := s.Open(t)
	if d.HasOwnMounts() {
		if b, err := rt.Create(t.Context(), s.Spec()); err == nil {
			t.Error("a sandbox has another folder than what the machine has mounted there")
			b.Stop(t.Context())
		} else if !strings.Contains(err.Error(), "mounted on the machine after the daemon's start") {
			t.Error(err)
		}
		d.ShowMount(t, below)
	}
	b, c := create(t, s, rt)
	got := shell(t, c, `cat /`+proofFile+` && cd "/opt/tools/a b/disk" && cat canary && echo sandbox > canary; echo $?`)
	if got != s.VersionText+"\nmachine1\n/bin/bash: line 1: canary: Read-only file system" {
		t.Errorf("in the sandbox: %q", got)
	}
	if text, err := os.ReadFile(filepath.Join(below, "canary")); err != nil || string(text) != "machine" {
		t.Errorf("a sandbox changed a file of the machine: %q, %v", text, err)
	}
	spec := s.Spec()
	spec.Mounts = []sandbox.Mount{{Source: source, Target: "/data", ReadOnly: true}}
	if b, err := rt.Create(t.Context(), spec); err == nil {
		t.Error("a folder was shared read-only with a file system in it that is not")
		b.Stop(t.Context())
	} else if !strings.Contains(err.Error(), below+", which would not be read-only") {
		t.Error(err)
	}
	mustStop(t, s, rt, b)
}
