package policy

import (
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// A scope has one form for each set, whatever was written.
func TestParseScope(t *testing.T) {
	for text, want := range map[string]auth.Scope{
		"code.execute":                      "code.execute",
		"file.read,code.execute":            "code.execute file.read",
		"file.read,file.*,file.write":       "file.*",
		"shell.execute,shell.execute":       "shell.execute",
		"*":                                 "",
		"file.read,*":                       "",
		"mcp.call,mcp.connect,session.stop": "mcp.call mcp.connect session.stop",
	} {
		if got, err := ParseScope(strings.Split(text, ",")); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	if got, err := ParseScope(nil); err == nil {
		t.Errorf("no operation at all is the scope %q, which allows everything", got)
	}
	for text, near := range map[string]string{
		"code.exec":     "code.execute",
		"files.read":    "file.read",
		"shel.*":        "shell.*",
		"file.reed":     "file.read",
		"":              "code.*, completion.*",
		" ":             "code.*",
		"*.read":        "file.*",
		"*.*":           "file.*",
		"file.":         "file.read",
		"file":          "file.*",
		"code.execute ": "code.execute",
		"file.* *":      "file.*",
	} {
		if got, err := ParseScope([]string{text}); !fault.Is(err, fault.InvalidParameters) ||
			!strings.Contains(err.Error(), near) {
			t.Errorf("%q: %q, %v, want an error with %s", text, got, err, near)
		}
	}
}

// Each operation is refused outside of the scope, and allowed in it, with all roles and without: only
// those that need no principal, and those of the protocol, are in every scope.
func TestScopeOfEachOperation(t *testing.T) {
	for _, name := range Operations() {
		o := Operation(name)
		noun, _, _ := strings.Cut(name, ".")
		other := auth.Scope("code.execute")
		if o == CodeExecute {
			other = "file.*"
		}
		for _, roles := range []auth.Roles{0, auth.NewRoles(auth.Operator)} {
			p := auth.User("ann", false)
			p.Roles = roles
			unscoped := Decide(Question{Principal: p, Operation: o}).Effect
			for scope, inside := range map[auth.Scope]bool{other: false, auth.Scope(name): true,
				auth.Scope(noun + ".*"): true, auth.NewScope(name, string(other)): true, auth.Scope(noun): false,
				auth.Scope(name + "x"): false, auth.Scope(noun + "x.*"): false} {
				p.Scope = scope
				inside = inside || table[o].anyone || o == ClientConnect || o == ToolList || o == ToolFind ||
					o == PromptList || o == ResourceList
				d := Decide(Question{Principal: p, Operation: o})
				if inside && d.Effect != unscoped {
					t.Errorf("%s with the scope %q: %v", o, scope, d.Err())
				}
				if err := d.Err(); !inside && (!fault.Is(err, fault.Forbidden) ||
					!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), string(scope))) {
					t.Errorf("%s with the scope %q: %v", o, scope, err)
				}
				if InScope(p, o) != inside {
					t.Errorf("InScope(%q, %s) = %v", scope, o, !inside)
				}
			}
		}
	}
}

// An operation out of scope is refused in the same words for what is somebody else's and for what does not
// exist.
func TestScopeRevealsNothing(t *testing.T) {
	p := auth.User("ann", false)
	p.Scope = "code.execute"
	words := map[string]bool{}
	for _, owner := range []string{"", "user:ann", "user:bob"} {
		r := Resource{Kind: "session", ID: "x", Owner: owner}
		words[Decide(Question{Principal: p, Operation: FileRead, Resource: r}).Err().Error()] = true
	}
	if len(words) != 1 {
		t.Errorf("it is told in %v", words)
	}
}

func BenchmarkScope(b *testing.B) {
	for name, scope := range map[string]auth.Scope{"all": "", "scoped": "code.execute file.* process.* session.*"} {
		b.Run(name, func(b *testing.B) {
			p := auth.User("ann", false)
			p.Scope = scope
			for b.Loop() {
				if Decide(Question{Principal: p, Operation: SessionList}).Effect != Allow {
					b.Fatal("refused")
				}
			}
		})
	}
}
