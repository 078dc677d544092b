package proc

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel's SZOMB and P_WEXIT (sys/proc.h).
const (
	stateZombie = 5
	flagExiting = 0x2000
)

// info returns what the kernel knows of a process.
func info(pid int) (*unix.KinfoProc, error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return nil, err
	}
	if int(p.Proc.P_pid) != pid {
		return nil, os.ErrProcessDone
	}
	return p, nil
}

// StartTicks returns when a process started, in microseconds since 1970. A process id and a start time together
// identify a process. A zombie counts as ended: the error is os.ErrProcessDone.
func StartTicks(pid int) (uint64, error) {
	p, err := info(pid)
	if err != nil {
		return 0, err
	}
	if p.Proc.P_stat == stateZombie {
		return 0, os.ErrProcessDone
	}
	return ticks(p), nil
}

func ticks(p *unix.KinfoProc) uint64 {
	return uint64(p.Proc.P_starttime.Sec)*1e6 + uint64(p.Proc.P_starttime.Usec)
}

// IsEnding reports whether the process with that id and start time has ended or is exiting. An
// exiting process runs no more code; the kernel is closing its files.
func IsEnding(pid int, started uint64) bool {
	p, err := info(pid)
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ESRCH) ||
		err == nil && (p.Proc.P_stat == stateZombie || ticks(p) != started || p.Proc.P_flag&flagExiting != 0)
}

// TicksToTime converts a start time to a time.
func TicksToTime(started uint64) time.Time {
	return time.UnixMicro(int64(started)).Truncate(time.Second)
}

// Owner returns the user of a process.
func Owner(pid int) (uid int, err error) {
	p, err := info(pid)
	if err != nil {
		return 0, err
	}
	return int(p.Eproc.Ucred.Uid), nil
}
