package hub

import (
	"testing"

	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/policy"
)

// TestClosed: before the hub is open, sandboxes that an earlier server has left reach nothing about which there may be a
// rule, and nobody is asked.
func TestClosed(t *testing.T) {
	owner := egress.Owner{Principal: ann.ID, Session: "s"}
	for _, c := range []struct {
		rule         string
		before, then egress.Verdict
	}{
		{"", egress.Ruling{}.Verdict, egress.Ruling{}.Verdict},
		{"deny ann network.reach bad.example:*", egress.Denied, egress.Ruling{}.Verdict},
		{"deny ann network.reach good.example:*", egress.Denied, egress.Denied},
		{"deny ann shell.execute", egress.Ruling{}.Verdict, egress.Ruling{}.Verdict},
	} {
		rules := new(policy.Current)
		rules.Set(rulesOf(t, c.rule))
		h := Closed(rules)
		if got := h.Reach(owner, "good.example:443", egress.Connecting).Verdict; got != c.before {
			t.Errorf("%q, closed: %v", c.rule, got)
		}
		if h.Asker().MayHold(owner, "good.example") {
			t.Errorf("%q: a closed hub holds a connection", c.rule)
		}
		if got := h.Asker().Hold(t.Context(), owner, "good.example:443", true).Verdict; got != egress.Asked {
			t.Errorf("%q: a closed hub asks: %v", c.rule, got)
		}
		h.Open(Config{Rules: rules, Events: event.New()})
		if got := h.Reach(owner, "good.example:443", egress.Connecting).Verdict; got != c.then {
			t.Errorf("%q, open: %v", c.rule, got)
		}
	}
}
