package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// What cannot be measured here does not keep the rest.
func TestMeasureGoesOn(t *testing.T) {
	all := topics
	defer func() { topics = all }()
	topics = slices.Clone(topics[:2])
	topics[0].run = func(*bench) (section, error) { return section{}, errors.New("no network") }
	topics[1].run = func(*bench) (section, error) { return section{title: "New"}, nil }
	b := &bench{ctx: t.Context()}
	found, err := b.measure(regexp.MustCompile(""), run{Name: "today"})
	if len(found.Sections) != 1 || found.Sections[0].Title != "New" || found.Sections[0].Run != "today" ||
		len(found.Missed) != 1 || found.Missed[0].Topic != topics[0].name || err == nil ||
		!strings.Contains(err.Error(), "no network") {
		t.Errorf("%+v, %v", found, err)
	}
}

// aRun is a document of one run with some topics.
func aRun(name, commit string, names ...string) document {
	d := document{Runs: []run{{Name: name, Machine: [][2]string{{"Sandlot", commit}, {"processor", "P, 2 cores"}}}}}
	for _, n := range names {
		calls := timings("a call")
		took := samples{time.Millisecond, 3 * time.Millisecond}
		calls.add("one", took, took.against(goal{50, 2 * time.Millisecond}, goal{99, 2 * time.Millisecond}))
		calls.add("another", took)
		d.Sections = append(d.Sections, chapter{Topic: n, Run: name, Title: "About " + n, Method: "How " + n + " is.",
			Tables: []table{calls}, Notes: []string{"A note on " + n + "."}})
	}
	return d
}

func TestOneRun(t *testing.T) {
	d := aRun("2026-01-02 03:04:05 UTC", "abc", "warm", "boot")
	d.Sections = append(d.Sections, chapter{Topic: "peers", Run: d.Runs[0].Name, Title: peersTitle, Method: "How peers are.",
		Tables: []table{{Head: []string{"a peer", "P50"}, Rows: [][]string{{"p", besideOne(1, 2, false)},
			{"q", besideOne(1, 2, true)}, {"r", besideOne(3, 2, false)}}}}})
	page, methods := d.figures("docs/benchmarks.md"), d.methods("docs/benchmarks.md")
	for _, text := range []string{"| date | 2026-01-02 03:04:05 UTC |", "| Sandlot | abc |", "2 of 4 goals are met.",
		"| [About warm](benchmarks-methods.md#about-warm) | one | P50 1.00 ms, P99 3.00 ms | P50 ≤ 2.00 ms: met; " +
			"P99 ≤ 2.00 ms: **missed** |", "Sandlot is behind in 1 of 3 figures", "| p | **ahead** (0.50 × Sandlot's) |",
		"| q | behind (0.50 × Sandlot's) |", "| r | behind (1.50 × Sandlot's) |"} {
		if !strings.Contains(page, text) {
			t.Errorf("the page has no %q:\n%s", text, page)
		}
	}
	if strings.Count(page, "2026-01-02") != 1 || strings.Contains(page, "How ") && !strings.Contains(page, "How all") ||
		strings.Contains(page, "another") {
		t.Errorf("one run, its methods, or what has no goal, in the wrong place:\n%s", page)
	}
	for _, text := range []string{"## About warm\n\nHow warm is.\n\n| a call |", "| another | 2 | 1.00 ms | 3.00 ms | " +
		"3.00 ms |  |", "A note on boot.", "How peers are."} {
		if !strings.Contains(methods, text) {
			t.Errorf("the methods have no %q:\n%s", text, methods)
		}
	}
	if strings.Contains(methods, "**ahead**") || strings.Contains(methods, "2026-01-02") {
		t.Errorf("the methods have figures of peers, or the run:\n%s", methods)
	}
}

// Of a report of several runs, each section says of which it is, and a run that no section is of is not named.
func TestSeveralRuns(t *testing.T) {
	first := aRun("first", "abc", "warm", "boot", "hub")
	first.Missed = []missed{{"docker", "no root"}, {"images", "no root"}}
	both := first.merge(aRun("second", "def", "boot", "docker"))
	var order []string
	for _, c := range both.Sections {
		order = append(order, c.Topic+" "+c.Run)
	}
	if want := []string{"warm first", "boot second", "hub first", "docker second"}; !slices.Equal(order, want) {
		t.Errorf("the sections are %q, want %q", order, want)
	}
	if want := []missed{{"images", "no root"}}; !slices.Equal(both.Missed, want) {
		t.Errorf("missed are %v, want %v", both.Missed, want)
	}
	page := both.figures("x.md") + both.methods("x.md")
	for _, text := range []string{"of 2 runs", "| topic | what | measured | goal | run |", "| first | abc | P, 2 cores | 2 |", "| second | def | P, 2 cores | 2 |",
		"| P50 ≤ 2.00 ms: met; P99 ≤ 2.00 ms: **missed** | second |", "## About hub\n\n*Of the run of first, Sandlot abc, P, 2 cores.*",
		"## About boot\n\n*Of the run of second, Sandlot def, P, 2 cores.*"} {
		if !strings.Contains(page, text) {
			t.Errorf("the page has no %q:\n%s", text, page)
		}
	}
	last := both.merge(aRun("third", "abc", "warm", "boot", "hub", "docker"))
	if len(last.Runs) != 1 || strings.Contains(last.figures("x.md"), "second") {
		t.Errorf("the runs are %v, want the third alone", last.Runs)
	}
}

// Figures of a trial or of a busy machine are marked, beside those of other runs too.
func TestDoubts(t *testing.T) {
	trial := aRun("now", "abc", "boot")
	trial.Runs[0].Doubts = []string{"A trial."}
	for mark, d := range map[string]document{"**A trial.**": trial, "now: **A trial.**": aRun("before", "abc",
		"warm").merge(trial)} {
		if page := d.figures("x.md"); !strings.Contains(page, mark) {
			t.Errorf("a trial is not marked:\n%s", page)
		}
		if page := d.methods("x.md"); strings.Count(page, "A trial") != 1 {
			t.Errorf("the section of a trial is not marked:\n%s", page)
		}
	}
}

// What is written is read again, with the samples.
func TestStoredReport(t *testing.T) {
	out := filepath.Join(t.TempDir(), "figures.md")
	d := aRun("first", "abc", "warm")
	many := make(samples, 1000)
	for i := range many {
		many[i] = time.Duration(i)
	}
	d.Sections[0].Tables[0].add("many", many)
	if err := d.write(out); err != nil {
		t.Fatal(err)
	}
	back, err := readDocument(out)
	if err != nil || !reflect.DeepEqual(d, back) {
		t.Errorf("read: %+v, %v, want %+v", back, err, d)
	}
	s := back.Sections[0].Tables[0].Samples["many"]
	if s.Count != 1000 || s.Every != 4 || len(s.Values) != 250 || s.Values[1] != 4 || s.Unit != "ns" {
		t.Errorf("the samples are %+v", s)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(out), "figures.json"))
	if err != nil || !json.Valid(text) {
		t.Errorf("the data are no JSON: %v\n%s", err, text)
	}
	if empty, err := readDocument(filepath.Join(t.TempDir(), "none.md")); err != nil || len(empty.Runs) > 0 {
		t.Errorf("a report that is not there: %v, %v", empty, err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(out), "figures.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readDocument(out); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("broken data are read: %v", err)
	}
}

// The machine's load decides whether a report is written, and where.
func TestBusyMachine(t *testing.T) {
	defer func(f func() float64) { load = f }(load)
	load = func() float64 { return 1.01 }
	if err := awaitIdle(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "-force") {
		t.Errorf("a busy machine: %v", err)
	}
	b := &bench{ctx: t.Context(), bin: t.TempDir()}
	if d := b.thisRun().Doubts; len(d) != 1 || !strings.Contains(d[0], "busy") {
		t.Errorf("a busy machine is not marked: %q", d)
	}
	load = func() float64 { return 1 }
	if err := awaitIdle(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if d := b.thisRun().Doubts; len(d) != 0 {
		t.Errorf("an idle machine is marked: %q", d)
	}
}

func TestOut(t *testing.T) {
	for want, given := range map[string][]string{
		report:   {""},
		trials:   {"-only=warm", "-quick", "-force", "-quick -only=warm"},
		"x/y.md": {"-out=x/y.md -force", "-out=x/y.md", "-out=x/y.md -only=boot"},
		"":       {"-out=x/y.txt"},
	} {
		for _, g := range given {
			var o options
			err := o.parse(strings.Fields(g))
			if (err != nil) != (want == "") || want != "" && o.out != want {
				t.Errorf("%q writes %q (%v), want %q", g, o.out, err, want)
			}
		}
	}
}
