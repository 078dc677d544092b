package policy

import (
	"testing"

	"sandlot/internal/auth"
)

// TestNarrow: a narrowed scope allows an operation if, and only if, both allow it, and never has all by accident.
func TestNarrow(t *testing.T) {
	scopes := []auth.Scope{"", auth.NewScope("code.*"), auth.NewScope("code.execute", "mcp.call"),
		auth.NewScope("mcp.*"),
		auth.NewScope("file.read"), auth.NewScope("code.background", "file.*", "mcp.call")}
	for _, a := range scopes {
		for _, b := range scopes {
			both := Narrow(a, b)
			for _, o := range Operations() {
				p := func(s auth.Scope) bool { return InScope(auth.Principal{ID: "user:x", Scope: s}, Operation(o)) }
				if p(both) != (p(a) && p(b)) {
					t.Errorf("%q and %q are %q: %s", a, b, both, o)
				}
			}
			if Narrow(both, a) != both || Narrow(both, b) != both {
				t.Errorf("%q and %q are %q, which is narrowed again", a, b, both)
			}
		}
	}
}
