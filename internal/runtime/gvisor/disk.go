package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

const (
	// measureInterval is the time after which the mounts of a sandbox that uses its CPUs
	// are measured again, even if it has written little.
	measureInterval = time.Minute
	// slack is how far a mount may be over its limit.
	slack = tree.SandboxSlack
	// gracePeriod is how long a sandbox may take to remove files if its folders had too many of
	// them, or were too deep, when it started. It may write no more than slack meanwhile.
	gracePeriod = 30 * time.Second
)

// diskUse is what is known of how much one sandbox writes. The first three fields are of the
// moment when measuring began last.
type diskUse struct {
	lastWritten int64         // bytes that its processes had written
	lastCPU     time.Duration // processor time that it had used
	lastStart   time.Time
	// measuring: a goroutine measures, and owns the fields below.
	measuring   atomic.Bool
	initialSize int64     // size of its files when first measured; it may keep that much
	graceEnd    time.Time // the end of its grace period; zero: it has none
}

// diskQuery is what watchDisk needs to know of a sandbox.
type diskQuery struct {
	pid    int
	limit  int64
	mounts []sandbox.Mount
	image  string // the file that is the root file system; it may be deleted meanwhile
}

// watchDisk measures a sandbox's mounts, in the background, when the sandbox has written
// enough or has computed for a while, and kills it when they are over its limit.
func (r *Runtime) watchDisk(b *box, d *diskUse, u diskQuery) {
	written, cpu := proc.BytesWrittenToDisk(u.pid), proc.CPUTime(u.pid)
	if d.measuring.Load() {
		if written-d.lastWritten > 2*u.limit {
			r.killOverDisk(b, "it writes faster than its files can be measured")
		}
		return
	}
	first := d.lastStart.IsZero()
	if !d.graceEnd.IsZero() {
		if written-d.lastWritten > slack {
			r.killOverDisk(b, "it had too many files, or too deep folders, and wrote more")
			return
		}
		if time.Now().Before(d.graceEnd) {
			return
		}
	}
	wrote := written-d.lastWritten > u.limit/16
	worked := cpu-d.lastCPU > 200*time.Millisecond && time.Since(d.lastStart) > measureInterval
	if !first && !wrote && !worked && d.graceEnd.IsZero() {
		return
	}
	d.measuring.Store(true)
	d.lastWritten, d.lastCPU, d.lastStart = written, cpu, time.Now()
	// Measuring many files takes long: the check of other sandboxes does not wait for it.
	r.background.Go(func() {
		defer d.measuring.Store(false)
		r.measureDisk(b, d, u, first)
	})
}

func (r *Runtime) measureDisk(b *box, d *diskUse, u diskQuery, first bool) {
	ctx, cancel := context.WithTimeout(r.ctx, tree.SandboxTimeout)
	defer cancel()
	size, err := largestMount(ctx, u.mounts)
	size += unlinkedSize(u)
	if first {
		d.initialSize = size
	}
	switch {
	case r.ctx.Err() != nil:
	case first && (errors.Is(err, tree.ErrEntries) || errors.Is(err, tree.ErrDepth)):
		d.graceEnd = time.Now().Add(gracePeriod)
	case tree.IsSandboxFault(err), errors.Is(err, fs.ErrPermission):
		r.killOverDisk(b, err.Error())
	case err != nil: // the next check measures again
		r.Log.Warn("could not measure a sandbox's folders", "sandbox", b.spec.ID, "error", err)
	case size > max(u.limit+slack, d.initialSize):
		r.killOverDisk(b, fmt.Sprintf("its files have %d MB", size>>20))
	default:
		d.graceEnd = time.Time{}
	}
}

func (r *Runtime) killOverDisk(b *box, why string) {
	r.Log.Warn("a sandbox reached its disk limit", "sandbox", b.spec.ID, "reason", why)
	b.kill("disk")
}

// largestMount returns the size of the largest of the sandbox's own writable mounts. Shared
// folders do not count.
func largestMount(ctx context.Context, mounts []sandbox.Mount) (most int64, err error) {
	for _, m := range mounts {
		if m.ReadOnly || m.Shared {
			continue
		}
		size, err := tree.Measure(ctx, m.Source, tree.SandboxLimits)
		most = max(most, size.Bytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return most, err
		}
	}
	return most, nil
}

// unlinkedSize returns the size of deleted files that the sandbox's process still holds open.
// gVisor's own files and the image do not count. Neither do files of a shared folder that are open for
// reading only: other sandboxes may have written and deleted them.
func unlinkedSize(u diskQuery) (size int64) {
	seen := map[uint64]bool{}
	files, _ := hostfile.OpenBy(u.pid)
	for _, f := range files {
		if !strings.HasSuffix(f.Target, " (deleted)") || strings.HasPrefix(f.Target, "/memfd:") ||
			strings.Contains(f.Target, "/runsc-filestore-") || u.isImage(f) {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(f.Path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || seen[st.Ino] ||
			u.isShared(f.Target) && !openForWriting(u.pid, filepath.Base(f.Path)) {
			continue
		}
		seen[st.Ino] = true
		size += st.Blocks * 512
	}
	return size
}

// isImage says whether a descriptor is that of the image.
func (u diskQuery) isImage(f hostfile.Open) bool {
	return u.image != "" && f.Target == u.image+" (deleted)" && !openForWriting(u.pid, filepath.Base(f.Path))
}

// isShared says whether a path, as the gofer sees it, is in a shared folder.
func (u diskQuery) isShared(path string) bool {
	return slices.ContainsFunc(u.mounts, func(m sandbox.Mount) bool {
		return m.Shared && strings.HasPrefix(path, hostfile.GoferRoot+m.Target+"/")
	})
}

// openForWriting says whether a process's descriptor is open for writing.
func openForWriting(pid int, fd string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "flags:")
	line, _, _ := strings.Cut(rest, "\n")
	flags, err := strconv.ParseInt(strings.TrimSpace(line), 8, 64)
	return err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY
}
