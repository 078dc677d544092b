package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
)

// cgroups holds this instance's limits: one group per sandbox beneath a group of the
// instance. Its zero value has no groups.
type cgroups struct {
	version int
	name    string // of the instance's group
}

const cgroupRoot = "/sys/fs/cgroup"

// findCgroups looks which version the machine has.
func findCgroups(stateDir string) cgroups {
	sum := sha256.Sum256([]byte(stateDir))
	name := "sandlot-" + hex.EncodeToString(sum[:6])
	var st unix.Statfs_t
	if unix.Statfs(cgroupRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return cgroups{2, name}
	}
	if unix.Statfs(cgroupRoot+"/memory", &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
		return cgroups{1, name}
	}
	return cgroups{}
}

func (c cgroups) usable() bool { return c.version != 0 }

// controllers are those of version 1 in which runsc makes a group for a sandbox, if the
// machine has them. A read-only one does not stop runsc unless a limit is set in it.
var controllers = []struct {
	name  string
	limit bool
}{{"memory", true}, {"cpu", true}, {"pids", true}, {"cpuacct", false}, {"cpuset", false}, {"blkio", false},
	{"devices", false}, {"freezer", false},
	{"hugetlb", false}, {"net_cls", false}, {"net_prio", false}, {"perf_event", false}, {"rdma", false},
	{"systemd", false}}

// try makes a group and removes it, wherever a sandbox needs one, and returns why
// that fails. Read-only controllers that a sandbox can do without are left out.
func (c cgroups) try() error {
	if c.version == 2 {
		return tryGroup(filepath.Join(cgroupRoot, c.name+".try"))
	}
	for _, k := range controllers {
		dir := filepath.Join(cgroupRoot, k.name)
		if _, err := os.Stat(dir); err != nil {
			continue // runsc says so, if it matters
		}
		if err := tryGroup(filepath.Join(dir, c.name+".try")); err != nil && (k.limit || !errors.Is(err, unix.EROFS)) {
			return err
		}
	}
	return nil
}

// tryGroup makes a group and removes it, also one that an earlier try left.
func tryGroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// refused says whether an error of try is permanent here, and not a shortage that
// passes.
func refused(err error) bool {
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// has says whether that sandbox has a group.
func (c cgroups) has(id string) bool {
	if !c.usable() {
		return false
	}
	_, err := os.Stat(c.file(id, "memory", ""))
	return err == nil
}

// path is the group's path as runsc wants it.
func (c cgroups) path(id string) string { return "/" + c.name + "/" + id }

// headroom is what gVisor itself needs beside the memory of the sandbox's
// processes: the agent ends those at the limit, before the kernel ends all.
func headroom(memory int64) int64 { return memory + memory/4 + 96<<20 }

// hostThreads bounds the threads of gVisor itself; what runs inside is bounded
// by RLIMIT_NPROC.
const hostThreads = 8192

func resources(l sandbox.Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: hostThreads}}
	if l.MemoryBytes > 0 {
		r.Memory = &specs.LinuxMemory{Limit: ptr(headroom(l.MemoryBytes))}
	}
	if l.CPUs > 0 {
		r.CPU = &specs.LinuxCPU{Quota: ptr(quota(l)), Period: ptr(uint64(period))}
	}
	return r
}

// period is the kernel's time slice of accounting, in microseconds.
const period = 100_000

// quota is how much of period a sandbox may run: its CPUs, which are the
// user's, and half a CPU for gVisor's own work. Without that half, short calls
// one after the other stand still for a third of each period.
func quota(l sandbox.Limits) int64 { return int64((l.CPUs + 0.5) * period) }

func ptr[T any](v T) *T { return &v }

// dirs lists the sandbox's folders, or the instance's for an empty id.
func (c cgroups) dirs(id string) []string {
	switch c.version {
	case 0:
		return nil
	case 2:
		return []string{filepath.Join(cgroupRoot, c.name, id)}
	}
	all, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", c.name, id))
	return all
}

func (c cgroups) file(id, controller, name string) string {
	if c.version == 2 {
		return filepath.Join(cgroupRoot, c.name, id, name)
	}
	return filepath.Join(cgroupRoot, controller, c.name, id, name)
}

func (c cgroups) resize(id string, l sandbox.Limits) error {
	memory, cpu := strconv.FormatInt(headroom(l.MemoryBytes), 10), strconv.FormatInt(quota(l), 10)
	if c.version == 2 {
		return errors.Join(os.WriteFile(c.file(id, "", "memory.max"), []byte(memory), 0),
			os.WriteFile(c.file(id, "", "cpu.max"), fmt.Appendf(nil, "%s %d", cpu, period), 0))
	}
	return errors.Join(os.WriteFile(c.file(id, "memory", "memory.limit_in_bytes"), []byte(memory), 0),
		os.WriteFile(c.file(id, "cpu", "cpu.cfs_quota_us"), []byte(cpu), 0))
}

// weigh gives all sandboxes together the weight of one process on each
// processor. By default they have that of one process on one, and the server and
// its clients, of which each thread has as much, leave them little.
func (c cgroups) weigh() error {
	n := runtime.NumCPU()
	if c.version == 2 {
		return os.WriteFile(c.file("", "", "cpu.weight"), fmt.Append(nil, min(100*n, 10_000)), 0)
	}
	return os.WriteFile(c.file("", "cpu", "cpu.shares"), fmt.Append(nil, min(1024*n, 1<<18)), 0)
}

// oomKilled says whether the kernel killed something in the sandbox's group.
func (c cgroups) oomKilled(id string) bool {
	name := "memory.events"
	if c.version == 1 {
		name = "memory.oom_control"
	}
	return c.usable() && field(c.file(id, "memory", name), "oom_kill") > 0
}

// field reads a number from a file of lines "name number".
func field(file, name string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

func (c cgroups) number(id, controller, name string) int64 {
	text, err := os.ReadFile(c.file(id, controller, name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// remove removes the sandbox's groups, in which nothing runs any more.
func (c cgroups) remove(ctx context.Context, id string) error {
	for {
		var err error
		for _, d := range c.dirs(id) {
			if e := unix.Rmdir(d); e != nil && e != unix.ENOENT {
				err = fmt.Errorf("removing the cgroup %s: %w", d, e)
			}
		}
		if err == nil {
			return nil
		}
		select { // the kernel needs a moment after the end of the processes
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// removeParent removes the instance's groups when no sandbox is left in them.
func (c cgroups) removeParent() {
	for _, d := range c.dirs("") {
		unix.Rmdir(d) // fails while sandboxes live on
	}
}
