package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTools(t *testing.T) {
	load := func(text string) (*Config, error) {
		file := filepath.Join(t.TempDir(), "sandlot.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(Source{File: file})
	}
	c, err := load("tools: search\ntools_limit: 100\ntools_for:\n  services: code\n  principals: {ann: all}\n")
	if err != nil || c.Tools.Mode != "search" || c.Tools.Limit != 100 || c.Tools.For.Services != "code" ||
		c.Tools.For.Principals["ann"] != "all" {
		t.Errorf("%+v %v", c, err)
	}
	before, err := load("tools_for: {users: all}\n")
	if err != nil {
		t.Fatal(err)
	}
	reloaded, restart := c.Changed(before)
	if want := []string{"tools", "tools_for", "tools_limit"}; !slices.Equal(reloaded, want) || len(restart) > 0 {
		t.Errorf("%q are applied, and %q need a restart", reloaded, restart)
	}
	for text, want := range map[string]string{"tools: some\n": "all, search, code, auto",
		"tools_for: {people: all}\n": "users, services, and principals",
		"tools_limit: -1\n":          "tools_limit",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
