// Package trial owns the check that a sandbox makes of its own kernel, before the server uses a platform of gVisor:
// what programs need of a processor works, and what a system call costs.
package trial

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
)

// Main prints wire.TrialStarted as soon as it runs, and then a wire.Trial in JSON, or ends with an error.
func Main(out io.Writer) error {
	if _, err := fmt.Fprintln(out, wire.TrialStarted); err != nil {
		return err
	}
	if !process.InGVisor() {
		return errors.New("this is not a kernel of gVisor")
	}
	for _, check := range []func() error{faults, threads, sleep, processes} {
		if err := check(); err != nil {
			return err
		}
	}
	return json.NewEncoder(out).Encode(wire.Trial{Call: call(), Process: start()})
}

// Child is what a process does that the check starts.
func Child(out io.Writer) error {
	_, err := fmt.Fprint(out, wire.TrialStarted)
	return err
}

// faults checks that a write to memory that is read-only reaches the program as a signal, and that the memory keeps
// what it had.
func faults() (err error) {
	const size = 8 << 20
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mapping memory: %w", err)
	}
	defer unix.Munmap(memory)
	for i := range memory {
		memory[i] = byte(i >> 12)
	}
	if err := unix.Mprotect(memory, unix.PROT_READ); err != nil {
		return fmt.Errorf("making memory read-only: %w", err)
	}
	faulted := func() (faulted bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { faulted = recover() != nil }()
		memory[0] = 1
		return false
	}()
	if !faulted {
		return errors.New("a write to read-only memory was no fault")
	}
	for i := range memory {
		if memory[i] != byte(i>>12) {
			return fmt.Errorf("byte %d of memory has changed", i)
		}
	}
	return nil
}

// threads checks that threads that run at once, and wait for each other, keep their floating-point registers.
func threads() error {
	const count, rounds = 4, 200
	want := series(1)
	wrong := make([]error, count)
	var all sync.WaitGroup
	turn := make(chan struct{}, 1)
	for i := range count {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			for range rounds {
				turn <- struct{}{}
				<-turn
				if got := series(1); got != want {
					wrong[i] = fmt.Errorf("a thread computed %v, not %v", got, want)
				}
				unix.Getppid()
			}
		})
	}
	all.Wait()
	return errors.Join(wrong...)
}

// series computes a sum that depends on each of its steps.
func series(x float64) (sum float64) {
	for i := 1; i < 2000; i++ {
		sum += math.Sqrt(x*float64(i)) / (1 + sum/float64(i))
	}
	return sum
}

// sleep checks that the clock goes on, and that a sleep ends.
func sleep() error {
	began := time.Now()
	time.Sleep(5 * time.Millisecond)
	if took := time.Since(began); took < 5*time.Millisecond {
		return fmt.Errorf("a sleep of 5 ms took %v", took)
	}
	return nil
}

// processes checks that programs start, and end with what they printed.
func processes() error {
	for range 3 {
		if err := child(); err != nil {
			return fmt.Errorf("starting a process: %w", err)
		}
	}
	return nil
}

func child() error {
	out, err := exec.Command("/proc/self/exe", wire.TrialCommand, "child").Output()
	if err == nil && !bytes.Equal(out, []byte(wire.TrialStarted)) {
		err = fmt.Errorf("it printed %q", out)
	}
	return err
}

// call returns what a system call costs: the least of some means, which what else the machine does hardly changes.
func call() time.Duration {
	const calls = 500
	var took []time.Duration
	for range 20 {
		began := time.Now()
		for range calls {
			unix.Getppid()
		}
		took = append(took, time.Since(began)/calls)
	}
	return slices.Min(took)
}

// start returns the time of the start and end of a process, the least of some.
func start() time.Duration {
	var took []time.Duration
	for range 5 {
		began := time.Now()
		if child() == nil {
			took = append(took, time.Since(began))
		}
	}
	if len(took) == 0 {
		return 0
	}
	return slices.Min(took)
}

// Run runs the check, or its child, as the program's command with these arguments, and returns the exit code.
func Run(args []string) int {
	f := Main
	if len(args) > 0 {
		f = Child
	}
	if err := f(os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, "error:", err)
		return 1
	}
	return 0
}
