package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/windows"

	"sandlot/internal/fault"
	"sandlot/internal/fileacl"
)

// fileOwner returns what os.Getuid does: Windows has no numbers of users.
func fileOwner(os.FileInfo) int { return os.Getuid() }

// makePrivate returns an error unless only this user and the administrators can use a folder: what is in it gets its
// access rights from it.
func makePrivate(dir string) error {
	other, err := fileacl.Others(dir, fileacl.Read|fileacl.Write)
	if err == nil && other != "" {
		err = fmt.Errorf("%s can use it, and what is in it; take the right away in its properties, or use a folder in "+
			"your profile", other)
	}
	return err
}

// lacksFamily reports whether an error of listening means that this machine has no addresses of that kind.
func lacksFamily(err error) bool {
	return errors.Is(err, windows.WSAEADDRNOTAVAIL) || errors.Is(err, windows.WSAEAFNOSUPPORT)
}

// publish does nothing: the socket has its name, in a folder that makePrivate has checked.
func publish(string, string) error { return nil }

// bindPath returns where to make the owner's socket: Windows does not rename sockets that are in use.
func bindPath(_, path string) string { return path }

// lockedDirs returns none: Windows does not say which program has opened which file. The folder of the settings is
// looked into in any case.
func lockedDirs() []string { return nil }

// stopProcess returns an error: Windows has no signal that asks the program of another console to end.
func stopProcess(_ context.Context, s *Server) (found, ended bool, err error) {
	return true, false, fault.New(fault.Configuration, "on Windows a server ends by Ctrl+C in its own window; "+
		"`taskkill /F /PID %d` ends it at once, and loses no session", s.PID)
}
