package proc

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// started returns when a process started, in units of 100 ns since 1601, and whether it has ended.
func started(pid int) (at uint64, ended bool, err error) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return 0, false, err
	}
	defer windows.CloseHandle(h)
	var creation, exit, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &creation, &exit, &kernel, &user); err != nil {
		return 0, false, err
	}
	event, err := windows.WaitForSingleObject(h, 0)
	return uint64(creation.HighDateTime)<<32 | uint64(creation.LowDateTime), event == windows.WAIT_OBJECT_0, err
}

// StartTicks returns when a process started, in units of 100 ns since 1601. A process id and a start time together
// identify a process. For one that has ended the error is os.ErrProcessDone.
func StartTicks(pid int) (uint64, error) {
	at, ended, err := started(pid)
	if err == nil && ended {
		err = os.ErrProcessDone
	}
	return at, err
}

// IsEnding reports whether the process with that id and start time has ended.
func IsEnding(pid int, since uint64) bool {
	at, ended, err := started(pid)
	return errors.Is(err, windows.ERROR_INVALID_PARAMETER) || err == nil && (ended || at != since)
}

// TicksToTime converts a start time to a time.
func TicksToTime(ticks uint64) time.Time {
	f := windows.Filetime{HighDateTime: uint32(ticks >> 32), LowDateTime: uint32(ticks)}
	return time.Unix(0, f.Nanoseconds()).Truncate(time.Second)
}

// Owner returns what os.Getuid does, for a process that exists: Windows has no numbers of users.
func Owner(pid int) (uid int, err error) {
	_, _, err = started(pid)
	return os.Getuid(), err
}
