package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// boot boots a machine with the agent alone, waits for the agent's greeting, and removes it. It returns how long that
// took until the greeting.
func (r *Runtime) boot(ctx context.Context) (took time.Duration, err error) {
	path, err := r.find(ctx)
	if err != nil {
		return 0, err
	}
	if err := r.agent.Check(machine); err != nil {
		return 0, fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	// What msb finds out by itself it says in a moment, and a boot in vain takes half a minute.
	if _, err := r.command(ctx, path, "doctor"); err != nil {
		return 0, explain(err)
	}
	agentPath, err := r.agent.File(machine)
	if err != nil {
		return 0, err
	}
	b := newBox(r, sandbox.Spec{ID: "trial-" + secret.ID()[:8], Secret: secret.Bytes(wire.SecretLen),
		Template: &image.Template{Name: "trial"}, Limits: sandbox.Limits{CPUs: 1, MemoryBytes: 96 << 20}})
	b.agent = agentPath
	r.mu.Lock()
	r.trials[b.spec.ID] = true // Leftovers does not name it
	r.mu.Unlock()
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return 0, explainErrno(err)
	}
	defer func() { err = errors.Join(err, r.endTrial(ctx, b)) }()
	return r.greet(ctx, b)
}

// endTrial removes a trial machine, also when ctx has ended. What remains of one that cannot be removed is a leftover.
func (r *Runtime) endTrial(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := b.Stop(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.trials, b.spec.ID)
	if err != nil {
		err = fmt.Errorf("a trial machine could not be removed; end it with `MSB_HOME=%s msb remove --force %s`: %w", r.home(),
			b.name, err)
		r.remains = errors.Join(r.remains, err)
	}
	return err
}

// greet starts a trial machine, whose root is a folder, and waits for its agent's greeting.
func (r *Runtime) greet(ctx context.Context, b *box) (took time.Duration, err error) {
	instance, err := r.instanceID()
	if err != nil {
		return 0, err
	}
	root := filepath.Join(b.dir, "root")
	for _, folder := range []string{"", "proc", "sys", "dev", "tmp", "run/sandlot", ".sandlot", "etc", "workspace"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	if err = errors.Join(err, b.writeFiles()); err != nil {
		return 0, explainErrno(err)
	}
	if err := b.listen(); err != nil {
		return 0, err
	}
	if err := b.socket.WriteSecret(b.spec.Secret, 0o600); err != nil {
		return 0, explainErrno(err)
	}
	began := time.Now()
	if err := r.run(ctx, b.arguments(root, instance)...); err != nil {
		return 0, explain(r.withLog(ctx, b.name, err))
	}
	b.openLink()
	c, err := b.Connect(ctx)
	if err != nil {
		return 0, &unusable{"a trial machine of msb has booted, and its agent did not dial over vsock",
			err.Error(), "run `sandlot doctor --all`; or " + instead}
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := wire.Admit(c, b.spec.Secret, nil); err != nil {
		return 0, fmt.Errorf("%w: the agent of a trial machine: %w", sandbox.ErrUnavailable, err)
	}
	return time.Since(began), nil
}
