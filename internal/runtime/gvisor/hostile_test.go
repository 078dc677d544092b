package gvisor

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/image"
	"sandlot/internal/image/imagetest"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// hostileImages are what images have where Sandlot mounts something: links by path, and files. Each image has a program
// of its own wherever a link may bring it to the agent's path.
var hostileImages = map[string]struct {
	links   map[string]string
	files   []string
	refused string // what the users of the template are told; empty: a sandbox works
}{
	"a link at the agent's folder": {links: map[string]string{".sandlot": "/opt"}},
	"links at the agent":           {links: map[string]string{".sandlot/agent": "/opt/agent", "tmp": "/.sandlot"}},
	"links at the socket and the home": {links: map[string]string{"run": "/opt", "root": "/.sandlot", "home": "/root",
		"var/lib": "/opt"}},
	"links at the workspace and the system's folders": {links: map[string]string{"proc": "/opt/a", "dev": "/opt/b",
		"sys": "../opt/c", "workspace": "/var/work"}},
	"links at Sandlot's files": {links: map[string]string{"etc/gitconfig": "../.sandlot/agent", "etc/hosts": "/opt/agent",
		"etc/resolv.conf": "/run/sandlot/agent.sock"}},
	"the workspace at the agent's folder": {links: map[string]string{"workspace": "/.sandlot"}, refused: "/workspace"},
	"the workspace above the socket":      {links: map[string]string{"workspace": "run"}, refused: "/workspace"},
	"the workspace at the root":           {links: map[string]string{"workspace": ".."}, refused: "/workspace"},
	"the devices at the workspace":        {links: map[string]string{"dev": "/opt/x", "opt/x": "/workspace"}, refused: "/dev"},
	"the socket at the agent's folder":    {links: map[string]string{"run/sandlot": "/.sandlot"}, refused: "/run/sandlot"},
	"a link that leads to itself":         {links: map[string]string{"workspace": "workspace"}, refused: "/workspace"},
	"a file at the workspace":             {files: []string{"workspace"}, refused: "/workspace"},
	"a file at the agent's folder":        {files: []string{".sandlot"}, refused: "/.sandlot"},
}

// TestHostileImages: the first process of a sandbox is the agent, and a sandbox works, or it is said what is wrong,
// whatever the image has.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	for name, h := range hostileImages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := subject(t, os.Getuid() != 0)
			r := open(t, s)
			t.Cleanup(func() { r.Close() })
			workspace := t.TempDir()
			spec := s.Spec()
			spec.Template = &image.Template{Name: "hostile", Image: "hostile", RootfsImage: hostileImage(t, h.links, h.files)}
			spec.Mounts = []sandbox.Mount{{Source: workspace, Target: "/workspace"}}
			b, err := r.Create(t.Context(), spec)
			if h.refused != "" {
				e, told := errors.AsType[*sandbox.Explained](err)
				if err == nil || !told || !strings.Contains(e.Words, h.refused) {
					t.Errorf("it is not said what is wrong: %v", err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if err != nil {
				return
			}
			t.Cleanup(func() { b.Stop(context.Background()) })
			c := agent.New(b, sandboxtest.Log(t), nil)
			t.Cleanup(func() { c.Close() })
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			d, err := c.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/bash", "-c",
				"echo mine > /workspace/file; id -u; grep CapBnd /proc/self/status"}}, Timeout: 20 * time.Second,
				Inline: agent.InlineBounds{Head: 4096, Tail: 4096}}, agent.Observer{})
			if err != nil {
				t.Errorf("no sandbox: %v", err)
			} else if got := string(d.Stdout.Head); got != "0\nCapBnd:\t00000000000404fb\n" {
				t.Errorf("it says %q %q", got, d.Stderr.Head)
			}
			if text, err := os.ReadFile(filepath.Join(workspace, "file")); string(text) != "mine\n" {
				t.Errorf("the workspace is elsewhere: %q, %v", text, err)
			}
			if _, err := os.Lstat(filepath.Join(workspace, "impostor")); err == nil {
				t.Error("a program of the image was the first process")
			}
		})
	}
}

// hostileImage makes an image of Debian, these links and files, and programs that say that they were the first process.
func hostileImage(t *testing.T, links map[string]string, files []string) string {
	t.Helper()
	const program = "#!/bin/bash\n[ $$ = 1 ] && { : >/workspace/impostor; : >/impostor; sleep 1000; }\n"
	var entries []imagetest.Entry
	add := func(h tar.Header, content string) {
		h.Mode = 0o755
		entries = append(entries, imagetest.Entry{Header: h, Content: []byte(content)})
	}
	for name, target := range links {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, "")
	}
	for _, name := range files {
		add(tar.Header{Typeflag: tar.TypeReg, Name: name}, program)
	}
	for _, name := range []string{"opt/agent", ".sandlot/agent"} {
		dir := filepath.Dir(name)
		if links[dir] == "" && links[name] == "" && (len(files) == 0 || files[0] != dir) {
			add(tar.Header{Typeflag: tar.TypeReg, Name: name}, program)
		}
	}
	file := filepath.Join(t.TempDir(), "image.erofs")
	base := once(t, &made.smallBase, "small.tar", func(file string) { writeSmallBase(t, file) })
	imagetest.Write(t, file, imagetest.File(base), imagetest.Archive(t, entries...))
	return file
}

// smallBase matches the files of Debian that the hostile images have: bash, what it calls, and their libraries.
var smallBase = regexp.MustCompile(`^\./(etc/.*|usr/bin/(bash|dash|sh|id|grep|sleep)|` +
	`usr/lib(64)?/([^/]+-linux-gnu/)?(ld-linux|libc|libtinfo|libpcre2-8|libselinux)\b[^/]*)$`)

// writeSmallBase makes an archive of all folders and symbolic links of the archive of Debian, and of few of its files:
// where something is mounted it looks the same, and a sandbox starts from an image of it.
func writeSmallBase(t *testing.T, file string) {
	t.Helper()
	in, err := os.Open(baseArchive(t))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := tar.NewWriter(out)
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink && !smallBase.MatchString(h.Name) {
			continue
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
