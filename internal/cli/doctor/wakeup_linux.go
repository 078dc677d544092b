//go:build !mac

package doctor

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// wakeUp measures how long an idle processor takes to run a thread that another processor
// wakes: half the median round trip of a byte through two pipes. With fewer than two
// processors it returns errors.ErrUnsupported.
func wakeUp() (time.Duration, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return 0, err
	}
	var cpus []int
	for n := range len(allowed) * 64 {
		if allowed.IsSet(n) {
			cpus = append(cpus, n)
		}
	}
	if len(cpus) < 2 { // the first and the last are seldom threads of one core
		return 0, errors.ErrUnsupported
	}
	var request, reply [2]int
	if err := unix.Pipe2(request[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(request[0])
	if err := unix.Pipe2(reply[:], unix.O_CLOEXEC); err != nil {
		unix.Close(request[1])
		return 0, err
	}
	defer unix.Close(reply[0])
	echoed := onCPU(cpus[0], func() error {
		defer unix.Close(reply[1])
		b := []byte{0}
		for {
			if n, err := unix.Read(request[0], b); n == 0 || err != nil {
				return err
			}
			if _, err := unix.Write(reply[1], b); err != nil {
				return err
			}
		}
	})
	var took []time.Duration
	pinged := onCPU(cpus[len(cpus)-1], func() error {
		defer unix.Close(request[1])
		b := []byte{0}
		for range 100 {
			time.Sleep(time.Millisecond) // the other processor is idle by then
			began := time.Now()
			if _, err := unix.Write(request[1], b); err != nil {
				return err
			}
			if n, err := unix.Read(reply[0], b); n == 0 || err != nil {
				return errors.Join(errors.New("no answer"), err)
			}
			took = append(took, time.Since(began)/2)
		}
		return nil
	})
	if err := errors.Join(<-pinged, <-echoed); err != nil {
		return 0, err
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// onCPU runs f in a thread of its own, on that processor only.
func onCPU(cpu int, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		var only unix.CPUSet
		only.Set(cpu)
		err := unix.SchedSetaffinity(0, &only)
		done <- errors.Join(err, f())
	}()
	return done
}
