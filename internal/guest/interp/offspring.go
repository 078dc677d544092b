package interp

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	processes "sandlot/internal/guest/process"
)

// offspring is what the cell that runs has started. It ends with the cell when that is stopped, as with Ctrl-C in a
// terminal: it gets a SIGINT, which programs in the background of a shell ignore. What is in a session of its own gets
// one as well, if it is a part of what the cell waits for. Programs that earlier cells have left are let alone.
type offspring struct {
	p     *process
	shell bool
	began time.Time                // of the cell
	found map[int]processes.Member // of the cell, by their ids
	told  map[int]bool             // those that got a signal
}

func newOffspring(p *process, began time.Time, shell bool) *offspring {
	return &offspring{p, shell, began, map[int]processes.Member{}, map[int]bool{}}
}

// onePipeline is how long a shell takes at most to start the programs of a pipeline.
const onePipeline = 100 * time.Millisecond

// look returns the processes that the interpreter has started, and records those that the cell may wait for. A shell
// waits for none while it computes, and else for those that it has started last: programs of `( … ) &` do not ignore a
// SIGINT.
func (o *offspring) look() (cells, others []processes.Member) {
	limit := time.Since(o.began) + wire.StartError // before the look, which may take a while
	all := processes.Tree(o.p.pid)
	newest, tops := limit, map[int]time.Duration{} // the ages of the interpreter's children
	for _, m := range all {
		if m.PID == m.Top {
			newest, tops[m.Top] = min(newest, m.Age), m.Age
		}
	}
	if o.shell {
		computes := o.computes()
		all = slices.DeleteFunc(all, func(m processes.Member) bool {
			age, found := tops[m.Top]
			background := found && (computes || age > newest+onePipeline)
			if background {
				others = append(others, m)
			}
			return background
		})
	}
	for _, m := range all {
		if max(m.Age, tops[m.Top]) > limit {
			others = append(others, m)
			continue
		}
		cells = append(cells, m)
		o.found[m.PID] = m
	}
	return cells, others
}

// interrupt sends a SIGINT to the interpreter and to the offspring.
func (o *offspring) interrupt() {
	cells, others := o.look()
	spared := false
	for _, m := range others {
		spared = spared || m.Group == o.p.pid && !o.forked(m)
	}
	if !spared {
		_ = syscall.Kill(-o.p.pid, unix.SIGINT)
	} else {
		for _, m := range others {
			if m.Group == o.p.pid && o.forked(m) {
				_ = syscall.Kill(m.PID, unix.SIGINT)
			}
		}
		_ = syscall.Kill(o.p.pid, unix.SIGINT)
	}
	for _, m := range cells {
		switch {
		case m.Group == o.p.pid && spared, m.Group != o.p.pid && o.waitedFor(m):
			o.tell(m)
		case m.Group == o.p.pid:
			o.told[m.PID] = true
		}
	}
}

// forked reports whether a process is a part of the interpreter's own program, such as a worker of multiprocessing.
func (o *offspring) forked(m processes.Member) bool {
	if o.shell {
		return false // a subshell
	}
	name := func(pid int) []byte {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return text
	}
	return bytes.Equal(name(m.PID), name(o.p.pid))
}

// waitedFor reports whether a process comes from a child of the interpreter that is in its group: the cell may go on
// without one that is not.
func (o *offspring) waitedFor(m processes.Member) bool {
	group, err := syscall.Getpgid(m.Top)
	return m.Top != 0 && err == nil && group == o.p.pid
}

// interruptAll sends a SIGINT to all of the offspring that has got none, if the cell has not stopped because it waits
// for something, and does not compute.
func (o *offspring) interruptAll() {
	cells, _ := o.look()
	if o.computes() {
		return
	}
	for _, m := range cells {
		if !o.told[m.PID] {
			o.tell(m)
		}
	}
}

func (o *offspring) computes() bool {
	f, err := processes.Stat(o.p.pid)
	return err == nil && f[0] == "R"
}

func (o *offspring) tell(m processes.Member) {
	o.told[m.PID] = true
	_ = syscall.Kill(m.PID, unix.SIGINT)
}

// kill kills the interpreter, and with it what the cell waited for.
func (o *offspring) kill() {
	cells, _ := o.look()
	computes := o.computes()
	o.p.kill()
	for _, m := range cells {
		if m.Group != o.p.pid && (!computes || o.told[m.PID]) {
			_ = syscall.Kill(m.PID, unix.SIGKILL)
		}
	}
}

// dying is how long a process may take to end that was killed.
const dying = 100 * time.Millisecond

// end ends what has lost the child of the interpreter that it came from, now that the cell has stopped. Python has
// killed such a child just now.
func (o *offspring) end() {
	for until := time.Now().Add(dying); ; time.Sleep(dying / 20) {
		left := 0
		for _, m := range o.found {
			top, found := o.found[m.Top]
			if !found || top.PID == m.PID || o.told[m.PID] || !m.Same() {
				continue
			}
			if left++; !top.Same() {
				o.tell(m)
			}
		}
		if left == 0 || time.Now().After(until) {
			return
		}
	}
}
