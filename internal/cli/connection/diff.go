package connection

import (
	"encoding/json"
	"strings"

	"sandlot/internal/cli/plain"
)

// readable writes a tool's definition in lines, safe to print: its description first, then the rest as JSON.
func readable(definition json.RawMessage) []string {
	var d map[string]json.RawMessage
	_ = json.Unmarshal(definition, &d) // anything but an object has nothing to show
	var description string
	_ = json.Unmarshal(d["description"], &description)
	lines := strings.Split(plain.Text(description), "\n")
	delete(d, "name")
	delete(d, "description")
	if rest, err := json.MarshalIndent(d, "", "  "); err == nil && len(d) > 0 {
		lines = append(lines, strings.Split(plain.Text(string(rest)), "\n")...)
	}
	return lines
}

// maxCompared is how many pairs of lines difference compares. Beyond that, it has all old lines before all new ones.
const maxCompared = 4_000_000

// difference returns lines with "-", "+" or two spaces before each, as a diff of old and new ones.
func difference(old, changed []string) (all []string) {
	take := func(sign string, lines []string) {
		for _, l := range lines {
			all = append(all, sign+" "+l)
		}
	}
	if len(old)*len(changed) > maxCompared {
		take("-", old)
		take("+", changed)
		return all
	}
	// common[i][j] is the length of the longest common part of old from i and changed from j.
	common := make([][]int, len(old)+1)
	for i := range common {
		common[i] = make([]int, len(changed)+1)
	}
	for i := len(old) - 1; i >= 0; i-- {
		for j := len(changed) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); old[i] == changed[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(old) && j < len(changed) {
		switch {
		case old[i] == changed[j]:
			take(" ", old[i:i+1])
			i++
			j++
		case common[i+1][j] >= common[i][j+1]:
			take("-", old[i:i+1])
			i++
		default:
			take("+", changed[j:j+1])
			j++
		}
	}
	take("-", old[i:])
	take("+", changed[j:])
	return all
}
