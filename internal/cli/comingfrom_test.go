package cli

import (
	"os"
	"regexp"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/servers"
)

// TestComingFrom: the flags, the commands and the tools on the page for newcomers
// from other systems are there.
func TestComingFrom(t *testing.T) {
	text, err := os.ReadFile("../../docs/guide/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	root := new(program).root()
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	tools := builtin.New(builtin.Config{Connections: new(servers.Servers)})
	found := 0
	for _, m := range regexp.MustCompile("`(--|sandlot )?([a-z]+[a-z_-]*)`").FindAllStringSubmatch(string(text), -1) {
		found++
		switch m[1] {
		case "--":
			if serve.Flags().Lookup(m[2]) == nil {
				t.Errorf("serve has no flag --%s", m[2])
			}
		case "sandlot ":
			if c, _, err := root.Find([]string{m[2]}); err != nil || c == root {
				t.Errorf("there is no command %s", m[2])
			}
		default:
			if _, ok := tools.Find(auth.Local, m[2]); isTool.MatchString(m[2]) && !ok {
				t.Errorf("there is no tool %s", m[2])
			}
		}
	}
	if found < 40 {
		t.Errorf("%d names are on the page", found)
	}
}

// isTool tells the names of tools from those of settings and fields.
var isTool = regexp.MustCompile(
	`^(execute_(code|command)|sandbox_(shell|read|write|list)_.*|(get|stop)_(session|volume).*|.*_external_mcp|auto_install.*)$`)
