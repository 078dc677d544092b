package stack

import (
	"archive/zip"
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/image"
	"sandlot/internal/pkgregistry"
)

// wheel writes a wheel, of a package whose code says its version and nothing else, and returns its path.
func wheel(t *testing.T, dir, version string) string {
	t.Helper()
	path := filepath.Join(dir, "ready_test-"+version+"-py3-none-any.whl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	info := "ready_test-" + version + ".dist-info/"
	for name, text := range map[string]string{"ready_test.py": "version = '" + version + "'\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: ready-test\nVersion: " + version + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "ready_test.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"} {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// npmPackage writes a package for npm whose script would leave a mark, and returns its folder and the mark.
func npmPackage(t *testing.T) (dir, mark string) {
	t.Helper()
	dir, mark = filepath.Join(t.TempDir(), "ready-node"), filepath.Join(t.TempDir(), "mark")
	text := `{"name": "ready-node", "version": "1.0.0", "main": "i.js", "scripts": {"postinstall": "touch ` + mark + `"}}`
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"package.json": text, "i.js": "module.exports = 42"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packed := exec.Command("npm", "pack", "--pack-destination", filepath.Dir(dir))
	packed.Dir = dir
	if out, err := packed.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(filepath.Dir(dir), "ready-node-1.0.0.tgz"), mark
}

// TestStack: packages are made once, of what the machine has; the next server finds them, and another list is another
// folder. No code of a package runs.
func TestStack(t *testing.T) {
	state, ctx := t.TempDir(), t.Context()
	log := &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	first := wheel(t, t.TempDir(), "1.0")
	node, mark := npmPackage(t)
	s := New(state, Lists{Python: []string{first}, Node: []string{node}}, logger)
	found, err := image.Host()
	if err != nil {
		t.Fatal(err)
	}
	host := &image.Template{Name: "host", Env: map[string]string{"PATH": "/bin:" + image.AgentPrograms, "NODE_PATH": "/n"},
		Languages: found.Languages}
	// A file of the folder in which the server is started has the name of a module.
	t.Chdir(t.TempDir())
	canary := filepath.Join(t.TempDir(), "canary")
	for _, name := range []string{"sysconfig.py", "pip.py", "site.py", "os.py"} {
		if err := os.WriteFile(name, []byte("open('"+canary+"', 'w')"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.Open(host)
	if s.Add(host); s.Version() != "" || s.Describe() != "" || len(host.Binds) != 0 {
		t.Errorf("before: %q %q %v", s.Version(), s.Describe(), host.Binds)
	}
	s.Make(ctx, host)
	if _, err := os.Stat(canary); err == nil {
		t.Error("code of the folder was run")
	}
	if !strings.Contains(s.Describe(), "Python has ") || !strings.Contains(s.Describe(), "Node has ") {
		t.Fatalf("%q\n%s", s.Describe(), log)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("npm has run a package's script")
	}
	s.Add(host)
	if got := host.Env["PATH"]; got != "/bin:/opt/sandlot/python/bin:/opt/sandlot/node/node_modules/.bin:"+image.AgentPrograms {
		t.Error(got)
	}
	if got := host.Env["NODE_PATH"]; got != "/n:/opt/sandlot/node/node_modules" || len(host.Binds) != 2 {
		t.Error(got, host.Binds)
	}
	other := &image.Template{Name: "other", Env: map[string]string{}}
	if s.Add(other); len(other.Binds) != 0 {
		t.Error("another template has them, too")
	}
	python := host.Binds[0].Source
	out, err := exec.Command("python3", "-c", "import sys; sys.path.append(sys.argv[1]); import ready_test; "+
		"print(ready_test.version)", python).CombinedOutput()
	if err != nil || string(out) != "1.0\n" {
		t.Errorf("%v: %s", err, out)
	}
	if made, _ := filepath.Glob(filepath.Join(python, "__pycache__", "ready_test*.pyc")); len(made) != 1 {
		t.Error("it is not compiled")
	}

	// The next server.
	again := New(state, Lists{Python: []string{first}, Node: []string{node}}, logger)
	again.Open(host)
	if again.Version() != s.Version() {
		t.Errorf("%q, then %q", s.Version(), again.Version())
	}
	changed := New(state, Lists{Python: []string{wheel(t, t.TempDir(), "2.0")}}, logger)
	changed.Open(host)
	if changed.Version() != "" {
		t.Error("another list is ready at once")
	}
	changed.Make(ctx, host)
	if changed.Version() == "" || strings.Contains(s.Version(), changed.Version()) {
		t.Errorf("another list: %q", changed.Version())
	}
}

// TestNames: models are told names, and no versions.
func TestNames(t *testing.T) {
	got := strings.Join(names([]string{"six==1.16.0", "pandas", "uvicorn[standard]", "@types/node@20", "zod@^3", "a<2"}), " ")
	if got != "six pandas uvicorn @types/node zod a" {
		t.Error(got)
	}
}

// TestStackFails: what cannot be installed is said, and nothing of it is left.
func TestStackFails(t *testing.T) {
	state := t.TempDir()
	log := &bytes.Buffer{}
	s := New(state, Lists{Python: []string{filepath.Join(state, "missing-1.0-py3-none-any.whl")}}, slog.New(slog.NewTextHandler(log, nil)))
	host, err := image.Host()
	if err != nil {
		t.Fatal(err)
	}
	s.Make(t.Context(), host)
	if s.Version() != "" || !strings.Contains(log.String(), "were not made") || !strings.Contains(log.String(), "missing") {
		t.Errorf("%q\n%s", s.Version(), log)
	}
	if left, _ := os.ReadDir(filepath.Join(state, "packages", "python")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	log.Reset()
	s.Make(stopped, host)
	if strings.Contains(log.String(), "were not made") {
		t.Errorf("the server stops: %s", log)
	}
	if none := New(state, Lists{}, nil); none.Version() != "" || none.Describe() != "" {
		t.Error("without packages")
	}
}

// TestStackWithoutHome: packages are made where the server's user has no home that can be written, and nothing of what
// the package managers downloaded is left.
func TestStackWithoutHome(t *testing.T) {
	state, log := t.TempDir(), &bytes.Buffer{}
	node, _ := npmPackage(t)
	python := wheel(t, t.TempDir(), "1.0")
	t.Setenv("HOME", filepath.Join(python, "home")) // below a file, so that not even root can make it
	for _, name := range []string{"npm_config_cache", "UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	s := New(state, Lists{Python: []string{python}, Node: []string{node}}, slog.New(slog.NewTextHandler(log, nil)))
	host, err := image.Host()
	if err != nil {
		t.Fatal(err)
	}
	if s.Make(t.Context(), host); !strings.Contains(s.Describe(), "Python has ") || !strings.Contains(s.Describe(), "Node has ") {
		t.Errorf("%q\n%s", s.Describe(), log)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "packages/*/"+unfinished+"*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestArchiveFirst: lists of packages are fetched before packages are made, and the template says that they are to come.
func TestArchiveFirst(t *testing.T) {
	s := New(t.TempDir(), Lists{Python: []string{"a"}, Node: []string{"b"}, Go: []string{"c"},
		Apt: []pkgregistry.AptSource{{}}}, slog.Default())
	var order []string
	for _, k := range s.kinds {
		order = append(order, k.name)
	}
	if got := strings.Join(order, " "); got != "apt python node go" {
		t.Errorf("made in the order %s", got)
	}
	host := &image.Template{Name: "host"}
	if s.Add(host); !host.ArchiveComes || !slices.Equal(host.PackagesCome, []string{"a", "b"}) {
		t.Errorf("the template does not say what is to come: %+v", host)
	}
	dir := t.TempDir()
	s.kinds[0].ready.Store(&dir)
	s.kinds[1].ready.Store(&dir)
	host = &image.Template{Name: "host", Env: map[string]string{}}
	if s.Add(host); host.ArchiveComes || !host.HasArchive() || !slices.Equal(host.PackagesCome, []string{"b"}) {
		t.Errorf("with lists, and packages of Python: %+v", host)
	}
}
