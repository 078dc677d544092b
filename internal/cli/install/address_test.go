package install

import "testing"

// TestWithTools: the view is one parameter of the address, whatever else it has.
func TestWithTools(t *testing.T) {
	for address, want := range map[string]string{
		"http://localhost:8000/mcp":           "http://localhost:8000/mcp?tools=code",
		"https://x.example/mcp?x=1":           "https://x.example/mcp?tools=code&x=1",
		"https://x.example/mcp?tools=all&x=1": "https://x.example/mcp?tools=code&x=1",
	} {
		if got, err := withTools(address, "code"); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", address, got, err, want)
		}
	}
}
