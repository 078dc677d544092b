package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/fault"
)

// load reads settings from a file with that text and nothing else of the machine.
func load(t *testing.T, yaml string, env, flags map[string]string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandlot.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{File: path, Env: env, Flags: flags})
}

func row(t *testing.T, c *Config, key string) Row {
	t.Helper()
	for _, r := range c.Rows() {
		if r.Key == key {
			return r
		}
	}
	t.Fatalf("no setting %q", key)
	return Row{}
}

type vars = map[string]string

func TestDefaults(t *testing.T) {
	c, err := load(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"host": "localhost", "port": "8000", "cors.enabled": "false", "cors.origins": "", "auth": "auto",
		"runtime":          "gvisor",
		"default_template": "host", "default_flavor": "small", "max_sessions": "10", "session_timeout": "30m0s",
		"cleanup_interval": "1m0s", "orphan_cleanup_interval": "10m0s", "execution_timeout": "5m0s",
		"sandbox_start_timeout": "3m0s",
		"enable_lru_eviction":   "true", "workspace_retention": "168h0m0s", "pool_size": "2", "output_style": "plain",
		"max_output_size": "16000", "max_total_memory_mb": "0", "log_level": "INFO", "volumes": "",
	} {
		r := row(t, c, key)
		if r.Value != want || r.From != "default" || r.Help == "" {
			t.Errorf("%s = %q from %q (%s), want %q from default", key, r.Value, r.From, r.Help, want)
		}
	}
	if len(c.Notes) > 0 {
		t.Errorf("notes %q", c.Notes)
	}
}

// The variables of the systems that Sandlot succeeds.
func TestVariables(t *testing.T) {
	dir := t.TempDir()
	tests := []struct{ name, value, key, want string }{
		{"MCP_SERVER_HOST", "127.0.0.1", "host", "127.0.0.1"},
		{"MCP_SERVER_PORT", "9001", "port", "9001"},
		{"MCP_ENABLE_CORS", "true", "cors.enabled", "true"},
		{"MCP_ENABLE_CORS", "1", "cors.enabled", "true"},
		{"MCP_ENABLE_CORS", "False", "cors.enabled", "false"},
		{"MSB_SESSION_TIMEOUT", "900", "session_timeout", "15m0s"},
		{"MSB_MAX_SESSIONS", "3", "max_sessions", "3"},
		{"MSB_CLEANUP_INTERVAL", "30", "cleanup_interval", "30s"},
		{"MSB_DEFAULT_FLAVOR", "large", "default_flavor", "large"},
		{"MSB_SANDBOX_START_TIMEOUT", "60", "sandbox_start_timeout", "1m0s"},
		{"MSB_EXECUTION_TIMEOUT", "120", "execution_timeout", "2m0s"},
		{"MSB_MAX_TOTAL_MEMORY_MB", "8192", "max_total_memory_mb", "8192"},
		{"MSB_ORPHAN_CLEANUP_INTERVAL", "300", "orphan_cleanup_interval", "5m0s"},
		{"MSB_ENABLE_LRU_EVICTION", "false", "enable_lru_eviction", "false"},
		{"MSB_SHARED_VOLUME_PATH", dir + ":/data:ro", "volumes", dir + ":/data:ro"},
		{"POOL_SIZE", "5", "pool_size", "5"},
		{"EXEC_TIMEOUT", "45", "execution_timeout", "45s"},
		{"MAX_OUTPUT_SIZE", "1000", "max_output_size", "1000"},
		{"MCP_HOST", "::1", "host", "::1"},
		{"MCP_PORT", "9002", "port", "9002"},
		{"CONTAINER_MEMORY_LIMIT", "512m", "container_memory_limit", "512m"},
		{"CONTAINER_CPU_LIMIT", "0.5", "container_cpu_limit", "0.5"},
		{"SANDLOT_PORT", "9003", "port", "9003"},
		{"SANDLOT_CORS_ORIGINS", "https://a.example,https://b.example/", "cors.origins",
			"https://a.example,https://b.example"},
	}
	for _, tt := range tests {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			c, err := load(t, "", vars{tt.name: tt.value}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r := row(t, c, tt.key); r.Value != tt.want || r.From != "variable "+tt.name {
				t.Errorf("%s = %q from %q, want %q from the variable", tt.key, r.Value, r.From, tt.want)
			}
		})
	}
}

func TestEveryVariableMayBeEmpty(t *testing.T) {
	env := vars{"MSB_SERVER_URL": "", "MSB_API_KEY": "", "SANDBOX_IMAGE": "", "SANDLOT_CONFIG": ""}
	for _, s := range Default().settings() {
		env[s.env()] = ""
		for _, o := range s.legacyEnv {
			env[o] = ""
		}
	}
	c, err := load(t, "port: 8123", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Rows() {
		if want := map[bool]string{true: "file", false: "default"}[r.Key == "port"]; !strings.HasPrefix(r.From, want) {
			t.Errorf("%s comes from %q, want %s: an empty variable is unset", r.Key, r.From, want)
		}
	}
	if len(c.Notes) > 0 {
		t.Errorf("notes %q", c.Notes)
	}
}

func TestPrecedence(t *testing.T) {
	const file = "port: 1001\nmax_sessions: 21\npool_size: 7\n"
	env := vars{"MCP_SERVER_PORT": "1002", "MSB_MAX_SESSIONS": "22"}
	c, err := load(t, file, env, vars{"port": "1003"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][2]string{
		"port": {"1003", "flag"}, "max_sessions": {"22", "variable MSB_MAX_SESSIONS"}, "pool_size": {"7", "file"},
		"host": {"localhost", "default"},
	} {
		if r := row(t, c, key); r.Value != want[0] || !strings.HasPrefix(r.From, want[1]) {
			t.Errorf("%s = %q from %q, want %q from %s", key, r.Value, r.From, want[0], want[1])
		}
	}
}

// Where both older systems name the same thing, the first one's variable wins,
// and the start says so.
func TestTwoVariablesForOneSetting(t *testing.T) {
	for _, tt := range []struct{ first, second, key string }{
		{"MCP_SERVER_PORT", "MCP_PORT", "port"},
		{"MCP_SERVER_HOST", "MCP_HOST", "host"},
		{"MSB_EXECUTION_TIMEOUT", "EXEC_TIMEOUT", "execution_timeout"},
		{"SANDLOT_PORT", "MCP_SERVER_PORT", "port"},
	} {
		t.Run(tt.first, func(t *testing.T) {
			a, b := "1001", "1002"
			if tt.key == "host" {
				a, b = "127.0.0.1", "127.0.0.2"
			}
			c, err := load(t, "", vars{tt.first: a, tt.second: b}, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := row(t, c, tt.key)
			if r.From != "variable "+tt.first {
				t.Errorf("%s = %q from %q", tt.key, r.Value, r.From)
			}
			if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], tt.first) ||
				!strings.Contains(c.Notes[0], tt.second) {
				t.Errorf("notes %q, want one that names both", c.Notes)
			}
		})
	}
}

// TestMicrosandboxVariables: the address of a server of microsandbox chooses the runtime, unless settings name one, and
// the start says that the server is not used. A value that is not a URL is refused, and not repeated.
func TestMicrosandboxVariables(t *testing.T) {
	const address = "https://user:treasure@127.0.0.1:5555"
	for name, tt := range map[string]struct {
		file    string
		env     vars
		runtime string
		notes   []string
	}{
		"address": {"", vars{"MSB_SERVER_URL": address}, "microsandbox", []string{"MSB_SERVER_URL chooses"}},
		"key":     {"", vars{"MSB_API_KEY": "treasure"}, defaultRuntime(), []string{"MSB_API_KEY is set and not used"}},
		"both": {"", vars{"MSB_SERVER_URL": address, "MSB_API_KEY": "treasure"}, "microsandbox",
			[]string{"MSB_API_KEY", "MSB_SERVER_URL chooses"}},
		"runtime":  {"runtime: gvisor", vars{"MSB_SERVER_URL": address}, "gvisor", []string{"the settings name the runtime"}},
		"runtimes": {"runtimes: [docker]", vars{"MSB_SERVER_URL": address}, "docker", []string{"the settings name the runtime"}},
		"variable": {"", vars{"MSB_SERVER_URL": address, "SANDLOT_RUNTIME": "docker"}, "docker",
			[]string{"the settings name the runtime"}},
		"unused": {"runtime: gvisor", vars{"MSB_SERVER_URL": "localhost:5555"}, "gvisor", []string{"the settings name"}},
		"template": {"templates: {x: {image: i, runtime: gvisor, files: {/etc/x: text}}}", vars{"MSB_SERVER_URL": address},
			"gvisor", []string{"the settings name the runtime"}},
		"agrees": {"templates: {x: {image: i, runtime: microsandbox}}", vars{"MSB_SERVER_URL": address}, "microsandbox",
			[]string{"MSB_SERVER_URL chooses"}},
		"templates": {"runtimes: [gvisor, microsandbox]\ntemplates: {vm: {image: \"python:3.12\", runtime: microsandbox}}",
			nil, "gvisor", nil},
	} {
		c, err := load(t, tt.file, tt.env, vars{"state_dir": t.TempDir()})
		if err != nil || c.Runtime.Name != tt.runtime || len(c.Notes) != len(tt.notes) {
			t.Errorf("%s: %v, %+v", name, err, c)
			continue
		}
		for i, note := range tt.notes {
			if !strings.Contains(c.Notes[i], note) || strings.Contains(c.Notes[i], "treasure") ||
				strings.Count(c.Notes[i], ". ") > 1 {
				t.Errorf("%s: note %q, want %q", name, c.Notes[i], note)
			}
		}
	}
	for _, bad := range []string{"something", "127.0.0.1:5555", "localhost:5555", "ftp://x", "http://", "treasure\n://x"} {
		if _, err := load(t, "", vars{"MSB_SERVER_URL": bad}, vars{"state_dir": t.TempDir()}); err == nil ||
			!strings.Contains(err.Error(), "MSB_SERVER_URL: must be the URL") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"templates: {x: {image: i, files: {/etc/x: text}}}", "templates: {x: {image: i, packages: {pip: [six]}}}",
		"network: {mode: open}"} {
		if _, err := load(t, "runtime: microsandbox\n"+bad, nil, nil); err == nil ||
			!strings.Contains(err.Error(), "the runtime microsandbox") || strings.Contains(err.Error(), "MSB_SERVER_URL") {
			t.Errorf("%s: %v", bad, err)
		}
		if _, err := load(t, bad, vars{"MSB_SERVER_URL": address}, vars{"state_dir": t.TempDir()}); err == nil ||
			!strings.Contains(err.Error(), "(MSB_SERVER_URL chose it; unset it, or set runtime: ") {
			t.Errorf("%s, by the variable: %v", bad, err)
		}
	}
}

// TestMicrosandboxUpgrade: a state folder in which a server has used the default runtime keeps it, also once its sessions
// have ended, until microsandbox is used there.
func TestMicrosandboxUpgrade(t *testing.T) {
	former := "docker"
	if defaultRuntime() == "gvisor" {
		former = "sandboxes"
	}
	for want, folders := range map[string][][]string{
		defaultRuntime(): {{"workspaces", former}},
		"microsandbox":   {nil, {former}, {"workspaces"}, {"workspaces", former, "msb"}, {"workspaces", "msb"}},
	} {
		for _, names := range folders {
			state := t.TempDir()
			for _, name := range names {
				if err := os.Mkdir(filepath.Join(state, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			c, err := load(t, "", vars{"MSB_SERVER_URL": "http://127.0.0.1:5555"}, vars{"state_dir": state})
			if err != nil || c.Runtime.Name != want || !slices.Equal(c.Runtime.Names, []string{want}) || len(c.Notes) != 1 ||
				!strings.Contains(c.Notes[0], "MSB_SERVER_URL") ||
				strings.Contains(c.Notes[0], "set and not used") != (want != "microsandbox") {
				t.Errorf("%q: %v, %+v; want %s", names, err, c, want)
			}
		}
	}
}

// A bad value stops the start with where it stands, the value, and what is allowed.
func TestBadValues(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, value, allowed string }{
		{"MCP_SERVER_PORT", "0", "1 to 65535"},
		{"MCP_SERVER_PORT", "65536", "1 to 65535"},
		{"MCP_SERVER_PORT", "http", "1 to 65535"},
		{"MCP_SERVER_PORT", "80.5", "1 to 65535"},
		{"MCP_SERVER_PORT", " 80", "1 to 65535"},
		{"MCP_SERVER_HOST", "localhost:8000", "without port"},
		{"MCP_SERVER_HOST", "http://localhost", "host name"},
		{"MCP_ENABLE_CORS", "ja", "true or false"},
		{"MSB_SESSION_TIMEOUT", "-1", "seconds"},
		{"MSB_SESSION_TIMEOUT", "0", "seconds"},
		{"MSB_SESSION_TIMEOUT", "soon", "seconds"},
		{"MSB_SESSION_TIMEOUT", "NaN", "seconds"},
		{"MSB_MAX_SESSIONS", "0", "1 to"},
		{"MSB_DEFAULT_FLAVOR", "huge", "small, medium, large"},
		{"MSB_ENABLE_LRU_EVICTION", "2", "true or false"},
		{"MSB_MAX_TOTAL_MEMORY_MB", "-5", "0 to"},
		{"MSB_SHARED_VOLUME_PATH", "/no/such/folder:/data", "host's folder"},
		{"MSB_SHARED_VOLUME_PATH", plain + ":/data", "not a folder"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp", "host:sandbox"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:data", "absolute path"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:/workspace", "absolute path of its own"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:/data/..", "absolute path of its own"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:/workspace/team/files", "absolute path of its own"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:/.sandlot/x:ro", "absolute path of its own"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:/data/../dev/shm", "absolute path of its own"},
		{"MSB_SHARED_VOLUME_PATH", "/tmp:/a,/tmp:/a", "target of two volumes"},
		{"MSB_SHARED_VOLUME_PATH", `["/tmp:/a"`, "is not valid JSON"},
		{"MSB_SHARED_VOLUME_PATH", `[1]`, "entry 1 is a number, and not a text: write a JSON list"},
		{"MSB_SHARED_VOLUME_PATH", `["/tmp:/a", {"/tmp": "/b"}]`, "entry 2 is an object"},
		{"MSB_SHARED_VOLUME_PATH", `[["/tmp", "/a"]]`, "entry 1 is a list"},
		{"MSB_SHARED_VOLUME_PATH", `{"/tmp": "/a"}`, "is a JSON object, and not a list: write a JSON list"},
		{"POOL_SIZE", "-1", "0 to"},
		{"MAX_OUTPUT_SIZE", "many", "256 to"},
		{"CONTAINER_MEMORY_LIMIT", "10m", "at least 64 MB"},
		{"CONTAINER_MEMORY_LIMIT", "m", "at least 64 MB"},
		{"CONTAINER_MEMORY_LIMIT", "lots", "at least 64 MB"},
		{"CONTAINER_CPU_LIMIT", "0", "0.1 to"},
		{"CONTAINER_CPU_LIMIT", "NaN", "0.1 to"},
		{"SANDLOT_AUTH", "none", "auto, required, off"},
		{"SANDLOT_LOG_LEVEL", "LOUD", "DEBUG, INFO, WARNING, ERROR"},
		{"SANDLOT_RUNTIME", "firecracker", "gvisor, docker"},
		{"SANDLOT_OUTPUT_STYLE", "fancy", "plain, labeled"},
		{"SANDLOT_CORS_ORIGINS", "a.example", "https://"},
		{"SANDLOT_MCP_REGISTRIES", "a=https://bücher.example", "xn--"},
	}
	for _, tt := range tests {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			_, err := load(t, "", vars{tt.name: tt.value}, nil)
			if !fault.Is(err, fault.Configuration) {
				t.Fatalf("error %v, want a Configuration fault", err)
			}
			for _, w := range []string{tt.name, fmt.Sprintf("%q", tt.value), tt.allowed} {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("message %q does not say %q", err, w)
				}
			}
		})
	}
}

func TestBadFlag(t *testing.T) {
	_, err := load(t, "", nil, vars{"log_level": "LOUD"})
	if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), `--log-level="LOUD"`) ||
		!strings.Contains(err.Error(), "DEBUG, INFO") {
		t.Errorf("error %v", err)
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	c, err := load(t, `
host: "[::1]"
port: 8123
cors: {enabled: true, origins: [https://a.example, "http://localhost:3000/"]}
auth: required
default_template: node
default_flavor: huge
session_timeout: 2d
execution_timeout: 90s
max_sessions: 4
output_style: labeled
network: {mode: none}
mcp: {}
templates: {}
volumes: ["`+dir+`:/data:ro", "`+dir+`:/other"]
flavors:
  huge: {cpus: 8, memory_mb: 16384}
  small: {cpus: 0.5, memory_mb: 512}
log_level:
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Host != "::1" || c.Server.Port != 8123 || !c.Server.CORS || c.Server.Auth != "required" ||
		!slices.Equal(c.Server.CORSOrigins, []string{"https://a.example", "http://localhost:3000"}) {
		t.Errorf("server %+v", c.Server)
	}
	if c.Sessions.IdleTimeout != 48*time.Hour || c.Sessions.CallTimeout != 90*time.Second ||
		c.Sessions.DefaultFlavor != "huge" || c.Sessions.MaxSessions != 4 {
		t.Errorf("sessions %+v", c.Sessions)
	}
	if !slices.Equal(c.Volumes, []Volume{{Source: dir, Target: "/data", ReadOnly: true},
		{Source: dir, Target: "/other"}}) {
		t.Errorf("volumes %+v", c.Volumes)
	}
	sizes := []Flavor{{"small", 0.5, 512}, {"medium", 2, 2048}, {"large", 4, 4096}, {"huge", 8, 16384}}
	if !slices.Equal(c.Flavors, sizes) {
		t.Errorf("flavors %v", c.Flavors)
	}
	if c.Server.LogLevel != "INFO" || c.Origin["log_level"] != "default" {
		t.Errorf("log_level %q from %q: a null setting is not set", c.Server.LogLevel, c.Origin["log_level"])
	}
}

func TestTemplates(t *testing.T) {
	root := t.TempDir()
	c, err := load(t, "templates: {mine: {rootfs: "+root+
		", env: {A: b}, warm: [python], provides: [python], languages: [{name: python, driver: python, command: "+
		"[/usr/bin/python3], extension: .py, aliases: [py]}]}}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Templates) != 1 {
		t.Fatalf("templates %v", c.Templates)
	}
	tm := c.Templates[0]
	if tm.Name != "mine" || tm.Rootfs != root || tm.Env["A"] != "b" || !slices.Equal(tm.Provides, []string{"python"}) ||
		len(tm.Languages) != 1 ||
		tm.Languages[0].Command[0] != "/usr/bin/python3" {
		t.Errorf("template %+v", tm)
	}
}

func TestBadFiles(t *testing.T) {
	root := t.TempDir()
	tests := []struct {
		name, yaml string
		words      []string
	}{
		{"unknown key", "prot: 1", []string{`unknown setting "prot"`, `did you mean "port"?`}},
		{"unknown key without a value", "prot:", []string{`unknown setting "prot"`, `did you mean "port"?`}},
		{"unknown section", "databse: {}", []string{`unknown setting "databse"`}},
		{"unknown key of a section", "cors: {enabeld: true}",
			[]string{`unknown setting "cors.enabeld"`, `did you mean "cors.enabled"?`}},
		{"a section as a value", "cors: true", []string{`unknown setting "cors"`}},
		{"a value as a section", "port: {number: 1}", []string{`unknown setting "port.number"`}},
		{"unknown key of network", "network: {mod: none}", []string{`"network.mod"`, `did you mean "network.mode"?`}},
		{"unknown mode", "network: {mode: all}", []string{"network.mode", "allowlist"}},
		{"a private host without its range", "network: {allow_private: [mirror.corp]}",
			[]string{"network", "host and cidr"}},
		{"a private range that is none", "network: {allow_private: [{host: mirror.corp, cidr: 10.0.0.0/99}]}",
			[]string{"network.allow_private", "10.0.0.0/8"}},
		{"a misspelled private range", "network: {allow_private: [{host: mirror.corp, cdr: 10.0.0.0/8}]}",
			[]string{`did you mean "cidr"?`}},
		{"an unknown registry", "network: {registries: {maven: 'https://mirror.corp/'}}",
			[]string{"network.registries", "pypi"}},
		{"a registry with a password", "network: {registries: {npm: 'https://me:secret@mirror.corp/'}}",
			[]string{"network.registries"}},
		{"a host without address", "network: {hosts: {mirror.corp: nowhere}}", []string{"network.hosts", "10.1.2.3"}},
		{"a template's unknown mode", "templates: {t: {rootfs: /, languages: [{name: sh, command: [/bin/sh]}], " +
			"network: {mode: everything}}}", []string{"templates", "everything"}},
		{"mcp servers as a list", "mcp: [{command: x}]", []string{"mcp", "names of MCP servers"}},
		{"unknown key of a flavor", "flavors: {big: {cpus: 8, memory_mb: 100, memroy: 3}}",
			[]string{"flavors", "big", "memroy"}},
		{"flavor without memory", "flavors: {big: {cpus: 8}}", []string{"big", "memory_mb at least 64"}},
		{"flavor with no number of CPUs", "flavors: {big: {cpus: .nan, memory_mb: 100}}", []string{"big", "cpus"}},
		{"unknown key of a template", "templates: {mine: {rootfs: " + root +
			", evn: {A: b}, languages: [{name: a, command: [b]}]}}",
			[]string{"templates", "mine", `"evn"`, `did you mean "env"?`}},
		{"unknown key of a language", "templates: {mine: {rootfs: " + root + ", languages: [{name: a, comand: [b]}]}}",
			[]string{"templates", "mine", `"comand"`, `did you mean "command"?`}},
		{"template without a root", "templates: {mine: {rootfs: /no/such, languages: [{name: a, command: [b]}]}}",
			[]string{"mine", "rootfs", "/no/such"}},
		{"template without languages", "templates: {mine: {rootfs: " + root + "}}", []string{"mine", "language"}},
		{"template with an unknown driver", "templates: {mine: {rootfs: " + root +
			", languages: [{name: a, driver: perl, command: [b]}]}}", []string{"mine", "python, node or bash"}},
		{"bad value", "port: eighty", []string{`port="eighty"`, "1 to 65535"}},
		{"list in a list", "volumes: [[a]]", []string{"volumes", "list of texts"}},
		{"an alias of YAML", "host: &h localhost\nauth: *h", []string{"auth"}},
		{"twice", "port: 1\nport: 2", []string{"port"}},
		{"twice in a section",
			"cors: {enabled: true}\npolicy:\n  rules: [deny * *]\n  question_timeout: 1m\n  rules: []",
			[]string{"policy: line 5", `"rules"`, "line 3"}},
		{"policies in Cedar", "policy:\n  rules: [deny * *]\n  cedar: |\n    permit (principal, action, resource);",
			[]string{"policy: line 3", "cedar is no longer a setting", "a line of rules", "deny * *"}},
		{"cedar without a value", "policy:\n  cedar:\n", []string{"policy: line 2", "cedar is no longer a setting"}},
		{"no settings", "- a\n- b", []string{"not YAML with settings"}},
		{"no YAML", "port: [", []string{"not YAML"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.yaml, nil, nil)
			if !fault.Is(err, fault.Configuration) {
				t.Fatalf("error %v, want a Configuration fault", err)
			}
			for _, w := range append(tt.words, "sandlot.yaml") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("message %q does not say %q", err, w)
				}
			}
		})
	}
}

func TestWhichFile(t *testing.T) {
	work, state, other := t.TempDir(), t.TempDir(), t.TempDir()
	t.Chdir(work)
	write := func(path, port string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("port: "+port), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := func(s Source) int {
		t.Helper()
		c, err := Load(s)
		if err != nil {
			t.Fatal(err)
		}
		return c.Server.Port
	}
	env := vars{"SANDLOT_STATE_DIR": state}
	if got := port(Source{Env: env}); got != 8000 {
		t.Errorf("port %d without a file", got)
	}
	write(filepath.Join(state, "sandlot.yaml"), "1001")
	if got := port(Source{Env: env}); got != 1001 {
		t.Errorf("port %d, want the state folder's", got)
	}
	if got := port(Source{Env: vars{"SANDLOT_STATE_DIR": other}, Flags: vars{"state_dir": state}}); got != 1001 {
		t.Errorf("port %d, want that of the flag's state folder", got)
	}
	write("sandlot.yaml", "1002") // of whoever made the folder that we are in
	if got := port(Source{Env: env}); got != 1001 {
		t.Errorf("port %d, want the state folder's", got)
	}
	if got := port(Source{Env: vars{"SANDLOT_STATE_DIR": other}}); got != 8000 {
		t.Errorf("port %d, want the default", got)
	}
	if got := port(Source{Env: env, File: "sandlot.yaml"}); got != 1002 {
		t.Errorf("port %d, want that of the file that was named", got)
	}
	if got := port(Source{Env: vars{"SANDLOT_CONFIG": state}}); got != 1001 {
		t.Errorf("port %d, want that of the folder that was named", got)
	}
	if got := port(Source{Env: vars{"SANDLOT_CONFIG": other + "/"}}); got != 8000 {
		t.Errorf("port %d: the folder that was named has none", got)
	}
	named := filepath.Join(other, "mine.yaml")
	write(named, "1003")
	env["SANDLOT_CONFIG"] = named
	if got := port(Source{Env: env}); got != 1003 {
		t.Errorf("port %d, want SANDLOT_CONFIG's", got)
	}
	write(filepath.Join(other, "flag.yaml"), "1004")
	if got := port(Source{Env: env, File: filepath.Join(other, "flag.yaml")}); got != 1004 {
		t.Errorf("port %d, want the flag's", got)
	}
	env["SANDLOT_CONFIG"] = filepath.Join(other, "none.yaml")
	if _, err := Load(Source{Env: env}); !fault.Is(err, fault.Configuration) ||
		!strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("error %v, want one that names the missing file", err)
	}
}

func TestContainerLimits(t *testing.T) {
	c, err := load(t, "", vars{"CONTAINER_MEMORY_LIMIT": "256m", "CONTAINER_CPU_LIMIT": "1.5"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.Flavors, func(f Flavor) bool { return f.Name == c.Sessions.DefaultFlavor })
	if i < 0 || c.Flavors[i].MemoryMB != 256 || c.Flavors[i].CPUs != 1.5 {
		t.Errorf("default flavor %q of %v, want 256 MB and 1.5 CPUs", c.Sessions.DefaultFlavor, c.Flavors)
	}
	c, err = load(t, "", vars{"CONTAINER_MEMORY_LIMIT": "2g", "MSB_DEFAULT_FLAVOR": "large"}, nil)
	if err != nil || c.Sessions.DefaultFlavor != "large" {
		t.Errorf("default flavor %v, %v, want the one that was named", c, err)
	}
}

func TestMegabytes(t *testing.T) {
	for in, want := range map[string]int{"256m": 256, "256M": 256, "2g": 2048, "1.5g": 1536, "131072k": 128,
		"134217728": 128, "134217728b": 128} {
		if got, err := parseMegabytes(in); err != nil || got != want {
			t.Errorf("megabytes(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
}

// EXEC_TIMEOUT bounds what a call may name, as in the system that it is from, unless
// something says how much it may be.
func TestExecTimeoutIsABound(t *testing.T) {
	for _, tt := range []struct {
		env       vars
		time, max time.Duration
	}{
		{nil, 300 * time.Second, 300 * time.Second},
		{vars{"EXEC_TIMEOUT": "30"}, 30 * time.Second, 30 * time.Second},
		{vars{"EXEC_TIMEOUT": "600"}, 600 * time.Second, 600 * time.Second},
		{vars{"EXEC_TIMEOUT": "30", "SANDLOT_MAX_EXECUTION_TIMEOUT": "60"}, 30 * time.Second, 60 * time.Second},
		{vars{"MSB_EXECUTION_TIMEOUT": "30"}, 30 * time.Second, 300 * time.Second},
		{vars{"MSB_EXECUTION_TIMEOUT": "60", "EXEC_TIMEOUT": "30"}, 60 * time.Second, 300 * time.Second},
	} {
		c, err := load(t, "", tt.env, nil)
		if err != nil || c.Sessions.CallTimeout != tt.time || c.Sessions.MaxCallTimeout != tt.max {
			t.Errorf("%v: %+v, %v", tt.env, c.Sessions, err)
		}
	}
}

// The default flavor may be written in any case.
func TestDefaultFlavorInAnyCase(t *testing.T) {
	for text, want := range map[string]string{"LARGE": "large", "Medium": "medium", "small": "small", "HUGE": "Huge"} {
		c, err := load(t, "flavors: {Huge: {cpus: 8, memory_mb: 16384}}\n", vars{"MSB_DEFAULT_FLAVOR": text}, nil)
		if err != nil || c.Sessions.DefaultFlavor != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := load(t, "", vars{"MSB_DEFAULT_FLAVOR": "larger"}, nil); err == nil {
		t.Error("one that there is not")
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{"90": 90 * time.Second, "1.5": 1500 * time.Millisecond,
		"90s": 90 * time.Second, "30m": 30 * time.Minute, "90d": 90 * day, "0.5d": 12 * time.Hour, "0": 0} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "s", "1w", "1e300", "1e300d", "-1d", "NaN", "NaNd", "infd"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %s, want an error", in, got)
		}
	}
}

func TestALongerDefaultRaisesTheMost(t *testing.T) {
	c, err := load(t, "execution_timeout: 900", nil, nil)
	if err != nil || c.Sessions.MaxCallTimeout != 15*time.Minute {
		t.Errorf("the most that a call may name: %v, %v, want 15 minutes", c.Sessions.MaxCallTimeout, err)
	}
}

func TestVolumeForms(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		dir + ":/data":                         dir + ":/data",
		dir + ":/data:rw":                      dir + ":/data",
		dir + ":/data:ro":                      dir + ":/data:ro",
		" " + dir + ":/a , " + dir + ":/b:ro,": dir + ":/a," + dir + ":/b:ro",
		`["` + dir + `:/a", "` + dir + `:/b"]`: dir + ":/a," + dir + ":/b",
		link + ":/data/":                       dir + ":/data",
		dir + ":/workspaces/a":                 dir + ":/workspaces/a",
		"[]":                                   "",
	} {
		c, err := load(t, "", vars{"MSB_SHARED_VOLUME_PATH": in}, nil)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		} else if got := c.volumesText(); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func TestRowsReadBack(t *testing.T) {
	c := Default()
	for _, s := range c.settings() {
		if err := s.set(s.get()); err != nil {
			t.Errorf("%s: its own text %q is refused: %v", s.key, s.get(), err)
		}
	}
}

func TestStateDir(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/x/state")
	want := "/x/state/sandlot"
	if os.Getuid() == 0 {
		want = "/var/lib/sandlot"
	}
	if got := StateDir(); got != want {
		t.Errorf("StateDir() = %q, want %q", got, want)
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("SANDLOT_TEST_X", "a=b")
	if got := Environ()["SANDLOT_TEST_X"]; got != "a=b" {
		t.Errorf("got %q", got)
	}
}

// The sizes of the specification.
func TestFlavors(t *testing.T) {
	want := []Flavor{{"small", 1, 1024}, {"medium", 2, 2048}, {"large", 4, 4096}}
	if got := Default().Flavors; !slices.Equal(got, want) {
		t.Errorf("flavors %v", got)
	}
}
