package main

import (
	"os"
	"slices"
	"strings"
	_ "unsafe" // for the links

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	boot "gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// gVisor's own tables, which are empty in its Go module.
//
//go:linkname bootTable gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var bootTable map[string]precompiledseccomp.Program

//go:linkname goferTable gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferTable map[string]precompiledseccomp.Program

// useFilters gives gVisor the system call filters that Sandlot has compiled beforehand:
// compiling them takes a sixth of the time of a boot. gVisor compiles a filter that is missing.
// The filters are valid only for a process with the id 1, as a rule contains that id. The
// sandbox's kernel and its gofer have it in their PID namespaces.
//
// gVisor's releases, which Bazel builds, have these tables filled. In its Go module they are empty, and each
// boot compiles the filters while everybody waits: 280 ms without the tables, 223 with them (runsc run of a
// Python that prints 1, P50 of 15 in turns). Generate makes the files for another version or other flags;
// TestFilters compares each instruction with what gVisor compiles. Another version may rename what the links
// name: then the program does not link, and works without this file, only later.
func useFilters(args []string) {
	if os.Getpid() != 1 {
		return
	}
	switch {
	case slices.Contains(args, "boot"):
		boot.ListPrecompiled() // makes the table
		addPrograms(bootTable, bootFilters())
	case slices.Contains(args, "gofer"):
		gofer.ListPrecompiled()
		list := goferFilters()
		for i := range list { // gVisor looks for this name as noHostSockets is an extension; it adds no rules
			list[i].Name = strings.Replace(list[i].Name, "ExtraRules=false", "ExtraRules=true", 1)
		}
		addPrograms(goferTable, list)
	}
}

func addPrograms(table map[string]precompiledseccomp.Program, list []precompiledseccomp.Program) {
	for _, p := range list {
		table[p.Name] = p
	}
}
