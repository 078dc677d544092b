package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/agent/wire"
)

var sample = &Template{Name: "host", Provides: []string{"base", "python"}, Languages: []Language{
	{Name: "python", Driver: "python", Aliases: []string{"py", "python3"}},
	{Name: "node", Driver: "node", Aliases: []string{"javascript"}},
}}

func TestLanguage(t *testing.T) {
	for name, want := range map[string]string{"python": "python", "PYTHON": "python", "Py": "python",
		"JavaScript": "node", "node": "node", "": "", "ruby": "", "pyth": ""} {
		if l, ok := sample.Language(name); l.Name != want || ok != (want != "") {
			t.Errorf("Language(%q) = %q, %v, want %q", name, l.Name, ok, want)
		}
	}
	if got := sample.LanguageNames(); !slices.Equal(got, []string{"python", "node"}) {
		t.Errorf("names %q", got)
	}
}

func TestServes(t *testing.T) {
	for name, want := range map[string]bool{"": true, "host": true, "base": true, "python": true, "node": false,
		"Host": false} {
		if got := sample.Serves(name); got != want {
			t.Errorf("Serves(%q) = %v", name, got)
		}
	}
}

func TestCovers(t *testing.T) {
	small, medium := Flavor{"small", 1, 1024}, Flavor{"medium", 2, 2048}
	odd := Flavor{"odd", 4, 512}
	tests := []struct {
		f, g Flavor
		want bool
	}{{medium, small, true}, {small, medium, false}, {small, small, true}, {odd, small, false}, {small, odd, false},
		{medium, odd, false}}
	for _, tt := range tests {
		if got := tt.f.Covers(tt.g); got != tt.want {
			t.Errorf("%s covers %s: %v", tt.f, tt.g, got)
		}
	}
}

// The template host holds the machine's programs, and nothing else of it.
func TestHost(t *testing.T) {
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != "host" || !h.Serves("base") || h.Rootfs != "" {
		t.Errorf("template %+v", h)
	}
	for _, b := range h.Binds {
		real, err := filepath.EvalSymlinks(b.Source)
		if err != nil || real != b.Source || !filepath.IsAbs(b.Target) {
			t.Errorf("bind %v: its source is %s, %v", b, real, err)
		}
		if st, err := os.Stat(b.Source); err != nil || !st.IsDir() {
			t.Errorf("bind %v is of one file, which the machine's package manager replaces: %v", b, err)
		}
		for _, secret := range []string{"/", "/root", "/home", "/etc", "/var", "/proc", "/sys", "/dev", "/run", "/tmp",
			"/etc/shadow", "/etc/passwd", "/etc/ssl", "/etc/ssl/private"} {
			if b.Source == secret || b.Target == secret {
				t.Errorf("bind %v shows %s", b, secret)
			}
		}
		if strings.HasPrefix(b.Target, "/etc/") && strings.Contains(b.Target, "private") {
			t.Errorf("bind %v", b)
		}
	}
	_, own := h.Files["etc/fonts/fonts.conf"]
	if shown := slices.ContainsFunc(h.Binds, func(b Bind) bool { return b.Target == "/etc/fonts" }); shown == own {
		t.Errorf("fontconfig finds its settings: the machine's %v, our own %v", shown, own)
	}
	for _, name := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/mime.types", "etc/localtime"} {
		want, err := os.ReadFile("/" + name)
		if got, has := h.Files[name]; has != (err == nil) || !bytes.Equal(got, want) {
			t.Errorf("%s: its copy has %d bytes, and the machine's %d, %v", name, len(got), len(want), err)
		}
	}
	for name, target := range h.Links {
		if strings.HasPrefix(name, "/") || filepath.IsAbs(target) && !strings.HasPrefix(target, "/usr") {
			t.Errorf("link %s → %s", name, target)
		}
	}
	if len(h.Languages) == 0 {
		t.Fatal("no language")
	}
	for _, l := range h.Languages {
		if !isELF(l.Command[0]) && l.Driver != "" {
			t.Errorf("%s is run by %s, which is no program", l.Name, l.Command[0])
		}
		within := slices.ContainsFunc(h.Binds,
			func(b Bind) bool { return strings.HasPrefix(l.Command[0], b.Target+"/") }) ||
			strings.HasPrefix(l.Command[0], "/bin/")
		if !within {
			t.Errorf("%s is run by %s, which the sandbox does not have", l.Name, l.Command[0])
		}
	}
	for _, w := range h.Warm {
		if l, ok := h.Language(w); !ok || l.Driver == "" {
			t.Errorf("warm %q keeps no state", w)
		}
	}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if got, ok := h.Env[name]; ok && got == value && strings.Contains(name, "TOKEN") {
			t.Errorf("the server's variable %s is in the sandbox", name)
		}
	}
}

// TestHostVersion: it changes when a file that is copied is replaced by another one, as ldconfig does it, or goes.
func TestHostVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ld.so.cache")
	before := hostEtc
	hostEtc = []string{path, dir, filepath.Join(dir, "none")}
	defer func() { hostEtc = before }()
	seen := map[string]bool{}
	for _, text := range []string{"one", "other", ""} {
		os.Remove(path)
		if text != "" {
			if err := os.WriteFile(path+"~", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+"~", path); err != nil {
				t.Fatal(err)
			}
		}
		seen[HostVersion()] = true
		h := &Template{Files: map[string][]byte{}}
		for _, f := range hostEtc {
			h.addFromHost(f, f)
		}
		if got := string(h.Files[strings.TrimPrefix(path, "/")]); got != text || len(h.Binds) != 1 {
			t.Errorf("copied %q, not %q; bound %v", got, text, h.Binds)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d versions", len(seen))
	}
	if err := os.WriteFile(path, make([]byte, maxCopied+1), 0o644); err != nil {
		t.Fatal(err)
	}
	h := &Template{Files: map[string][]byte{}}
	if h.addFromHost(path, path); len(h.Files)+len(h.Binds) != 0 {
		t.Error("a large file was copied")
	}
}

// fake puts a program of that text into the path.
func fake(t *testing.T, name, text string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	text, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// A version manager's shim is asked which program it stands for.
func TestFind(t *testing.T) {
	prefix, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real := prefix + "/bin/oddlang"
	copyProgram(t, real)
	tests := []struct {
		name, shim, want string
	}{
		{"with its prefix", "#!/bin/sh\necho " + real + "; echo " + prefix, real},
		{"without", "#!/bin/sh\necho " + real + "; echo", real},
		{"a program that is not there", "#!/bin/sh\necho /no/such; echo /no", ""},
		{"a script", "#!/bin/sh\necho $0; echo " + prefix, ""},
		{"a prefix that it is not in", "#!/bin/sh\necho " + real + "; echo /opt/other/place", ""},
		{"a prefix that holds too much", "#!/bin/sh\necho " + real + "; echo /", ""},
		{"a prefix of a whole folder of the machine", "#!/bin/sh\necho " + real + "; echo /tmp", ""},
		{"silence", "#!/bin/sh\n:", ""},
		{"failure", "#!/bin/sh\necho " + real + "; echo " + prefix + "; exit 1", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fake(t, "oddlang", tt.shim)
			tm := &Template{Env: map[string]string{"PATH": "/usr/bin"}}
			if got := tm.findInterpreter("oddlang", "question", "-c"); got != tt.want {
				t.Fatalf("find = %q, want %q", got, tt.want)
			}
			switch {
			case tt.want == "" && (len(tm.Binds) > 0 || tm.Env["PATH"] != "/usr/bin"):
				t.Errorf("what was not found is bound: %v, %s", tm.Binds, tm.Env["PATH"])
			case tt.want != "" && (len(tm.Binds) != 1 || tm.Binds[0] != (Bind{Source: prefix, Target: prefix}) ||
				tm.Env["PATH"] != prefix+"/bin:/usr/bin"):
				t.Errorf("bound %v, path %s", tm.Binds, tm.Env["PATH"])
			}
		})
	}
	if got := (&Template{}).findInterpreter("oddlang-that-is-not-there", "q", "-c"); got != "" {
		t.Errorf("found %q", got)
	}
}

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	script, plain, empty := filepath.Join(dir, "script"), filepath.Join(dir, "plain"), filepath.Join(dir, "empty")
	for path, mode := range map[string]os.FileMode{script: 0o755, empty: 0o755} {
		text := ""
		if path == script {
			text = "#!/bin/sh\n"
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	copyProgram(t, plain)
	if err := os.Chmod(plain, 0o644); err != nil {
		t.Fatal(err)
	}
	bash, err := exec.LookPath("true")
	if err != nil {
		t.Skip(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(bash, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{bash: true, link: true, script: false, plain: false, empty: false,
		dir: false, "/no/such": false} {
		if got := isELF(path); got != want {
			t.Errorf("program(%s) = %v", path, got)
		}
	}
}

// What a template does not set itself lets what is installed stay.
func TestFurnish(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want map[string]string
	}{
		{"nothing is set", nil, map[string]string{"PYTHONUSERBASE": UserBase, "npm_config_prefix": UserBase,
			"HOME": "/root",
			"PATH": UserBase + "/bin:/root/.local/bin:" + wire.FirstPrograms + ":" + systemPath + ":" + AgentPrograms}},
		{"its own path and home", map[string]string{"PATH": "/opt/bin", "HOME": "/home/me", "LANG": "de"},
			map[string]string{"LANG": "de",
				"HOME": "/home/me", "PATH": UserBase + "/bin:/home/me/.local/bin:" + wire.FirstPrograms + ":/opt/bin:" + AgentPrograms}},
		{"a home in the workspace", map[string]string{"HOME": "/workspace/me/", "GOCACHE": "/workspace/me/go"},
			map[string]string{"PIP_CACHE_DIR": "/tmp/.cache/pip", "UV_CACHE_DIR": "/tmp/.cache/uv",
				"npm_config_cache": "/tmp/.cache/npm", "GOMODCACHE": "/tmp/.cache/go-mod",
				"GOCACHE": "/workspace/me/go"}},
		{"turned off", map[string]string{"PYTHONUSERBASE": "", "PATH": "/bin"},
			map[string]string{"PATH": "/bin", "PYTHONUSERBASE": ""}},
	}
	for _, tt := range tests {
		tm := &Template{Env: tt.env}
		tm.AddDefaultEnv()
		for k, v := range tt.want {
			if got, ok := tm.Env[k]; !ok || got != v {
				t.Errorf("%s: %s is %q, want %q", tt.name, k, got, v)
			}
		}
		if _, isSet := tm.Env["PIP_CACHE_DIR"]; isSet != strings.HasPrefix(tm.Env["HOME"], "/workspace") {
			t.Errorf("%s: the cache of pip: %v", tt.name, isSet)
		}
		if tm.Env["PYTHONUSERBASE"] == "" && (tm.Env["npm_config_prefix"] != "" || tm.Env["GOBIN"] != "") {
			t.Errorf("%s: %v", tt.name, tm.Env)
		}
	}
}
