package main

import (
	"slices"
	"strings"
)

// section is one section of the report.
type section struct {
	title  string
	method string
	tables []table
	notes  []string
}

type table struct {
	head []string
	rows [][]string
}

// add adds a row: its name, the columns of the samples, and more columns.
func (t *table) add(name string, s samples, more ...string) {
	t.rows = append(t.rows, append(append([]string{name}, s.cells()...), more...))
}

// timings returns a table whose rows are samples with goals.
func timings(first string) table {
	return table{head: append(append([]string{first}, headings...), "goal")}
}

func (s section) markdown() string {
	parts := []string{"## " + s.title, s.method}
	for _, t := range s.tables {
		parts = append(parts, t.markdown())
	}
	parts = append(parts, s.notes...)
	return strings.Join(parts, "\n\n") + "\n"
}

// merge replaces the sections of a report that have the titles of new ones, and adds the other new ones at the end.
// The first of the parts is the preface; if it is empty, the report's own preface stays.
func merge(report string, parts []string) string {
	old := strings.Split(report, "\n## ")
	if parts[0] != "" {
		old[0] = strings.TrimSuffix(parts[0], "\n") + "\n"
	}
	for _, p := range parts[1:] {
		p = strings.TrimPrefix(p, "## ")
		title, _, _ := strings.Cut(p, "\n")
		same := func(s string) bool { return strings.HasPrefix(s, title+"\n") }
		if i := slices.IndexFunc(old, same); i > 0 {
			old[i] = p
		} else {
			old = append(old, p)
		}
	}
	return strings.Join(old, "\n## ")
}

func (t table) markdown() string {
	lines := []string{line(t.head), strings.Repeat("|---", len(t.head)) + "|"}
	for _, r := range t.rows {
		for len(r) < len(t.head) {
			r = append(r, "")
		}
		lines = append(lines, line(r))
	}
	return strings.Join(lines, "\n")
}

func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }
