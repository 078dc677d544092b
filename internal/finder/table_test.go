package finder

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/state"
)

// remove removes a principal's server.
func (o *offers) remove(p auth.Principal, n *offer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[p.ID] = slices.DeleteFunc(slices.Clone(o.of[p.ID]), func(of *offer) bool { return of == n })
	o.list(p.ID)
}

// change calls f to change a server of a principal.
func (o *offers) change(p auth.Principal, n *offer, f func(*offer)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n.info.Tools, n.info.Held = slices.Clone(n.info.Tools), slices.Clone(n.info.Held)
	n.catalog.Tools = slices.Clone(n.catalog.Tools)
	f(n)
	o.list(p.ID)
}

// put gives a server a tool, or another definition of it.
func (n *offer) put(remote, definition string) {
	exposed := "ext_" + n.info.Name + "_" + remote
	n.take(remote)
	n.catalog.Tools = append(n.catalog.Tools, catalog.Definition{Remote: remote, Exposed: exposed,
		Raw: json.RawMessage(fmt.Sprintf(`{"name":%q,%s}`, exposed, definition))})
	n.info.Tools = append(n.info.Tools, servers.Named{Exposed: exposed, Remote: remote})
}

// take takes a tool away from a server.
func (n *offer) take(remote string) {
	named := func(t servers.Named) bool { return t.Remote == remote }
	n.info.Tools, n.info.Held = slices.DeleteFunc(n.info.Tools, named), slices.DeleteFunc(n.info.Held, named)
	n.catalog.Tools = slices.DeleteFunc(n.catalog.Tools, func(d catalog.Definition) bool { return d.Remote == remote })
}

// After each of many changes, searches find what they find in an index that is new, in the same order.
func TestIndexFollows(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func() string { return []string{"alpha", "beta", "gamma", "delta", "issue"}[random.IntN(5)] }
	definition := func() string {
		return fmt.Sprintf(`"description":%q,"inputSchema":{"type":"object","properties":{%q:{}}}`,
			strings.Repeat(word()+" ", 1+random.IntN(8))+word(), word())
	}
	o := &offers{}
	f := newFinder(t, o)
	queries := []string{"alpha", "beta gamma", "del", "issue tool1", "alpha beta gamma delta issue", "server2", "tool"}
	compare := func(step string) {
		t.Helper()
		fresh := New(o, nil, nil)
		defer fresh.Close()
		for _, q := range queries {
			_, got := found(t, f, ann, q, "")
			if _, want := found(t, fresh, ann, q, ""); got != want {
				t.Fatalf("%s: %q finds\n%s\nand in a new index\n%s", step, q, got, want)
			}
		}
	}
	var all []*offer
	for n := range 120 {
		var did string
		switch what := random.IntN(10); {
		case len(all) < 3 || what == 0 && len(all) < 8:
			did = "a server more"
			s := o.add(ann, fmt.Sprint("server", n), state.Connected, nil)
			o.change(ann, s, func(s *offer) {
				for n := range 6 {
					s.put(fmt.Sprint("tool", n), definition())
				}
			})
			all = append(all, s)
		case what == 1:
			did = "a server less"
			at := random.IntN(len(all))
			o.remove(ann, all[at])
			all = slices.Delete(all, at, at+1)
		default:
			s, tool := all[random.IntN(len(all))], fmt.Sprint("tool", random.IntN(8))
			switch {
			case what == 2:
				did = "held back"
				o.hold(ann, s, tool, "it is new")
			case what < 5:
				did = "taken away"
				o.change(ann, s, func(s *offer) { s.take(tool) })
			default:
				did = "changed"
				o.change(ann, s, func(s *offer) { s.put(tool, definition()) })
			}
		}
		f.Changed(ann.ID)
		if n%3 > 0 { // some are seen together
			compare(fmt.Sprint(n, ": ", did))
		}
	}
}

// A change of one tool makes the words of that one alone again, and FTS5 does not keep what has been removed.
func TestIndexKeepsRows(t *testing.T) {
	o := &offers{}
	thousands(o, ann, 5, 20)
	s := o.add(ann, "github", state.Connected, map[string]string{"create_issue": issue, "other": issue})
	f := newFinder(t, o)
	pages := func() (n int) {
		x := f.open(t.Context(), ann)
		defer x.mu.Unlock()
		if err := x.words.db.QueryRow("PRAGMA page_count").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	found(t, f, ann, "issue", "")
	rowsOf := func() []int64 {
		x := f.open(t.Context(), ann)
		defer x.mu.Unlock()
		return slices.Clone(x.words.rows)
	}
	rows, before := rowsOf(), pages()
	for n := range 250 {
		o.change(ann, s, func(s *offer) {
			s.put("create_issue", fmt.Sprintf(`"description":"%s new%d","inputSchema":{}`, strings.Repeat("word ", 50), n))
		})
		f.Changed(ann.ID)
		if names, _ := found(t, f, ann, fmt.Sprint("new", n), ""); len(names) != 1 {
			t.Fatalf("%q is found", names)
		}
	}
	if names, _ := found(t, f, ann, "new100 new111 new248", ""); len(names) != 0 {
		t.Errorf("by words of before, %q is found", names)
	}
	x := f.open(t.Context(), ann)
	if n := x.words.removed; n > len(rows) {
		t.Errorf("of %d rows that were removed, FTS5 may still keep something", n)
	}
	x.mu.Unlock()
	now, kept := rowsOf(), 0
	for _, row := range now {
		if slices.Contains(rows, row) {
			kept++
		}
	}
	if kept != len(rows)-1 || len(now) != len(rows) {
		t.Errorf("of %d rows, %d are kept", len(rows), kept)
	}
	if after := pages(); after > 3*before {
		t.Errorf("the table had %d pages, and has %d", before, after)
	}
}

// Names that a server has twice are both found, and go with it.
func TestIndexOfTwins(t *testing.T) {
	o := &offers{}
	o.add(ann, "other", state.Connected, map[string]string{"create_issue": issue})
	s := o.add(ann, "github", state.Connected, nil)
	f := newFinder(t, o)
	twin := func(text string) catalog.Definition {
		return catalog.Definition{Remote: "note:1", Exposed: "note:1",
			Raw: json.RawMessage(`{"uri":"note:1","name":"note","description":"` + text + `"}`)}
	}
	for want, resources := range map[int][]catalog.Definition{2: {twin("one"), twin("two")}, 1: {twin("two")},
		3: {twin("one"), twin("one"), twin("three")}, 0: nil} {
		o.change(ann, s, func(s *offer) { s.catalog.Resources = resources })
		f.Changed("")
		if names, text := found(t, f, ann, "note", ""); len(names) != want {
			t.Errorf("of %d, there is found\n%s", want, text)
		}
	}
}

// While servers change, others search, and what they find is whole.
func TestSearchWhileChanging(t *testing.T) {
	o := &offers{}
	s := o.add(ann, "github", state.Connected, map[string]string{"create_issue": issue, "other": issue})
	f := newFinder(t, o)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				names, _ := found(t, f, ann, "create_issue", "")
				if !slices.Contains(names, "ext_github_create_issue") {
					t.Errorf("%q is found", names)
				}
				f.Describe(t.Context(), ann, "ext_github_other")
			}
		})
	}
	for n := range 100 {
		o.change(ann, s, func(s *offer) {
			s.put("other", fmt.Sprintf(`"description":"number%d","inputSchema":{"type":"object"}`, n))
		})
		f.Changed([]string{ann.ID, ""}[n%2])
	}
	all.Wait()
	if names, _ := found(t, f, ann, "number99", ""); len(names) != 1 {
		t.Errorf("at the end, %q is found", names)
	}
}

// rowsAhead returns how many rows a principal's index has that was made in the background; -1: there is no index.
func (f *Finder) rowsAhead(p auth.Principal) int {
	f.mu.Lock()
	x := f.indexes[p.ID]
	f.mu.Unlock()
	if x == nil {
		return -1
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.words.rows)
}

// Indexes are made in the background for who will search, has searched, or whose things change; not for all others.
func TestIndexAhead(t *testing.T) {
	o := &offers{}
	f := newFinder(t, o)
	wait := func(p auth.Principal, rows int) {
		t.Helper()
		for began := time.Now(); f.rowsAhead(p) != rows; time.Sleep(time.Millisecond) {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("the index has %d rows, not %d", f.rowsAhead(p), rows)
			}
		}
	}
	github := o.add(ann, "github", state.Connected, map[string]string{"create_issue": issue})
	o.add(bob, "github", state.Connected, map[string]string{"create_issue": issue})
	f.Changed("")
	f.Prepare(ann)
	f.Prepare(ann)
	wait(ann, 2)
	if n := f.rowsAhead(bob); n >= 0 {
		t.Errorf("bob has an index of %d rows", n)
	}
	o.change(ann, github, func(s *offer) { s.put("other", issue) })
	f.Changed(ann.ID)
	wait(ann, 3)

	// What is made ahead takes nobody's place, and what was not used for long is not made again.
	for n := range maxIndexes - 1 {
		p := auth.User(fmt.Sprint("user", n), false)
		o.add(p, "github", state.Connected, map[string]string{"create_issue": issue})
		f.Prepare(p)
	}
	for n := range maxIndexes - 1 {
		wait(auth.User(fmt.Sprint("user", n), false), 2)
	}
	f.Prepare(bob)
	f.makeIndex(bob)
	if n := f.rowsAhead(bob); n >= 0 {
		t.Errorf("bob has an index of %d rows", n)
	}
	f.mu.Lock()
	f.indexes[ann.ID].used = time.Now().Add(-2 * indexLife)
	f.mu.Unlock()
	f.Changed(ann.ID)
	f.ahead.mu.Lock()
	if _, ok := f.ahead.waiting[ann.ID]; ok {
		t.Error("an old index is made again")
	}
	f.ahead.mu.Unlock()
	f.Close()
	f.Close() // it can be called twice
	f.Prepare(bob)
	if len(f.ahead.waiting)+f.ahead.workers > 0 || len(f.indexes) > 0 {
		t.Error("something is made after the end")
	}
}
