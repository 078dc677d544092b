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
			set := func(set map[string]string, remove ...string) {
				l.SetEnvironment(t.Context(), Change{Set: set, Remove: remove})
			}
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

// An interpreter that has run no cell starts again for variables that it reads when it starts, and one that has does
// not.
func TestRestartForEnvironment(t *testing.T) {
	for driver, test := range map[string]struct{ program, read, use string }{
		"python": {"python3", "import os, sys; print('/added' in sys.path, os.environ.get('PYTHONPATH'))", "x = 7"},
		"node": {"node", "console.log(process.execArgv.length + process.title.length > 0, process.env.PYTHONPATH)",
			"var x = 7"},
		"bash": {"bash", `echo true $PYTHONPATH`, "x=7"},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			for _, used := range []bool{false, true} {
				l := newLang(t, driver, program(t, test.program))
				env := []string{}
				inner := l.config.Env
				l.config.Env = func() []string { return append(inner(), env...) }
				if err := l.Warm(t.Context()); err != nil {
					t.Fatal(err)
				}
				if used {
					if r, err := l.Run(t.Context(), Cell{Code: test.use}); err != nil || !r.OK {
						t.Fatal(r, err)
					}
				}
				before := l.PID()
				env = []string{"PYTHONPATH=/added"}
				l.SetEnvironment(t.Context(), Change{Set: map[string]string{"PYTHONPATH": "/added"}, Restart: true})
				var out strings.Builder
				r, err := l.Run(t.Context(), Cell{Code: test.read, Stdout: &out})
				if err != nil || !r.OK || r.StateLost {
					t.Fatalf("%+v, %v", r, err)
				}
				if got := l.PID() == before; got != used {
					t.Errorf("used: %v; the same process: %v", used, got)
				}
				got := strings.ToLower(out.String())
				if !strings.Contains(got, "/added") || !used && !strings.Contains(got, "true") {
					t.Errorf("used: %v; it printed %s", used, out.String())
				}
			}
		})
	}
}
