//go:build linux && !mac

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandlot/internal/atomicfile"
)

// volumes are the disks with the workspaces: a folder for each, with a record, and, since a sandbox has had it, the
// disk. Only machines read what is in a disk: the host never mounts one.
type volumes struct {
	dir string
	mu  sync.Mutex // for making disks
}

// owner is the record of a volume: whose the folder in it is.
type owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

const (
	ownerFile = "owner.json"
	diskFile  = "disk"
	maxOwner  = 1000
)

func (v *volumes) path(name string) string { return filepath.Join(v.dir, name) }

func (v *volumes) owner(name string) (o owner, err error) {
	if !validID.MatchString(name) {
		return o, fmt.Errorf("qemu: %q cannot be a volume's name", name)
	}
	text, err := atomicfile.Read(filepath.Join(v.path(name), ownerFile), maxOwner)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	return o, err
}

// disk opens the disk of a volume with that size, and makes it when there is none. A larger one stays as it is.
func (v *volumes) disk(ctx context.Context, name string, size int64, readOnly bool) (*os.File, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, err := v.owner(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no such volume")
	}
	if err != nil {
		return nil, err
	}
	path := filepath.Join(v.path(name), diskFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		making := path + ".new"
		err := makeDisk(ctx, making, size, "-E", fmt.Sprintf("nodiscard,root_owner=%d:%d", o.UID, o.GID))
		if err == nil {
			err = os.Rename(making, path)
		}
		if err != nil {
			return nil, errors.Join(err, removeFile(making))
		}
	}
	mode := os.O_RDWR
	if readOnly {
		mode = os.O_RDONLY
	}
	f, err := os.OpenFile(path, mode|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); !readOnly && (err != nil || st.Size() < size) { // the machine makes its file system larger
		if err = errors.Join(err, f.Truncate(size)); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// minDisk is the size of the smallest disk, in bytes.
const minDisk = 32 << 20

// makeDisk makes a file with an empty ext4, which takes no room on the disk yet.
func makeDisk(ctx context.Context, path string, size int64, options ...string) error {
	program, err := mkfs()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(max(size, minDisk)), f.Close())
	}
	if err != nil {
		return err
	}
	args := append([]string{"-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096"}, options...)
	out, err := exec.CommandContext(ctx, program, append(args, path)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making the file system of a disk: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// KeepsVolumes implements sandbox.Storage.
func (r *Runtime) KeepsVolumes(context.Context) (bool, error) { return true, nil }

// KeeperID implements sandbox.Storage.
func (r *Runtime) KeeperID(context.Context) (address, id string, err error) {
	id, err = r.instanceID()
	return "the folder qemu/volumes of the state folder", id, err
}

// MakeVolume implements sandbox.Storage.
func (r *Runtime) MakeVolume(_ context.Context, name string, uid, gid int) error {
	v := &r.volumes
	found, err := v.owner(name)
	if err == nil {
		if want := (owner{uid, gid}); found != want {
			return fmt.Errorf("qemu: the volume %s belongs to the user %d, and the template's user is now %d; files of a "+
				"volume do not get another owner: begin a new session", name, found.UID, uid)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := json.Marshal(owner{uid, gid})
	if err == nil {
		err = os.MkdirAll(v.path(name), 0o700)
	}
	if err != nil {
		return err
	}
	return atomicfile.WriteThrough(filepath.Join(v.path(name), ownerFile), text)
}

// HasVolume implements sandbox.Storage.
func (r *Runtime) HasVolume(_ context.Context, name string) (bool, error) {
	_, err := r.volumes.owner(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// VolumeEmpty implements sandbox.Storage. Only a machine may read a disk, so one that a sandbox has had is not known to be
// empty.
func (r *Runtime) VolumeEmpty(_ context.Context, name string, _ func(path string, kind fs.FileMode) bool) (bool, error) {
	_, err := os.Stat(filepath.Join(r.volumes.path(name), diskFile))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// RemoveVolume implements sandbox.Storage.
func (r *Runtime) RemoveVolume(_ context.Context, name string) error {
	if !validID.MatchString(name) {
		return nil
	}
	if id := r.userOf(name); id != "" {
		return fmt.Errorf("qemu: the sandbox %s has the volume %s", id, name)
	}
	return os.RemoveAll(r.volumes.path(name))
}

// userOf returns the id of a sandbox that has a volume; empty: none has it.
func (r *Runtime) userOf(volume string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, b := range r.boxes {
		for _, m := range b.spec.Mounts {
			if m.Volume == volume {
				return id
			}
		}
	}
	return ""
}

// Volumes implements sandbox.Storage.
func (r *Runtime) Volumes(context.Context) (names []string, err error) {
	entries, err := os.ReadDir(r.volumes.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if validID.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// VolumeBytes implements sandbox.Storage.
func (r *Runtime) VolumeBytes(_ context.Context, name string) (bytes int64, at time.Time, err error) {
	if !validID.MatchString(name) {
		return 0, time.Now(), nil
	}
	st, err := os.Stat(filepath.Join(r.volumes.path(name), diskFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, time.Now(), nil
	}
	if err != nil {
		return 0, time.Now(), err
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512, time.Now(), nil
}
