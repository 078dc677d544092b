package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// figures returns the first page: the machine, the goals with the figures that belong to them, and the peers.
func (d document) figures(out string) string {
	data, how := filepath.Base(beside(out, ".json")), filepath.Base(beside(out, "-methods.md"))
	parts := []string{"# Benchmarks",
		"Written by `make bench`, which runs [test/bench](../test/bench). Do not edit. How all is measured, and the other " +
			"figures: [" + how + "](" + how + "). The samples: [" + data + "](" + data + ").",
		d.origin(), d.goals(how)}
	for _, c := range d.Sections {
		if c.Title == peersTitle {
			parts = append(parts, d.markdown(c, false), "[Method]("+how+"#"+anchor(c.Title)+")")
		}
	}
	if len(d.Missed) > 0 {
		t := table{Head: []string{"topic", "why"}}
		for _, m := range d.Missed {
			t.row(m.Topic, oneLine(m.Why))
		}
		parts = append(parts, "## Not measured", t.markdown())
	}
	return strings.Join(parts, "\n\n") + "\n"
}

// methods returns the second page: how all is measured, and all figures but those of the peers.
func (d document) methods(out string) string {
	page := filepath.Base(out)
	parts := []string{"# How the benchmarks are measured",
		"Written by `make bench`. Do not edit. The goals, and the machine: [" + page + "](" + page + ").",
		"Server, sandboxes and clients share one machine, so a client's own work is in the numbers. Servers have " +
			"their default settings, and a new state folder in the folder for temporary files, except where a topic " +
			"says otherwise. Where two things are compared, their samples are taken alternately in the same run. " +
			"Every answer is checked, and a wrong one ends the topic. Percentiles are by the nearest rank: of fewer " +
			"than 100 samples P99 is the longest. A run begins only when the machine's load average is at most " +
			fmt.Sprint(mostLoad) + ". Before it all free memory is written to once: a virtual machine fetches memory from its " +
			"host at the first use. The data has the samples in the order in which they were taken, and of more than " +
			fmt.Sprint(mostSamples) + " every n-th; the percentiles are those of all."}
	for _, c := range d.Sections {
		if c.Title == peersTitle {
			parts = append(parts, "## "+c.Title, c.Method, "The figures: ["+page+"]("+page+"#"+anchor(c.Title)+").")
		} else {
			parts = append(parts, d.markdown(c, true))
		}
	}
	return strings.Join(parts, "\n\n") + "\n"
}

// markdown returns a section, with or without its method.
func (d document) markdown(c chapter, method bool) string {
	parts := []string{"## " + c.Title}
	if r := d.run(c.Run); len(d.Runs) > 1 || len(r.Doubts) > 0 {
		parts = append(parts, "*Of "+r.brief()+".*")
	}
	if method {
		parts = append(parts, c.Method)
	}
	for _, t := range c.Tables {
		parts = append(parts, t.markdown())
	}
	return strings.Join(append(parts, c.Notes...), "\n\n")
}

// run returns a run by its name.
func (d document) run(name string) run {
	i := slices.IndexFunc(d.Runs, func(r run) bool { return r.Name == name })
	if i < 0 {
		return run{Name: name}
	}
	return d.Runs[i]
}

// origin says when, of what, and on which machine: once if all is of one run, else in a table of the runs.
func (d document) origin() string {
	if len(d.Runs) == 0 {
		return "Nothing was measured."
	}
	if len(d.Runs) == 1 {
		r := d.Runs[0]
		t := table{Head: []string{"run", ""}, Rows: [][]string{{"date", r.Name}}}
		for _, m := range r.Machine {
			t.row(m[0], m[1])
		}
		return strings.Join(append(r.warnings(), t.markdown()), "\n\n")
	}
	t := table{Head: []string{"run"}}
	for _, r := range d.Runs {
		for _, m := range r.Machine {
			if !slices.Contains(t.Head, m[0]) {
				t.Head = append(t.Head, m[0])
			}
		}
	}
	t.Head = append(t.Head, "sections")
	var warnings []string
	for _, r := range d.Runs {
		row := []string{r.Name}
		for _, h := range t.Head[1 : len(t.Head)-1] {
			row = append(row, r.machine(h))
		}
		count := 0
		for _, c := range d.Sections {
			if c.Run == r.Name {
				count++
			}
		}
		t.row(append(row, fmt.Sprint(count))...)
		for _, w := range r.warnings() {
			warnings = append(warnings, r.Name+": "+w)
		}
	}
	return strings.Join(append(append([]string{fmt.Sprintf("The sections are of %d runs, and each says of which. "+
		"Figures of different runs cannot be compared: the machine may have been another one, or busier.",
		len(d.Runs))}, warnings...), t.markdown()), "\n\n")
}

func (r run) machine(key string) string {
	for _, m := range r.Machine {
		if m[0] == key {
			return m[1]
		}
	}
	return ""
}

func (r run) warnings() (all []string) {
	for _, d := range r.Doubts {
		all = append(all, "**"+d+"**")
	}
	return all
}

// brief names a run in a line.
func (r run) brief() string {
	text := "the run of " + r.Name
	for _, key := range []string{"Sandlot", "processor", "load before the run"} {
		if v := r.machine(key); v != "" {
			text += ", " + strings.Replace(key, "processor", "", 1) + " " + v
		}
	}
	text = strings.ReplaceAll(text, ",  ", ", ")
	for _, d := range r.Doubts {
		text += ". " + strings.TrimSuffix(d, ".")
	}
	return text
}

// A verdict begins with its goal. One cell may have several, with a semicolon between them.
const met, notMet = ": met", ": **missed**"

// peersTitle is the heading of the section with other programs.
const peersTitle = "Peers"

// What a cell says about a peer's figure beside Sandlot's.
const peerAhead, peerBehind = "**ahead**", "behind"

// goals returns the table of all goals, with the figures that belong to each. How is the page with all figures.
func (d document) goals(how string) string {
	t := table{Head: []string{"topic", "what", "measured", "goal"}}
	if len(d.Runs) > 1 {
		t.Head = append(t.Head, "run")
	}
	reached, all, ahead, compared := 0, 0, 0, 0
	for _, c := range d.Sections {
		title := "[" + c.Title + "](" + how + "#" + anchor(c.Title) + ")"
		for _, from := range c.Tables {
			for _, row := range from.Rows {
				last := row[len(row)-1]
				ahead += strings.Count(last, peerAhead)
				compared += strings.Count(last, peerAhead) + strings.Count(last, peerBehind)
				if len(row) != len(from.Head) || from.Head[len(row)-1] != "goal" || !strings.Contains(last, met) &&
					!strings.Contains(last, notMet) {
					continue
				}
				reached += strings.Count(last, met)
				all += strings.Count(last, met) + strings.Count(last, notMet)
				cells := []string{title, rowName(from, row), figuresOf(from, row), last}
				if len(d.Runs) > 1 {
					cells = append(cells, c.Run)
				}
				t.row(cells...)
			}
		}
	}
	text := fmt.Sprintf("## Goals\n\n%d of %d goals are met.", reached, all)
	if compared > 0 {
		text += fmt.Sprintf(" Beside its [peers](#%s), Sandlot is behind in %d of %d figures.", anchor(peersTitle), ahead,
			compared)
	}
	if all == 0 {
		return text
	}
	return text + "\n\n" + t.markdown()
}

// rowName is the name of a row, with that of the table if that is needed to understand it.
func rowName(t table, row []string) string {
	if regexp.MustCompile(`^\d+$`).MatchString(row[0]) {
		return t.Head[0] + ", " + row[0]
	}
	return row[0]
}

// figuresOf returns the figures of a row in one cell: P50 and P99 where there are some, else the first four that are no
// number of samples.
func figuresOf(t table, row []string) string {
	var found []string
	percentiles := slices.ContainsFunc(t.Head, func(h string) bool { return strings.HasPrefix(h, "P50") })
	for i, h := range t.Head[1 : len(t.Head)-1] {
		wanted := !slices.Contains([]string{"samples", "turns", "connections"}, h) && len(found) < 4
		if percentiles {
			wanted = h == "average" || h == "longest" || strings.HasPrefix(h, "P50") || strings.HasPrefix(h, "P99")
		}
		if v := row[i+1]; wanted && v != "" {
			found = append(found, h+" "+v)
		}
	}
	return strings.Join(found, ", ")
}

// anchor is the address of a heading in its page.
func anchor(heading string) string {
	return strings.ReplaceAll(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func oneLine(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

func (t table) markdown() string {
	lines := []string{line(t.Head), strings.Repeat("|---", len(t.Head)) + "|"}
	for _, r := range t.Rows {
		for len(r) < len(t.Head) {
			r = append(r, "")
		}
		lines = append(lines, line(r))
	}
	return strings.Join(lines, "\n")
}

func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }

// markdown returns the section as this program prints it when it is measured.
func (s section) markdown() string {
	parts := []string{"## " + s.title, s.method}
	for _, t := range s.tables {
		parts = append(parts, t.markdown())
	}
	return strings.Join(append(parts, s.notes...), "\n\n") + "\n"
}
