// Package golden compares what a test got with a file of what it is to be, which
// somebody changes on purpose: by running the test with -update.
package golden

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
)

var update = flag.Bool("update", false, "write the golden file anew")

// Compare compares values by their names with a file of JSON. It names those that
// differ.
func Compare(t *testing.T, file string, got map[string]any) {
	t.Helper()
	text, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var now, want map[string]any
	if err := json.Unmarshal(text, &now); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(stored, &want); err != nil {
		t.Fatal(err)
	}
	if len(now) != len(want) {
		t.Errorf("%d entries, and %s has %d", len(now), file, len(want))
	}
	for name := range want {
		if !reflect.DeepEqual(now[name], want[name]) {
			g, _ := json.Marshal(now[name])
			w, _ := json.Marshal(want[name])
			t.Errorf("%s:\n got %s\nwant %s", name, g, w)
		}
	}
}
