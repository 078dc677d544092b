package auth

import (
	"slices"
	"strings"
)

// Scope is the set of operations that the holder of a token may request: names of operations, and
// patterns such as "file.*" for all operations of a noun. They are sorted and separated by spaces, as
// in OAuth, so that equal sets are ==. The empty Scope has all operations.
//
// Package policy, which has the table of operations, parses and checks what users write.
type Scope string

// allOperations is the pattern of all operations.
const allOperations = "*"

// NewScope returns the set of these names and patterns. It leaves out those that others include; the
// pattern "*" includes all.
func NewScope(patterns ...string) Scope {
	if slices.Contains(patterns, allOperations) {
		return ""
	}
	list := slices.Clone(patterns)
	slices.Sort(list)
	list = slices.DeleteFunc(slices.Compact(list), func(name string) bool {
		noun, verb, _ := strings.Cut(name, ".")
		return verb != allOperations && slices.Contains(patterns, noun+"."+allOperations)
	})
	return Scope(strings.Join(list, " "))
}

// Allows reports whether the set has the operation.
func (s Scope) Allows(operation string) bool {
	if s == "" {
		return true
	}
	noun, _, _ := strings.Cut(operation, ".")
	for pattern := range strings.SplitSeq(string(s), " ") {
		if pattern == operation {
			return true
		}
		if of, ok := strings.CutSuffix(pattern, "."+allOperations); ok && of == noun {
			return true
		}
	}
	return false
}
