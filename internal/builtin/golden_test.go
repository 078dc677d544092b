package builtin

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/image"
	"sandlot/internal/tool"
)

var update = flag.Bool("update", false, "write testdata/tools.json anew")

// What clients are told of the tools, which they build upon, stays as it is until
// somebody changes testdata/tools.json on purpose (-update).
func TestToolsAreAsBefore(t *testing.T) {
	tools := toolsWith(t, tool.Allow)
	tools = New(Config{Connections: tools.Connections, Timeout: time.Minute, MaxTimeout: time.Hour,
		Templates: []*image.Template{{Name: "python", Provides: []string{"node"}, Languages: []image.Language{{Name: "python"}, {Name: "bash"}}},
			{Name: "go", Languages: []image.Language{{Name: "go"}}}},
		Flavors: []image.Flavor{{Name: "small", CPUs: 1, MemoryMB: 512}, {Name: "large", CPUs: 4, MemoryMB: 4096}}})
	got := map[string]any{}
	for _, d := range tools.Tools(t.Context(), auth.Local) {
		got[d.Name] = map[string]any{"title": d.Title, "description": d.Description, "input": d.Input.Schema(), "output": d.Output.Schema(), "hints": d.Hints, "asks": d.Elicits, "alias": d.Alias}
	}
	said, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/tools.json"
	if *update {
		if err := os.WriteFile(file, append(said, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var now, before map[string]any
	if err := json.Unmarshal(said, &now); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(golden, &before); err != nil {
		t.Fatal(err)
	}
	if len(now) != len(before) {
		t.Errorf("%d tools, want %d", len(now), len(before))
	}
	for name, want := range before {
		if !reflect.DeepEqual(now[name], want) {
			n, _ := json.Marshal(now[name])
			w, _ := json.Marshal(want)
			t.Errorf("%s:\n got %s\nwant %s", name, n, w)
		}
	}
}
