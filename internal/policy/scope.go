package policy

import (
	"slices"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// protocolOperations are in every scope: without them no MCP client could connect, and make the
// calls that the scope allows. The lists have only what the scope allows.
var protocolOperations = []Operation{ClientConnect, ToolList, ToolFind, PromptList, ResourceList}

// InScope reports whether the scope of the principal's token has the operation. Everybody may do
// some operations without any token; the scope does not matter there.
func InScope(p auth.Principal, o Operation) bool { return table[o].anyone || inScope(p, o) }

func inScope(p auth.Principal, o Operation) bool {
	return p.Scope.Allows(string(o)) || slices.Contains(protocolOperations, o)
}

// Narrow returns the scope with what is in both.
func Narrow(a, b auth.Scope) auth.Scope {
	switch {
	case a == b, b == "":
		return a
	case a == "":
		return b
	}
	both := []string{string(ToolList)} // which is in every scope: an empty one would have all
	for _, o := range Operations() {
		if a.Allows(o) && b.Allows(o) {
			both = append(both, o)
		}
	}
	return auth.NewScope(both...)
}

// outOfScope returns the refusal of an operation that is not in the scope of the principal's token.
func outOfScope(p auth.Principal, o Operation) *fault.Error {
	return fault.New(fault.Forbidden, "the operation %s is not in the scope of your token, which is %s", o, p.Scope).
		With("operation", string(o)).With("scope", string(p.Scope)).With("required_scope", string(o)).
		Advise("Use a token whose scope has " + string(o))
}

// ParseScope parses the names of operations, and patterns such as "file.*" and "*". The error for an
// unknown one names those that were probably meant. A list without any is an error too: the empty
// scope has all operations, which nobody means by an empty list.
func ParseScope(patterns []string) (auth.Scope, error) {
	if len(patterns) == 0 {
		return "", fault.Argument("scope", "the scope is empty; name operations, such as code.execute, or file.*")
	}
	for _, pattern := range patterns {
		if pattern != "*" && !slices.Contains(scopeNames(), pattern) {
			return "", unknownInScope(pattern)
		}
	}
	return auth.NewScope(patterns...), nil
}

// scopeNames returns the names of all operations and the patterns of all nouns, sorted.
func scopeNames() []string {
	names := Operations()
	for _, name := range names {
		noun, _, _ := strings.Cut(name, ".")
		names = append(names, noun+".*")
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unknownInScope returns the error for a pattern that matches no operation. It names the operations of
// the same or the nearest noun, and else all nouns.
func unknownInScope(pattern string) error {
	names, nouns := scopeNames(), []string{}
	for _, name := range names {
		if noun, ok := strings.CutSuffix(name, ".*"); ok {
			nouns = append(nouns, noun)
		}
	}
	noun, _, _ := strings.Cut(pattern, ".")
	if !slices.Contains(nouns, noun) {
		noun = fault.Nearest(noun, nouns)
	}
	var near []string
	for _, name := range names {
		if noun == "" && strings.HasSuffix(name, ".*") || strings.HasPrefix(name, noun+".") {
			near = append(near, name)
		}
	}
	return fault.Argument("scope", "scope %q: there is no such operation%s; near are %s", fault.Clip(pattern),
		fault.DidYouMean(pattern, names), strings.Join(near, ", ")).With("allowed", names)
}
