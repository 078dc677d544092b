//go:build linux && !mac

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sandlot/internal/agent/wire"
)

// Names of the ways in which QEMU runs a machine.
const (
	hardware = "kvm" // by the processor
	emulated = "tcg" // by a program that stands for the processor
)

// accel is how machines run here, or why none does.
type accel struct {
	name string
	err  error
	at   time.Time
}

const (
	// hardwareTimeout and emulatedTimeout are how long a machine may take to boot in a trial.
	hardwareTimeout = 20 * time.Second
	emulatedTimeout = 3 * time.Minute
	// retryTime is the age at which a failed trial is made again.
	retryTime = time.Minute
	// trialMemory is the memory of a machine in a trial, in MiB.
	trialMemory = 192
)

// findAccel finds out by a trial how machines run here: that /dev/kvm can be opened proves nothing. Without KVM they are
// emulated if the settings say so.
func (r *Runtime) findAccel(ctx context.Context) (accel, error) {
	r.setup.Lock()
	known := r.accel
	r.setup.Unlock()
	if known != nil && (known.err == nil || time.Since(known.at) < retryTime) {
		return *known, known.err
	}
	a := accel{name: hardware, at: time.Now()}
	if err := r.try(ctx, hardware); err != nil {
		if ctx.Err() != nil {
			return a, ctx.Err()
		}
		a.name = emulated
		if !r.Emulate {
			a.err = unavailable("no virtual machine runs with KVM here (%v); set qemu.emulate to true, and machines are "+
				"emulated, which is 10 to 50 times slower, or use the runtime gvisor or docker", err)
		}
	}
	r.setup.Lock()
	defer r.setup.Unlock()
	r.accel = &a
	return a, a.err
}

// try boots a machine without a sandbox, and waits for its first word.
func (r *Runtime) try(ctx context.Context, name string) (err error) {
	limit := emulatedTimeout
	if name == hardware {
		limit = hardwareTimeout
		f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		f.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := r.findSystem(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.dir(), trialPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := &machine{dir: dir, kernel: s.kernel, initramfs: s.initramfs, kind: s.machine, accel: name, memory: trialMemory,
		cpus: 1}
	cmd, err := m.start(r)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		cmd.Process.Kill()
		<-ended
	}()
	said := make(chan error, 1)
	go func() {
		c := newControl(dir)
		defer c.close()
		said <- c.call(ctx, wire.MachineCall{Do: wire.MachineHello})
	}()
	select {
	case err := <-said:
		if err != nil {
			return fmt.Errorf("a machine did not boot within %s: %w%s", limit, err, m.complaint())
		}
		return nil
	case err := <-ended:
		ended <- err
		cancel()
		<-said
		return fmt.Errorf("QEMU ended (%v)%s", err, m.complaint())
	}
}

// trialPrefix begins the names of the folders of trials.
const trialPrefix = ".trial-"

// removeTrials removes the folders of trials that an earlier server has not ended.
func (r *Runtime) removeTrials() {
	found, _ := filepath.Glob(filepath.Join(r.dir(), trialPrefix+"*"))
	for _, dir := range found {
		if pid := findProcess(dir); pid != 0 {
			kill(pid)
		}
		os.RemoveAll(dir)
	}
}
