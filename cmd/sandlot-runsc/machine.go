package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// The memory and the CPUs that a sandbox sees are in annotations of the OCI bundle. gVisor
// itself would take them from the cgroup, whose limits include gVisor's own needs, or, without
// a cgroup, from the host.
// Node and Java choose their heaps by the memory: a sandbox of the pool that was given to a larger flavor kept 1.4 GB
// instead of 4. Programs that look for a limit of a cgroup find none, as /sys/fs/cgroup is an empty folder in
// a sandbox: they use the machine's size, which is the flavor's. A sandbox that is restored takes the memory
// from its own start, and has the processors of its image's sandbox, which has the same flavor. The agent
// computes what is used from what is in use, not from what is missing of the total, which gVisor does not
// show above the flavor's.
const (
	annotationMemory = "dev.sandlot.memory" // bytes
	annotationCPUs   = "dev.sandlot.cpus"
)

// minCPUs is the least number of CPUs that a sandbox sees. A program that sees a single
// processor may leave out locks, but threads in a sandbox run on several. gVisor has the same
// minimum.
const minCPUs = 2

// bundle is what this program reads of an OCI bundle.
type bundle struct {
	Annotations map[string]string `json:"annotations"`
	Root        struct {
		Path string `json:"path"`
	} `json:"root"`
	Process struct {
		Capabilities struct {
			Bounding []string `json:"bounding"`
		} `json:"capabilities"`
	} `json:"process"`
}

// readBundle reads the bundle that a command of gVisor names. It is empty where it cannot be read: a process that gVisor
// executes again, elsewhere, has its flags and its filter already.
func readBundle(args []string) (b bundle) {
	dir := ""
	for i, a := range args {
		if value, ok := strings.CutPrefix(a, "--bundle="); ok {
			dir = value
		} else if a == "--bundle" && i+1 < len(args) {
			dir = args[i+1]
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if dir == "" || err != nil || json.Unmarshal(text, &b) != nil {
		return bundle{}
	}
	return b
}

// withMachineFlags returns the arguments of gVisor's boot command with flags for the memory and the
// CPUs in the bundle's annotations. Without them it returns the arguments as they are.
func (b bundle) withMachineFlags(args []string) []string {
	if n, err := strconv.ParseUint(b.Annotations[annotationMemory], 10, 63); err == nil && n > 0 {
		args = setFlag(args, "--total-memory", strconv.FormatUint(n, 10))
	}
	if n, err := strconv.Atoi(b.Annotations[annotationCPUs]); err == nil && n > 0 {
		args = setFlag(args, "--cpu-num", strconv.Itoa(min(max(n, minCPUs), runtime.NumCPU())))
		args = setFlag(args, "--cpu-quota", strconv.Itoa(n*100_000))
		args = setFlag(args, "--cpu-period", "100000")
	}
	return args
}

// setFlag sets a flag's value in args, whose last element is the sandbox's id.
func setFlag(args []string, flag, value string) []string {
	for i, a := range args[:len(args)-1] {
		if a == flag {
			args[i+1] = value
			return args
		}
	}
	last := len(args) - 1
	return append(args[:last:last], flag, value, args[last])
}
