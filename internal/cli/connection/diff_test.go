package connection

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDifference(t *testing.T) {
	old := readable(json.RawMessage(`{"name":"say","description":"Says.\nTwice.","inputSchema":{"type":"object"}}`))
	changed := readable(json.RawMessage(`{"name":"say","description":"Says.\nThrice.\u001b[8m","inputSchema":{"type":"object"}}`))
	got := strings.Join(difference(old, changed), "\n")
	for _, want := range []string{"  Says.\n", "- Twice.\n", "+ Thrice.", "  {\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || strings.Count(got, "\n- ")+strings.Count(got, "\n+ ") != 2 {
		t.Errorf("the difference is\n%s", got)
	}
	many := make([]string, 3000)
	if got := difference(many, append(many[:2999:2999], "x")); len(got) != 6000 || got[0] != "- " || got[5999] != "+ x" {
		t.Errorf("of many lines there are %d", len(got))
	}
}
