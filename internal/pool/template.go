package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Runtimes returns all runtimes, the default one first.
func (p *Pool) Runtimes() []sandbox.Runtime {
	return append([]sandbox.Runtime{p.Runtime}, p.Further...)
}

// RuntimeNamed returns the runtime of that name, or nil. An empty name means the default one.
func (p *Pool) RuntimeNamed(name string) sandbox.Runtime {
	for _, rt := range p.Runtimes() {
		if name == "" || rt.Name() == name {
			return rt
		}
	}
	return nil
}

// RuntimeOf returns the runtime that makes the sandboxes of a template.
func (p *Pool) RuntimeOf(t *image.Template) (sandbox.Runtime, error) {
	if rt := p.RuntimeNamed(t.Runtime); rt != nil {
		return rt, nil
	}
	return nil, fmt.Errorf("%w: the template %s needs the runtime %s, which is not among the setting runtimes",
		sandbox.ErrUnavailable, t.Name, t.Runtime)
}

// Capabilities returns what else the runtime of that name can do: nothing if there is none of that name.
func (p *Pool) Capabilities(runtime string) (c sandbox.Capabilities) {
	if rt := p.RuntimeNamed(runtime); rt != nil {
		c = rt.Capabilities()
	}
	return c
}

// prebooterOf returns the runtime, if sandboxes of the template can start from preboot images; else
// nil. What start commands of a template write into the workspace is not in a preboot image.
func prebooterOf(rt sandbox.Runtime, t *image.Template) sandbox.Preboot {
	if len(t.Start) > 0 {
		return nil
	}
	return rt.Capabilities().Preboot
}

// flavorOf returns the flavor of a template's warm sandboxes.
func (p *Pool) flavorOf(t *image.Template) image.Flavor {
	i := slices.IndexFunc(p.Flavors, func(f image.Flavor) bool { return t.Flavor != "" && f.Name == t.Flavor })
	if i < 0 {
		return p.Flavor
	}
	return p.Flavors[i]
}

// warmCount returns how many warm sandboxes a template is to have.
func (p *Pool) warmCount(t *image.Template) int {
	if t.Pool != nil {
		return *t.Pool
	}
	return p.WarmPerTemplate
}

// Refresh is called after the result of Templates has changed: it removes the warm sandboxes of
// templates that are not among them any more, and their preboot images, and makes Run boot and make others.
func (p *Pool) Refresh() {
	current := p.Templates()
	p.forgetReplaced(current)
	p.dropImages(current)
	for _, b := range p.takeAll(func(b *Booted) bool { return !slices.Contains(current, b.Template) }) {
		p.background.Go(func() { p.discard(b) })
	}
	p.refill()
}

// BootTemporary boots a sandbox in which a template is built. It belongs to no session, and has an
// empty workspace of its own. Release removes both.
func (p *Pool) BootTemporary(ctx context.Context, t *image.Template, f image.Flavor) (_ *Booted, release func() error,
	err error) {
	ws, err := p.Workspaces.New()
	if err != nil {
		return nil, nil, err
	}
	id := p.reserveID()
	b, err := p.Boot(ctx, Request{ID: id, Workspace: ws, Template: t, Flavor: f, Build: true})
	if err != nil {
		p.releaseID(id)
		return nil, nil, errors.Join(err, p.RemoveWorkspace(ws))
	}
	return b, func() error {
		defer p.releaseID(id)
		removal, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeBuildTimeout)
		defer cancel()
		// A server that stops waits no longer than for any other sandbox.
		defer context.AfterFunc(ctx, func() { time.AfterFunc(destroyTimeout, cancel) })()
		return errors.Join(b.destroy(removal), p.RemoveWorkspace(ws))
	}, nil
}

// removeBuildTimeout is how long removing the sandbox of a build may take: a Docker daemon removes gigabytes of files
// one by one.
const removeBuildTimeout = 5 * time.Minute

// startTimeout is how long one start command of a template may take.
const startTimeout = 2 * time.Minute

// startOutput is how many characters of the end of each stream the error of a start command has.
const startOutput = 1000

// runStart runs the start commands of a sandbox's template, one after the other.
func runStart(ctx context.Context, b *Booted) error {
	for _, line := range b.Template.Start {
		r, err := b.Agent.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/sh", "-c", line}},
			Timeout: startTimeout, Inline: agent.InlineBounds{Head: startOutput / 4, Tail: startOutput}},
			agent.Observer{})
		if err != nil {
			return fmt.Errorf("the template's start command %q: %w", line, err)
		}
		if r.ExitCode != 0 {
			return startError(line, r)
		}
	}
	return nil
}

// startError returns the error of a start command that failed. The line that says why stands first in its output, then
// standard error: the end is cut.
func startError(line string, r *agent.ExecResult) *StartError {
	errs := strings.TrimSpace(fmt.Sprintf("%s%s", r.Stderr.Head, r.Stderr.Tail))
	output := strings.TrimSpace(fmt.Sprintf("%s\n%s%s", errs, r.Stdout.Head, r.Stdout.Tail))
	why := fault.Telling(cmp.Or(errs, output))
	if !strings.HasPrefix(output, why) {
		output = why + "\n" + output
	}
	return &StartError{Line: line, ExitCode: r.ExitCode, Output: fault.Printable(output, 2*startOutput)}
}

// StartError says that a start command of a template has failed.
type StartError struct {
	Line     string
	ExitCode int
	Output   string // why it failed, and the ends of its output, printable
}

func (e *StartError) Error() string {
	return fmt.Sprintf("the template's start command %q ended with code %d: %s", e.Line, e.ExitCode, e.Output)
}
