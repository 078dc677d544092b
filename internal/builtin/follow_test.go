package builtin

import "testing"

// TestConditions: what until means, and when it holds.
func TestConditions(t *testing.T) {
	for until, outputs := range map[string]map[string]bool{
		"":               {"": false, "x": false},
		"exit":           {"exit": false},
		"8080":           {"8080": false},
		"70000":          {"port 70000": true}, // no port
		"ready":          {"it is ready now": true, "Ready": false, "re\x1b[1mady\x1b[0m": true, "rea\ndy": false},
		"/^done (\\d+)/": {"x\ndone 12\n": true, "not done 12": false, "\x1b[32mdone 1": true},
		"/":              {"a/b": true, "b": false},
		"//":             {"http://x": true, "/": false},
		"/a/b":           {"/a/b": true, "a/b": false},
		"\xff":           {"a\xffb": true, "a": false},
	} {
		c, err := parseCondition(until)
		if err != nil {
			t.Errorf("%q: %v", until, err)
			continue
		}
		if c.rests() != (until == "") {
			t.Errorf("%q: %+v", until, c)
		}
		for output, want := range outputs {
			if got := c.in([]byte(output)); got != want {
				t.Errorf("%q in %q: %t", until, output, got)
			}
		}
	}
	if _, err := parseCondition("/(/"); err == nil {
		t.Error("a pattern that is none is taken")
	}
}
