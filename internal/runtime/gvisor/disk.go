package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

// mountLimits are where a sandbox's own folders count as over their limit,
// whatever is in them. No absolute path is as deep: a path has 4096 characters.
var mountLimits = tree.Limits{Entries: 1_500_000, Depth: 4096}

const (
	// restWalk is how long a mount may go unmeasured while its sandbox works.
	restWalk = time.Minute
	// longestWalk is how long measuring may take; mountLimits.Entries files on a
	// slow disk are a few minutes. What is not measured by then is over the limit.
	longestWalk = 10 * time.Minute
	// slack is what a mount may be over its limit: what is written between two looks.
	slack = 64 << 20
	// respite is how long a sandbox whose folders were too many or too deep when it
	// was first seen may take to remove some, with no more than slack written.
	respite = 30 * time.Second
)

// disk is what is known of one sandbox's writing.
type disk struct {
	written int64 // by its processes, when measuring began last
	cpu     time.Duration
	at      time.Time // when that was
	// measuring: a goroutine measures, and has what follows.
	measuring atomic.Bool
	base      int64     // its size when it was first seen: what it may keep
	until     time.Time // the end of its respite
}

// usage is what watchDisk needs of a sandbox.
type usage struct {
	pid    int
	limit  int64
	mounts []sandbox.Mount
}

// watchDisk measures what a sandbox has written, when it has written enough or
// worked for a while, and ends it when that is over its limit.
func (r *Runtime) watchDisk(b *box, d *disk, u usage) {
	written, cpu := writtenBytes(u.pid), proc.CPU(u.pid)
	if d.measuring.Load() {
		if written-d.written > 2*u.limit {
			r.overDisk(b, "it writes faster than its files can be measured")
		}
		return
	}
	first := d.at.IsZero()
	if !d.until.IsZero() {
		if written-d.written > slack {
			r.overDisk(b, "it had too many files, or too deep folders, and wrote more")
			return
		}
		if time.Now().Before(d.until) {
			return
		}
	}
	grown := written-d.written > u.limit/16
	tired := cpu-d.cpu > 200*time.Millisecond && time.Since(d.at) > restWalk
	if !first && !grown && !tired && d.until.IsZero() {
		return
	}
	d.measuring.Store(true)
	d.written, d.cpu, d.at = written, cpu, time.Now()
	// A tree of many files takes its time, and nobody else waits for it.
	r.work.Go(func() {
		defer d.measuring.Store(false)
		r.measureDisk(b, d, u, first)
	})
}

func (r *Runtime) measureDisk(b *box, d *disk, u usage, first bool) {
	ctx, cancel := context.WithTimeout(r.ctx, longestWalk)
	defer cancel()
	size, err := ownSize(ctx, u.mounts)
	size += unlinked(u)
	if first {
		d.base = size
	}
	switch {
	case r.ctx.Err() != nil:
	case first && (errors.Is(err, tree.ErrEntries) || errors.Is(err, tree.ErrDepth)):
		d.until = time.Now().Add(respite)
	case unmeasurable(err):
		r.overDisk(b, err.Error())
	case err != nil: // the next look tries again
		r.Log.Warn("could not measure a sandbox's folders", "sandbox", b.spec.ID, "error", err)
	case size > max(u.limit+slack, d.base):
		r.overDisk(b, fmt.Sprintf("its files have %d MB", size>>20))
	default:
		d.until = time.Time{}
	}
}

// unmeasurable says whether an error means that a sandbox has made its folders so
// that they cannot be measured.
func unmeasurable(err error) bool {
	for _, e := range []error{tree.ErrEntries, tree.ErrDepth, tree.ErrMoved, context.DeadlineExceeded,
		fs.ErrPermission} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (r *Runtime) overDisk(b *box, why string) {
	r.Log.Warn("a sandbox reached its disk limit", "sandbox", b.spec.ID, "reason", why)
	b.kill("disk")
}

// ownSize is the size of the largest writable folder that is this sandbox's alone.
func ownSize(ctx context.Context, mounts []sandbox.Mount) (most int64, err error) {
	for _, m := range mounts {
		if m.ReadOnly || m.Shared {
			continue
		}
		size, err := tree.Measure(ctx, m.Source, mountLimits)
		most = max(most, size.Bytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return most, err
		}
	}
	return most, nil
}

// unlinked is the size of files that have no name any more and that a sandbox's
// process holds open. What belongs to gVisor itself does not count, nor what
// others may have removed: a file of a shared folder that is only read.
func unlinked(u usage) (size int64) {
	dir := fmt.Sprintf("/proc/%d/fd", u.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	seen := map[uint64]bool{}
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || !strings.HasSuffix(name, " (deleted)") || strings.HasPrefix(name, "/memfd:") ||
			strings.Contains(name, "/runsc-filestore-") {
			continue
		}
		i, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil || !i.Mode().IsRegular() || u.shares(name) && !writable(u.pid, e.Name()) {
			continue
		}
		if st, ok := i.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			size += blocks(i)
		}
	}
	return size
}

// shares says whether a path of the file server's is in a shared folder.
func (u usage) shares(path string) bool {
	for _, m := range u.mounts {
		if m.Shared && strings.HasPrefix(path, goferRoot+m.Target+"/") {
			return true
		}
	}
	return false
}

// writable says whether a process has that descriptor open for writing.
func writable(pid int, fd string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "flags:")
	flags, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), 8, 64)
	return err != nil || flags&syscall.O_ACCMODE != syscall.O_RDONLY
}

func writtenBytes(pid int) int64 { return field(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:") }
