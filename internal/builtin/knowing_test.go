package builtin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/registry"
	"sandlot/internal/servers"
)

// A fault says what its call knows, and what it said itself stays.
func TestKnowing(t *testing.T) {
	facts := map[string]any{"command": "ls", "session_id": "b"}
	f := fault.From(addContext(fault.New(fault.CommandExecution, "x").With("session_id", "a"), fault.CommandExecution,
		facts))
	if c := f.Data().Context; c["command"] != "ls" || c["session_id"] != "a" || c["exit_code"] != nil {
		t.Errorf("%v", c)
	}
	if c := fault.From(addContext(fault.New(fault.Canceled, "x"), fault.CommandExecution, facts)).Data().
		Context; len(c) > 0 {
		t.Errorf("%v", c)
	}
	plain := errors.New("x")
	if addContext(plain, fault.CommandExecution, facts) != plain {
		t.Error("an error that is no fault")
	}
}

// The tools' descriptions name the templates and languages that there are.
func TestRefresh(t *testing.T) {
	templates := []*image.Template{{Name: "red-template", Languages: []image.Language{{Name: "python"}}}}
	tools := New(Config{Connections: new(servers.Servers), Templates: func() []*image.Template { return templates }})
	describe := func() string {
		text := ""
		for _, d := range tools.Tools(t.Context(), auth.Local) {
			text += fmt.Sprintln(d.Description, d.Input.Schema())
		}
		return text
	}
	if got := describe(); !strings.Contains(got, "red-template") || strings.Contains(got, "cobol") {
		t.Errorf("before: %s", got)
	}
	templates = []*image.Template{{Name: "blue-template", Languages: []image.Language{{Name: "cobol"}}}}
	tools.Refresh()
	if got := describe(); strings.Contains(got, "red-template") || !strings.Contains(got, "blue-template") ||
		!strings.Contains(got, "cobol") {
		t.Errorf("after: %s", got)
	}
}

// Every tool names an operation that policy knows, and one that only reads says so.
func TestToolsNameOperations(t *testing.T) {
	tools := New(Config{Connections: new(servers.Servers), Registries: new(registry.Registries)})
	all := tools.Tools(t.Context(), auth.Local)
	if len(all) < 20 {
		t.Fatalf("only %d tools were found", len(all))
	}
	for _, d := range all {
		f, ok := tools.Find(auth.Local, d.Name)
		if !ok || f.Operation != d.Operation || !d.Operation.Known() {
			t.Errorf("%s is the operation %q, which policy does not know", d.Name, d.Operation)
		}
		if d.Hints.ReadOnly == d.Operation.Changes() {
			t.Errorf("%s says that it only reads: %v; %s changes something: %v", d.Name, d.Hints.ReadOnly, d.Operation,
				d.Operation.Changes())
		}
	}
}
