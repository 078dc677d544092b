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

// haltPollFile says for how many ns an idle processor of a KVM guest waits before it
// sleeps (Linux, Documentation/virt/guest-halt-polling.rst).
const haltPollFile = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"

// governorFile has the name of the cpuidle governor. Only "haltpoll" uses the value in haltPollFile.
const governorFile = "/sys/devices/system/cpu/cpuidle/current_governor_ro"

const (
	// slowWakeUp is far above the wake-up time of a physical processor.
	slowWakeUp = 25 * time.Microsecond
	// defaultHaltPoll is the kernel's own default of the value in haltPollFile.
	defaultHaltPoll = 200000
)

// wakeUps describes the measured wake-up time. poll and governor are the contents of
// haltPollFile and governorFile.
func wakeUps(took time.Duration, poll, governor string) string {
	s := fmt.Sprintf("an idle processor takes %d µs to wake up", took.Microseconds())
	if took < slowWakeUp {
		return s
	}
	s += ", which is long, as on many virtual machines; a short call needs several of these"
	if n, err := strconv.Atoi(poll); err == nil && n < defaultHaltPoll && governor == "haltpoll" {
		s += fmt.Sprintf(". WARNING: it is less after `echo %d > %s`, as root on this machine: idle processors then "+
			"wait a moment before they sleep", defaultHaltPoll, haltPollFile)
	}
	return s
}

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
