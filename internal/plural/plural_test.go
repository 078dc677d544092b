package plural

import "testing"

func TestOf(t *testing.T) {
	for n, want := range map[int]string{0: "0 tools are", 1: "1 tool is", 2: "2 tools are", -1: "-1 tools are"} {
		if got := Of(n, "tool is", "tools are"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}
