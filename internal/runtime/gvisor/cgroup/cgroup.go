// Package cgroup owns the cgroups of sandboxes: which there are, their limits, what they say of the sandboxes in
// them, and to which cores a busy sandbox is pinned. runsc makes the group of a sandbox when it starts it.
package cgroup

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

// Groups are the cgroups of this instance: one for each sandbox, below one for the
// instance. The zero value means that sandboxes have no cgroups.
type Groups struct {
	version int    // of the cgroup interface: 1 or 2
	name    string // of the instance's group
}

// Root is where the machine has its cgroups.
const Root = "/sys/fs/cgroup"

// Find finds out which version of cgroups the machine has, if any.
func Find(stateDir string) Groups {
	sum := sha256.Sum256([]byte(stateDir))
	name := "sandlot-" + hex.EncodeToString(sum[:6])
	var st unix.Statfs_t
	if unix.Statfs(Root, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return Groups{2, name}
	}
	if unix.Statfs(Root+"/memory", &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
		return Groups{1, name}
	}
	return Groups{}
}

// Usable says whether sandboxes have cgroups.
func (c Groups) Usable() bool { return c.version != 0 }

// controllers are the controllers of version 1 in which runsc makes a group for a sandbox,
// if the machine has them. runsc fails with a read-only controller only if a limit is set
// in it, which required says.
var controllers = []struct {
	name     string
	required bool
}{{"memory", true}, {"cpu", true}, {"pids", true}, {"cpuacct", false}, {"cpuset", false}, {"blkio", false},
	{"devices", false}, {"freezer", false},
	{"hugetlb", false}, {"net_cls", false}, {"net_prio", false}, {"perf_event", false}, {"rdma", false},
	{"systemd", false}}

// Probe makes and removes a group in each place where a sandbox needs one, and returns the
// first error. It ignores read-only controllers that are not required.
func (c Groups) Probe() error {
	if c.version == 2 {
		return probeGroup(filepath.Join(Root, c.name+".try"))
	}
	for _, k := range controllers {
		dir := filepath.Join(Root, k.name)
		if _, err := os.Stat(dir); err != nil {
			continue // runsc reports a missing controller, if it needs it
		}
		if err := probeGroup(filepath.Join(dir, c.name+".try")); err != nil &&
			(k.required || !errors.Is(err, unix.EROFS)) {
			return err
		}
	}
	return nil
}

// probeGroup makes a group and removes it. A group that an earlier try left behind is fine.
func probeGroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// IsPermanent says whether an error of Probe is permanent on this machine, unlike a temporary shortage.
func IsPermanent(err error) bool {
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// Has says whether that sandbox has a group.
func (c Groups) Has(id string) bool {
	if !c.Usable() {
		return false
	}
	_, err := os.Stat(c.filePath(id, "memory", ""))
	return err == nil
}

// OCIPath is the group's path in the OCI bundle (linux.cgroupsPath).
func (c Groups) OCIPath(id string) string { return "/" + c.name + "/" + id }

// MemoryLimit returns the memory limit of the cgroup for a sandbox's memory limit. It adds what
// gVisor itself needs: at the sandbox's limit the agent kills single processes, before the
// kernel kills the whole sandbox at the cgroup's.
func MemoryLimit(memory int64) int64 { return memory + memory/4 + 96<<20 }

// maxHostThreads bounds gVisor's own threads on the host. RLIMIT_NPROC bounds the threads that
// programs have in the sandbox.
const maxHostThreads = 8192

// Resources are the limits of a sandbox's group, for the OCI bundle.
func Resources(l sandbox.Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: maxHostThreads}}
	if l.MemoryBytes > 0 {
		r.Memory = &specs.LinuxMemory{Limit: ptr(MemoryLimit(l.MemoryBytes))}
	}
	if l.CPUs > 0 {
		r.CPU = &specs.LinuxCPU{Quota: ptr(cpuQuota(l)), Period: ptr(uint64(cpuPeriod))}
	}
	return r
}

// cpuPeriod is the period of a CPU quota (cpu.max, cpu.cfs_period_us), in microseconds.
const cpuPeriod = 100_000

// cpuQuota is how long a sandbox may run in each period: the CPUs of its limits, and half a
// CPU for gVisor's own work. Without that half, a sequence of short calls would be
// throttled for a third of each period.
// With exactly 1 CPU, short calls used up a period in 70 ms of 100, and their P99 was 33 ms instead of 4.
// Planning for a machine has to add half a CPU for each busy sandbox.
func cpuQuota(l sandbox.Limits) int64 { return int64((l.CPUs + 0.5) * cpuPeriod) }

func ptr[T any](v T) *T { return &v }

// Dirs lists the cgroup folders of a sandbox, or, for an empty id, of the instance.
func (c Groups) Dirs(id string) []string {
	switch c.version {
	case 0:
		return nil
	case 2:
		return []string{filepath.Join(Root, c.name, id)}
	}
	all, _ := filepath.Glob(filepath.Join(Root, "*", c.name, id))
	return all
}

func (c Groups) filePath(id, controller, name string) string {
	if c.version == 2 {
		return filepath.Join(Root, c.name, id, name)
	}
	return filepath.Join(Root, controller, c.name, id, name)
}

// Resize changes the limits of a sandbox's group.
func (c Groups) Resize(id string, l sandbox.Limits) error {
	memory, cpu := strconv.FormatInt(MemoryLimit(l.MemoryBytes), 10), strconv.FormatInt(cpuQuota(l), 10)
	if c.version == 2 {
		return errors.Join(os.WriteFile(c.filePath(id, "", "memory.max"), []byte(memory), 0),
			os.WriteFile(c.filePath(id, "", "cpu.max"), fmt.Appendf(nil, "%s %d", cpu, cpuPeriod), 0))
	}
	return errors.Join(os.WriteFile(c.filePath(id, "memory", "memory.limit_in_bytes"), []byte(memory), 0),
		os.WriteFile(c.filePath(id, "cpu", "cpu.cfs_quota_us"), []byte(cpu), 0))
}

// SetWeight gives all sandboxes together the weight of one busy process on each processor. With
// the default weight they would together get the time of one single thread, while each
// thread of the server and its clients gets as much.
// Measured with bare calls of 16 clients on two processors: P99 197 ms before, 68 ms with this weight and
// agent.Slots; with 32 clients 652 and 125 ms, with the slots alone 594, with the weight alone 287. The price
// is that sandboxes which compute take a larger part of a busy machine from the server.
func (c Groups) SetWeight() error {
	n := runtime.NumCPU()
	if c.version == 2 {
		return os.WriteFile(c.filePath("", "", "cpu.weight"), fmt.Append(nil, min(100*n, 10_000)), 0)
	}
	return os.WriteFile(c.filePath("", "cpu", "cpu.shares"), fmt.Append(nil, min(1024*n, 1<<18)), 0)
}

// OOMKilled says whether the kernel killed a process in the sandbox's group for its memory.
func (c Groups) OOMKilled(id string) bool {
	name := "memory.events"
	if c.version == 1 {
		name = "memory.oom_control"
	}
	return c.Usable() && readField(c.filePath(id, "memory", name), "oom_kill") > 0
}

// Usage returns the memory and the processor time that the processes in a sandbox's group use.
func (c Groups) Usage(id string) (memory int64, cpu time.Duration) {
	switch c.version {
	case 1:
		return c.readNumber(id, "memory", "memory.usage_in_bytes"),
			time.Duration(c.readNumber(id, "cpuacct", "cpuacct.usage"))
	case 2:
		return c.readNumber(id, "", "memory.current"),
			time.Duration(readField(c.filePath(id, "", "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	return 0, 0
}

// readField reads a number from a file of lines "name number".
func readField(file, name string) int64 {
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

func (c Groups) readNumber(id, controller, name string) int64 {
	n, _ := readNumber(c.filePath(id, controller, name))
	return n
}

// Remove removes the sandbox's groups. All processes in them have ended.
func (c Groups) Remove(ctx context.Context, id string) error {
	for {
		var err error
		for _, d := range c.Dirs(id) {
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

// RemoveParent removes the instance's groups when no sandbox is left in them.
func (c Groups) RemoveParent() {
	for _, d := range c.Dirs("") {
		unix.Rmdir(d) // fails while sandboxes live on
	}
}
