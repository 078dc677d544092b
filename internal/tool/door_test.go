package tool

import (
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// A call that an edge has made may do nothing before the hub has given it a door.
func TestClosedBeforeTheHub(t *testing.T) {
	c := NewCall(auth.Local, "x", nil, nil)
	if err := c.May(t.Context(), policy.ShellExecute, "ls", Question{}); !fault.Is(err, fault.Internal) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Door().Consent(t.Context(), Question{}); err == nil {
		t.Error("consent is not asked for")
	}
	env, err := c.Door().Reveal(t.Context(), map[string]string{"A": "secret"})
	if err == nil || env != nil || c.Door().Shows(t.Context(), "/workspace/a") {
		t.Errorf("it has %v, and shows files", env)
	}
	if err := c.Through(Open{}).May(t.Context(), policy.ShellExecute, "ls", Question{}); err != nil {
		t.Errorf("behind the hub: %v", err)
	}
}
