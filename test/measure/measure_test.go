package main

import (
	"slices"
	"strings"
	"testing"
)

// TestExceptions: what is new or larger fails, and so does a line for what holds; what
// got less may stay in the list as it is.
func TestExceptions(t *testing.T) {
	m := &measured{title: "longest function, lines", key: "lines", bound: 70}
	for name, value := range map[string]int{"a.New": 80, "a.Less": 75, "a.More": 90, "a.Listed": 71, "a.Fine": 70} {
		m.add(finding{name: name, value: value})
	}
	m.sort()
	listed, err := parseExceptions("# text\nlines a.Fine 72\nlines a.Less 79\nlines a.Listed 71\n" +
		"lines a.More 89\nlines a.More 91\n")
	if err != nil {
		t.Fatal(err)
	}
	problems, hints, lowered := compare([]*measured{m}, listed)
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.text)
	}
	want := []string{"a.More has 90", "a.New has 80", `delete the line "lines a.Fine 72"`}
	if len(texts) != len(want) {
		t.Fatalf("%q", texts)
	}
	for i := range want {
		if !strings.Contains(texts[i], want[i]) {
			t.Errorf("%q does not say %q", texts[i], want[i])
		}
	}
	if len(hints) != 1 || !strings.Contains(hints[0], `"lines a.Less 79" may say 75`) {
		t.Errorf("hints: %q", hints)
	}
	// What is larger keeps its line, and what is new gets none.
	if want := head + "lines a.Less 75\nlines a.Listed 71\nlines a.More 89\n"; lowered != want {
		t.Errorf("it is lowered to\n%s", lowered)
	}
	for _, wrong := range []string{"lines a 1 2", "lines a x"} {
		if _, err := parseExceptions(wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}

// TestLeastBack: layers have an order without a way back, and a circle has not.
func TestLeastBack(t *testing.T) {
	back := func(weight [][]int) (n int) {
		order := leastBack(weight)
		for i, from := range order {
			for _, to := range order[:i] {
				n += weight[from][to]
			}
		}
		return n
	}
	layers := [][]int{{0, 0, 0, 0}, {3, 0, 0, 0}, {1, 2, 0, 0}, {9, 0, 4, 0}} // 3 → 2 → 1 → 0
	if n := back(layers); n != 0 {
		t.Errorf("%d arrows run back in layers: %v", n, leastBack(layers))
	}
	circle := [][]int{{0, 5, 0}, {0, 0, 5}, {2, 0, 0}}
	if n := back(circle); n != 2 {
		t.Errorf("%d arrows run back in a circle, and the least is 2", n)
	}
	if !slices.Equal(leastBack(nil), []int{}) {
		t.Error("no files")
	}
}

// TestTokens: wrapping and comments change nothing.
func TestTokens(t *testing.T) {
	a := tokens([]byte("package p\n\nfunc f(a, b int) int { return a + b }\n"))
	b := tokens([]byte("// Package p.\npackage p\n\n// f.\nfunc f(a,\n\tb int) int {\n\treturn a +\n\t\tb\n}\n"))
	if a != b || a != 17 {
		t.Errorf("%d and %d tokens", a, b)
	}
}
