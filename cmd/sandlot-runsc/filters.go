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

// useFilters puts compiled system call filters in place for the processes that
// want them: compiling them is a sixth of a boot. gVisor compiles a missing filter when it
// needs it. One of their rules holds the id of the first process of a
// namespace, which those processes are.
func useFilters(args []string) {
	if os.Getpid() != 1 {
		return
	}
	switch {
	case slices.Contains(args, "boot"):
		boot.ListPrecompiled() // makes the table
		fill(bootTable, bootFilters())
	case slices.Contains(args, "gofer"):
		gofer.ListPrecompiled()
		list := goferFilters()
		for i := range list { // those of sockets, which are none
			list[i].Name = strings.Replace(list[i].Name, "ExtraRules=false", "ExtraRules=true", 1)
		}
		fill(goferTable, list)
	}
}

func fill(table map[string]precompiledseccomp.Program, list []precompiledseccomp.Program) {
	for _, p := range list {
		table[p.Name] = p
	}
}
