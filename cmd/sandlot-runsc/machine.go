package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// What a sandbox sees of a machine is in the bundle's annotations: gVisor takes it
// from the cgroup, in which its own memory and CPU are counted too, and without
// one from the host.
const (
	annotationMemory = "dev.sandlot.memory" // bytes
	annotationCPUs   = "dev.sandlot.cpus"
)

// fewestCPUs: programs that see one processor leave out locks that they need, as
// the threads of a sandbox run on several. gVisor has the same bound.
const fewestCPUs = 2

// useMachine returns the arguments of gVisor's boot command with the memory and
// the CPUs that the bundle names. What cannot be read stays as it is.
func useMachine(args []string) []string {
	bundle := ""
	for _, a := range args {
		if dir, ok := strings.CutPrefix(a, "--bundle="); ok {
			bundle = dir
		}
	}
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if bundle == "" || err != nil {
		return args
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(text, &spec) != nil {
		return args
	}
	if n, err := strconv.ParseUint(spec.Annotations[annotationMemory], 10, 63); err == nil && n > 0 {
		args = with(args, "--total-memory", strconv.FormatUint(n, 10))
	}
	if n, err := strconv.Atoi(spec.Annotations[annotationCPUs]); err == nil && n > 0 {
		args = with(args, "--cpu-num", strconv.Itoa(min(max(n, fewestCPUs), runtime.NumCPU())))
		args = with(args, "--cpu-quota", strconv.Itoa(n*100_000))
		args = with(args, "--cpu-period", "100000")
	}
	return args
}

// with sets a flag's value. The last argument is the sandbox's id.
func with(args []string, flag, value string) []string {
	for i, a := range args[:len(args)-1] {
		if a == flag {
			args[i+1] = value
			return args
		}
	}
	last := len(args) - 1
	return append(args[:last:last], flag, value, args[last])
}
