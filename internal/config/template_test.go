package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

func TestTemplateOfAnImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, `
templates:
  data:
    image: registry.example.com/team/data:2
    packages: {pip: [numpy==2.1.0, "pandas[excel]"], npm: ["@scope/tool@1"], apt: [git]}
    files:
      /etc/motd: hello
      /usr/local/bin/tool: {file: `+file+`}
      /opt/run: {text: "echo", mode: "0700"}
    start: mkdir -p data
    flavor: medium
    pool: 0
    runtime: gvisor
  two:
    image: debian
    start: [a, b]
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := c.Templates[0]
	if !d.Built() || d.Flavor != "medium" || d.Pool == nil || *d.Pool != 0 || d.Runtime != "gvisor" ||
		!slices.Equal(d.Start, []string{"mkdir -p data"}) || !slices.Equal(d.Packages.Npm, []string{"@scope/tool@1"}) {
		t.Errorf("template %+v", d)
	}
	for path, want := range map[string]File{"/etc/motd": {[]byte("hello"), 0o644},
		"/usr/local/bin/tool": {[]byte("#!/bin/sh\n"), 0o755}, "/opt/run": {[]byte("echo"), 0o700}} {
		if got := d.Files[path]; string(got.Content) != string(want.Content) || got.Mode != want.Mode {
			t.Errorf("%s: %q %o", path, got.Content, got.Mode)
		}
	}
	if two := c.Templates[1]; two.Built() || two.Pool != nil || !slices.Equal(two.Start, []string{"a", "b"}) {
		t.Errorf("template %+v", two)
	}
}

func TestWrongTemplates(t *testing.T) {
	tests := []struct {
		name, yaml string
		words      []string
	}{
		{"neither", "{}", []string{"rootfs", "image"}},
		{"both", "{image: a, rootfs: /}", []string{"image and rootfs"}},
		{"an image with a space", "{image: 'a b'}", []string{`"a b"`, "python:3.13-slim"}},
		{"an option as an image", "{image: --help}", []string{"--help"}},
		{"packages of a folder", "{rootfs: /, packages: {pip: [a]}, languages: [{name: a, command: [b]}]}",
			[]string{"need an image", "sandlot image import"}},
		{"a misspelled key", "{image: a, pakages: {pip: [a]}}", []string{`"pakages"`, `did you mean "packages"?`}},
		{"a misspelled manager", "{image: a, packages: {ppi: [a]}}", []string{`"ppi"`, `did you mean "pip"?`}},
		{"an option as a package", "{image: a, packages: {pip: [--index-url=x]}}", []string{"pip", "--index-url"}},
		{"a command as a package", "{image: a, packages: {apt: ['git;reboot']}}", []string{"apt", "git;reboot"}},
		{"a relative file", "{image: a, files: {etc/x: b}}", []string{"etc/x", "absolute"}},
		{"a file that leads out", "{image: a, files: {/etc/../x: b}}", []string{"clean"}},
		{"a file of the workspace", "{image: a, files: {/workspace/x: b}}", []string{"/workspace", "own"}},
		{"a file of the caches", "{image: a, files: {/root/.cache/x/y: b}}", []string{"/root/.cache", "not kept"}},
		{"a temporary file", "{image: a, files: {/var/tmp/x: b}}", []string{"/var/tmp", "not kept"}},
		{"the hosts", "{image: a, files: {/etc/hosts: b}}", []string{"Sandlot writes /etc/hosts itself"}},
		{"git's settings", "{image: a, files: {/etc/gitconfig: b}}", []string{"Sandlot writes /etc/gitconfig itself"}},
		{"a file of nothing", "{image: a, files: {/x: }}", []string{"/x", "{file: PATH}"}},
		{"a misspelled key of a file", "{image: a, files: {/x: {fiel: /y}}}", []string{`did you mean "file"?`}},
		{"a file that is not there", "{image: a, files: {/x: {file: /no/such}}}", []string{"/no/such"}},
		{"a relative file of the host", "{image: a, files: {/x: {file: y}}}", []string{"absolute"}},
		{"a folder as a file", "{image: a, files: {/x: {file: /}}}", []string{"regular file"}},
		{"an endless file", "{image: a, files: {/x: {file: /dev/zero}}}", []string{"regular file"}},
		{"a mode", "{image: a, files: {/x: {text: a, mode: '9'}}}", []string{"mode", "0755"}},
		{"setuid", "{image: a, files: {/x: {text: a, mode: '4755'}}}", []string{"mode", "0755"}},
		{"an empty start", "{image: a, start: ['']}", []string{"start"}},
		{"a pool", "{image: a, pool: 2000}", []string{"pool", "1000"}},
		{"a pool that is no number", "{image: a, pool: many}", []string{"many"}},
		{"a flavor", "{image: a, flavor: meduim}", []string{`flavor "meduim"`, `did you mean "medium"?`}},
		{"a runtime", "{image: a, runtime: gvisr}", []string{`runtime "gvisr"`, `did you mean "gvisor"?`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, "templates: {mine: "+tt.yaml+"}", nil, nil)
			if !fault.Is(err, fault.Configuration) {
				t.Fatalf("error %v, want a Configuration fault", err)
			}
			for _, w := range append(tt.words, "sandlot.yaml", "mine") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("message %q does not say %q", err, w)
				}
			}
		})
	}
	for _, name := range []string{"host", "My", "a/b", "-a", strings.Repeat("a", 70), "a.", "a..b", "a.-b", "a___b"} {
		if _, err := load(t, "templates: {"+name+": {image: a}}", nil, nil); !fault.Is(err, fault.Configuration) {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "0", "a-b", "a--b", "a_b", "a__b", "a.b-c_d", strings.Repeat("a", 63)} {
		if _, err := load(t, "templates: {"+name+": {image: a}}", nil, nil); err != nil {
			t.Error(err)
		}
	}
}

// SANDBOX_IMAGE makes a template, which is the default one unless the settings name another.
func TestSandboxImage(t *testing.T) {
	c, err := load(t, "", vars{"SANDBOX_IMAGE": "python:3.12-slim"}, nil)
	if err != nil || len(c.Templates) != 1 || c.Templates[0].Image != "python:3.12-slim" ||
		c.Sessions.DefaultTemplate != c.Templates[0].Name || c.Origin["default_template"] != "sandbox_image" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = load(t, "default_template: host", vars{"SANDBOX_IMAGE": "python:3.12-slim"}, nil)
	if err != nil || len(c.Templates) != 1 || c.Sessions.DefaultTemplate != "host" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err = load(t, "", vars{"SANDBOX_IMAGE": "a b"}, nil); !fault.Is(err, fault.Configuration) ||
		!strings.Contains(err.Error(), "SANDBOX_IMAGE") {
		t.Errorf("%v", err)
	}
	if _, err = load(t, "templates: {sandbox-image: {image: a}}", vars{"SANDBOX_IMAGE": "b"}, nil); err == nil {
		t.Error("two templates have one name")
	}
}

// POOL_SIZE with SANDBOX_IMAGE is how many sandboxes of that image wait, and Sandlot's own templates take none of the
// memory for them.
func TestPoolOfSandboxImage(t *testing.T) {
	for _, tt := range []struct {
		text      string
		env       vars
		image     int // -1: as the other templates
		own       int
		memory    int
		operators int // of the template mine
	}{
		{"", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "3"}, 3, 0, 8192, 0},
		{"", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "20"}, 20, 0, 20 << 10, 0},
		{"", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "40", "CONTAINER_MEMORY_LIMIT": "256m"}, 40, 0, 10 << 10, 0},
		{"pool_memory_mb: 4096\n", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "20"}, 20, 0, 4096, 0},
		{"pool_memory_mb: 0\n", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "20"}, 20, 0, 0, 0},
		{"", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "0"}, 0, 0, 8192, 0},
		{"", vars{"SANDBOX_IMAGE": "a"}, 2, 0, 8192, 0},
		{"", vars{"POOL_SIZE": "20"}, -1, 20, 8192, 0},
		{"default_template: host\n", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "3"}, -1, 3, 8192, 0},
		{"templates: {mine: {image: b}}\n", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "3"}, 3, 0, 8192, 3},
		{"templates: {mine: {image: b, pool: 1}}\n", vars{"SANDBOX_IMAGE": "a", "POOL_SIZE": "3"}, 3, 0, 8192, 1},
	} {
		c, err := load(t, tt.text, tt.env, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, operators := -1, 0
		for _, template := range c.Templates {
			switch {
			case template.Pool == nil:
			case template.Name == ImageTemplate:
				got = *template.Pool
			default:
				operators = *template.Pool
			}
		}
		if got != tt.image || operators != tt.operators || c.Runtime.OwnPoolSize != tt.own ||
			c.Runtime.PoolMemoryMB != tt.memory {
			t.Errorf("%s%v: %d of the image, %d of the operator's, %+v", tt.text, tt.env, got, operators, c.Runtime)
		}
	}
}

func TestRuntimes(t *testing.T) {
	tests := []struct {
		yaml, name string
		names      []string
		wrong      string
	}{
		{"", "gvisor", []string{"gvisor"}, ""},
		{"runtime: docker", "docker", []string{"docker"}, ""},
		{"runtimes: [gvisor, docker]", "gvisor", []string{"gvisor", "docker"}, ""},
		{"runtimes: [docker]", "docker", []string{"docker"}, ""},
		{"runtimes: [gvisor, docker]\nruntime: docker", "docker", []string{"gvisor", "docker"}, ""},
		{"runtimes: [docker]\nruntime: gvisor", "", nil, "must be one of runtimes: docker"},
		{"runtimes: [podman]", "", nil, "podman"},
		{"runtimes: [gvisor, docker, gvisor]", "", nil, "named twice"},
		{"runtime: docker\ntemplates: {a: {rootfs: /, languages: [{name: a, command: [b]}]}}", "", nil,
			"no sandboxes of a folder"},
		{"runtimes: [gvisor, docker]\n" +
			"templates: {a: {rootfs: /, runtime: docker, languages: [{name: a, command: [b]}]}}",
			"", nil, "no sandboxes of a folder"},
		{"runtimes: [docker, gvisor]\n" +
			"templates: {a: {rootfs: /, runtime: gvisor, languages: [{name: a, command: [b]}]}}",
			"gvisor", []string{"docker", "gvisor"}, ""},
		{"runtimes: [gvisor, docker]\ntemplates: {a: {image: b, runtime: docker}}", "gvisor",
			[]string{"gvisor", "docker"}, ""},
		{"network: {mode: open}\nauth: required", "gvisor", []string{"gvisor"}, ""},
		{"network: {mode: open}\nauth: required\nruntimes: [gvisor, docker]", "", nil,
			"the runtime docker gives no sandbox"},
		{"templates: {a: {image: b, runtime: docker}}", "", nil, `runtime "docker" must be one of gvisor`},
	}
	for _, tt := range tests {
		c, err := load(t, tt.yaml, nil, nil)
		switch {
		case tt.wrong != "":
			if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v", tt.yaml, err)
			}
		case err != nil || c.Runtime.Name != tt.name || !slices.Equal(c.Runtime.Names, tt.names):
			t.Errorf("%s: %+v, %v", tt.yaml, c.Runtime, err)
		}
	}
}
