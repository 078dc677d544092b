// Package writes tells whose processes have made the files of a folder grow. It counts what
// the kernel reports of each write, and guesses nothing: writes whose author is not certain
// count for nobody.
package writes

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxFiles is how many files are followed at once. When there are more, the half
	// that has grown least is no longer followed.
	maxFiles = 1024
	// maxOthers is how many files are remembered that others have written.
	maxOthers = 1 << 16
)

// Watch follows the writes to one file system. It is for one goroutine at a time.
type Watch struct {
	fd     int
	since  unix.StatxTimestamp // files that were made later are new: all in them was written since
	files  map[key]*file
	others map[key]bool // files that were written by processes without an owner
	buf    []byte
}

// key tells a file from all others of the machine.
type key struct {
	major, minor uint32
	inode        uint64
}

// file is one that has been written.
type file struct {
	fd    int    // holds it, whatever its name is
	owner string // of all writes to it; empty: there are several, or none
	base  int64  // its bytes on the disk when it was first seen, or 0 for a new one
}

// Open watches the file system that a folder is on. It needs CAP_SYS_ADMIN.
func Open(folder string) (*Watch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK,
		unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE|unix.O_NONBLOCK|unix.O_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("watching who writes: %w", err)
	}
	err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_MODIFY, unix.AT_FDCWD, folder)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watching who writes to the disk of %s: %w", folder, err)
	}
	w := &Watch{fd: fd, files: map[key]*file{}, others: map[key]bool{}, buf: make([]byte, 64<<10)}
	w.forget()
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.forget()
	return unix.Close(w.fd)
}

// forget drops all that is known of writes so far.
func (w *Watch) forget() {
	for _, f := range w.files {
		unix.Close(f.fd)
	}
	clear(w.files)
	clear(w.others)
	// A file may be made within the tick of the file system's clock that is now.
	now := time.Now().Add(time.Second)
	w.since = unix.StatxTimestamp{Sec: now.Unix(), Nsec: uint32(now.Nanosecond())}
}

// maxBatches bounds the events of one Read to those that the kernel's queue holds.
const maxBatches = 64

// Read reads the events since the last call. ownerOf names the owner of a process that has
// written by a mount with that id; empty: no owner, or another mount.
func (w *Watch) Read(ownerOf func(pid int, mount uint64) string) error {
	for range maxBatches {
		n, err := unix.Read(w.fd, w.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || n == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
		w.parse(w.buf[:n], ownerOf)
	}
	return nil
}

// parse handles some events: struct fanotify_event_metadata.
func (w *Watch) parse(events []byte, ownerOf func(pid int, mount uint64) string) {
	const size = int(unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	for len(events) >= size {
		length := int(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint64(events[8:])
		fd := int(int32(binary.NativeEndian.Uint32(events[16:])))
		pid := int(int32(binary.NativeEndian.Uint32(events[20:])))
		if length < size || length > len(events) {
			return
		}
		events = events[length:]
		if mask&unix.FAN_Q_OVERFLOW != 0 { // the lost events may be of others' writes
			w.forget()
		}
		if fd >= 0 && !w.event(fd, pid, ownerOf) {
			unix.Close(fd)
		}
	}
}

// event handles one write, and says whether it keeps the descriptor.
func (w *Watch) event(fd, pid int, ownerOf func(pid int, mount uint64) string) bool {
	var st unix.Statx_t
	const want = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_BTIME | unix.STATX_MNT_ID
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, want, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	owner := ""
	if st.Mask&unix.STATX_MNT_ID != 0 {
		owner = ownerOf(pid, st.Mnt_id)
	}
	k := key{st.Dev_major, st.Dev_minor, st.Ino}
	if f := w.files[k]; f != nil {
		if f.owner != owner {
			f.owner = "" // for good
		}
		return false
	}
	if owner == "" {
		if len(w.others) >= maxOthers {
			w.forget()
		}
		w.others[k] = true
	}
	if w.others[k] {
		return false
	}
	if len(w.files) >= maxFiles {
		w.dropLeast()
	}
	f := &file{fd: fd, owner: owner, base: int64(st.Blocks) * 512}
	if st.Mask&unix.STATX_BTIME != 0 && !before(st.Btime, w.since) {
		f.base = 0
	}
	w.files[k] = f
	return true
}

func before(x, y unix.StatxTimestamp) bool {
	return x.Sec < y.Sec || x.Sec == y.Sec && x.Nsec < y.Nsec
}

// grown is by how much a file has grown that one owner alone has written, and whether
// the file is still there.
func (f *file) grown() (n int64, there bool) {
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) != nil || st.Nlink == 0 {
		return 0, false
	}
	if f.owner == "" {
		return 0, true
	}
	return max(0, st.Blocks*512-f.base), true
}

// dropLeast stops following the half of the files that has grown least.
func (w *Watch) dropLeast() {
	type grown struct {
		k     key
		bytes int64
	}
	var all []grown
	for k, f := range w.files {
		n, _ := f.grown()
		all = append(all, grown{k, n})
	}
	slices.SortFunc(all, func(x, y grown) int { return cmp.Compare(x.bytes, y.bytes) })
	for _, g := range all[:(len(all)+1)/2] {
		f := w.files[g.k]
		unix.Close(f.fd)
		delete(w.files, g.k)
		if f.owner == "" {
			w.others[g.k] = true
		}
	}
}

// Grown returns, for each owner, by how many bytes the files have grown that the owner alone
// has written since Open, and that still exist. Only the files that have grown most are
// followed. ownerOf is as for Read.
func (w *Watch) Grown(ownerOf func(pid int, mount uint64) string) (map[string]int64, error) {
	sizes := map[*file]int64{}
	for k, f := range w.files {
		n, there := f.grown()
		if !there { // its space is free once nobody, this watch included, has it open
			unix.Close(f.fd)
			delete(w.files, k)
		}
		if n > 0 {
			sizes[f] = n
		}
	}
	if err := w.Read(ownerOf); err != nil { // others may have written the files just measured
		return nil, err
	}
	all := map[string]int64{}
	for f, n := range sizes {
		if f.owner != "" {
			all[f.owner] += n
		}
	}
	return all, nil
}
