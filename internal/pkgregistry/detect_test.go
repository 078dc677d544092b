package pkgregistry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func lay(t *testing.T, s Set) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range s.Files() {
		write(t, dir, name, text)
	}
	return dir
}

// bare makes the test's environment that of a user without any settings.
func bare(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"pip_", "npm_config_", "go", "uv_", "xdg_"} {
			if lower := strings.ToLower(name); strings.HasPrefix(lower, prefix) && lower != "gocoverdir" {
				t.Setenv(name, "")
				os.Unsetenv(name)
			}
		}
	}
	home, err := os.MkdirTemp("", "home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) }) // Go may still be counting something in it
	t.Setenv("HOME", home)
	t.Setenv("NO_UPDATE_NOTIFIER", "1") // npm is to ask nobody
}

// tools makes programs of these names the only ones. Each is a shell script.
func tools(t *testing.T, scripts map[string]string) string {
	t.Helper()
	bare(t)
	dir := t.TempDir()
	for name, script := range scripts {
		write(t, dir, name, "#!/bin/sh\n"+script+"\n")
	}
	t.Setenv("PATH", dir)
	return dir
}

// says is a script that prints text.
func says(text string) string { return "/bin/cat <<'END'\n" + text + "\nEND" }

const (
	npmSays = `; "default" config from default values
registry = "https://npm.test/"
replace-registry-host = "hunter2"
; "user" config from /home/hunter2/.npmrc
//corp.test/:_authToken = "hunter2"
@corp:registry = "https://u:hunter2@corp.test:8443/npm/"`
	pipSays = `{"default": "https://index.test/simple", "files": "files.test", "config": {"global.cert": "/etc/x"}}`
	goSays  = `{"GOPROXY": "https://proxy.test,direct", "GOSUMDB": "sum.test", "GOPRIVATE": "", "GOFLAGS": "-mod=mod"}`
)

func detect(t *testing.T, named map[string]string) Set {
	t.Helper()
	s, err := Detect(t.Context(), named)
	if err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprint(s, s.Files(), s.Env()); strings.Contains(all, secret) {
		t.Errorf("a secret came out: %s", all)
	}
	return s
}

func TestDetect(t *testing.T) {
	tools(t, map[string]string{"npm": says(npmSays), "python3": says(pipSays), "go": says(goSays)})
	want := Set{NPM: "https://npm.test/", Scopes: map[string]string{"@corp": "https://corp.test:8443/npm/"},
		PyPI: "https://index.test/simple", Go: "https://proxy.test,direct", GoSumDB: "sum.test",
		Hosts: []Host{{"corp.test", 8443}, {"files.test", 443}, {"index.test", 443}, {"npm.test", 443},
			{"proxy.test", 443}, {"sum.test", 443}}}
	got := detect(t, nil)
	if len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "@corp:registry") {
		t.Errorf("notes %q, want one of the credentials", got.Notes)
	}
	got.Notes = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
}

func TestNoTools(t *testing.T) {
	tools(t, nil)
	if got := detect(t, nil); !reflect.DeepEqual(got, Set{}) {
		t.Errorf("%+v, want nothing", got)
	}
}

// What the operator names counts alone.
func TestNamed(t *testing.T) {
	dir := tools(t, map[string]string{"npm": "echo x >>$0.asked", "python3": says(pipSays), "go": says(goSays)})
	for name, c := range map[string]struct {
		named map[string]string
		want  Set
	}{
		"none": {map[string]string{}, Set{}},
		"npm": {map[string]string{"npm": "https://mirror.test/npm"},
			Set{NPM: "https://mirror.test/npm", NPMMirror: true, Hosts: []Host{{"mirror.test", 443}}}},
		"pypi": {map[string]string{"pypi": "https://mirror.test/simple"},
			Set{PyPI: "https://mirror.test/simple", Hosts: []Host{{"mirror.test", 443}}}},
		"plain HTTP": {map[string]string{"pypi": "http://mirror.test:81/simple"},
			Set{PyPI: "http://mirror.test:81/simple", PyPITrusted: []string{"mirror.test"},
				Hosts: []Host{{"mirror.test", 81}}}},
		"pip's own": {map[string]string{"pypi": "https://index.test/simple/"},
			Set{PyPI: "https://index.test/simple/", Hosts: []Host{{"files.test", 443}, {"index.test", 443}}}},
		"go": {map[string]string{"go": "https://mirror.test/go|off"},
			Set{Go: "https://mirror.test/go|off", GoSumDB: "sum.test",
				Hosts: []Host{{"mirror.test", 443}, {"sum.test", 443}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := detect(t, c.named); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v\nwant\n%+v", got, c.want)
			}
		})
	}
	if _, err := os.Stat(dir + "/npm.asked"); err == nil {
		t.Error("npm was asked, though its registry is named or off")
	}
	if _, err := Detect(t.Context(), map[string]string{"npm": "https://user:hunter2@mirror.test"}); err == nil {
		t.Error("a named address with a password is taken")
	}
}

func TestPipSettings(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   Set
		notes  int
	}{
		"mirror": {`"global.index-url": "https://mirror.test/simple"`,
			Set{PyPI: "https://mirror.test/simple", Hosts: []Host{{"mirror.test", 443}}}, 0},
		"order": {`"global.index-url": "https://a.test", "install.index-url": "https://b.test", ":env:.index-url": "https://c.test", "user.index-url": "https://d.test"`,
			Set{PyPI: "https://c.test", Hosts: []Host{{"c.test", 443}}}, 0},
		"section": {`"global.index-url": "https://a.test", "install.index-url": "https://b.test", ":env:.index-url": ""`, Set{PyPI: "https://b.test", Hosts: []Host{{"b.test", 443}}}, 0},
		"extra": {`"global.extra-index-url": "\nhttps://a.test/s\n https://u:hunter2@b.test/s", "global.trusted-host": "a.test b.test:8443 localhost [fd00::1] bad/host"`,
			Set{PyPI: "https://index.test/simple", PyPIExtra: []string{"https://a.test/s", "https://b.test/s"},
				PyPITrusted: []string{"a.test", "b.test:8443", "[fd00::1]"},
				Hosts:       []Host{{"a.test", 443}, {"b.test", 443}, {"files.test", 443}, {"index.test", 443}}}, 2},
		"no index": {`":env:.no-index": "1", "global.extra-index-url": "https://a.test"`, Set{}, 1},
		"credentials": {`"global.index-url": "https://u:hunter2@mirror.test/s?hunter2"`,
			Set{PyPI: "https://mirror.test/s", Hosts: []Host{{"mirror.test", 443}}}, 1},
		"a file":   {`"global.index-url": "file:///home/hunter2/s", "global.find-links": "/home/hunter2", "global.cert": "/hunter2"`, Set{}, 1},
		"loopback": {`"global.index-url": "http://localhost:3141/hunter2/s"`, Set{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tools(t,
				map[string]string{"python3": says(`{"default": "https://index.test/simple", "files": "files.test", "config": {` + c.config + `}}`)})
			got := detect(t, nil)
			if len(got.Notes) != c.notes {
				t.Errorf("notes %q, want %d", got.Notes, c.notes)
			}
			got.Notes = nil
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func TestUVAlone(t *testing.T) {
	tools(t, map[string]string{"uv": says("      --default-index <DEFAULT_INDEX>\n          The default package " +
		"index (by\n          default: <https://index.test/simple>) [env: UV_DEFAULT_INDEX]")})
	s := detect(t, nil)
	if s.PyPI != "https://index.test/simple" || len(s.Notes) != 1 {
		t.Errorf("%+v, want uv's index and a note that its files' host is not known", s)
	}
}

func TestGoSettings(t *testing.T) {
	for name, c := range map[string]struct {
		proxy, sum, private string
		want                Set
		notes               int
	}{
		"list": {"https://a.test/go|https://b.test,direct", "", "",
			Set{Go: "https://a.test/go|https://b.test,direct", Hosts: []Host{{"a.test", 443}, {"b.test", 443}}}, 0},
		"off": {"off", "off", "", Set{Go: "off", GoSumDB: "off"}, 0},
		"credentials": {"https://u:hunter2@a.test,direct", "off", "",
			Set{Go: "https://a.test,direct", GoSumDB: "off", Hosts: []Host{{"a.test", 443}}}, 1},
		"files": {"file:///hunter2|https://a.test,file:///hunter2,off", "", "",
			Set{Go: "https://a.test,off", Hosts: []Host{{"a.test", 443}}}, 2},
		"only a file": {"file:///hunter2", "", "", Set{}, 1},
		"empty":       {", ,", "", "", Set{}, 0},
		"a key": {"direct", "sum.test+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8", "",
			Set{Go: "direct", GoSumDB: "sum.test+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8",
				Hosts: []Host{{"sum.test", 443}}}, 0},
		"a key and URL": {"direct", "sum.test+033de0ae+Ac4z= https://u:hunter2@mirror.test:1/sumdb", "",
			Set{Go: "direct", GoSumDB: "sum.test+033de0ae+Ac4z= https://mirror.test:1/sumdb",
				Hosts: []Host{{"mirror.test", 1}}}, 1},
		"a bad URL":   {"direct", "sum.test file:///hunter2", "", Set{Go: "direct"}, 1},
		"a bad name":  {"direct", "user:hunter2@sum.test", "", Set{Go: "direct"}, 1},
		"three words": {"direct", "sum.test https://a.test hunter2", "", Set{Go: "direct"}, 1},
		"private": {"direct", "off", "*.corp.test,git.test/team/[a-c]*",
			Set{Go: "direct", GoSumDB: "off",
				GoEnv: map[string]string{"GOPRIVATE": "*.corp.test,git.test/team/[a-c]*"}},
			0},
		"odd private": {"direct", "off", "https://u:hunter2@git.test", Set{Go: "direct", GoSumDB: "off"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tools(t, map[string]string{"go": says(fmt.Sprintf(`{"GOPROXY": %q, "GOSUMDB": %q, "GOPRIVATE": %q}`,
				c.proxy, c.sum, c.private))})
			got := detect(t, nil)
			if len(got.Notes) != c.notes {
				t.Errorf("notes %q, want %d", got.Notes, c.notes)
			}
			got.Notes = nil
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// A tool may fail, lie or talk without end: the others are still asked.
func TestOddTools(t *testing.T) {
	for name, script := range map[string]string{
		"fails":          says(npmSays) + "\nexit 3",
		"is silent":      "exit 0",
		"is JSON":        says(`{"registry": "https://hunter2@npm.test"}`),
		"no URL":         says(`registry = "undefined hunter2"`),
		"another scheme": says(`registry = "javascript:hunter2"`),
		"lines":          says(`registry = "https://npm.test/\nignore-scripts=false"`),
		"bad escape":     says(`registry = "https://npm.test/\x"`),
		"no end":         says(`registry = "https://npm.test/`),
		"odd scopes": says("@UPPER:registry = \"https://x.test\"\n@:registry = \"https://x.test\"\n@a/b:registry " +
			"= \"https://x.test\""),
		"floods": "exec /bin/cat /dev/zero",
		"floods slyly": "trap '' PIPE; while :; do echo " +
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 2>/dev/null; done",
		"hangs":        "/bin/sleep 1000",
		"ignores TERM": "trap '' TERM INT HUP; /bin/sleep 1000; /bin/sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			short(t, 3*time.Second)
			tools(t, map[string]string{"npm": script, "python3": says(pipSays), "go": says(goSays)})
			start := time.Now()
			s := detect(t, nil)
			if d := time.Since(start); d > time.Minute {
				t.Errorf("it took %v", d)
			}
			if s.NPM != "" || s.Scopes != nil || s.PyPI == "" || s.Go == "" {
				t.Errorf("%+v", s)
			}
			if len(s.Notes) != 1 || strings.HasPrefix(name, "floods") &&
				!strings.Contains(s.Notes[0], errTooMuchOutput.Error()) {
				t.Errorf("notes %q, want one", s.Notes)
			}
		})
	}
}

func short(t *testing.T, d time.Duration) {
	t.Helper()
	old := toolTimeout
	toolTimeout = d
	t.Cleanup(func() { toolTimeout = old })
}

// Nothing of a tool lives on: neither it nor what it started.
func TestNothingIsLeft(t *testing.T) {
	short(t, 2*time.Second)
	dir := tools(t, map[string]string{"go": "echo $$ >$0.pid; /bin/sleep 1000 & echo $! >$0.child; wait"})
	if s := detect(t, nil); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "did not answer within") {
		t.Errorf("notes %q", s.Notes)
	}
	for _, name := range []string{"go.pid", "go.child"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Minute)
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("%s lives on", name)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// alive reports whether a process runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// A tool that is done but left something behind has answered.
func TestBackgroundChild(t *testing.T) {
	tools(t, map[string]string{"go": says(goSays) + "\n/bin/sleep 1000 &"})
	start := time.Now()
	if s := detect(t, nil); s.Go == "" || len(s.Notes) > 0 {
		t.Errorf("%+v", s)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("it took %v", d)
	}
}

func TestCancel(t *testing.T) {
	tools(t, map[string]string{"npm": "/bin/sleep 1000", "python3": "/bin/sleep 1000", "go": "/bin/sleep 1000"})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Detect(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that the time was over", err)
	}
}

// What the tools are asked is asked at the root, where no project is.
func TestAskedAtRoot(t *testing.T) {
	tools(t,
		map[string]string{"go": `echo "{\"GOPROXY\": \"https://proxy.test$(pwd)\", \"GOSUMDB\": \"$GOTOOLCHAIN.test\"}"`})
	if s := detect(t, nil); s.Go != "https://proxy.test/" || s.GoSumDB != "local.test" {
		t.Errorf("%+v", s)
	}
}

// realPython is the python3 of the machine itself: a version manager's shim
// depends on what bare takes away.
func realPython(t *testing.T) string {
	t.Helper()
	out, err := run(t.Context(), nil, "python3", "-c", "import sys; print(sys.executable)")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// real makes the machine's own tools the only ones, without any settings.
func real(t *testing.T) {
	t.Helper()
	python, path := realPython(t), os.Getenv("PATH")
	dir := tools(t, nil)
	if python != "" {
		link(t, python, filepath.Join(dir, "python3"))
	}
	for _, name := range []string{"npm", "node", "go"} {
		for _, d := range filepath.SplitList(path) {
			if p, err := exec.LookPath(filepath.Join(d, name)); err == nil {
				link(t, p, filepath.Join(dir, name))
				break
			}
		}
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin") // npm needs env
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// fakePip makes a pip that the real python3 imports.
func fakePip(t *testing.T, files map[string]string) {
	t.Helper()
	python := realPython(t)
	if python == "" {
		t.Skip("no python3")
	}
	link(t, python, filepath.Join(tools(t, nil), "python3"))
	modules := t.TempDir()
	for name, text := range files {
		write(t, modules, "pip/"+name, text)
	}
	t.Setenv("PYTHONPATH", modules)
}

const fakePipMain = `import sys
if sys.argv[1:] == ["config", "list"]:
    print("global.trusted-host='\\nmirror.test\\n'"); print("odd line"); print("x=__import__('os')"); print("global.extra-index-url='https://extra.test/s'")
else:
    print("  -i, --index-url <url>  Base URL of the Python Package Index (default\n     https://index.test/simple). This should"); print(sys.argv, file=sys.stderr)
`

func TestPipScript(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		hosts []Host
	}{
		"with its modules": {map[string]string{"__init__.py": "", "_internal/__init__.py": "",
			"_internal/models/__init__.py": "",
			"_internal/models/index.py": "class PyPI: simple_url = 'https://index.test/simple'; file_storage_domain " +
				"= 'files.test'", "__main__.py": fakePipMain},
			[]Host{{"extra.test", 443}, {"files.test", 443}, {"index.test", 443}}},
		"of another version": {map[string]string{"__init__.py": "", "__main__.py": fakePipMain},
			[]Host{{"extra.test", 443}, {"index.test", 443}}},
	} {
		t.Run(name, func(t *testing.T) {
			fakePip(t, c.files)
			s := detect(t, nil)
			if s.PyPI != "https://index.test/simple" || !reflect.DeepEqual(s.Hosts, c.hosts) ||
				!reflect.DeepEqual(s.PyPITrusted, []string{"mirror.test"}) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A pip that breaks or floods is not asked for more than it has.
func TestPipScriptOdd(t *testing.T) {
	short(t, 5*time.Second)
	for name, main := range map[string]string{
		"breaks": "raise SystemExit(1)",
		"floods": "while True: print('x' * 1000)",
	} {
		t.Run(name, func(t *testing.T) {
			fakePip(t, map[string]string{"__init__.py": "", "__main__.py": main})
			if s := detect(t, nil); s.PyPI != "" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The machine's real tools understand our questions.
func TestRealTools(t *testing.T) {
	real(t)
	home := os.Getenv("HOME")
	write(t, home, ".npmrc", "registry=https://u:hunter2@npm.test/x/\n@corp:registry=https://corp.test/\n"+
		"//npm.test/x/:_authToken=hunter2\n")
	write(t, home, ".config/pip/pip.conf",
		"[global]\nindex-url = https://u:hunter2@pip.test/simple\nextra-index-url =\n    https://a.test/s\n    "+
			"https://b.test/s\n[install]\ntrusted-host = pip.test\n")
	t.Setenv("GOENV", write(t, home, "goenv",
		"GOPROXY=https://u:hunter2@go.test,direct\nGOSUMDB=off\nGOPRIVATE=*.corp.test\n"))
	s := detect(t, nil)
	if found(t, "npm") && (s.NPM != "https://npm.test/x/" || !s.NPMMirror ||
		!maps.Equal(s.Scopes, map[string]string{"@corp": "https://corp.test/"})) {
		t.Errorf("npm: %q, %v", s.NPM, s.Scopes)
	}
	if found(t, "python3") && (s.PyPI != "https://pip.test/simple" ||
		!reflect.DeepEqual(s.PyPIExtra, []string{"https://a.test/s", "https://b.test/s"}) ||
		!reflect.DeepEqual(s.PyPITrusted, []string{"pip.test"})) {
		t.Errorf("pip: %q, %q, %q", s.PyPI, s.PyPIExtra, s.PyPITrusted)
	}
	if found(t, "go") && (s.Go != "https://go.test,direct" || s.GoSumDB != "off" ||
		s.GoEnv["GOPRIVATE"] != "*.corp.test") {
		t.Errorf("go: %q, %q, %v", s.Go, s.GoSumDB, s.GoEnv)
	}
	t.Setenv("npm_config_registry", "https://env.test/")
	t.Setenv("PIP_INDEX_URL", "https://env.test/simple")
	t.Setenv("GOPROXY", "https://env.test")
	s = detect(t, nil)
	if found(t, "npm") && s.NPM != "https://env.test/" || found(t, "python3") && s.PyPI != "https://env.test/simple" ||
		found(t, "go") && s.Go != "https://env.test" {
		t.Errorf("variables: %q, %q, %q", s.NPM, s.PyPI, s.Go)
	}
}

// Without any setting, the tools name their own defaults.
func TestRealDefaults(t *testing.T) {
	real(t)
	start := time.Now()
	s := detect(t, nil)
	t.Logf("%v, %d hosts, notes %q", time.Since(start), len(s.Hosts), s.Notes)
	if found(t, "npm") && (s.NPM == "" || s.NPMMirror) {
		t.Errorf("npm: %q, a mirror: %v", s.NPM, s.NPMMirror)
	}
	if found(t, "python3") && s.PyPI == "" {
		t.Error("pip has no default")
	}
}

// found reports whether the machine has a tool; python3 stands for its pip.
// found reports whether the machine has a tool; python3 stands for its pip.
func found(t *testing.T, name string) bool {
	t.Helper()
	if name == "python3" {
		_, err := run(t.Context(), nil, name, "-c", "import pip")
		return err == nil
	}
	_, err := exec.LookPath(name)
	return err == nil
}
