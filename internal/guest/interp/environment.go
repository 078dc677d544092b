package interp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Change is a change of the environment of a process that runs.
type Change struct {
	Set    map[string]string
	Remove []string // not in Set
	// Restart starts the process again, with the environment that it has then, if it has run no cell.
	Restart bool
}

// environmentTimeout is how long a driver may take to set variables.
const environmentTimeout = time.Second

// SetEnvironment sets variables of the environment in a process that runs, and removes others. While a cell runs, that
// is done before the next one. A process that starts later gets its variables from Config.Env.
func (i *Interp) SetEnvironment(ctx context.Context, c Change) {
	i.mu.Lock()
	if i.change == nil {
		i.change = &Change{Set: map[string]string{}}
	}
	for _, name := range c.Remove {
		delete(i.change.Set, name)
	}
	maps.Copy(i.change.Set, c.Set)
	i.change.Remove = slices.DeleteFunc(append(slices.Clone(i.change.Remove), c.Remove...),
		func(name string) bool { _, ok := i.change.Set[name]; return ok })
	p := i.process
	i.mu.Unlock()
	// Node reads NODE_EXTRA_CA_CERTS when it starts, and never again.
	restart := c.Restart || i.config.Driver == "node"
	if !i.acquireForChange(ctx, p, restart) {
		return
	}
	defer i.release()
	if p == nil || !p.alive() || !p.isReady() || i.shared != nil && !i.shared.Idle() {
		return
	}
	if restart && !i.used() {
		i.Close()
		i.mu.Lock()
		i.process = nil
		i.mu.Unlock()
		return
	}
	i.applyEnvironment(ctx, p)
}

// acquireForChange acquires the slot, if no cell runs, and reports whether it did. With restart it waits for a process
// that starts, or connects to the host.
func (i *Interp) acquireForChange(ctx context.Context, p *process, restart bool) bool {
	if restart && p != nil && !i.used() {
		ctx, cancel := context.WithTimeout(ctx, environmentTimeout)
		defer cancel()
		if i.awaitReady(ctx, p, environmentTimeout) != nil {
			return false
		}
		return i.acquire(ctx, nil) == nil
	}
	select {
	case i.slot <- struct{}{}:
		return true
	default:
		return false
	}
}

// used reports whether the process has begun a cell.
func (i *Interp) used() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lastCell > 0 || i.shared != nil && i.shared.Begun()
}

// applyEnvironment applies the change of SetEnvironment, if there is one that the process has not got yet. The driver
// runs no cell. The caller holds the slot.
func (i *Interp) applyEnvironment(ctx context.Context, p *process) {
	i.mu.Lock()
	c := i.change
	i.change = nil
	i.mu.Unlock()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, environmentTimeout)
	defer cancel()
	id := newCellID()
	if p.send(i.config.Driver, id, 0, Cell{Code: environmentCode(i.config.Driver, c.Set, c.Remove)}) != nil {
		return
	}
	for {
		select {
		case r := <-p.replies:
			if r.ID == id {
				return
			}
		case <-p.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// environmentCode returns code that sets and removes variables, and has no value.
func environmentCode(driver string, set map[string]string, remove []string) string {
	var names []string
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	text := &strings.Builder{}
	switch driver {
	case "python":
		text.WriteString("(lambda e: (None")
		for _, name := range names {
			fmt.Fprintf(text, ", e.__setitem__(%s, %s)", quoted(name), quoted(set[name]))
		}
		for _, name := range remove {
			fmt.Fprintf(text, ", e.pop(%s, None)", quoted(name))
		}
		text.WriteString(", None)[-1])(__import__('os').environ)")
	case "node":
		for _, name := range names {
			fmt.Fprintf(text, "process.env[%s] = %s;", quoted(name), quoted(set[name]))
		}
		for _, name := range remove {
			fmt.Fprintf(text, "delete process.env[%s];", quoted(name))
		}
		text.WriteString("undefined")
	case "bash":
		for _, name := range names {
			fmt.Fprintf(text, "export %s='%s'\n", name, strings.ReplaceAll(set[name], "'", `'\''`))
		}
		for _, name := range remove {
			fmt.Fprintf(text, "unset %s\n", name)
		}
		text.WriteString(`__sandlot_set_status "$__sandlot_status" && :`)
	}
	return text.String()
}

// quoted returns a text as a literal of Python and of JavaScript.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string can be encoded
	return string(b)
}
