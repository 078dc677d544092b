//go:build !mac

package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/fault"
	"sandlot/internal/proc"
)

// lockedDirs returns the folders in which a running program called sandlot has opened a file called lock.
func lockedDirs() []string {
	programs, _ := filepath.Glob("/proc/[0-9]*/exe")
	var dirs []string
	for _, exe := range programs {
		name, err := os.Readlink(exe)
		if err != nil || filepath.Base(strings.TrimSuffix(name, " (deleted)")) != "sandlot" {
			continue
		}
		open, _ := filepath.Glob(filepath.Join(filepath.Dir(exe), "fd", "*"))
		for _, fd := range open {
			if file, err := os.Readlink(fd); err == nil && filepath.Base(file) == "lock" {
				dirs = append(dirs, filepath.Dir(file))
			}
		}
	}
	return dirs
}

// stopProcess asks the process of a server to end, and waits for that.
func stopProcess(ctx context.Context, s *Server) (found, ended bool, err error) {
	fd, err := unix.PidfdOpen(s.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer unix.Close(fd)
	if now, err := proc.StartTicks(s.PID); err != nil || now != s.startTicks {
		return false, false, nil // another process has the id now
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return false, false, fault.Wrap(fault.Configuration, err,
			"process %d, the server, cannot be stopped: %v; do it as its user", s.PID, err)
	}
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n > 0 {
			return true, true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return true, false, err
		}
	}
	return true, false, nil
}
