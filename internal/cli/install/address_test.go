package install

import "testing"

// TestWithAsked: the view and the form are one parameter of the address each, whatever else it has.
func TestWithAsked(t *testing.T) {
	for address, want := range map[string]string{
		"http://localhost:8000/mcp":           "http://localhost:8000/mcp?tools=code",
		"https://x.example/mcp?x=1":           "https://x.example/mcp?tools=code&x=1",
		"https://x.example/mcp?tools=all&x=1": "https://x.example/mcp?tools=code&x=1",
	} {
		if got, err := withAsked(address, "code", ""); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", address, got, err, want)
		}
	}
	const address = "http://localhost:8000/mcp"
	if got, err := withAsked(address, "", "text"); err != nil || got != address+"?results=text" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := withAsked(address, "", ""); err != nil || got != address {
		t.Errorf("%s, %v", got, err)
	}
}
