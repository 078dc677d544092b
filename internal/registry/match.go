package registry

import (
	"cmp"
	"slices"
	"strings"
)

// maxMatches bounds what a search has in memory.
const maxMatches = 1000

// matches collects the entries that a search finds.
type matches struct {
	words []string
	found []match
	total int
}

type match struct {
	Summary
	score int
}

// add adds an entry if it has all words.
func (m *matches) add(s Summary) {
	score, ok := m.score(s)
	if !ok {
		return
	}
	m.total++
	if m.found = append(m.found, match{s, score}); len(m.found) > 2*maxMatches {
		m.sort()
		m.found = slices.Delete(m.found, maxMatches, len(m.found))
	}
}

// score returns how well an entry fits: words in its name count most.
func (m *matches) score(s Summary) (score int, ok bool) {
	name, title, text := strings.ToLower(s.Name), strings.ToLower(s.Title), strings.ToLower(s.Description)
	_, own, _ := strings.Cut(name, "/")
	for _, w := range m.words {
		n := 0
		switch {
		case own == w || name == w:
			n = 100
		case strings.Contains(own, w):
			n = 20
		case strings.Contains(title, w):
			n = 15
		case strings.Contains(name, w):
			n = 10
		case strings.Contains(text, w):
			n = 5
		default:
			return 0, false
		}
		score += n
	}
	if s.Status == "deprecated" {
		score -= 3
	}
	return score, true
}

func (m *matches) sort() {
	slices.SortFunc(m.found, func(a, b match) int {
		return cmp.Or(b.score-a.score, strings.Compare(a.Name, b.Name), strings.Compare(a.Registry, b.Registry))
	})
}

// best returns the best ones.
func (m *matches) best(most int) []Summary {
	m.sort()
	all := []Summary{}
	for _, f := range m.found[:min(most, len(m.found))] {
		all = append(all, f.Summary)
	}
	return all
}
