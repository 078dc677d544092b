package toolcall

import (
	"context"
	"encoding/json"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers/catalog"
)

// Matching is a Finder that compares words.
type Matching struct {
	// Offers returns what a principal's servers offer.
	Offers func(p auth.Principal) []catalog.Offered
}

// defaultFound and maxFound bound what a search answers.
const (
	defaultFound = 10
	maxFound     = 25
)

// Found is a tool that a search has found.
type Found struct {
	Server      string `json:"server"`
	Tool        string `json:"tool"`
	Description string `json:"description,omitempty"` // its first line
	Held        string `json:"held,omitempty"`        // why it cannot be called
}

// Described is the definition of a tool.
type Described struct {
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	Definition json.RawMessage `json:"definition"` // as clients have it
	Held       string          `json:"held,omitempty"`
}

// Search implements Finder.
func (m Matching) Search(_ context.Context, p auth.Principal, q Search) (any, error) {
	limit := defaultFound
	if q.Limit > 0 {
		limit = min(q.Limit, maxFound)
	}
	found := []Found{}
	words := strings.Fields(strings.ToLower(q.Query))
	m.each(p, q.Server, func(s catalog.Offered, d catalog.Definition) bool {
		text := strings.ToLower(s.Name + " " + d.Remote + " " + d.Description())
		for _, w := range words {
			if !strings.Contains(text, w) {
				return true
			}
		}
		line, _, _ := strings.Cut(d.Description(), "\n")
		found = append(found, Found{s.Name, d.Remote, fault.Clip(line), d.HeldBecause})
		return len(found) < limit
	})
	return found, nil
}

// Describe implements Finder.
func (m Matching) Describe(_ context.Context, p auth.Principal, q Describe) (any, error) {
	all := []Described{}
	m.each(p, q.Server, func(s catalog.Offered, d catalog.Definition) bool {
		if s.Name == q.Server && (q.Tool == "" || d.Remote == q.Tool) {
			all = append(all, Described{s.Name, d.Remote, d.Raw, d.HeldBecause})
		}
		return true
	})
	if len(all) == 0 {
		return nil, fault.New(fault.NotFound, "there is no tool %q of a server %q: `mcp ls` lists them",
			fault.Clip(q.Tool), fault.Clip(q.Server))
	}
	return all, nil
}

// each calls visit for the tools of a principal's servers, until it returns false.
func (m Matching) each(p auth.Principal, server string, visit func(catalog.Offered, catalog.Definition) bool) {
	if !policy.InScope(p, policy.MCPCall) {
		return
	}
	for _, s := range m.Offers(p) {
		if server != "" && s.Name != server {
			continue
		}
		for _, d := range s.Tools {
			if !visit(s, d) {
				return
			}
		}
	}
}
