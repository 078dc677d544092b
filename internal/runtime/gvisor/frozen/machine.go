package frozen

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
)

// SyncMounts makes durable the files that the sandbox has written to its mounts: the image has their names alone.
func SyncMounts(mounts []sandbox.Mount) (err error) {
	for _, m := range mounts {
		if m.ReadOnly || m.Shared || m.Source == "" {
			continue
		}
		f, oerr := os.Open(m.Source)
		if oerr != nil {
			return errors.Join(err, oerr)
		}
		err = errors.Join(err, unix.Syncfs(int(f.Fd())), f.Close())
	}
	return err
}

// GVisorVersion returns the version of gVisor that a program of it is.
func GVisorVersion(path string) (string, error) {
	program, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", err
	}
	for _, m := range program.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("%s is not gVisor", path)
}
