package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"sandlot/internal/app"
	"sandlot/internal/config"
	"sandlot/internal/sandbox"
)

// Runtime is one way to make sandboxes: whether it works on this machine, what is missing, and what it costs.
type Runtime struct {
	Name      string `json:"name"`
	Settings  string `json:"settings"` // that choose it
	InUse     bool   `json:"in_use"`   // by the present settings
	Works     bool   `json:"works"`
	Untried   bool   `json:"untried,omitempty"` // it is there, and nobody knows whether it works
	Missing   string `json:"missing,omitempty"`
	Warning   string `json:"warning,omitempty"` // what it would not guarantee here
	Isolation string `json:"isolation"`
	Speed     string `json:"speed"`
	// Measured is what a sandbox has cost that was made for it; nil: it does not work, or could not be measured.
	Measured *app.Figures `json:"measured,omitempty"`
}

// String returns what the command prints of it.
func (r Runtime) String() string {
	state := "works here"
	if r.Untried {
		state = "not tried: " + r.Missing
	} else if !r.Works {
		state = "does not work here: " + r.Missing
	}
	if r.InUse {
		state += " (in use)"
	}
	text := fmt.Sprintf("\n%s: %s\n  settings   %s\n  isolation  %s\n  speed      %s\n", r.Name, state, r.Settings,
		r.Isolation, r.Speed)
	if m := r.Measured; m != nil {
		text += "  measured   " + measured(*m) + "\n"
	}
	if r.Warning != "" {
		text += "  warning    " + r.Warning + "\n"
	}
	return text
}

// measured returns the figures of a sandbox, on one line.
func measured(m app.Figures) string {
	text := fmt.Sprintf("a sandbox took %v to boot", round(m.Boot))
	if m.Call > 0 {
		text += fmt.Sprintf("; a system call takes %v, a process %v", round(m.Call), round(m.Process))
	}
	if m.Memory > 0 {
		text += fmt.Sprintf("; it has %d MB of memory while nothing runs", (m.Memory+1<<20-1)>>20)
	}
	return text
}

// oneLine returns what a daemon may have said, fit for a terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
}

// way is a Runtime that has not been tried yet.
type way struct {
	Runtime
	candidate app.Candidate
	needs     func() error // what Candidate.Try does not look at; nil: nothing
	advice    string       // after what is missing
	untried   bool
}

const (
	ownKernel    = "each sandbox has its own kernel, gVisor's"
	sharedKernel = "sandboxes share this machine's kernel: one fault in it is enough to get out. No quota of the disk"
	gvisorSpeed  = "system calls and new processes cost several times the machine's own"
	dockerSpeed  = "calls, files and processes as fast as on the machine; each sandbox boots, as there are no snapshots"
)

// ways returns all ways, as the settings have them, for a server that is root or not.
func ways(c *config.Config, isRoot bool) []way {
	podman, host := podmanSocket(), c.Docker.Host
	if strings.Contains(host, "podman") {
		podman, host = host, "unix:///run/docker.sock"
	}
	gvisor := slices.Contains(c.Runtime.Names, "gvisor")
	docker := func(socket, runtime string) bool {
		return slices.Contains(c.Runtime.Names, "docker") && c.Docker.Runtime == runtime &&
			strings.Contains(c.Docker.Host, "podman") == (socket == podman)
	}
	needsRoot := func() error {
		if !isRoot {
			return errors.New("the server is not root; start it as root")
		}
		return nil
	}
	daemonNeedsRoot := needsRoot // rootless Podman, and rootless Docker with kata, were not tried
	return []way{
		{Runtime: Runtime{Name: "gvisor, server as root", Settings: "runtime: gvisor", InUse: gvisor && isRoot,
			Isolation: ownKernel + "; the machine's bounds its memory, processors and processes",
			Speed:     gvisorSpeed + "; sandboxes start from snapshots"},
			candidate: app.Candidate{Name: "gvisor"}, needs: needsRoot},
		{Runtime: Runtime{Name: "gvisor, server without root", Settings: "runtime: gvisor", InUse: gvisor && !isRoot,
			Isolation: ownKernel + ", and a way out of it gives no rights of root; the server watches memory,  " +
				"and processors are not limited",
			Speed: gvisorSpeed + "; each sandbox boots, as there are no snapshots"},
			candidate: app.Candidate{Name: "gvisor", Rootless: true}},
		{Runtime: Runtime{Name: "docker", Settings: "runtime: docker", InUse: docker(host, ""),
			Isolation: sharedKernel + ". With a rootless daemon, a way out leads to no rights of root",
			Speed:     dockerSpeed}, candidate: app.Candidate{Name: "docker", Host: host},
			advice: "install Docker's engine, 20.10 or newer"},
		{Runtime: Runtime{Name: "podman", Settings: "runtime: docker; docker.host: " + podman,
			InUse: docker(podman, ""), Isolation: sharedKernel, Speed: dockerSpeed +
				"; limits do not change while a sandbox runs"},
			candidate: app.Candidate{Name: "docker", Host: podman}, needs: daemonNeedsRoot,
			advice: "install Podman, 4.3 or newer, and start its service: systemctl start podman.socket"},
		{Runtime: Runtime{Name: "docker with runsc", Settings: "runtime: docker; docker.runtime: runsc",
			InUse:     docker(host, "runsc"),
			Isolation: ownKernel + ", below Docker; the machine's bounds its memory and processors",
			Speed: gvisorSpeed + "; each sandbox boots, as there are no snapshots; limits do not change while a " +
				"sandbox runs"},
			candidate: app.Candidate{Name: "docker", Host: host, Runtime: "runsc"},
			advice:    "add gVisor to the daemon's runtimes, or use the runtime gvisor, which needs no daemon"},
		{Runtime: Runtime{Name: "docker with kata", Settings: "runtime: docker; docker.runtime: kata",
			InUse:     docker(host, "kata"),
			Isolation: "each sandbox is a virtual machine with its own Linux; Sandlot's tests do not cover it",
			Speed:     "a virtual machine has to boot, and its kernel takes memory in each sandbox"},
			candidate: app.Candidate{Name: "docker", Host: host, Runtime: "kata"}, untried: true,
			needs: func() error { return errors.Join(daemonNeedsRoot(), needsKVM()) }},
		{Runtime: Runtime{Name: "microsandbox", Settings: "runtime: microsandbox",
			InUse: slices.Contains(c.Runtime.Names, "microsandbox"),
			Isolation: "each sandbox is a virtual machine with its own Linux, and has no network but Sandlot's; no test of " +
				"Sandlot has seen one boot",
			Speed: "programs as fast as on the machine; a virtual machine has to boot, and its kernel takes memory in each " +
				"sandbox; made of images alone"},
			candidate: app.Candidate{Name: "microsandbox"}},
	}
}

// podmanSocket returns the address of Podman's service for this user.
func podmanSocket() string {
	if os.Getuid() == 0 {
		return "unix:///run/podman/podman.sock"
	}
	return "unix://" + cmp.Or(os.Getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", os.Getuid())) +
		"/podman/podman.sock"
}

func needsKVM() error {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return errors.New("this machine offers no virtual machines: there is no /dev/kvm")
	}
	return nil
}

// Compare tries each way to make sandboxes, measures those that work, and calls report after each.
func Compare(ctx context.Context, c *config.Config, log *slog.Logger, report func(Runtime)) {
	for _, w := range ways(c, os.Getuid() == 0) {
		var err error
		if w.needs != nil {
			err = w.needs()
		}
		warning, tryErr := w.candidate.Try(ctx, c, log)
		r := w.outcome(warning, errors.Join(err, tryErr))
		if r.Works {
			measureCtx, cancel := context.WithTimeout(ctx, measureTimeout)
			figures, err := w.candidate.Measure(measureCtx, c, log)
			cancel()
			if figures.Boot > 0 {
				r.Measured = &figures
			}
			if err != nil {
				r.Warning = strings.TrimPrefix(r.Warning+"; not all was measured: "+oneLine(err.Error()), "; ")
			}
		}
		report(r)
	}
}

// measureTimeout is how long it may take to make a sandbox and measure it.
const measureTimeout = 2 * time.Minute

// outcome returns what there is to say of a way after it was tried.
func (w way) outcome(warning string, err error) Runtime {
	r := w.Runtime
	switch {
	case err == nil && w.untried:
		r.Untried, r.Warning = true, oneLine(warning)
		r.Missing = "the daemon has it, but Sandlot has not been tried with it"
	case err == nil:
		r.Works, r.Warning = true, oneLine(warning)
	default:
		r.Missing = strings.ReplaceAll(oneLine(err.Error()), sandbox.ErrUnavailable.Error()+": ", "")
		if w.advice != "" {
			r.Missing += "; " + w.advice
		}
	}
	return r
}
