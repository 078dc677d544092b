package tool

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A list counts once, although a result has it twice: as fields, and as text.
func TestSizeOfList(t *testing.T) {
	type row struct{ Name, Modified string }
	var fields struct{ Files []row }
	var text strings.Builder
	for n := range 1000 {
		r := row{fmt.Sprintf("a file with the number %d", n), "2026-07-28T00:00:00Z"}
		fields.Files = append(fields.Files, r)
		fmt.Fprintf(&text, "%s %s\n", r.Name, r.Modified)
	}
	r := &Result{Content: []Content{Text(text.String())}, Fields: &fields, Summary: "session_id: x"}
	if n, most := r.Size(), text.Len()+len(r.Summary); n != most {
		t.Errorf("a list whose text has %d bytes counts as %d", text.Len(), n)
	}
	r.Content = nil
	if n := r.Size(); n < 1000*len("a file with the number 1 2026-07-28T00:00:00Z") {
		t.Errorf("fields without text count as %d bytes", n)
	}
	image := &Result{Content: []Content{{Image: &Blob{Data: make([]byte, 5000)}}}, Raw: json.RawMessage(`{}`)}
	if n := image.Size(); n != 5002 {
		t.Errorf("an image and raw JSON count as %d bytes", n)
	}
}
