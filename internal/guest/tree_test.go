package guest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// leaves are ways in which a process leaves the tree of the one that started it. LIVES is what lives on.
var leaves = map[string]string{
	"setsid":              "(setsid LIVES &)",
	"setsid, deaf":        "(setsid sh -c 'trap \"\" TERM HUP INT; LIVES' &)",
	"double fork":         "( ( LIVES & ) & )",
	"nohup":               "nohup LIVES >/dev/null 2>&1 &",
	"disown":              "bash -c 'LIVES >/dev/null 2>&1 & disown'",
	"a group of its own":  "sh -c 'set -m; LIVES & exit'",
	"daemon":              "python3 -c 'import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nos.execvp(\"sh\", [\"sh\", \"lives.sh\"])'",
	"daemon without exec": "python3 -c 'import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nopen(\"pid\", \"w\").write(str(os.getpid()) + \"\\n\")\ntime.sleep(60)'",
	"twice":               "(setsid sh -c '(setsid LIVES &)' &)",
}

// What a command has started ends with it, also in a session of its own that process 1 has adopted.
func TestWholeTree(t *testing.T) {
	for name, script := range leaves {
		script = strings.ReplaceAll(script, "LIVES", "sh lives.sh")
		// begun runs the script, and returns the process that has left.
		begun := func(t *testing.T, r *rig) (pid int) {
			t.Helper()
			for range 500 {
				text, err := os.ReadFile(filepath.Join(r.Path, "pid"))
				if err == nil && strings.HasSuffix(string(text), "\n") {
					time.Sleep(50 * time.Millisecond) // until its parents have ended
					return number(t, text)
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Fatal("it does not start")
			return 0
		}
		made := func(t *testing.T) *rig {
			r := newRig(t)
			if err := os.WriteFile(filepath.Join(r.Path, "lives.sh"), []byte("echo $$ >pid.new; mv pid.new pid; exec sleep 60"), 0o600); err != nil {
				t.Fatal(err)
			}
			return r
		}
		waits := &agentv1.Command{Argv: []string{"sh", "-c", script + "\nsleep 50"}}
		for how, end := range map[string]func(*testing.T, *rig) int{
			"stop_process": func(t *testing.T, r *rig) int {
				id := r.start(&agentv1.StartProcessRequest{Command: waits})
				pid := begun(t, r)
				r.stop(id, syscall.SIGTERM, 500)
				return pid
			},
			"KILL": func(t *testing.T, r *rig) int {
				id := r.start(&agentv1.StartProcessRequest{Command: waits})
				pid := begun(t, r)
				r.stop(id, syscall.SIGKILL, 0)
				return pid
			},
			"timeout": func(t *testing.T, r *rig) int {
				if d := r.exec(&agentv1.ExecRequest{Command: waits, TimeoutMillis: 1500}); !d.TimedOut {
					t.Errorf("got %v", d)
				}
				return begun(t, r)
			},
			"cancelled": func(t *testing.T, r *rig) int {
				ctx, cancel := context.WithCancel(t.Context())
				pid := make(chan int, 1)
				go func() {
					defer cancel()
					pid <- begun(t, r)
				}()
				_, _ = r.execute(ctx, &agentv1.ExecRequest{Command: waits}, nil)
				return <-pid
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				dead(t, end(t, made(t)))
			})
		}
		t.Run(name+", the command ends", func(t *testing.T) {
			t.Parallel()
			r := made(t)
			r.exec(&agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"sh", "-c", script + "\nuntil [ -e pid ]; do sleep 0.01; done"}}})
			pid := begun(t, r)
			if f, err := process.Stat(pid); err != nil || f[0] == "Z" {
				t.Errorf("what it has left behind is gone: %v", err)
			}
			syscall.Kill(pid, syscall.SIGKILL)
			dead(t, pid)
		})
	}
}
