package tool

import (
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// A call may do nothing before the hub has given it a door, whoever has made it, and how.
func TestClosedBeforeTheHub(t *testing.T) {
	for _, c := range []Call{NewCall(auth.Local, "x", nil, nil), {Principal: auth.Local, Name: "x"}} {
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
}
