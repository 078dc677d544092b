package hub

import (
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/session/property"
)

// TestEndNeedsWhatHappensThen: who may not stop a session, or pause it, does not do so by an end that it gets.
func TestEndNeedsWhatHappensThen(t *testing.T) {
	soon, name := "1s", "build"
	for rule, change := range map[string]property.Change{
		"deny ann session.stop":  {EndsIn: &soon},
		"deny ann session.pause": {EndsAt: &soon},
		"deny * session.stop":    {OnEnd: &name},
	} {
		h := askingHub(t, rule)
		if err := h.mayEnd(t.Context(), ann, SessionChange{"x", change}); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", rule, err)
		}
		if err := h.mayEnd(t.Context(), ann, SessionChange{"x", property.Change{Name: &name}}); err != nil {
			t.Errorf("%s: a name: %v", rule, err)
		}
	}
}

// TestNamesBecomeIDs: what policy has decided about is what the call is about, though its name is another's by then.
func TestNamesBecomeIDs(t *testing.T) {
	const id = "abcdefghijklmnopqrstuvwxyz"
	for given, want := range map[string]string{"build": id, id: id, "home": "home", "new": "new", "": ""} {
		s := SessionID(given)
		s.pin(id)
		change := SessionChange{SessionID: SessionID(given)}
		any(&change).(interface{ pin(string) }).pin(id)
		if string(s) != want || string(change.SessionID) != want {
			t.Errorf("%q became %q and %q", given, s, change.SessionID)
		}
	}
}
