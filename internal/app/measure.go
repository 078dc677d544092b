package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/config"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Figures are what one sandbox of a runtime costs on this machine, as a trial has measured it. 0: not measured.
type Figures struct {
	Boot    time.Duration `json:"boot_ns"`        // until its agent answers
	Call    time.Duration `json:"system_call_ns"` // one system call
	Process time.Duration `json:"process_ns"`     // the start and end of one process
	Memory  int64         `json:"memory_bytes"`   // of the machine's, while nothing runs in it
}

// Measure makes a sandbox of the runtime in a state folder of its own, measures it, and removes it.
func (r Candidate) Measure(ctx context.Context, c *config.Config, log *slog.Logger) (f Figures, err error) {
	dir, remove, err := temporaryState()
	if err != nil {
		return f, err
	}
	rt, err := r.open(c, dir, log)
	if err != nil {
		return f, errors.Join(err, remove())
	}
	defer func() { err = errors.Join(err, closeTrial(rt, remove)) }()
	if all := rt.Capabilities(); all.ImagesOnly { // for an image there would have to be a registry
		trial := all.Doctor.TryAll(ctx)[0]
		return Figures{Boot: trial.Start}, trial.Err
	}
	host, err := image.Host()
	if err != nil {
		return f, err
	}
	spec := sandbox.Spec{ID: secret.ID(), Template: host, Secret: secret.Bytes(wire.SecretLen),
		Limits: sandbox.Limits{CPUs: 1, MemoryBytes: 512 << 20, Processes: 128, DiskBytes: 256 << 20}}
	began := time.Now()
	b, err := rt.Create(ctx, spec)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.Stop(context.WithoutCancel(ctx))) }()
	client := agent.New(b, log, nil)
	defer client.Close()
	if _, err := client.Hello(ctx); err != nil {
		return f, err
	}
	f.Boot = time.Since(began)
	return f, f.measure(ctx, b, client)
}

// measure measures what a sandbox does once it has booted.
func (f *Figures) measure(ctx context.Context, b sandbox.Sandbox, client *agent.Client) error {
	st, err := b.Status(ctx)
	if err != nil {
		return err
	}
	f.Memory = st.MemoryBytes
	const calls, processes = 100_000, 100 // dd reads and writes: two calls for each byte
	dd := "dd if=/dev/zero of=/dev/null bs=1 count=%d 2>/dev/null"
	if f.Call, err = each(ctx, client, fmt.Sprintf(dd, 1), fmt.Sprintf(dd, calls), 2*calls); err != nil {
		return err
	}
	loop := "for i in $(seq %d); do /bin/true; done"
	f.Process, err = each(ctx, client, fmt.Sprintf(loop, 1), fmt.Sprintf(loop, processes), processes)
	return err
}

// each returns how much longer a line of shell code takes than another one, in parts.
func each(ctx context.Context, client *agent.Client, less, more string, parts int) (time.Duration, error) {
	var took [2]time.Duration
	for i, line := range []string{less, more} {
		began := time.Now()
		d, err := client.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/sh", "-c", line}},
			Timeout: time.Minute}, agent.Observer{})
		if err != nil {
			return 0, err
		}
		if d.ExitCode != 0 {
			return 0, fmt.Errorf("%s: exit code %d", line, d.ExitCode)
		}
		took[i] = time.Since(began)
	}
	return max(took[1]-took[0], 0) / time.Duration(parts), nil
}
