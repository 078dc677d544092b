package interp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
)

// waiter is a program that waits, and writes its id into a file named after its argument.
const waiter = "#!/bin/sh\necho $$ >\"$1.new\"\nmv \"$1.new\" \"$1.pid\"\nexec sleep 300\n"

// stopped is a cell that is stopped while its programs run. Those of names that begin with "end" have to end with it, and
// all others stay.
type stopped struct{ before, code string }

// What a cell waits for ends with it, in whatever group and session it is. What it has put into the background, and
// what earlier cells have left, stays.
func TestOffspringOfStoppedCells(t *testing.T) {
	for driver, cells := range map[string][]stopped{
		"python": {
			{"import subprocess, os, time", "subprocess.run(['./wait', 'end'])"},
			{"", "subprocess.run('./wait end; true', shell=True)"},
			{"", "subprocess.run('./wait end1 | ./wait end2', shell=True)"},
			{"", "subprocess.run(['./wait', 'end'], start_new_session=True)"},
			{"", "subprocess.run('./wait end; true', shell=True, start_new_session=True)"},
			{"", "subprocess.run('setsid -w ./wait end; true', shell=True)"},
			{"", "subprocess.check_output('./wait end | cat', shell=True)"},
			{"", "os.system('./wait end')"},
			{"", "os.system('sh -c \"./wait end; true\"; true')"},
			{"", "os.system('setsid -w ./wait end')"},
			{"", "os.system('setsid ./wait end')"},
			{"", "os.system('timeout 300 ./wait end')"},
			{"", "os.popen('./wait end').read()"},
			{"", "p = subprocess.Popen(['./wait', 'end']); p.wait()"},
			{"", "for line in subprocess.Popen(['./wait', 'end'], stdout=subprocess.PIPE).stdout: pass"},
			{"", "%%bash\n./wait end"},
			{"", "!./wait end"},
			{"b = subprocess.Popen(['./wait', 'stay'])", "subprocess.run(['./wait', 'end'])"},
			{"b = subprocess.Popen('./wait stay; true', shell=True)", "os.system('setsid -w ./wait end')"},
			{"", "b = subprocess.Popen(['./wait', 'stay'], start_new_session=True); time.sleep(300)"},
			{"", "os.system('./wait stay &'); time.sleep(300)"},
			{"", "os.system('./wait stay & ./wait end')"},
			{"", "os.system('setsid ./wait stay & ./wait end')"},
			{"", "os.system('setsid -f ./wait stay'); subprocess.run(['./wait', 'end'])"},
		},
		"node": {
			{"const cp = require('child_process')", "cp.execSync('./wait end', { stdio: 'inherit' })"},
			{"", "cp.execSync('./wait end | cat; true')"},
			{"", "cp.execSync('setsid -w ./wait end')"},
			{"", "cp.execSync('setsid ./wait end')"},
			{"", "cp.execSync('timeout 300 ./wait end; true')"},
			{"", "cp.spawnSync('./wait', ['end'])"},
			{"", "cp.spawnSync('setsid', ['./wait', 'end'])"},
			{"", "await new Promise((done) => cp.exec('./wait end', done))"},
			{"cp.spawn('./wait', ['stay'], { stdio: 'ignore' }); null", "cp.execSync('./wait end')"},
			{"", "cp.spawn('./wait', ['stay'], { detached: true, stdio: 'ignore' }); while (true) {}"},
			{"", "cp.execSync('./wait stay >/dev/null 2>&1 & ./wait end')"},
		},
		"bash": {
			{"", "./wait end"},
			{"", "./wait end | cat"},
			{"", "(./wait end; true)"},
			{"", "x=$(./wait end)"},
			{"", "setsid -w ./wait end"},
			{"", "setsid ./wait end"},
			{"", "sh -c 'setsid -w ./wait end; true'"},
			{"", "timeout 300 ./wait end"},
			{"", "f() { ./wait end1 | ./wait end2; }; f"},
			{"", "./wait end < <(sleep 0)"},
			{"./wait stay &", "./wait end"},
			{"", "./wait stay & ./wait end"},
			{"", "nohup ./wait stay >/dev/null 2>&1 & ./wait end"},
			{"", "setsid ./wait stay & ./wait end"},
			{"", "(./wait stay &); ./wait end"},
			{"", "(cd . && ./wait stay) & while :; do :; done"},
		},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			l := map[string]func(*testing.T) *lang{"python": python, "node": node, "bash": bash}[driver](t)
			if err := os.WriteFile(filepath.Join(l.config.Dir, "wait"), []byte(waiter), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, c := range cells {
				t.Run(c.code, func(t *testing.T) { (&lang{l.Interp, t}).stop(c) })
			}
		})
	}
}

func (l *lang) stop(c stopped) {
	l.t.Helper()
	if c.before != "" {
		if o := l.run(c.before); !o.OK {
			l.t.Fatalf("before: %s", o)
		}
		time.Sleep(2 * wire.StartError) // else its programs count as those of the next cell
	}
	want := 0
	for _, code := range []string{c.before, c.code} {
		want += strings.Count(code, "wait end") + strings.Count(code, "wait stay") +
			strings.Count(code, "'end'") + strings.Count(code, "'stay'")
	}
	ended := make(chan outcome, 1)
	go func() { ended <- l.run(c.code) }()
	pids := l.waiters(want, ended)
	defer func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	time.Sleep(50 * time.Millisecond) // Python leaves a program alone when it is interrupted while it starts it
	l.Interrupt(l.t.Context())
	if o := <-ended; o.StateLost {
		l.t.Errorf("stopped: %s", o)
	}
	for name, pid := range pids {
		if !strings.HasPrefix(name, "end") {
			continue
		}
		for until := time.Now().Add(10 * time.Second); runs(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				l.t.Errorf("%s still runs", name)
				break
			}
		}
	}
	for name, pid := range pids {
		if strings.HasPrefix(name, "stay") && !runs(pid) {
			l.t.Errorf("%s has ended", name)
		}
	}
	if o := l.run("1"); l.config.Driver != "bash" && o.value() != "1" || o.StateLost {
		l.t.Errorf("the next cell: %s", o)
	}
}

// waiters waits until programs of a cell run, and returns their ids by their names. It removes their files.
func (l *lang) waiters(want int, ended <-chan outcome) map[string]int {
	l.t.Helper()
	pids := map[string]int{}
	for until := time.Now().Add(30 * time.Second); len(pids) < want; time.Sleep(time.Millisecond) {
		select {
		case o := <-ended:
			l.t.Fatalf("%d of %d programs run: %v: %s", len(pids), want, pids, o)
		default:
		}
		if time.Now().After(until) {
			l.t.Fatalf("%d of %d programs run: %v", len(pids), want, pids)
		}
		paths, _ := filepath.Glob(filepath.Join(l.config.Dir, "*.pid"))
		for _, path := range paths {
			text, err := os.ReadFile(path)
			var pid int
			if _, scanErr := fmt.Sscan(string(text), &pid); err != nil || scanErr != nil {
				continue
			}
			pids[strings.TrimSuffix(filepath.Base(path), ".pid")] = pid
			os.Remove(path)
		}
	}
	return pids
}

// runs reports whether a process is a waiter still.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && (strings.Contains(string(text), "sleep") || strings.Contains(string(text), "wait"))
}

// What runs in the background of a shell goes on, and its output comes, when the shell ends.
func TestBackgroundOutlivesTheShell(t *testing.T) {
	l := bash(t)
	if err := os.WriteFile(filepath.Join(l.config.Dir, "wait"), []byte(waiter), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"exit 3", "set -e; false", "set -u; echo $nothing"} {
		l.run("(until [ -e go ]; do sleep 0.01; done; echo later; echo said >done; exec ./wait stay) & " + end)
		o := l.run("touch go; until [ -e done ]; do sleep 0.01; done; rm go done")
		if !o.OK || o.out != "later\n" {
			t.Errorf("after %q: %s", end, o)
		}
		pids := l.waiters(1, nil)
		l.run("exit 1")
		if !runs(pids["stay"]) {
			t.Errorf("after %q, and another end, it has ended", end)
		}
		_ = syscall.Kill(pids["stay"], syscall.SIGKILL)
	}
}
