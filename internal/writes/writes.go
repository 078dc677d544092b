// Package writes finds out whose processes have made the files of a folder grow. It uses what
// the kernel reports of each write (fanotify(7)). A file that grew by writes of several
// owners, or of unknown ones, counts for no owner.
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
	// maxFiles is how many files are watched at once. When there are more, the half that
	// has grown least is dropped.
	maxFiles = 1024
	// maxUnowned is how many files without an owner are remembered.
	maxUnowned = 1 << 16
)

// Watch watches the writes to one file system. Only one goroutine may use it at a time.
type Watch struct {
	fd       int
	openedAt unix.StatxTimestamp // a file that was created later is counted from size 0
	files    map[fileID]*file
	unowned  map[fileID]bool // files that processes without an owner have written
	buf      []byte
}

// fileID identifies a file on this machine.
type fileID struct {
	major, minor uint32
	inode        uint64
}

// file is a file that has been written to.
type file struct {
	fd          int    // an open descriptor of it
	owner       string // the owner of all writes to it; empty: there are several, or an unknown one
	initialSize int64  // its bytes on the disk when it was first seen; 0 for a new one
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
	w := &Watch{fd: fd, files: map[fileID]*file{}, unowned: map[fileID]bool{}, buf: make([]byte, 64<<10)}
	w.reset()
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.reset()
	return unix.Close(w.fd)
}

// reset drops all files, and begins to count again.
func (w *Watch) reset() {
	for _, f := range w.files {
		unix.Close(f.fd)
	}
	clear(w.files)
	clear(w.unowned)
	// The file system's clock is coarse: a file may get an earlier creation time than now.
	now := time.Now().Add(time.Second)
	w.openedAt = unix.StatxTimestamp{Sec: now.Unix(), Nsec: uint32(now.Nanosecond())}
}

// maxBatches bounds one Read to about as many events as the kernel's queue can have.
const maxBatches = 64

// Read reads the events since the last call. ownerOf returns the owner of a process that has
// written by a mount with that id, or "".
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
		w.handleEvents(w.buf[:n], ownerOf)
	}
	return nil
}

// handleEvents parses and handles events: structs fanotify_event_metadata.
func (w *Watch) handleEvents(events []byte, ownerOf func(pid int, mount uint64) string) {
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
		if mask&unix.FAN_Q_OVERFLOW != 0 { // events were lost, so the owners are not certain any more
			w.reset()
		}
		if fd >= 0 && !w.handleEvent(fd, pid, ownerOf) {
			unix.Close(fd)
		}
	}
}

// handleEvent handles the event of one write to the open file fd, and reports whether the Watch keeps
// the descriptor open.
func (w *Watch) handleEvent(fd, pid int, ownerOf func(pid int, mount uint64) string) bool {
	var st unix.Statx_t
	const mask = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_BTIME | unix.STATX_MNT_ID
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, mask, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	owner := ""
	if st.Mask&unix.STATX_MNT_ID != 0 {
		owner = ownerOf(pid, st.Mnt_id)
	}
	k := fileID{st.Dev_major, st.Dev_minor, st.Ino}
	if f := w.files[k]; f != nil {
		if f.owner != owner {
			f.owner = "" // it has several writers, and gets no owner again
		}
		return false
	}
	if owner == "" {
		if len(w.unowned) >= maxUnowned {
			w.reset()
		}
		w.unowned[k] = true
	}
	if w.unowned[k] {
		return false
	}
	if len(w.files) >= maxFiles {
		w.dropSlowest()
	}
	f := &file{fd: fd, owner: owner, initialSize: int64(st.Blocks) * 512}
	if st.Mask&unix.STATX_BTIME != 0 && !before(st.Btime, w.openedAt) {
		f.initialSize = 0
	}
	w.files[k] = f
	return true
}

func before(x, y unix.StatxTimestamp) bool {
	return x.Sec < y.Sec || x.Sec == y.Sec && x.Nsec < y.Nsec
}

// growth returns by how many bytes a file has grown, 0 if it has no owner, and whether it
// still exists.
func (f *file) growth() (n int64, exists bool) {
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) != nil || st.Nlink == 0 {
		return 0, false
	}
	if f.owner == "" {
		return 0, true
	}
	return max(0, st.Blocks*512-f.initialSize), true
}

// dropSlowest drops the half of the files that has grown least.
func (w *Watch) dropSlowest() {
	type fileGrowth struct {
		k     fileID
		bytes int64
	}
	var all []fileGrowth
	for k, f := range w.files {
		n, _ := f.growth()
		all = append(all, fileGrowth{k, n})
	}
	slices.SortFunc(all, func(x, y fileGrowth) int { return cmp.Compare(x.bytes, y.bytes) })
	for _, g := range all[:(len(all)+1)/2] {
		f := w.files[g.k]
		unix.Close(f.fd)
		delete(w.files, g.k)
		if f.owner == "" {
			w.unowned[g.k] = true
		}
	}
}

// Grown returns, for each owner, by how many bytes those files have grown that only this owner
// has written since Open, and that still exist. If more than maxFiles files were written, it
// counts only those that have grown most. ownerOf is as for Read.
func (w *Watch) Grown(ownerOf func(pid int, mount uint64) string) (map[string]int64, error) {
	sizes := map[*file]int64{}
	for k, f := range w.files {
		n, exists := f.growth()
		if !exists { // close it: the kernel frees its space when no descriptor is open
			unix.Close(f.fd)
			delete(w.files, k)
		}
		if n > 0 {
			sizes[f] = n
		}
	}
	if err := w.Read(ownerOf); err != nil { // another owner may have written to these files just now
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
