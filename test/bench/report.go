package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// section is what a topic returns.
type section struct {
	title  string
	method string
	tables []table
	notes  []string
}

// table is a table of figures.
type table struct {
	Head    []string          `json:"head"`
	Rows    [][]string        `json:"rows"`
	Samples map[string]series `json:"samples,omitempty"` // by a row's first column, and a column's name
}

// add adds a row: its name, the columns of the samples, and more columns.
func (t *table) add(name string, s samples, more ...string) {
	t.row(append(append([]string{name}, s.cells()...), more...)...)
	t.keep(name, s)
}

// row adds a row that has no samples, or not the samples of add.
func (t *table) row(cells ...string) { t.Rows = append(t.Rows, cells) }

// keep stores the samples of a row.
func (t *table) keep(name string, s samples) {
	values := make([]float64, len(s))
	for i, d := range s {
		values[i] = float64(d)
	}
	t.keepIn("ns", name, values)
}

// keepIn stores the samples of a row, in a unit other than nanoseconds.
func (t *table) keepIn(unit, name string, values []float64) {
	if t.Samples == nil {
		t.Samples = map[string]series{}
	}
	t.Samples[name] = newSeries(unit, values)
}

// timings returns a table whose rows are samples with goals.
func timings(first string) table {
	return table{Head: append(append([]string{first}, headings...), "goal")}
}

// mostSamples is how many samples of a row are stored: the file is part of the repository.
const mostSamples = 300

// series are samples in the order in which they were taken. Of more than mostSamples, every n-th is stored.
type series struct {
	Unit   string    `json:"unit"` // of the values
	Count  int       `json:"count"`
	Every  int       `json:"every"` // 1: all are stored
	Values []float64 `json:"values"`
}

func newSeries(unit string, values []float64) series {
	s := series{Unit: unit, Count: len(values), Every: max(1, (len(values)+mostSamples-1)/mostSamples)}
	for i := 0; i < len(values); i += s.Every {
		s.Values = append(s.Values, values[i])
	}
	return s
}

// document is what docs/benchmarks.json has. Both pages are made of it.
type document struct {
	Runs     []run     `json:"runs"`
	Sections []chapter `json:"sections"`
	Missed   []missed  `json:"missed,omitempty"`
}

// run is one start of this program.
type run struct {
	Name    string      `json:"name"` // its date and time
	Machine [][2]string `json:"machine"`
	Doubts  []string    `json:"doubts,omitempty"` // why its figures mean little
}

// chapter is the section of a topic, and the run that it is of.
type chapter struct {
	Topic  string   `json:"topic"`
	Run    string   `json:"run"`
	Title  string   `json:"title"`
	Method string   `json:"method"`
	Tables []table  `json:"tables"`
	Notes  []string `json:"notes,omitempty"`
}

// missed is a topic that could not be measured.
type missed struct {
	Topic string `json:"topic"`
	Why   string `json:"why"`
}

// merge replaces the sections of the topics that a newer document has. It drops runs that have no section any more.
func (d document) merge(newer document) document {
	replaced := func(topic string) bool {
		return slices.ContainsFunc(newer.Sections, func(c chapter) bool { return c.Topic == topic })
	}
	missedAgain := func(topic string) bool {
		return slices.ContainsFunc(newer.Missed, func(m missed) bool { return m.Topic == topic })
	}
	out := document{Sections: slices.Clone(newer.Sections), Missed: slices.Clone(newer.Missed)}
	for _, c := range d.Sections {
		if !replaced(c.Topic) {
			out.Sections = append(out.Sections, c)
		}
	}
	for _, m := range d.Missed {
		if !replaced(m.Topic) && !missedAgain(m.Topic) {
			out.Missed = append(out.Missed, m)
		}
	}
	slices.SortStableFunc(out.Sections, func(a, b chapter) int {
		return cmp.Compare(position(a.Topic), position(b.Topic))
	})
	for _, r := range slices.Concat(d.Runs, newer.Runs) {
		if slices.ContainsFunc(out.Sections, func(c chapter) bool { return c.Run == r.Name }) {
			out.Runs = append(out.Runs, r)
		}
	}
	return out
}

// position is a topic's place in the report.
func position(name string) int {
	for i, t := range topics {
		if t.name == name {
			return i
		}
	}
	return len(topics)
}

// beside returns the path of a file that goes with the report out, which ends with .md.
func beside(out, end string) string { return strings.TrimSuffix(out, ".md") + end }

// readDocument reads the data of an earlier report; a report that is not there is empty.
func readDocument(out string) (d document, err error) {
	text, err := os.ReadFile(beside(out, ".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		err = fmt.Errorf("reading the report that this run adds to: %w; remove the file, or choose another -out", err)
	}
	return d, err
}

// write writes both pages and the data.
func (d document) write(out string) error {
	data, err := d.json()
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(beside(out, ".json"), data, 0o644),
		os.WriteFile(out, []byte(d.figures(out)), 0o644),
		os.WriteFile(beside(out, "-methods.md"), []byte(d.methods(out)), 0o644))
}

// json returns the data with a line for each run and section, so that a diff shows which have changed.
func (d document) json() ([]byte, error) {
	var b bytes.Buffer
	list := func(name string, n int, item func(int) any) error {
		fmt.Fprintf(&b, "%q: [", name)
		for i := range n {
			text, err := json.Marshal(item(i))
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s\n%s", map[bool]string{true: ",", false: ""}[i > 0], text)
		}
		b.WriteString("\n]")
		return nil
	}
	b.WriteString("{")
	err := list("runs", len(d.Runs), func(i int) any { return d.Runs[i] })
	b.WriteString(",\n")
	err = errors.Join(err, list("sections", len(d.Sections), func(i int) any { return d.Sections[i] }))
	if len(d.Missed) > 0 {
		b.WriteString(",\n")
		err = errors.Join(err, list("missed", len(d.Missed), func(i int) any { return d.Missed[i] }))
	}
	b.WriteString("}\n")
	return b.Bytes(), err
}
