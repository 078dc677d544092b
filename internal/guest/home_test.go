package guest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandlot/proto/agentv1"
)

// tree makes folders, and files of what does not end with a slash.
func tree(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, n := range names {
		at := filepath.Join(root, n)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if strings.HasSuffix(n, "/") {
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		} else {
			err = errors.Join(err, os.WriteFile(at, nil, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// closed says whether pip finds that it may not write there.
func closed(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().Perm() == 0o555
}

func TestHome(t *testing.T) {
	tests := []struct {
		name, python   string
		there          []string
		closed, open   []string
		without, venvs bool
	}{
		{name: "Debian", python: "/usr/bin/python3.11", there: []string{"usr/lib/python3/dist-packages/",
			"usr/lib/python3.11/"},
			closed: []string{"usr/local/lib/python3.11/dist-packages"},
			open:   []string{"usr/lib/python3/dist-packages", "usr/lib/python3.11"}, venvs: true},
		{name: "Fedora", python: "/usr/bin/python3.11", there: []string{"etc/redhat-release",
			"usr/lib/python3.11/site-packages/"},
			closed: []string{"usr/local/lib/python3.11/site-packages"},
			open:   []string{"usr/lib/python3.11/site-packages"}, venvs: true},
		{name: "Alpine", python: "/usr/bin/python3.11", there: []string{"usr/lib/python3.11/site-packages/"},
			closed: []string{"usr/lib/python3.11/site-packages"}, venvs: true},
		{name: "Python's own image", python: "/usr/local/bin/python3.11",
			there:  []string{"usr/local/lib/python3.11/site-packages/", "usr/lib/python3/dist-packages/"},
			closed: []string{"usr/local/lib/python3.11/site-packages"},
			open:   []string{"usr/lib/python3/dist-packages"}, venvs: true},
		{name: "conda", python: "/opt/conda/bin/python3.11", there: []string{"opt/conda/conda-meta/",
			"opt/conda/lib/python3.11/site-packages/"},
			open: []string{"opt/conda/lib/python3.11/site-packages"}, venvs: true},
		{name: "an odd name", python: "/opt/py/bin/pypy"},
		{name: "a template that wants none of it", python: "/usr/local/bin/python3.11",
			there: []string{"usr/local/lib/python3.11/site-packages/"},
			open:  []string{"usr/local/lib/python3.11/site-packages"}, without: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			tree(t, root, append(tt.there, tt.python, "root/", "workspace/")...)
			h := home{root: root, env: map[string]string{"PYTHONUSERBASE": "/workspace/.local", "HOME": "/root"}}
			if tt.without {
				delete(h.env, "PYTHONUSERBASE")
			}
			h.prepare([]string{tt.python})
			h.prepare([]string{tt.python}) // does no harm
			for _, p := range tt.closed {
				if !closed(filepath.Join(root, p)) {
					t.Errorf("pip would write to %s", p)
				}
			}
			for _, p := range tt.open {
				if closed(filepath.Join(root, p)) {
					t.Errorf("nothing can be written to %s any more", p)
				}
			}
			if h.exists("/.venv/pyvenv.cfg") != tt.venvs {
				t.Errorf("an environment for uv: %t", !tt.venvs)
			}
			if h.exists("/workspace/.local/lib") == tt.without || h.exists("/workspace/.local/bin") == tt.without {
				t.Errorf("the user's base: %t", tt.without)
			}
			if target, err := os.Readlink(filepath.Join(root,
				"root/.local")); (target == "/workspace/.local") == tt.without {
				t.Errorf("~/.local: %q, %v", target, err)
			}
		})
	}
}

// Where there is python3 alone it is python, too.
func TestHomeNamesPython(t *testing.T) {
	for own, want := range map[string]string{"": "/usr/bin/python3", "usr/bin/python": "", "opt/bin/python": "",
		"workspace/.local/bin/python": "/usr/bin/python3"} {
		root := t.TempDir()
		tree(t, root, "usr/bin/python3", "workspace/.local/bin/")
		if own != "" {
			tree(t, root, own)
		}
		h := home{root: root, env: map[string]string{"PYTHONUSERBASE": "/workspace/.local",
			"PATH": "/workspace/.local/bin:/opt/bin:/usr/bin:" + programsDir}}
		h.prepare([]string{"/usr/bin/python3"})
		if got, _ := os.Readlink(filepath.Join(root, programsDir, "python")); got != want {
			t.Errorf("beside %q python is %q, want %q", own, got, want)
		}
	}
}

// What a root has of its own stays.
func TestHomeKeepsWhatIsThere(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "usr/bin/python3.11", "root/.local/bin/own", "root/.gitconfig", ".venv/own")
	h := home{root: root, env: map[string]string{"PYTHONUSERBASE": "/workspace/.local", "HOME": "/root"}}
	h.prepare([]string{"/usr/bin/python3.11"})
	if _, err := os.Readlink(filepath.Join(root, "root/.gitconfig")); err == nil || !h.exists("/root/.local/bin/own") ||
		h.exists("/.venv/pyvenv.cfg") {
		t.Error("something was replaced")
	}
}

func TestGitSettings(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "etc/")
	h := home{root: root}
	file := filepath.Join(root, "etc/gitconfig")
	own := "[alias]\n\tst = status\n"
	if err := os.WriteFile(file, []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	ask := func(key string) string {
		out, _ := exec.Command("git", "config", "--file", file, key).Output()
		return strings.TrimSuffix(string(out), "\n")
	}
	for _, name := range []string{"local", "Ann Bär", `a"b\c`, "x\n[core]\n\tpager = evil", "# ; ["} {
		h.configureGit(&agentv1.Identity{Name: name, Email: "a@sandlot.invalid"})
		want := strings.NewReplacer("\n", "", "\t", "").Replace(name)
		if got := ask("user.name"); got != want || ask("user.email") != "a@sandlot.invalid" ||
			ask("core.pager") != "" || ask("alias.st") != "status" {
			t.Errorf("%q: user.name is %q, core.pager %q, alias.st %q", name, got, ask("core.pager"), ask("alias.st"))
		}
	}
	text, _ := os.ReadFile(file)
	if strings.Count(string(text), own) != 1 || strings.Count(string(text), "[user]") != 1 {
		t.Errorf("%s", text)
	}
}

// Whoever works in the sandbox can put anything in the place of Git's settings.
func TestGitSettingsOfOthers(t *testing.T) {
	id := &agentv1.Identity{Name: "ann", Email: "ann@sandlot.invalid"}
	root, outside := t.TempDir(), filepath.Join(t.TempDir(), "canary")
	tree(t, root, "etc/")
	file := filepath.Join(root, "etc/gitconfig")
	for name, make := range map[string]func() error{
		"a pipe":   func() error { return syscall.Mkfifo(file, 0o644) },
		"a link":   func() error { return os.Symlink(outside, file) },
		"a folder": func() error { return os.Mkdir(file, 0o755) },
		"too much": func() error { return os.WriteFile(file, bytes.Repeat([]byte("#"), maxGitConfig+1), 0o644) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		home{root: root}.configureGit(id) // it must return
		if _, err := os.Lstat(outside); err == nil {
			t.Errorf("%s: a file outside was written", name)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// Programs on pipes are told that nobody sees their colours, unless the user said
// something else.
func TestNoColor(t *testing.T) {
	r := newRig(t)
	show := sh("echo $NO_COLOR,$FORCE_COLOR")
	for want, env := range map[string]map[string]string{"1,\n": nil, ",1\n": {"FORCE_COLOR": "1"},
		"no,\n": {"NO_COLOR": "no"}, ",\n": {"NO_COLOR": ""}} {
		show.Env = env
		if out, _ := r.rest(r.start(&agentv1.StartProcessRequest{Command: show})); out != want {
			t.Errorf("%v: %q", env, out)
		}
	}
	if slices.Contains(r.environment(nil, false), "NO_COLOR=1") {
		t.Error("a terminal is told to show no colours")
	}
}

// What is installed in the workspace is listed when it is asked for.
func TestListLeavesOutWhatIsInstalled(t *testing.T) {
	r := newRig(t)
	base := r.Base()
	tree(t, base, ".local/lib/python3/x.py", "src/.local/y", "src/z")
	if _, err := r.Configure(t.Context(), &agentv1.ConfigureRequest{FileRoots: []*agentv1.FileRoot{{Path: base}},
		Env: map[string]string{"PYTHONUSERBASE": base + "/.local"}}); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{base: ".local src src/.local src/.local/y src/z",
		".":      ".local src src/.local src/.local/y src/z",
		".local": "lib lib/python3 lib/python3/x.py", "src": ".local .local/y z"} {
		m, err := r.ListFiles(t.Context(), &agentv1.ListFilesRequest{Path: dir, Depth: 5, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range m.Files {
			names = append(names, f.Path)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
}

// However Python is started, it finds the tools: with another PYTHONPATH, without variables, isolated, and in a virtual
// environment, if its library or Debian's file in /etc can be written. On a read-only machine's it does without variables.
func TestLinkTools(t *testing.T) {
	for name, tt := range map[string]struct{ there, link, want, content string }{
		"an image":      {"usr/local/lib/python3.12/os.py", "", "usr/local/lib/python3.12/mcp_tools.py", toolsModule},
		"another place": {"opt/py/lib/python3.13/os.py", "", "opt/py/lib/python3.13/mcp_tools.py", toolsModule},
		"Debian's machine": {"usr/lib/python3.11/os.py", "/etc/python3.11/sitecustomize.py",
			"etc/python3.11/sitecustomize.py", toolsPath + readyPath},
		"a writable machine": {"opt/sandlot/python/six.py usr/lib/python3.11/os.py", "/etc/python3.11/sitecustomize.py",
			"etc/python3.11/sitecustomize.py", toolsPath + readyPath},
		"a machine":            {"usr/lib/python3.11/os.py", "-", "workspace/.local/lib/python3.11/site-packages/sandlot_tools.pth", toolsPath},
		"a machine's packages": {"usr/lib/python3.11/os.py", "-", "workspace/.local/lib/python3.11/site-packages/sandlot_ready.pth", readyPath},
	} {
		root := t.TempDir()
		there := strings.Fields(tt.there)
		tree(t, root, append(there, "opt/py/bin/python3", "workspace/")...)
		lib := filepath.Dir(filepath.Join(root, there[len(there)-1]))
		if tt.link != "" && len(there) == 1 { // a folder in its place: the file cannot be written, as in a read-only library
			tree(t, lib, "mcp_tools.py/")
		}
		if len(tt.link) > 1 {
			if err := os.Symlink(tt.link, filepath.Join(lib, "sitecustomize.py")); err != nil {
				t.Fatal(err)
			}
		}
		h := home{root: root, env: map[string]string{"PYTHONUSERBASE": "/workspace/.local"}}
		for range 2 {
			h.linkTools([]string{"/opt/py/bin/python3"})
			if b, err := os.ReadFile(filepath.Join(root, tt.want)); err != nil || string(b) != tt.content {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		}
	}
}

// What an image has by that name stays.
func TestLinkToolsKeeps(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "usr/lib/python3.11/os.py", "usr/lib/python3.11/mcp_tools.py")
	home{root: root}.linkTools(nil)
	if b, err := os.ReadFile(filepath.Join(root, "usr/lib/python3.11/mcp_tools.py")); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
}
