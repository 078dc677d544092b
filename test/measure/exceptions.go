package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A problem is a bound that is broken, or a line of the exceptions that is wrong.
type problem struct {
	text     string
	writable bool // -write mends it
}

// parseExceptions reads lines of a measure's key, a name and a number.
func parseExceptions(text string) (map[string]int, error) {
	exceptions := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: want MEASURE NAME NUMBER, have %q", exceptionsFile, i+1, line)
		}
		n, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, fmt.Errorf("%s:%d: no number: %q", exceptionsFile, i+1, line)
		}
		key := fields[0] + " " + fields[1]
		if was, twice := exceptions[key]; twice { // two branches lowered it
			n = min(n, was)
		}
		exceptions[key] = n
	}
	return exceptions, nil
}

// compare yields what is broken, what may be lowered, and the list as it would be
// when all that may go is gone.
func compare(measures []*measured, exceptions map[string]int) (problems []problem, hints []string, lowered string) {
	left := maps.Clone(exceptions)
	next := map[string]int{}
	for _, m := range measures {
		if m.broken != "" {
			problems = append(problems, problem{text: m.broken})
		}
		for _, f := range m.over() {
			key := m.key + " " + f.name
			was, listed := left[key]
			delete(left, key)
			switch {
			case !listed:
				problems = append(problems, problem{text: fmt.Sprintf("%s: %s has %d, and the bound is %d "+
					"(or, where code moved, add the line %q to %s)%s",
					m.title, f.name, f.value, m.bound, fmt.Sprint(key, " ", f.value), exceptionsFile, at(f))})
			case f.value > was:
				next[key] = was
				problems = append(problems, problem{text: fmt.Sprintf("%s: %s has %d, and its line %q in %s says "+
					"less%s",
					m.title, f.name, f.value, fmt.Sprint(key, " ", was), exceptionsFile, at(f))})
			default:
				next[key] = f.value
				if f.value < was {
					hints = append(hints, fmt.Sprintf("%s: the line %q may say %d",
						exceptionsFile, fmt.Sprint(key, " ", was), f.value))
				}
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(left)) {
		problems = append(problems, problem{writable: true, text: fmt.Sprintf(
			"%s: delete the line %q: it holds now, or is gone", exceptionsFile, fmt.Sprint(key, " ", left[key]))})
	}
	return problems, hints, format(next)
}

// present lists everything that is over a bound, with its number.
func present(measures []*measured) map[string]int {
	exceptions := map[string]int{}
	for _, m := range measures {
		for _, f := range m.over() {
			exceptions[m.key+" "+f.name] = f.value
		}
	}
	return exceptions
}

// at says where to look, at most at five places.
func at(f finding) string {
	if len(f.places) == 0 {
		return ""
	}
	text := "\n    " + strings.Join(f.places[:min(5, len(f.places))], "\n    ")
	if len(f.places) > 5 {
		folder, _, _ := strings.Cut(f.name, ".")
		text += fmt.Sprintf("\n    … (all: go run ./test/measure -list %s)", folder)
	}
	return text
}

const head = `# What is over a bound of test/measure today: measure, name, number. This list only gets
# shorter; "go run ./test/measure -write" lowers numbers and deletes lines that hold.
`

func format(exceptions map[string]int) string {
	b := strings.Builder{}
	b.WriteString(head)
	keys := slices.SortedFunc(maps.Keys(exceptions), func(a, b string) int { return cmp.Compare(a, b) })
	for _, k := range keys {
		fmt.Fprintln(&b, k, exceptions[k])
	}
	return b.String()
}
