package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"

	"sandlot/internal/runtime/pinned"
)

// pins is an extension of gVisor's gofer that puts kept files where a woken sandbox had them. It opens them before the
// gofer leaves the host's file system, and mounts them when the sandbox's is complete.
type pins struct{ files *pinned.Files }

// startedAgain reports whether a gofer has started itself again, without root: its root file system is complete.
func startedAgain(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == "setup-root=false" })
}

// openPins opens the kept files of the sandbox of a command line of the gofer.
func openPins(args []string) (*pins, error) {
	if startedAgain(args) {
		return &pins{}, nil
	}
	for n, a := range args {
		name, bundle, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if name != "bundle" {
			continue
		}
		if !joined && n+1 < len(args) {
			bundle = args[n+1]
		}
		files, err := pinned.Open(bundle)
		return &pins{files}, err
	}
	return nil, fmt.Errorf("the gofer has no bundle: %q", args)
}

// Name implements extension.Extension.
func (*pins) Name() string { return "sandlot-pins" }

// SeccompRules implements extension.Extension.
func (*pins) SeccompRules() seccomp.SyscallRules { return seccomp.NewSyscallRules() }

// PrepareGofer implements extension.Extension.
func (p *pins) PrepareGofer(extension.GoferPrepareContext) (r extension.GoferPrepareResult, err error) {
	if p.files != nil {
		err = p.files.Mount("/root")
	}
	return r, err
}

// TryHandleMount implements extension.Extension: gVisor serves all mounts.
func (*pins) TryHandleMount(*specs.Spec, *specs.Mount, string, bool) (lisafs.ConnectionImpl, lisafs.ConnectionOpts,
	error) {
	return nil, lisafs.ConnectionOpts{}, nil
}

// registerGofer registers what Sandlot adds to the gofer.
func registerGofer() {
	p, err := openPins(os.Args)
	must(err)
	extension.Register(p)
	extension.Register(&noHostSockets{})
}
