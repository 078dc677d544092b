package main

import (
	"fmt"
	"os"
	"slices"
	_ "unsafe" // for go:linkname

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
)

// goferCaps are the capabilities of the gofer, gVisor's file server.
//
//go:linkname goferCaps gvisor.dev/gvisor/runsc/cmd.goferCaps
var goferCaps *specs.LinuxCapabilities

// blockSpecialModes makes sure that this process, which is a sandbox's kernel or its gofer, cannot
// set set-user-ID or set-group-ID bits of a file on the host, or create a device there: when
// the server runs as root, these files belong to root. The system call fails with EPERM,
// which the program in the sandbox gets. Without CAP_FSETID, the host's kernel clears such
// bits of a file that is written to.
//
// Where programs may give files away, it also makes sure that all files on the host stay the server's: the call that
// changes an owner does nothing, and reports success, so that tar, npm and rsync work in a folder of the host.
func (b bundle) blockSpecialModes() error {
	// With directfs, the sandbox's kernel opens files of the host itself, with these capabilities.
	kernelCaps := sentrycmd.DirectfsSandboxLinuxCaps
	for _, c := range []*specs.LinuxCapabilities{goferCaps, kernelCaps} {
		for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Permitted, &c.Inheritable, &c.Ambient} {
			*set = slices.DeleteFunc(slices.Clone(*set), func(name string) bool { return name == "CAP_FSETID" })
		}
	}
	filter, err := specialModesFilter(slices.Contains(b.Process.Capabilities.Bounding, "CAP_CHOWN"))
	if err != nil {
		return err
	}
	return seccomp.SetFilter(filter)
}

// specialModesFilter compiles the system call filter. It is installed in addition to gVisor's own
// filter; the kernel applies the stricter result of the two.
func specialModesFilter(keepOwners bool) ([]bpf.Instruction, error) {
	rules := seccomp.NewSyscallRules()
	for nr, arg := range modeArgument {
		rules.Set(nr, seccomp.Or{masked(arg, linux.S_ISUID, linux.S_ISUID), masked(arg, linux.S_ISGID, linux.S_ISGID)})
	}
	for nr, arg := range flagsArgument {
		// The mode counts only if the call creates a file: with O_CREAT, or the bit that only O_TMPFILE has.
		var either seccomp.Or
		for _, flag := range []uintptr{unix.O_CREAT, unix.O_TMPFILE &^ unix.O_DIRECTORY} {
			for _, bit := range []uintptr{linux.S_ISUID, linux.S_ISGID} {
				both := masked(arg+1, bit, bit)
				both[arg] = seccomp.MaskedEqual(flag, flag)
				either = append(either, both)
			}
		}
		rules.Set(nr, either)
	}
	for nr, arg := range nodeModeArgument {
		rules.Set(nr, seccomp.Or{masked(arg, linux.S_ISUID, linux.S_ISUID), masked(arg, linux.S_ISGID, linux.S_ISGID),
			masked(arg, linux.S_IFMT, linux.S_IFCHR), masked(arg, linux.S_IFMT, linux.S_IFBLK)})
	}
	// The host's processes in which gVisor runs the sandbox's programs inherit this filter. It does not
	// affect them: gVisor intercepts their system calls before the host's kernel gets them.
	sets := []seccomp.RuleSet{{Rules: rules, Action: seccomp.ReturnError.Code(uint16(unix.EPERM))}}
	if keepOwners {
		owners := seccomp.NewSyscallRules()
		for _, nr := range ownerCalls {
			owners.Set(nr, seccomp.MatchAll{})
		}
		sets = append(sets, seccomp.RuleSet{Rules: owners, Action: seccomp.ReturnError.Code(0)})
	}
	p := seccomp.Program{RuleSets: sets,
		Options: seccomp.ProgramOptions{DefaultAction: seccomp.Allow, BadArchAction: seccomp.Allow}}
	instructions, _, err := p.Build()
	return instructions, err
}

// masked matches the calls whose argument number arg has the given value in the bits of mask.
func masked(arg int, mask, value uintptr) seccomp.PerArg {
	var p seccomp.PerArg
	for i := range p {
		p[i] = seccomp.AnyValue{}
	}
	p[arg] = seccomp.MaskedEqual(mask, value)
	return p
}

// must exits if err is not nil. No code of the sandbox runs yet.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-runsc:", err)
		os.Exit(128)
	}
}
