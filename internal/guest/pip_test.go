package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/agent/wire"
)

// uvStub resolves each package to version 1, and "needs" to what it needs as well: "there", whatever its version, and
// "more". It installs nothing.
const uvStub = `#!/bin/sh
if [ "$2" != compile ]; then echo "uv $*"; exit; fi
for file; do :; done
there=$(sed -n 's/^there==//p' "${file%/*}/constraints.txt")
tr A-Z a-z < "$file" | while read -r word; do
	case $word in
	there==* | there\[x]==*) [ "${there:-${word#*==}}" = "${word#*==}" ] || exit 1; echo "$word" ;;
	*==*) echo "$word" ;;
	gone*) exit 1 ;;
	odd*) echo "odd @ file:///x" ;;
	there*) echo "there==${there:-9}" ;;
	needs) echo needs==1; echo "there==${there:-9}"; echo more==1 ;;
	*) echo "${word%%[<>]*}==1" ;;
	esac
done
`

// TestPip: "pip install" is uv's where uv does the same as pip, and nothing that is there changes by it. All else is pip's.
func TestPip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("uv", uvStub)
	write("site/pip.py", "import sys\nprint('pip', *sys.argv[1:])\n")
	write("site/there-1.5.dist-info/METADATA", "Name: There\nVersion: 1.5\n")
	write("script", strings.ReplaceAll(pip, `"/etc/`, `"`+dir+"/etc/"))
	// An environment has a Python of its own, into which uv installs.
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", filepath.Join(dir, "venv")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	python := filepath.Join(dir, "venv/bin/python")
	run := func(words string, env ...string) string {
		cmd := exec.Command(python, append([]string{filepath.Join(dir, "script")}, strings.Fields(words)...)...)
		cmd.Dir = dir
		cmd.Env = append([]string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir, "PYTHONPATH=" + filepath.Join(dir, "site"),
			"PIP_BREAK_SYSTEM_PACKAGES=1"}, env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			out = append(out, err.Error()...)
		}
		return strings.ReplaceAll(string(out), "uv pip install --no-deps --python "+python+
			" --only-binary :all: --index-strategy unsafe-best-match --no-config", "UV")
	}
	for words, want := range map[string]string{
		"install a":                    "UV a==1\n",
		"install -q a b==3 c[x]>=1":    "UV -q a==1 b==3 c[x]==1\n",
		"install needs":                "UV needs==1 more==1\n",
		"install there a":              "UV a==1\n",
		"install there==2":             "UV there==2\n",
		"install there[x]==2":          "UV there[x]==2\n",
		"install there":                "pip install there\n", // pip says that it is there
		"install THERE>=1 -q":          "pip install THERE>=1 -q\n",
		"install gone":                 "pip install gone\n", // and what is wrong
		"install odd":                  "pip install odd\n",
		"install -U a":                 "pip install -U a\n",
		"install --target x a":         "pip install --target x a\n",
		"install -r requirements.txt":  "pip install -r requirements.txt\n",
		"install -e .":                 "pip install -e .\n",
		"install .":                    "pip install .\n",
		"install ./a":                  "pip install ./a\n",
		"install site":                 "pip install site\n", // a folder
		"install git+https://x.test/a": "pip install git+https://x.test/a\n",
		"install":                      "pip install\n",
		"list":                         "pip list\n",
		"":                             "pip\n",
	} {
		if got := run(words); got != want {
			t.Errorf("pip %s: %q, want %q", words, got, want)
		}
	}
	for _, env := range []string{"PIP_INDEX_URL=https://packages.test/simple", "PATH=/usr/bin:/bin"} {
		if got := run("install a", env); got != "pip install a\n" {
			t.Errorf("with %s: %q", env, got)
		}
	}
	for _, config := range []string{".config/pip/pip.conf", ".pip/pip.conf", "venv/pip.conf", "venv/conda-meta/x", "etc/pip.conf"} {
		write(config, "")
		if got := run("install a"); got != "pip install a\n" {
			t.Errorf("with %s: %q", config, got)
		}
		if err := os.RemoveAll(filepath.Join(dir, filepath.Dir(config), filepath.Base(config))); err != nil {
			t.Fatal(err)
		}
		os.Remove(filepath.Join(dir, "venv/conda-meta"))
	}
	write("etc/pip.conf", "")
	write("etc/uv/uv.toml", "") // Sandlot wrote both
	if got := run("install a"); !strings.Contains(got, "--config-file "+dir+"/etc/uv/uv.toml a==1") {
		t.Errorf("with settings of both: %q", got)
	}
}

// TestAddPip: pip is in front of the first pip that a Python runs, and of no other kind.
func TestAddPip(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{"#!/usr/bin/python3\n": "#!/usr/bin/python3\n", "#!/opt/conda/bin/python\n": "#!/opt/conda/bin/python\n",
		"#!/usr/bin/env bash\n": "", "#!/usr/bin/env python3\n": "", "\x7fELF": "", "": ""} {
		h := home{root: t.TempDir(), env: map[string]string{"PYTHONUSERBASE": "/workspace/.local",
			"PATH": "/workspace/.local/bin:" + wire.FirstPrograms + ":/workspace/venv/bin:/opt/bin:/usr/bin"}}
		tree(t, h.root, "usr/bin/pip", "workspace/.local/bin/pip", "workspace/venv/bin/pip")
		if err := os.WriteFile(h.inRoot("/usr/bin/pip"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		h.addPip()
		got, _ := os.ReadFile(h.inRoot(wire.FirstPrograms + "/pip"))
		if (want == "") != (len(got) == 0) || !strings.HasPrefix(string(got), want) || h.exists(wire.FirstPrograms+"/pip3") {
			t.Errorf("before a pip of %q: %.60q", script, got)
		}
		if text, err := os.ReadFile(h.inRoot(pipProgram)); err != nil || !strings.Contains(string(text), `BASE = "/workspace/.local"`) {
			t.Errorf("%v %.200q", err, text)
		}
	}
}
