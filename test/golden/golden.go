// Package golden compares what a test got with a file of what it is to be, which
// somebody changes on purpose: by running the test with -update.
package golden

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
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

// Row compares what a test got with its row in a table of a Markdown file. The first two cells of a row are its name, and
// the table is the one whose heads are those. With -update it writes the row; then tests must not run side by side.
func Row(t *testing.T, file string, heads, cells []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	written := func(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }
	all := strings.Split(string(text), "\n")
	head := slices.Index(all, written(heads))
	if head < 0 {
		t.Fatalf("%s has no table %s", file, written(heads))
	}
	end, at := head, -1
	for ; end < len(all) && strings.HasPrefix(all[end], "|"); end++ {
		if strings.HasPrefix(all[end], written(cells[:2])) {
			at = end
		}
	}
	want := ""
	if at >= 0 {
		want = all[at]
	}
	if want == written(cells) {
		return
	}
	if !*update {
		t.Errorf("%s, to be written with -update:\n got %s\nwant %s", file, written(cells), want)
		return
	}
	if at >= 0 {
		all[at] = written(cells)
	} else {
		all = slices.Insert(all, end, written(cells))
	}
	if err := os.WriteFile(file, []byte(strings.Join(all, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}
