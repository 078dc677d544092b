package builtin

import (
	"errors"
	"testing"

	"sandlot/internal/fault"
)

// A fault says what its call knows, and what it said itself stays.
func TestKnowing(t *testing.T) {
	facts := map[string]any{"command": "ls", "session_id": "b"}
	f := fault.From(knowing(fault.New(fault.CommandExecution, "x").With("session_id", "a"), fault.CommandExecution, facts))
	if c := f.Data().Context; c["command"] != "ls" || c["session_id"] != "a" || c["exit_code"] != nil {
		t.Errorf("%v", c)
	}
	if c := fault.From(knowing(fault.New(fault.Canceled, "x"), fault.CommandExecution, facts)).Data().Context; len(c) > 0 {
		t.Errorf("%v", c)
	}
	plain := errors.New("x")
	if knowing(plain, fault.CommandExecution, facts) != plain {
		t.Error("an error that is no fault")
	}
}
