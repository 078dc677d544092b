package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadyPackages: the machine's ready packages are made in the background, and are in each new sandbox then: behind
// what its user installs, the same for all, and nobody's to change. Sleep and restarts keep them.
func TestReadyPackages(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=six==1.16.0,tabulate,uv", "SANDLOT_PACKAGES_NODE=semver@7.7.2",
		"SANDLOT_POOL_SIZE=1", "SANDLOT_SNAPSHOTS=true")...)
	c := s.connect(older, "", nil)
	if r := c.shell("new", "ls /opt/sandlot"); !strings.Contains(r.All, "No such file") {
		t.Errorf("before: %q", r.All)
	}
	until(t, "the packages are made", func() bool {
		return strings.Count(s.log.String(), "the ready packages are there") == 2
	})
	id := ""
	until(t, "a new sandbox has them", func() bool {
		r := c.shell("new", "python3 -c 'import six, tabulate; print(six.__version__)'; command -v tabulate >/dev/null && echo ok; "+
			"node -e \"console.log(require('semver').inc('1.2.3', 'minor'))\"; semver 1.2.3")
		id = r.session()
		return r.Text == "1.16.0\nok\n1.3.0\n1.2.3"
	})
	if r := c.code(id, "import six; x = 41; six.__file__"); !strings.Contains(r.Text, "/opt/sandlot/python/six.py") {
		t.Errorf("a cell: %q", r.All)
	}
	if got := s.connect(older, "", nil); !strings.Contains(s.instructions(got), "Python has six, tabulate, uv") {
		t.Errorf("the instructions: %q", s.instructions(got))
	}
	// What the user installs comes first, and virtual environments have their own.
	for command, want := range map[string]string{
		"pip install -q six==1.17.0 && python3 -c 'import six; print(six.__version__)'":                         "1.17.0",
		"pip install tabulate | grep -c 'satisfied: tabulate in /opt/sandlot'":                                  "1",
		"pip install iniconfig tabulate 2>&1 | grep -c '^ + '; python3 -c 'import iniconfig'":                   "1",                      // by uv
		"pip3 install --no-input toolz | tail -1 | cut -c1-22; python3 -c 'import toolz'":                       "Successfully installed", // by pip
		"python3 -m venv /tmp/v && /tmp/v/bin/python -c 'import tabulate' 2>&1 | tail -1":                       "ModuleNotFoundError: No module named 'tabulate'",
		"cd /opt/sandlot/python; touch x; echo 1 > six.py; chmod 777 .; rm -rf six.py; mv six.py y; echo tried": "tried",
	} {
		if r := c.shell(id, "{ "+command+"; } 2>/dev/null"); r.Text != want {
			t.Errorf("%s: %q", command, r.All)
		}
	}
	found, _ := filepath.Glob(filepath.Join(s.State, "packages/python/*/six.py"))
	if len(found) != 1 {
		t.Fatalf("%q", found)
	}
	if text, err := os.ReadFile(found[0]); err != nil || !strings.Contains(string(text), `__version__ = "1.16.0"`) {
		t.Errorf("a sandbox has changed them: %v %.100s", err, text)
	}
	if r := c.shell("new", "python3 -c 'import six; print(six.__version__)'"); r.Text != "1.16.0" {
		t.Errorf("another session has %q", r.All)
	}
	s.restart()
	c = s.connect(older, "", nil)
	if r := c.code(id, "import tabulate; x + 1"); r.Text != "42" {
		t.Errorf("after a restart: %q", r.All)
	}
	if n := strings.Count(s.log.String(), "making the ready packages"); n != 2 {
		t.Errorf("they were made %d times", n)
	}
}

// instructions returns the instructions that a client got.
func (s *server) instructions(c *client) string {
	s.t.Helper()
	if r := c.InitializeResult(); r != nil {
		return r.Instructions
	}
	return ""
}

// TestTypeScript: TypeScript runs on any Node: types go, what is more than types works, and state stays.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_PACKAGES_NODE=typescript@5.9.3")...)
	c := s.connect(older, "", nil)
	until(t, "the packages are made", func() bool { return strings.Contains(s.log.String(), "the ready packages are there") })
	id := ""
	until(t, "a new sandbox has them", func() bool {
		r := c.shell("new", "ls /opt/sandlot/node")
		id = r.session()
		return strings.Contains(r.Text, "node_modules")
	})
	for _, x := range []struct{ code, want string }{
		{"interface P { x: number }\nconst p: P = { x: 41 }\np.x + 1", "42"},
		{"enum Colour { Red = 3 }\nColour.Red + (p as P).x", "44"},
		{"import { readFileSync } from 'node:fs'\ntype T = string", ""},
		{"readFileSync('/etc/hostname', 'utf8').trim() as T", "sandbox"},
		{"await Promise.resolve<number>(p!.x)", "41"},
		{"class A<T> { constructor(private readonly v: T) {} get(): T { return this.v } }\nnew A<number>(7).get()", "7"},
		{"let broken: number = = 1", "SyntaxError"},
		{"p.x", "41"},
	} {
		r := c.call("execute_code", args{"session_id": id, "language": "typescript", "code": x.code})
		if !strings.Contains(r.All, x.want) || r.IsError != (x.want == "SyntaxError") {
			t.Errorf("%s: %q", x.code, r.All)
		}
	}
}

// TestReadyGo: Go takes from the machine's build cache what is there, and keeps the rest in the sandbox's own; no sandbox
// changes what the others get.
func TestReadyGo(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=none", "SANDLOT_PACKAGES_NODE=none",
		"SANDLOT_PACKAGES_GO=internal/goarch")...)
	c := s.connect(older, "", nil)
	until(t, "the cache is made", func() bool { return strings.Contains(s.log.String(), "the ready packages are there") })
	const where = "go list -export -f '{{.Export}}' internal/goarch internal/goos | cut -d/ -f1-4"
	id := ""
	until(t, "a new sandbox has it", func() bool {
		r := c.shell("new", where)
		id = r.session()
		return strings.HasPrefix(r.Text, "/opt/sandlot/go\n") && !strings.Contains(strings.TrimPrefix(r.Text, "/opt/sandlot/go"), "/opt")
	})
	if r := c.shell(id, "f=$(go list -export -f '{{.Export}}' internal/goarch); echo evil > $f; rm -f $f; ls -l $f | wc -l; "+
		"go clean -cache; "+where+" | head -1"); !strings.HasSuffix(r.Text, "1\n/opt/sandlot/go") {
		t.Errorf("after an attempt to change it: %q", r.All)
	}
	if r := c.shell("new", where+" | head -1; strings $(go list -export -f '{{.Export}}' internal/goarch) | grep -c evil"); !strings.HasPrefix(
		r.Text, "/opt/sandlot/go\n0") {
		t.Errorf("another session has %q", r.All)
	}
}
