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

	"sandlot/internal/tree"
)

// mountLimits bound the number of files and the depth of a sandbox's own folders. A folder beyond them counts as
// over the disk limit.
var mountLimits = tree.Limits{Entries: 1_500_000, Depth: 4096}

const (
	// diskInterval is the time between two looks at how much sandboxes write.
	diskInterval = time.Second
	// busyCPU is the processor time after which a sandbox's folders are measured again.
	busyCPU = 200 * time.Millisecond
	// diskSlack is how far folders may be over the limit, as files grow between two looks.
	diskSlack = 64 << 20
	// measureTimeout is how long measuring may take. Folders that take longer count as over the limit.
	measureTimeout = 10 * time.Minute
	// restFactor is how many times as long as the last measuring took the next one waits.
	restFactor = 20
)

// watchDisk measures the folders of sandboxes that have worked, and kills a sandbox that is over its disk limit:
// the daemon's usual storage has no limits. It runs until the runtime closes, for one sandbox.
func (b *box) watchDisk() {
	ctx := b.runtime.ctx
	var folders ownFolders // nil: not found yet
	var usageFile string
	var lastCPU time.Duration
	warned, measured, isOver := false, false, false
	pause := diskInterval
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
		if limit <= 0 || err == nil && cpu-lastCPU < busyCPU && measured {
			continue
		}
		lastCPU, measured = cpu, true
		began := time.Now()
		if why := b.overDisk(ctx, folders, limit+diskSlack); why != "" && ctx.Err() == nil {
			b.runtime.Log.Warn("a sandbox reached its disk limit", "sandbox", b.spec.ID, "reason", why)
			err := b.kill(ctx, "disk")
			if err == nil {
				return
			}
			b.runtime.Log.Error("could not kill a sandbox, and will try again", "sandbox", b.spec.ID, "error", err)
			isOver = true
			continue
		}
		pause = max(diskInterval, restFactor*time.Since(began))
	}
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

// overDisk returns why folders are over a limit; "": they are not.
func (b *box) overDisk(ctx context.Context, folders ownFolders, limit int64) string {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	for _, group := range folders {
		var total int64
		for _, dir := range group {
			size, err := tree.Measure(ctx, dir, mountLimits)
			total += size.Bytes
			if isSandboxFault(err) {
				return err.Error()
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				b.runtime.Log.Warn("could not measure a sandbox's folders", "sandbox", b.spec.ID, "error", err)
			}
		}
		if total > limit {
			return fmt.Sprintf("its files have %d MB", total>>20)
		}
	}
	return ""
}

// isSandboxFault reports whether a sandbox can have caused an error of measuring.
func isSandboxFault(err error) bool {
	for _, e := range []error{tree.ErrEntries, tree.ErrDepth, tree.ErrMoved, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
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
