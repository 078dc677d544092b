package main

import (
	"fmt"
	"go/ast"
	"go/types"
	"path/filepath"
	"slices"
	"sort"
)

// back measures which share of a package's arrows runs back up.
//
// An arrow is one function, method or type that another one in another file of the
// package uses: from the file that uses to the file that has. Read in an order in
// which users stand before what they use, all arrows run down. The order is the one
// in which the fewest run back up, as far as moving one file at a time finds it, so
// that the number depends on nothing but the code. It is 0 where the files of a
// package are layers, and at most 50.
func (p *pkg) back() finding {
	files := p.code()
	index := map[string]int{}
	for i, f := range files {
		index[filepath.Base(f.name)] = i
	}
	weight := make([][]int, len(files))
	for i := range weight {
		weight[i] = make([]int, len(files))
	}
	names := map[[2]int][]string{}
	total := 0
	for from, f := range files {
		for _, d := range f.syntax.Decls {
			seen := map[types.Object]bool{}
			ast.Inspect(d, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				used := p.info.Uses[id]
				if !p.counts(used) || seen[used] {
					return true
				}
				seen[used] = true
				to, ok := index[filepath.Base(p.fset.Position(used.Pos()).Filename)]
				if ok && to != from {
					weight[from][to]++
					total++
					names[[2]int{from, to}] = append(names[[2]int{from, to}], used.Name())
				}
				return true
			})
		}
	}
	if total == 0 {
		return finding{name: p.name}
	}
	order := leastBack(weight)
	found := finding{name: p.name}
	back := 0
	for i, from := range order {
		for _, to := range order[:i] {
			if n := weight[from][to]; n > 0 {
				back += n
				found.places = append(found.places, fmt.Sprintf("%s → %s: %v",
					filepath.Base(files[from].name), filepath.Base(files[to].name), names[[2]int{from, to}]))
			}
		}
	}
	found.value = (100*back + total/2) / total
	return found
}

// counts reports whether an object is a function, method or type of the package.
func (p *pkg) counts(o types.Object) bool {
	if o == nil || o.Pkg() != p.types {
		return false
	}
	switch o := o.(type) {
	case *types.Func:
		return true
	case *types.TypeName:
		return o.Parent() == p.types.Scope()
	}
	return false
}

// leastBack orders files so that little of the weight runs from a later one to an
// earlier one.
func leastBack(weight [][]int) []int {
	order := make([]int, len(weight))
	lead := make([]int, len(weight)) // what goes out of a file less what comes in
	for i := range order {
		order[i] = i
		for j := range weight {
			lead[i] += weight[i][j] - weight[j][i]
		}
	}
	sort.SliceStable(order, func(a, b int) bool { return lead[order[a]] > lead[order[b]] })
	for moved := true; moved; {
		moved = false
		for i := range order {
			// gain is by how much less runs back if the file at i stood at j.
			best, at := 0, i
			gain := 0
			for j := i - 1; j >= 0; j-- {
				gain += weight[order[i]][order[j]] - weight[order[j]][order[i]]
				if gain > best {
					best, at = gain, j
				}
			}
			gain = 0
			for j := i + 1; j < len(order); j++ {
				gain += weight[order[j]][order[i]] - weight[order[i]][order[j]]
				if gain > best {
					best, at = gain, j
				}
			}
			if at != i {
				f := order[i]
				order = slices.Insert(slices.Delete(order, i, i+1), at, f)
				moved = true
			}
		}
	}
	return order
}
