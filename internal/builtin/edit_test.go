package builtin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestReplaceAll: all edits are made, one after the other, or none.
func TestReplaceAll(t *testing.T) {
	long := strings.Repeat("line\n", 100)
	for _, c := range []struct {
		text  string
		edits []Edit
		want  string // or the beginning of an error
		n     int
	}{
		{"a b c", []Edit{{Old: "b", New: "B"}}, "a B c", 1},
		{"a b c", []Edit{{Old: "a", New: "x"}, {Old: "x b", New: "y"}}, "y c", 2},
		{"a a a", []Edit{{Old: "a", New: "", All: true}}, "  ", 3},
		{"aaa", []Edit{{Old: "aa", New: "a"}}, "aa", 1},
		{"a\r\nb\r\n", []Edit{{Old: "a\nb", New: "1\n2"}}, "1\r\n2\r\n", 1},
		{"a\r\nb\r\n", []Edit{{Old: "a\r\nb", New: "1"}}, "1\r\n", 1},
		{"a\r\nb\nc", []Edit{{Old: "a\nb", New: "1"}}, "edits[0].old_text is not in the file", 0},
		{"\xff\x00a", []Edit{{Old: "a", New: "é"}}, "\xff\x00é", 1},
		{"a", []Edit{{Old: "", New: "b"}}, "edits[0].old_text is empty", 0},
		{"a", []Edit{{Old: "a", New: "a"}}, "edits[0].old_text is the same", 0},
		{"x\na\n a", []Edit{{Old: "a", New: "b"}}, "edits[0].old_text is in the file 2 times (lines 2, 3): give more", 0},
		{long, []Edit{{Old: "line", New: "b"}}, "edits[0].old_text is in the file 100 times (lines 1, 2, 3, 4, 5, …)", 0},
		{"a\nb\nc", []Edit{{Old: "a\nb", New: "1"}, {Old: "b", New: "2"}},
			"edits[1].old_text is not in the file: copy it exactly from the file (sandbox_read_file) (after the edits", 0},
		{"x\n\tif  a {\n\t\tb\n", []Edit{{Old: "  if a {\n    b", New: "1"}},
			"edits[0].old_text is not in the file; but for white space it is in line 2", 0},
		{"x\ny  = 1 # z", []Edit{{Old: "y = 1", New: "1"}}, "edits[0].old_text is not in the file; but for white space it is in " +
			"line 2", 0},
		{strings.Repeat("a", 3<<20), []Edit{{Old: "a", New: "aa", All: true}}, "edits[0].old_text would make the file larger", 0},
		{strings.Repeat("a\n", 2<<20), []Edit{{Old: strings.Repeat("a\n", 1<<19) + "b", New: "c"}},
			"edits[0].old_text is not in the file", 0},
	} {
		got, n, err := replaceAll([]byte(c.text), c.edits)
		if err != nil {
			if c.n != 0 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%.60q: %v, want %s", c.text, err, c.want)
			}
			continue
		}
		if string(got) != c.want || n != c.n {
			t.Errorf("%.60q: %.80q, %d, want %.80q, %d", c.text, got, n, c.want, c.n)
		}
	}
}

// TestDiffOf: a diff is text, and bounded.
func TestDiffOf(t *testing.T) {
	if got := diffOf("f", []byte("a\nb\n"), []byte("a\nc\n")); got != "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n" {
		t.Errorf("%q", got)
	}
	before := []byte(strings.Repeat("é\xff x\n", 100_000))
	got := diffOf("f", before, []byte(strings.ReplaceAll(string(before), "x", "y")))
	if len(got) > maxDiff+100 || !strings.HasSuffix(got, " bytes more of the diff]") || strings.ToValidUTF8(got, "") != got {
		t.Errorf("%d bytes: %q", len(got), got[len(got)-60:])
	}
}

// TestTurns: one call at a time has the turn of a session, one that ends waiting does not take it, and nothing is kept.
func TestTurns(t *testing.T) {
	var ts turns
	n := 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			done, err := ts.turn(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			defer done()
			n++ // the race detector looks
		})
	}
	all.Wait()
	first, err := ts.turn(t.Context(), "a")
	if err != nil || n != 50 {
		t.Fatal(n, err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, gone)
	defer cancel()
	if _, err := ts.turn(ctx, "a"); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	other, err := ts.turn(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	first()
	if len(ts.held) != 0 {
		t.Errorf("%v are kept", ts.held)
	}
}
