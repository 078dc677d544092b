package toolcall

import (
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// Described is the definition of a tool.
type Described struct {
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	Definition json.RawMessage `json:"definition"` // as clients have it; of a tool that is held back, its name alone
	Held       string          `json:"held,omitempty"`
}

// describe returns the definitions that a request asks for.
func (cs *Calls) describe(p auth.Principal, q Describe) ([]Described, error) {
	var all []Described
	if policy.InScope(p, policy.MCPCall) {
		for _, s := range cs.Servers.Offered(p) {
			for _, d := range s.Tools {
				if s.Name != q.Server || q.Tool != "" && d.Remote != q.Tool {
					continue
				}
				raw := d.Raw
				if d.HeldBecause != "" {
					raw, _ = json.Marshal(map[string]string{"name": d.Exposed}) // nobody has approved the rest
				}
				all = append(all, Described{s.Name, d.Remote, raw, d.HeldBecause})
			}
		}
	}
	if len(all) == 0 {
		return nil, fault.New(fault.NotFound, "there is no tool %q of a server %q: `mcp ls` lists them",
			fault.Clip(q.Tool), fault.Clip(q.Server))
	}
	return all, nil
}
