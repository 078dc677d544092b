package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/fsgofer"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"
)

// sockets serves every mount but the one with the agent's socket in such a way
// that no Unix socket or named pipe of the host can be opened by it. gVisor's own
// setting, --host-uds=open, is one for all mounts; no other process connects
// sockets of the host for a sandbox.
type sockets struct {
	agent  string         // the folder of the agent's socket, on the host
	others fsgofer.Config // of the other mounts
}

// Name implements extension.Extension.
func (*sockets) Name() string { return "sandlot" }

// SeccompRules implements extension.Extension.
func (*sockets) SeccompRules() seccomp.SyscallRules { return seccomp.NewSyscallRules() }

// PrepareGofer is told where the bundle is: in it, the server has the folder with
// the socket, which nobody else writes.
func (s *sockets) PrepareGofer(c extension.GoferPrepareContext) (extension.GoferPrepareResult, error) {
	s.agent = filepath.Join(c.BundleDir, "sock")
	s.others = fsgofer.Config{HostUDS: config.HostUDSNone, HostFifo: config.HostFifoNone,
		CharDevicePolicy:   config.CharDevEmulatedOnly,
		DonateMountPointFD: true, RUID: os.Getuid(), EUID: os.Geteuid(), RGID: os.Getgid(), EGID: os.Getegid()}
	return extension.GoferPrepareResult{}, nil
}

// TryHandleMount implements extension.Extension. It is called when gVisor's system
// call filter holds. The mount of the agent's socket is
// left to gVisor.
func (s *sockets) TryHandleMount(_ *specs.Spec, m *specs.Mount, _ string,
	readonly bool) (lisafs.ConnectionImpl, lisafs.ConnectionOpts, error) {
	if m != nil && filepath.IsAbs(s.agent) && m.Source == s.agent && readonly && slices.Contains(m.Options, "ro") {
		return nil, lisafs.ConnectionOpts{}, nil
	}
	return fsgofer.NewConnectionImpl(&s.others), fsgofer.ConnectionOpts(readonly), nil
}
