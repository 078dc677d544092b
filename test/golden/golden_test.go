package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRow: with -update a row is added to its table, or written anew, and all else stays; without, one that is the same
// passes.
func TestRow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	before := "# Page\n\n| a | b |\n|---|---|\n| x | y |\n\n| client | over | has |\n|---|---|---|\n| A | HTTP | 1 |\n\nEnd.\n"
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	heads := []string{"client", "over", "has"}
	Row(t, file, heads, []string{"A", "HTTP", "1"})
	*update = true
	t.Cleanup(func() { *update = false })
	Row(t, file, heads, []string{"A", "stdio", "2"})
	Row(t, file, heads, []string{"A", "HTTP", "3"})
	want := strings.Replace(before, "| A | HTTP | 1 |\n", "| A | HTTP | 3 |\n| A | stdio | 2 |\n", 1)
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}
