package mcpcommand

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxFound is how many tools a search in the tree prints.
const maxFound = 10

// search asks the host for tools, or looks into the tree if it does not answer.
func (c *command) search(words []string) error {
	if len(words) == 0 {
		return misuseOf("it is `mcp search WORDS`; `mcp ls` lists all servers")
	}
	query := strings.Join(words, " ")
	found, err := c.request(request{Search: &searchRequest{Query: query}}, "found")
	if err == nil {
		return c.printFound(found)
	}
	if _, ok := errors.AsType[unreachable](err); !ok {
		return err
	}
	return c.searchTree(strings.Fields(strings.ToLower(query)))
}

// hit is what a search of the host has found.
type hit struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Server    string `json:"server"`
	Remote    string `json:"remote"`
	Tool      string `json:"tool"`
	Signature string `json:"signature"`
	Text      string `json:"text"`
	Problem   string `json:"problem"`
	HeldBack  bool   `json:"heldBack"`
}

// printFound prints what the host has found: tools as this command calls them, and others as the host has them.
func (c *command) printFound(raw json.RawMessage) error {
	var hits []hit
	var found struct {
		Hits []hit `json:"hits"`
		More int   `json:"more"`
	}
	if json.Unmarshal(raw, &hits) != nil {
		if json.Unmarshal(raw, &found) != nil {
			_, err := fmt.Fprintf(c.out, "%s\n", raw)
			return err
		}
		hits = found.Hits
	}
	said := map[string]bool{} // servers of which it is said why they cannot be used
	for _, h := range hits {
		if h.Problem != "" && !h.HeldBack {
			if said[h.Server] {
				h.Problem = "its server cannot be used, see above"
			}
			said[h.Server] = true
		}
		s, err := c.findServer(h.Server)
		var t *tool
		if err == nil {
			t, err = s.findTool(cmp.Or(h.Remote, h.Tool))
		}
		if err != nil || h.Kind != "" && h.Kind != "tool" {
			problem := ""
			if h.Problem != "" {
				problem = "[" + h.Problem + "]"
			}
			fmt.Fprintln(c.out, strings.Join(strings.Fields(strings.Join([]string{h.Kind, h.Server,
				cmp.Or(h.Signature, h.Name, h.Tool), problem, h.Text}, " ")), " "))
			continue
		}
		c.printProblem(t, s.Module+" ", h.Problem)
	}
	if len(hits) == 0 {
		fmt.Fprintln(c.out, "Nothing was found. `mcp ls` lists all servers.")
	}
	if found.More > 0 {
		fmt.Fprintf(c.out, "and %d more\n", found.More)
	}
	return nil
}

// searchTree searches the index: a word in a name counts more than one in a text.
func (c *command) searchTree(words []string) error {
	type match struct {
		server *server
		tool   *tool
		score  int
	}
	var matches []match
	for i := range c.index {
		s := &c.index[i]
		for j := range s.Tools {
			t := &s.Tools[j]
			names := strings.ToLower(s.Name + " " + t.Remote)
			text := strings.ToLower(s.Title + " " + t.Line + " " + t.signature())
			m := match{s, t, 0}
			for _, w := range words {
				if strings.Contains(names, w) {
					m.score += 3
				} else if strings.Contains(text, w) {
					m.score++
				}
			}
			if m.score > 0 {
				matches = append(matches, m)
			}
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int { return b.score - a.score })
	for _, m := range matches[:min(maxFound, len(matches))] {
		c.printTool(m.tool, m.server.Module+" ")
	}
	if len(matches) == 0 {
		fmt.Fprintln(c.out, "Nothing was found. `mcp ls` lists all servers.")
	}
	return nil
}
