package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// haltPoll says for how many ns an idle processor of a KVM guest waits before it
// sleeps (Linux, Documentation/virt/guest-halt-polling.rst).
const haltPoll = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"

// idleGovernor has the name of the cpuidle governor. Only "haltpoll" uses haltPoll.
const idleGovernor = "/sys/devices/system/cpu/cpuidle/current_governor_ro"

const (
	// slowWakeUp is far above the wake-up time of a physical processor.
	slowWakeUp = 25 * time.Microsecond
	// usualPoll is the kernel's own default of haltPoll.
	usualPoll = 200000
)

// wakeUps describes the measured wake-up time. poll and governor are the contents of
// haltPoll and idleGovernor.
func wakeUps(took time.Duration, poll, governor string) string {
	s := fmt.Sprintf("an idle processor takes %d µs to wake up", took.Microseconds())
	if took < slowWakeUp {
		return s
	}
	s += ", which is long, as on many virtual machines; a short call needs several of these"
	if n, err := strconv.Atoi(poll); err == nil && n < usualPoll && governor == "haltpoll" {
		s += fmt.Sprintf(". WARNING: it is less after `echo %d > %s`, as root on this machine: idle processors then "+
			"wait a moment before they sleep", usualPoll, haltPoll)
	}
	return s
}

// wakeUp measures how long an idle processor takes to run a thread that another processor
// wakes: half the median round trip of a byte through two pipes. With fewer than two
// processors it returns errors.ErrUnsupported.
func wakeUp() (time.Duration, error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return 0, err
	}
	var cpus []int
	for n := range len(may) * 64 {
		if may.IsSet(n) {
			cpus = append(cpus, n)
		}
	}
	if len(cpus) < 2 { // the first and the last are seldom threads of one core
		return 0, errors.ErrUnsupported
	}
	var there, back [2]int
	if err := unix.Pipe2(there[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(there[0])
	if err := unix.Pipe2(back[:], unix.O_CLOEXEC); err != nil {
		unix.Close(there[1])
		return 0, err
	}
	defer unix.Close(back[0])
	echoed := on(cpus[0], func() error {
		defer unix.Close(back[1])
		b := []byte{0}
		for {
			if n, err := unix.Read(there[0], b); n == 0 || err != nil {
				return err
			}
			if _, err := unix.Write(back[1], b); err != nil {
				return err
			}
		}
	})
	var took []time.Duration
	asked := on(cpus[len(cpus)-1], func() error {
		defer unix.Close(there[1])
		b := []byte{0}
		for range 100 {
			time.Sleep(time.Millisecond) // the other processor is idle by then
			began := time.Now()
			if _, err := unix.Write(there[1], b); err != nil {
				return err
			}
			if n, err := unix.Read(back[0], b); n == 0 || err != nil {
				return errors.Join(errors.New("no answer"), err)
			}
			took = append(took, time.Since(began)/2)
		}
		return nil
	})
	if err := errors.Join(<-asked, <-echoed); err != nil {
		return 0, err
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// on runs f in a thread of its own, on that processor only.
func on(cpu int, f func() error) <-chan error {
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
