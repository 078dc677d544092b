package vault

import (
	"bytes"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// The variables of a session open for that session alone, and what is stored has none of them.
func TestVariablesAreSealed(t *testing.T) {
	v, _ := fresh(t)
	env := map[string]string{"PLAIN": "hunter2", "KEY": "${secret:KEY}"}
	sealed, err := v.SealVariables(ann, "one", env)
	if err != nil || bytes.Contains(sealed, []byte("hunter2")) || bytes.Contains(sealed, []byte("KEY")) {
		t.Fatalf("%q, %v", sealed, err)
	}
	if got, err := v.OpenVariables(ann, "one", sealed); err != nil || len(got) != 2 || got["PLAIN"] != "hunter2" ||
		got["KEY"] != "${secret:KEY}" {
		t.Errorf("%v, %v", got, err)
	}
	changed := bytes.Clone(sealed)
	changed[20] ^= 1
	own, err := v.Set(t.Context(), ann, "one", `{"A":"x"}`, nil)
	if err != nil || !own.Readable {
		t.Fatal(err)
	}
	secrets, err := v.Store.Secrets(t.Context(), ann)
	if err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]struct {
		owner, session string
		sealed         []byte
	}{"another session": {ann, "two", sealed}, "another owner": {bob, "one", sealed}, "changed": {ann, "one", changed},
		"a secret": {ann, "one", secrets[0].Sealed}, "dropped": {ann, "one", []byte{0}}} {
		got, err := v.OpenVariables(try.owner, try.session, try.sealed)
		if !fault.Is(err, fault.Configuration) || got != nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}
