package record

import (
	"slices"

	"sandlot/internal/egress"
)

// Policies are what sessions may reach by the settings. They are not changed after
// Sessions.SetPolicies.
type Policies struct {
	Operator  egress.Policy
	Templates map[string]egress.Policy // Mode, where it is set, and Allow
}

// Of returns what a session may reach; nil: nothing.
func (all *Policies) Of(r Record) *egress.Policy {
	if all == nil {
		return nil
	}
	p := all.Operator
	t := all.Templates[r.Template]
	p.Allow = slices.Concat(p.Allow, t.Allow, r.Network.Allow)
	for _, mode := range []egress.Mode{t.Mode, r.Network.Mode} {
		if mode != "" {
			p.Mode = mode
		}
	}
	return &p
}
