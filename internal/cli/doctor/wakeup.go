package doctor

import (
	"fmt"
	"strconv"
	"time"
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
