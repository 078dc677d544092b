package awake

import (
	"cmp"
	"slices"
)

// InTurns puts the first of each owner before all second ones, and so on: nobody's sessions, which may take long, use
// up the time of the others'.
func InTurns[T any](all []T, owner func(T) string) []T {
	type turn struct {
		of T
		n  int
	}
	turns := make([]turn, len(all))
	before := map[string]int{} // by owner
	for i, t := range all {
		turns[i] = turn{t, before[owner(t)]}
		before[owner(t)]++
	}
	slices.SortStableFunc(turns, func(x, y turn) int { return cmp.Compare(x.n, y.n) })
	for i, t := range turns {
		all[i] = t.of
	}
	return all
}
