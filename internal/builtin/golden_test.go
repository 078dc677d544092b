package builtin

import (
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/image"
	"sandlot/internal/registry"
	"sandlot/internal/tool"
	"sandlot/test/golden"
)

// What clients are told of the tools, which they build upon, stays as it is until
// somebody changes testdata/tools.json on purpose (-update).
func TestToolsAreAsBefore(t *testing.T) {
	tools := toolsWith(t, tool.Allow)
	tools = New(Config{Connections: tools.Connections, Registries: new(registry.Registries), Timeout: time.Minute, MaxTimeout: time.Hour,
		Templates: func() []*image.Template {
			return []*image.Template{{Name: "python", Provides: []string{"node"},
				Languages: []image.Language{{Name: "python"}, {Name: "bash"}}},
				{Name: "go", Languages: []image.Language{{Name: "go"}}}}
		},
		Flavors: []image.Flavor{{Name: "small", CPUs: 1, MemoryMB: 512}, {Name: "large", CPUs: 4, MemoryMB: 4096}}})
	got := map[string]any{}
	for _, d := range tools.Tools(t.Context(), auth.Local) {
		got[d.Name] = map[string]any{"title": d.Title, "description": d.Description, "input": d.Input.Schema(),
			"output": d.Output.Schema(), "hints": d.Hints, "asks": d.Elicits, "alias": d.Alias}
	}
	golden.Compare(t, "testdata/tools.json", got)
}
