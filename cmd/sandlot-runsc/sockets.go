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

// noHostSockets is an extension of gVisor's gofer. On every mount but that of the agent's socket,
// it makes sure that the sandbox can open no Unix socket and no named pipe of the host.
// gVisor's flag --host-uds=open allows sockets on all mounts alike.
type noHostSockets struct {
	agentDir    string         // the host's folder with the agent's socket
	otherMounts fsgofer.Config // for the other mounts
}

// Name implements extension.Extension.
func (*noHostSockets) Name() string { return "sandlot" }

// SeccompRules implements extension.Extension.
func (*noHostSockets) SeccompRules() seccomp.SyscallRules { return seccomp.NewSyscallRules() }

// PrepareGofer implements extension.Extension. The server has made the folder with the
// agent's socket in the bundle's folder, into which nobody else can write.
func (s *noHostSockets) PrepareGofer(c extension.GoferPrepareContext) (extension.GoferPrepareResult, error) {
	s.agentDir = filepath.Join(c.BundleDir, "sock")
	s.otherMounts = fsgofer.Config{HostUDS: config.HostUDSNone, HostFifo: config.HostFifoNone,
		CharDevicePolicy:   config.CharDevEmulatedOnly,
		DonateMountPointFD: true, RUID: os.Getuid(), EUID: os.Geteuid(), RGID: os.Getgid(), EGID: os.Getegid()}
	return extension.GoferPrepareResult{}, nil
}

// TryHandleMount implements extension.Extension. It runs under gVisor's system call filter,
// so it opens nothing. It leaves the mount of the agent's socket to gVisor.
func (s *noHostSockets) TryHandleMount(_ *specs.Spec, m *specs.Mount, _ string,
	readonly bool) (lisafs.ConnectionImpl, lisafs.ConnectionOpts, error) {
	agents := m != nil && filepath.IsAbs(s.agentDir) && m.Source == s.agentDir
	if agents && readonly && slices.Contains(m.Options, "ro") {
		return nil, lisafs.ConnectionOpts{}, nil
	}
	return fsgofer.NewConnectionImpl(&s.otherMounts), fsgofer.ConnectionOpts(readonly), nil
}
