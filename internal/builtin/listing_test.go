package builtin

import (
	"strings"
	"testing"
	"unicode"

	"sandlot/internal/agent"
	"sandlot/internal/servers"
)

// Each entry of a listing is one line, whose names cannot look like more entries, or like other names.
func TestNamesInListings(t *testing.T) {
	for name, want := range map[string]string{
		"plain.txt": "plain.txt", "a b/ü😀.txt": "a b/ü😀.txt", "a'b": "a'b",
		"a\n0644         9 2026-01-01T00:00:00Z fake": `"a\n0644         9 2026-01-01T00:00:00Z fake"`,
		"\x1b[31mred": `"\x1b[31mred"`, "a\u202etxt.exe": `"a\u202etxt.exe"`, "a\u2028b": `"a\u2028b"`,
		"a\u200bb": `"a\u200bb"`, "a\u3164": `"a\u3164"`, "\u115f": `"\u115f"`, "a\rb": `"a\rb"`, "a\tb": `"a\tb"`, " a": `" a"`, "a ": `"a "`, "\xff": `"\xff"`,
		"a -> /etc/passwd": `"a -> /etc/passwd"`, `"a"`: `"\"a\""`,
	} {
		for what, line := range map[string]string{
			"a file":    shownName(agent.File{Path: name}),
			"a link":    strings.TrimPrefix(shownName(agent.File{Path: "l", Target: name}), "l -> "),
			"a folder":  strings.TrimSuffix(shownName(agent.File{Path: name, Type: "directory"}), "/"),
			"a process": strings.TrimPrefix(processLine(Process{}, []string{name}), "      "),
		} {
			if line != want || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s %q: %s, want %s", what, name, line, want)
			}
		}
	}
	var b strings.Builder
	writeHeldTools(&b, servers.Info{ID: "id", Offers: servers.Offers{Held: []servers.Named{{Remote: "x\n- y", Why: "new"}}}})
	if strings.Contains(b.String(), "\n- y") {
		t.Errorf("a held tool: %q", b.String())
	}
}
