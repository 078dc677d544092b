//go:build unix && (!linux || mac)

package app

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/fault"
	"sandlot/internal/proc"
)

// lockedDirs returns none: the system does not say which program has opened which file. The folder of the settings is
// looked into in any case.
func lockedDirs() []string { return nil }

// stopProcess asks the process of a server to end, and waits for that.
func stopProcess(ctx context.Context, s *Server) (found, ended bool, err error) {
	if now, err := proc.StartTicks(s.PID); err != nil || now != s.startTicks {
		return false, false, nil // another process has the id now
	}
	if err := unix.Kill(s.PID, unix.SIGTERM); errors.Is(err, unix.ESRCH) {
		return false, false, nil
	} else if err != nil {
		return false, false, fault.Wrap(fault.Configuration, err,
			"process %d, the server, cannot be stopped: %v; do it as its user", s.PID, err)
	}
	for ctx.Err() == nil {
		if now, err := proc.StartTicks(s.PID); err != nil || now != s.startTicks {
			return true, true, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true, false, nil
}
