package main

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What cannot be measured here does not keep the rest.
func TestMeasureGoesOn(t *testing.T) {
	all := topics
	defer func() { topics = all }()
	topics = slices.Clone(topics[:2])
	topics[0].run = func(*bench) (section, error) { return section{}, errors.New("no network") }
	topics[1].run = func(*bench) (section, error) { return section{title: "New"}, nil }
	b := &bench{ctx: t.Context()}
	parts, missed := b.measure(regexp.MustCompile(""), "")
	if len(parts) != 1 || !strings.Contains(parts[0], "## New") || missed == nil ||
		!strings.Contains(missed.Error(), "no network") {
		t.Errorf("%q, %v", parts, missed)
	}
}

func TestMerge(t *testing.T) {
	report := merge("", []string{"# Report\n", "## A\n\na\n", "## B\n\nb\n"})
	if want := "# Report\n\n## A\n\na\n\n## B\n\nb\n"; report != want {
		t.Fatalf("a new report is %q, want %q", report, want)
	}
	report = merge(report, []string{"", "## A\n\nnew\n", "## AB\n\nlast\n"})
	if want := "# Report\n\n## A\n\nnew\n\n## B\n\nb\n\n## AB\n\nlast\n"; report != want {
		t.Errorf("the report is %q, want %q", report, want)
	}
}
