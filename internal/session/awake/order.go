package awake

import (
	"cmp"
	"slices"
)

// InTurns puts the first of each owner before all second ones, and so on: nobody's sessions, which may take long, use
// up the time of the others'.
func InTurns[T any](all []T, owner func(T) string) []T {
	type ranked struct {
		of   T
		rank int // among those of the same owner
	}
	list := make([]ranked, len(all))
	before := map[string]int{} // by owner
	for i, t := range all {
		list[i] = ranked{t, before[owner(t)]}
		before[owner(t)]++
	}
	slices.SortStableFunc(list, func(x, y ranked) int { return cmp.Compare(x.rank, y.rank) })
	for i, r := range list {
		all[i] = r.of
	}
	return all
}
