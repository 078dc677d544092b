package interp

import (
	"strings"
	"testing"
	"time"
)

// A variable that is set while an interpreter runs is there in the next cell, one that is removed is not, and nothing
// else of the interpreter changes; a cell that runs is not interrupted.
func TestSetEnvironment(t *testing.T) {
	const odd = `it's "a" \value $HOME`
	for driver, test := range map[string]struct{ program, before, read, slow string }{
		"python": {"python3", "x = 7", "import os; print(x, os.environ.get('KEY'), os.environ.get('GONE'))",
			"import time; time.sleep(1)"},
		"node": {"node", "var x = 7", "console.log(x, process.env.KEY, process.env.GONE === undefined ? 'None' : '?')",
			"await new Promise(r => setTimeout(r, 1000))"},
		"bash": {"bash", "x=7", `echo "$x $KEY ${GONE-None}"`, "sleep 1"},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			l := newLang(t, driver, program(t, test.program))
			run := func(code string) string {
				t.Helper()
				var out strings.Builder
				r, err := l.Run(t.Context(), Cell{Code: code, Stdout: &out, Stderr: &out})
				if err != nil || !r.OK || r.StateLost {
					t.Errorf("%s: %+v, %v", code, r, err)
				}
				return strings.TrimSpace(out.String())
			}
			set := func(set map[string]string, remove ...string) { l.SetEnvironment(t.Context(), set, remove) }
			set(map[string]string{"KEY": "x"}) // before it has started
			run(test.before)
			set(map[string]string{"KEY": "first", "GONE": "x"})
			set(map[string]string{"KEY": odd}, "GONE")
			if got := run(test.read); got != "7 "+odd+" None" {
				t.Errorf("got %s", got)
			}
			began, ended := make(chan bool), make(chan bool)
			go func() {
				defer close(ended)
				close(began)
				run(test.slow)
			}()
			<-began
			for !l.Busy() {
				time.Sleep(time.Millisecond)
			}
			set(map[string]string{"KEY": "y", "GONE": "y"})
			set(map[string]string{"KEY": "z"}, "GONE")
			<-ended
			if got := run(test.read); got != "7 z None" {
				t.Errorf("after a cell that ran: %s", got)
			}
		})
	}
}
