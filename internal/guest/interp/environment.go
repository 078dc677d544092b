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

// environmentChange has variables to be set and removed in a process that runs.
type environmentChange struct {
	set    map[string]string
	remove []string
}

// environmentTimeout is how long a driver may take to set variables.
const environmentTimeout = time.Second

// SetEnvironment sets variables of the environment in a process that runs, and removes others. While a cell runs, that
// is done before the next one. A process that starts later gets its variables from Config.Env.
func (i *Interp) SetEnvironment(ctx context.Context, set map[string]string, remove []string) {
	i.mu.Lock()
	if i.change == nil {
		i.change = &environmentChange{set: map[string]string{}}
	}
	for _, name := range remove {
		delete(i.change.set, name)
	}
	maps.Copy(i.change.set, set)
	i.change.remove = slices.DeleteFunc(append(slices.Clone(i.change.remove), remove...),
		func(name string) bool { _, ok := i.change.set[name]; return ok })
	p, used := i.process, i.lastCell > 0
	i.mu.Unlock()
	select {
	case i.slot <- struct{}{}:
	default:
		return
	}
	defer i.release()
	if p == nil || !p.alive() || !p.isReady() || i.shared != nil && !i.shared.Idle() {
		return
	}
	if i.config.Driver == "node" && !used {
		// Node reads NODE_EXTRA_CA_CERTS when it starts, and never again.
		i.Close()
		i.mu.Lock()
		i.process = nil
		i.mu.Unlock()
		return
	}
	i.applyEnvironment(ctx, p)
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
	if p.send(i.config.Driver, id, 0, Cell{Code: environmentCode(i.config.Driver, c.set, c.remove)}) != nil {
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
		text.WriteString(`__sandlot_set_status "$__sandlot_status"`)
	}
	return text.String()
}

// quoted returns a text as a literal of Python and of JavaScript.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string can be encoded
	return string(b)
}
