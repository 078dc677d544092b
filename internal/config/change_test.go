package config

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What a running server takes up, and what waits, is told apart by name.
func TestChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	load := func(text string) *Config {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Source{File: file, Env: map[string]string{"SANDLOT_MAX_SESSIONS": "3"}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	template := func(command, mode string) string {
		return "templates: {slim: {rootfs: /, languages: [{name: sh, command: [" + command +
			"], extension: .sh}], network: {mode: " + mode + "}}}\n"
	}
	for name, tt := range map[string]struct {
		before, now    string
		taken, waiting []string
	}{
		"nothing": {"port: 9000\n", "# a word\nport: 9000\n", nil, nil},
		"one of each": {"", "port: 9000\nnetwork: {mode: public, max_mb: 5}\n", []string{"network.mode"},
			[]string{"network.max_mb", "port"}},
		"back": {"network: {allow: [a.example]}\nlog_level: DEBUG\n", "",
			[]string{"network.allow"}, []string{"log_level"}},
		"what a variable sets": {"max_sessions: 4\n", "max_sessions: 5\n", nil, nil},
		"MCP servers": {"mcp: {a: {command: x, env: {K: one}}}\n",
			"mcp: {a: {command: x, env: {K: two}}}\n", []string{"mcp"}, nil},
		"consent": {"mcp_consent: ask\n", "mcp_consent: deny\nmcp_idle_timeout: 5m\n",
			[]string{"mcp_consent"}, []string{"mcp_idle_timeout"}},
		"a flavor": {"flavors: {tiny: {cpus: 1, memory_mb: 64}}\n",
			"flavors: {tiny: {cpus: 1, memory_mb: 65}}\n", nil, []string{"flavors"}},
		"a template's network": {template("a", "none"), template("a", "public"), []string{"templates.*.network"},
			nil},
		"a template": {template("a", "none"), template("b", "none"), nil, []string{"templates"}},
		"a template that was added": {"", template("a", "none"), []string{"templates.*.network"},
			[]string{"templates"}},
	} {
		before, now := load(tt.before), load(tt.now)
		for i := range before.Templates { // what the start adds is no change
			before.Templates[i].Env = map[string]string{"X": "y"}
		}
		before.Server.StateDir = "/elsewhere"
		if taken, waiting := now.Changed(before); !slices.Equal(taken, tt.taken) || !slices.Equal(waiting, tt.waiting) {
			t.Errorf("%s: %q are taken up and %q wait, want %q and %q", name, taken, waiting, tt.taken, tt.waiting)
		}
	}
}
