package diagnosis

import (
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// The advice for a server that was not added is that of a copy: others may have the same
// fault. A fault that asks for a log-in keeps its own advice.
func TestNotConnected(t *testing.T) {
	shared := fault.New(fault.Connection, "it is shared")
	shared.Advice = []string{"first"}
	got := fault.From(NotConnected(shared, spec.Configured{Kind: spec.Stdio}))
	if got == shared || shared.Advice[0] != "first" || !strings.Contains(got.Advice[0], "command") {
		t.Errorf("%v, and the one that others have %v", got.Advice, shared.Advice)
	}
	login := fault.New(fault.Connection, "log in").With("auth_url", "https://x")
	login.Advice = []string{"open it"}
	if got := fault.From(NotConnected(login, spec.Configured{Kind: spec.HTTP})); got.Advice[0] != "open it" {
		t.Errorf("a log-in: %v", got.Advice)
	}
}
