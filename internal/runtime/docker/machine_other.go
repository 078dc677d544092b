//go:build !linux || mac

package docker

import "context"

// The daemon of a server that is not on Linux is in a virtual machine, or on another machine: its containers are no
// processes of this one, share no kernel with it, and have no folders of it.

// credential is what the kernel knows of a process at the other end of a socket.
type credential struct{ Uid uint32 }

// seesProcesses reports that the daemon's processes are not processes of the server's machine.
func (r *Runtime) seesProcesses() bool { return false }

// peer returns that the daemon's user is not known.
func (r *Runtime) peer() *credential { return nil }

// socketDeleted reports that the sandbox's socket is in no folder of this machine.
func (b *box) socketDeleted(int) bool { return false }

// checkAgent has nothing to look at: the container's file systems are on another kernel.
func (b *box) checkAgent(context.Context) error { return nil }
