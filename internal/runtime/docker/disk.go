package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandlot/internal/runtime/docker/volumes"
	"sandlot/internal/tree"
)

const (
	// diskInterval is the time between two looks at how much sandboxes write.
	diskInterval = time.Second
	// busyCPU is the processor time after which a sandbox's folders are measured again.
	busyCPU = 200 * time.Millisecond
	// restFactor is how many times as long as the last measuring took the next one waits.
	restFactor = 20
	// idleInterval is the time after which folders are measured again even if the sandbox seems to do nothing: space
	// on the disk can be had for no processor time.
	idleInterval = time.Minute
)

// watchDisk measures the folders of sandboxes that have worked, and kills a sandbox that is over its disk limit:
// the daemon's usual storage has no limits. It runs until the runtime closes, for one sandbox.
func (b *box) watchDisk() {
	ctx := b.runtime.ctx
	var folders ownFolders // nil: not found yet
	var usageFile string
	var last look
	var use volumes.Use
	warned, isOver := false, false
	var pause time.Duration // the first time none: what the sandbox finds it may keep
	for {
		select {
		case <-time.After(pause):
		case <-b.exited:
			return
		case <-ctx.Done():
			return
		}
		pause = diskInterval
		if isOver { // the daemon did not kill it yet: it may be away
			if b.kill(ctx, "disk") == nil {
				return
			}
			continue
		}
		if folders == nil {
			var err error
			if folders, usageFile, err = b.findFolders(ctx); err != nil {
				if !warned && ctx.Err() == nil {
					b.runtime.Log.Warn("a sandbox's use of the disk is not watched until its folders are found",
						"sandbox", b.spec.ID, "error", err)
				}
				warned = true
				continue
			}
		}
		cpu, err := readUsage(usageFile)
		limit := b.Spec().Limits.DiskBytes // it may have been changed
		if limit <= 0 || err == nil && !last.isOld(cpu, b.runtime.idleInterval) {
			continue
		}
		began := time.Now()
		last = look{cpu, began}
		sizes, err := b.measure(ctx, folders)
		if why := use.Judge(sizes, err, limit); why != "" && ctx.Err() == nil {
			if b.endFull(ctx, why) {
				return
			}
			isOver = true
			continue
		}
		pause = max(diskInterval, restFactor*time.Since(began))
	}
}

// look is when a sandbox's folders were measured, and the processor time that it had used then. Zero: they were not.
type look struct {
	cpu time.Duration
	at  time.Time
}

// isOld reports whether the sandbox, which has used cpu so far, may have written much since.
func (l look) isOld(cpu, idleInterval time.Duration) bool {
	return cpu-l.cpu >= busyCPU || time.Since(l.at) >= idleInterval
}

// ownFolders are the folders of the host that a sandbox writes: groups whose sizes are limited together.
type ownFolders [][]string

// findFolders returns what a sandbox can write, and the file with its processor time.
func (b *box) findFolders(ctx context.Context) (folders ownFolders, usageFile string, err error) {
	found, err := b.runtime.client.ContainerInspect(ctx, b.name, client.ContainerInspectOptions{})
	if err != nil {
		return nil, "", err
	}
	volumes := []string{b.filesDir()} // with the file that root in the sandbox can write
	for _, m := range found.Container.Mounts {
		if m.Type != mount.TypeVolume {
			continue
		}
		if _, err := os.Stat(m.Source); err != nil {
			return nil, "", fmt.Errorf("the daemon's volumes cannot be seen from here: %w", err)
		}
		volumes = append(volumes, m.Source)
	}
	folders = ownFolders{volumes}
	for _, m := range b.spec.Mounts {
		if !m.ReadOnly && !m.Shared {
			folders = append(folders, []string{m.Source})
		}
	}
	if found.Container.State == nil {
		return nil, "", errors.New("the daemon does not say whether the container runs")
	}
	return folders, usageFileOf(found.Container.State.Pid), nil
}

// measure returns the size of each group of folders. The error is one by which they count as full.
func (b *box) measure(ctx context.Context, folders ownFolders) (sizes []int64, fault error) {
	ctx, cancel := context.WithTimeout(ctx, tree.SandboxTimeout)
	defer cancel()
	for _, group := range folders {
		var total int64
		for _, dir := range group {
			size, err := tree.Measure(ctx, dir, tree.SandboxLimits)
			total += size.Bytes
			switch {
			case tree.IsSandboxFault(err):
				fault = err
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				b.runtime.Log.Warn("could not measure a sandbox's folders", "sandbox", b.spec.ID, "error", err)
			}
		}
		sizes = append(sizes, total)
	}
	return sizes, fault
}

// usageFileOf returns the file of the control group of a process that has its processor time; "": there is none.
func usageFileOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		var file string
		switch {
		case fields[0] == "0":
			file = filepath.Join("/sys/fs/cgroup", fields[2], "cpu.stat")
		case strings.Contains(","+fields[1]+",", ",cpuacct,"):
			file = filepath.Join("/sys/fs/cgroup", fields[1], fields[2], "cpuacct.usage")
		default:
			continue
		}
		if _, err := readUsage(file); err == nil {
			return file
		}
	}
	return ""
}

// readUsage returns the processor time in cpuacct.usage, in nanoseconds, or in cpu.stat, in microseconds.
func readUsage(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
		return time.Duration(n), nil
	}
	_, rest, found := strings.Cut(string(text), "usage_usec ")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(line, 10, 64)
	if !found || err != nil {
		return 0, errors.New("no processor time in " + file)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// endFull kills the container of a sandbox that is over its disk limit, and reports whether the daemon has done so.
func (b *box) endFull(ctx context.Context, why string) bool {
	b.runtime.Log.Warn("a sandbox reached its disk limit", "sandbox", b.spec.ID, "reason", why)
	err := b.kill(ctx, "disk")
	if err != nil {
		b.runtime.Log.Error("could not kill a sandbox, and will try again", "sandbox", b.spec.ID, "error", err)
	}
	return err == nil
}

// kill kills the container. Status returns the first reason.
func (b *box) kill(ctx context.Context, reason string) error {
	b.mu.Lock()
	if b.reason == "" {
		b.reason = reason
	}
	b.mu.Unlock()
	_, err := b.runtime.client.ContainerKill(ctx, b.name, client.ContainerKillOptions{Signal: "KILL"})
	return err
}
