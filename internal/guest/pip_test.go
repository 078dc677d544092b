package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/agent/wire"
)

// TestPip: "pip install" is uv's where uv can do it, and pip does the rest.
func TestPip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for file, text := range map[string]string{"uv": "#!/bin/sh\necho uv \"$@\"\ncase $* in *odd*) exit 2;; *gone*) exit 1;; esac\n",
		"site/pip.py": "import sys\nprint('pip', *sys.argv[1:])\n", "site/there-1.5.dist-info/METADATA": "Name: there\nVersion: 1.5\n",
		"script": pip} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// An environment has a Python of its own, into which uv installs.
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", filepath.Join(dir, "venv")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	python := filepath.Join(dir, "venv/bin/python")
	run := func(words string, env ...string) string {
		cmd := exec.Command(python, append([]string{filepath.Join(dir, "script")}, strings.Fields(words)...)...)
		cmd.Env = append([]string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir, "PYTHONPATH=" + filepath.Join(dir, "site"),
			"PIP_BREAK_SYSTEM_PACKAGES=1"}, env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			out = append(out, err.Error()...)
		}
		return strings.ReplaceAll(string(out), python, "PYTHON")
	}
	for words, want := range map[string]string{
		"install a":                   "uv pip install --python PYTHON a\n",
		"install -q a b==1 c[x]>=2":   "uv pip install --python PYTHON -q a b==1 c[x]>=2\n",
		"install -r requirements.txt": "uv pip install --python PYTHON -r requirements.txt\n",
		"install there":               "Requirement already satisfied: there (1.5)\n",
		"install There a":             "Requirement already satisfied: There (1.5)\nuv pip install --python PYTHON a\n",
		"install there==2":            "uv pip install --python PYTHON there==2\n",
		"install gone":                "uv pip install --python PYTHON gone\nexit status 1",
		"install odd":                 "uv pip install --python PYTHON odd\npip install odd\n",
		"install -U a":                "pip install -U a\n",
		"install --target x a":        "pip install --target x a\n",
		"install -e .":                "pip install -e .\n",
		"install":                     "pip install\n",
		"list":                        "pip list\n",
		"":                            "pip\n",
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
	config := filepath.Join(dir, ".config/pip/pip.conf")
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := run("install a"); got != "pip install a\n" {
		t.Errorf("with settings of pip: %q", got)
	}
}

// TestAddPip: pip is in front of the first pip that a Python runs, and of no other kind.
func TestAddPip(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{"#!/usr/bin/python3\n": "#!/usr/bin/python3\n" + pip, "#!/opt/conda/bin/python\n": "#!/opt/conda/bin/python\n" + pip,
		"#!/usr/bin/env bash\n": "", "#!/usr/bin/env python3\n": "", "\x7fELF": "", "": ""} {
		h := home{root: t.TempDir(), env: map[string]string{"PATH": "/workspace/.local/bin:" + wire.FirstPrograms + ":/opt/bin:/usr/bin"}}
		tree(t, h.root, "usr/bin/pip", "workspace/.local/bin/pip")
		if err := os.WriteFile(h.inRoot("/usr/bin/pip"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		h.addPip()
		got, _ := os.ReadFile(h.inRoot(wire.FirstPrograms + "/pip"))
		if string(got) != want || h.exists(wire.FirstPrograms+"/pip3") {
			t.Errorf("before a pip of %q: %.60q", script, got)
		}
	}
}
