package hub

import (
	"context"
	"slices"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
)

// NetworkChange is what the operator asks to change for one session.
type NetworkChange struct {
	Mode  *egress.Mode  `json:"mode,omitempty"`  // "": that of the settings again
	Allow []egress.Rule `json:"allow,omitempty"` // added
	Deny  []egress.Rule `json:"deny,omitempty"`  // no longer among those that were added
	Reset bool          `json:"reset,omitempty"` // first all is as in the settings again
	// ResetUsage makes what the session moved count from nothing again.
	ResetUsage bool `json:"recount,omitempty"`
}

// maxRules bounds what is added for one session.
const maxRules = 1000

func (c NetworkChange) check() error {
	if c.Mode != nil && *c.Mode != "" {
		if _, err := egress.ParseMode(string(*c.Mode)); err != nil || *c.Mode == egress.Open {
			return fault.New(fault.InvalidParameters, "mode %q must be none, allowlist or public", *c.Mode).With("argument", "mode")
		}
	}
	if len(c.Allow) > maxRules {
		return fault.New(fault.InvalidParameters, "allow has more than %d rules", maxRules).With("argument", "allow")
	}
	return nil
}

func (c NetworkChange) apply(to *session.Change) {
	if c.Reset {
		*to = session.Change{}
	}
	if c.Mode != nil {
		to.Mode = *c.Mode
	}
	for _, r := range c.Allow {
		if !slices.Contains(to.Allow, r) && len(to.Allow) < maxRules {
			to.Allow = append(to.Allow, r)
		}
	}
	to.Allow = slices.DeleteFunc(to.Allow, func(r egress.Rule) bool { return slices.Contains(c.Deny, r) })
}

// NetworkState is what holds for all sessions, and what they did.
type NetworkState struct {
	Policy    egress.Policy            `json:"policy"`
	Templates map[string]egress.Policy `json:"templates,omitempty"`
	Usage     egress.Usage             `json:"usage"`
	File      string                   `json:"settings_file,omitempty"` // whose changes are taken up
}

// NetworkUsage is what sandboxes did with the network.
type NetworkUsage = egress.Usage

// SessionNetwork is what one session may reach, and what it did.
type SessionNetwork = session.Network

// ReadNetwork returns what holds for all sessions.
func (h *Hub) ReadNetwork(ctx context.Context, p auth.Principal) (NetworkState, error) {
	return Do(ctx, h, Request{Principal: p, Operation: policy.NetworkReadAll}, func(context.Context) (NetworkState, error) {
		return h.Network(), nil
	})
}

// ReadSessionNetwork returns the network of a session of the principal's, or, for
// an operator, of anyone's.
func (h *Hub) ReadSessionNetwork(ctx context.Context, p auth.Principal, id string) (SessionNetwork, error) {
	return Do(ctx, h, Request{Principal: p, Operation: policy.NetworkRead, Resource: h.about(p, id)}, func(context.Context) (SessionNetwork, error) {
		return h.Sessions.Network(p, id)
	})
}

// ChangeNetwork changes what one session may reach.
func (h *Hub) ChangeNetwork(ctx context.Context, p auth.Principal, id string, c NetworkChange) (SessionNetwork, error) {
	return Do(ctx, h, Request{Principal: p, Operation: policy.NetworkChange, Resource: h.about(p, id)}, func(ctx context.Context) (n SessionNetwork, err error) {
		if err = c.check(); err != nil {
			return n, err
		}
		if n, err = h.Sessions.ChangeNetwork(ctx, p, id, c.apply); err == nil && c.ResetUsage {
			n, err = h.Sessions.ResetTraffic(ctx, p, n.Session)
		}
		return n, err
	})
}
