package hub

import (
	"context"
	"slices"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/session"
)

// NetworkChange is an operator's change of the network settings of one session.
type NetworkChange struct {
	SessionID `json:"-"`
	Mode      *egress.Mode  `json:"mode,omitempty"`  // "": the mode of the settings
	Allow     []egress.Rule `json:"allow,omitempty"` // added
	Deny      []egress.Rule `json:"deny,omitempty"`  // removed from the rules that were added
	Reset     bool          `json:"reset,omitempty"` // undo earlier changes first
	// ResetUsage sets the session's counters of traffic to zero.
	ResetUsage bool `json:"recount,omitempty"`
}

// maxRules is how many rules can be added for one session.
const maxRules = 1000

func (c NetworkChange) check() error {
	if c.Mode != nil && *c.Mode != "" {
		if _, err := egress.ParseMode(string(*c.Mode)); err != nil || *c.Mode == egress.Open {
			return fault.Argument("mode", "mode %q must be none, allowlist or public", *c.Mode)
		}
	}
	if slices.Contains(c.Allow, egress.Rule{}) || slices.Contains(c.Deny, egress.Rule{}) { // of null
		return fault.Argument("allow", "a rule must be a text")
	}
	if len(c.Allow) > maxRules {
		return fault.Argument("allow", "allow has more than %d rules", maxRules)
	}
	return nil
}

func (c NetworkChange) apply(change *session.NetworkOverride) {
	if c.Reset {
		*change = session.NetworkOverride{}
	}
	if c.Mode != nil {
		change.Mode = *c.Mode
	}
	for _, r := range c.Allow {
		if !slices.Contains(change.Allow, r) && len(change.Allow) < maxRules {
			change.Allow = append(change.Allow, r)
		}
	}
	change.Allow = slices.DeleteFunc(change.Allow, func(r egress.Rule) bool { return slices.Contains(c.Deny, r) })
}

// NetworkState is the network settings of all sessions, and their usage.
type NetworkState struct {
	Policy    egress.Policy            `json:"policy"`
	Templates map[string]egress.Policy `json:"templates,omitempty"`
	Usage     egress.Usage             `json:"usage"`
	File      string                   `json:"settings_file,omitempty"` // the server reads it again when it changes
}

// NetworkUsage counts what sandboxes did with the network.
type NetworkUsage = egress.Usage

// SessionNetwork is what one session may reach, and what it did.
type SessionNetwork = session.Network

func (h *Hub) readNetwork(context.Context, auth.Principal, None) (NetworkState, error) {
	return h.Network(), nil
}

// readSessionNetwork returns the network of one of the principal's sessions; for an operator,
// of any session.
func (h *Hub) readSessionNetwork(_ context.Context, p auth.Principal, id SessionID) (SessionNetwork, error) {
	return h.Sessions.Network(p, string(id))
}

func (h *Hub) changeNetwork(ctx context.Context, p auth.Principal, c NetworkChange) (n SessionNetwork, err error) {
	if err = c.check(); err != nil {
		return n, err
	}
	if n, err = h.Sessions.ChangeNetwork(ctx, p, string(c.SessionID), c.apply); err == nil && c.ResetUsage {
		n, err = h.Sessions.ResetTraffic(ctx, p, n.Session)
	}
	return n, err
}
