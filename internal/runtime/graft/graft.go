// Package graft owns the parts of the machine in the root file system of a sandbox of gVisor: folders that gVisor's file
// server, the gofer, sees below the root instead of beside it, so that what a sandbox writes lies over them.
package graft

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
)

// Graft is a folder of the machine at a path of the sandbox.
type Graft struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// annotation is where a bundle names its grafts.
const annotation = "dev.sandlot.grafts"

// Annotate adds grafts to the annotations of a bundle. They are in the order of their targets.
func Annotate(annotations map[string]string, list []Graft) error {
	if len(list) == 0 {
		return nil
	}
	text, err := json.Marshal(list)
	annotations[annotation] = string(text)
	return err
}

// Of returns the grafts in the annotations of a bundle.
func Of(annotations map[string]string) (list []Graft) {
	if text := annotations[annotation]; text != "" && json.Unmarshal([]byte(text), &list) != nil {
		return nil // nobody but Annotate writes it
	}
	return list
}

// Mount mounts grafts below root, read-only, in this process's mount namespace, which no other process may share. Each
// has its mount point there.
func Mount(root string, list []Graft) error {
	if len(list) == 0 {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("separating the mounts from the machine's: %w", err)
	}
	for _, g := range list {
		if err := mount(g.Source, filepath.Join(root, g.Target)); err != nil {
			return fmt.Errorf("putting %s of the machine into the root file system: %w", g.Source, err)
		}
	}
	return nil
}

// mount mounts a folder of the machine at a place, read-only. File systems that are mounted below it stay out, as with
// gVisor's own mounts; in a user namespace the kernel allows only both together, and they are read-only, too.
func mount(source, target string) error {
	err := unix.Mount(source, target, "", unix.MS_BIND, "")
	all := []string{target}
	if errors.Is(err, unix.EINVAL) {
		if err = unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			if all = append(all, proc.MountsBelow(target)...); len(all) == 1 {
				err = errors.New("the mounts below it are not known")
			}
		}
	}
	for _, place := range all {
		if err == nil {
			err = makeReadOnly(place)
		}
	}
	return err
}

// makeReadOnly makes a mount read-only. Its other flags stay: a user namespace may not take them away.
func makeReadOnly(place string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(place, &st); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	for has, keep := range map[int64]uintptr{unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOATIME: unix.MS_NOATIME,
		unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME} {
		if int64(st.Flags)&has != 0 {
			flags |= keep
		}
	}
	return unix.Mount("", place, "", flags, "")
}
