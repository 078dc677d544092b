package interp

import (
	"strings"
	"testing"
)

// TestRenew: after Renew, what comes of random numbers is not what the seed says, and nothing else has changed. Node,
// which cannot be seeded, starts again, and says so once, if it had anything to lose.
func TestRenew(t *testing.T) {
	for driver, test := range map[string]struct{ program, seed, read string }{
		"python": {"python3", "import random, ssl; x = 7; random.seed(5)",
			"random.getrandbits(32), x, ssl.RAND_status()"},
		"bash": {"bash", "x=7; RANDOM=5", "echo $RANDOM$RANDOM $x"},
		"node": {"node", "var x = 7", "typeof x"},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			l := newLang(t, driver, program(t, test.program))
			run := func(code string) (string, *Result) {
				t.Helper()
				var out strings.Builder
				r, err := l.Run(t.Context(), Cell{Code: code, Stdout: &out, Stderr: &out})
				if err != nil || !r.OK && driver != "bash" {
					t.Fatalf("%s: %+v, %v", code, r, err)
				}
				if r.Reply.Result != nil {
					out.WriteString(*r.Reply.Result)
				}
				return out.String(), r
			}
			renew := func() {
				t.Helper()
				if err := l.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			renew() // before it has started
			if err := l.Warm(t.Context()); err != nil {
				t.Fatal(err)
			}
			renew() // before it has run anything
			if _, r := run(test.seed); r.StateLost {
				t.Errorf("what has run nothing has lost %+v", r)
			}
			if driver == "node" {
				renew()
				got, r := run(test.read)
				if !r.StateLost || !strings.Contains(r.Reason, "is a copy") || !strings.Contains(got, "undefined") {
					t.Errorf("Node goes on: %q %+v", got, r)
				}
				if _, r = run(test.read); r.StateLost {
					t.Errorf("it is told twice: %+v", r)
				}
				return
			}
			seeded, _ := run(test.read)
			run(test.seed)
			renew()
			got, r := run(test.read)
			if got == seeded || !strings.Contains(got, "7") || r.StateLost {
				t.Errorf("it says %q, and %q after that: %+v", seeded, got, r)
			}
		})
	}
}
