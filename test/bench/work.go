package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mostOverRaw is how much longer a task may take in Sandlot's sandbox than in raw gVisor.
const mostOverRaw = 1.10

// workBench does ordinary work in a sandbox of Sandlot, in one of raw gVisor, and on the host.
type workBench struct {
	*bench
	sites []*site
	notes []string
}

// site is a place with the variables of the tasks.
type site struct {
	place
	variables string // shell commands that set them
}

// measured is what a task took in the three places.
type measured struct {
	task
	took [3]samples
	cpu  [3]time.Duration
}

// work measures what agents do all day.
func work(b *bench) (section, error) {
	var w workBench
	var rows []*measured
	inputs := ""
	err := b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		return s.raw(c, func(raw *bundle) (err error) {
			inputs, err = b.workInputs(raw.python)
			return err
		})
	}, "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false")
	if err != nil {
		return section{}, err
	}
	err = b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		return s.raw(c, func(raw *bundle) error {
			return raw.work(func(r *rawPlace) (err error) {
				w = workBench{bench: b}
				defer func() { err = errors.Join(err, w.close()) }()
				if err := w.enter(s, c, raw, r, inputs); err != nil {
					return err
				}
				rows, err = w.measureAll()
				return err
			})
		})
	}, "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false", "SANDLOT_VOLUMES="+inputs+":/inputs:ro",
		"SANDLOT_VOLUME_LIMIT_MB=0")
	if err != nil {
		return section{}, err
	}
	return w.section(rows), nil
}

// enter creates the session, and makes in each place what the tasks use.
func (w *workBench) enter(s *server, c client, raw *bundle, r *rawPlace, inputs string) error {
	session, err := open(w.ctx, c)
	if err != nil {
		return err
	}
	group, err := s.cgroupOf()
	if err != nil {
		return err
	}
	if group != "" {
		if err := copyWeight(group, r.group); err != nil {
			return err
		}
	}
	dir, err := tempDir()
	if err != nil {
		return err
	}
	host := &hostPlace{}
	for _, kv := range raw.config.Process.Env {
		host.env = append(host.env, strings.NewReplacer("/workspace", dir, "=/root", "="+dir+"/home").Replace(kv))
	}
	inside := w.variables(raw.python, "/workspace/work", "/inputs", "/root/npm-cache", "/tmp")
	w.sites = []*site{
		{&sandlotPlace{s: s, c: c, session: session, group: group}, inside}, {r, inside},
		{host, w.variables(raw.python, dir+"/work", inputs, dir+"/npm-cache", dir+"/tmp") +
			"\nmkdir -p " + dir + "/home\n"},
	}
	for _, at := range w.sites {
		if _, err := w.script(at, prepare, "prepared"); err != nil {
			return fmt.Errorf("preparing: %w", err)
		}
	}
	return nil
}

func (w *workBench) close() error {
	if len(w.sites) < 3 {
		return nil
	}
	p := w.sites[0].place.(*sandlotPlace)
	err := discard(w.ctx, p.c, p.session)
	for _, kv := range w.sites[2].place.(*hostPlace).env {
		if home, ok := strings.CutPrefix(kv, "HOME="); ok {
			err = errors.Join(err, exec.Command("chmod", "-R", "u+w", filepath.Dir(home)).Run(),
				os.RemoveAll(filepath.Dir(home)))
		}
	}
	return err
}

// variables returns shell commands that set the variables of the tasks.
func (w *workBench) variables(python, work, inputs, cache, temporary string) string {
	goProgram := ""
	if root := said("go", "env", "GOROOT"); strings.HasPrefix(root, "/usr/") {
		goProgram = root + "/bin/go"
	}
	// What is in npm's cache is found by the registry's address.
	return fmt.Sprintf("export PYTHON=%s W=%s IN=%s CACHE=%s TMPDIR=%s GO=%s GOTOOLCHAIN=local WHEELS='%s' "+
		"npm_config_registry='%s'\n", python, work, inputs, cache, temporary, goProgram,
		strings.Join(smallWheels, " "), said("npm", "config", "get", "registry"))
}

// script runs a script of a task in a place. It returns the last line of the output, which must end with want.
func (w *workBench) script(at *site, script, want string) (string, error) {
	text, err := at.run(w.ctx, at.variables+"( set -e -o pipefail; mkdir -p $W; cd $W; "+script+
		"\n) 2>&1\necho exit=$?")
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := lines[max(0, len(lines)-2)]
	if lines[len(lines)-1] != "exit=0" || !strings.HasSuffix(last, want) {
		return "", fmt.Errorf("%s: a wrong answer: %q, not %q", script, text[max(0, len(text)-1000):], want)
	}
	return last, nil
}

// measureAll measures the tasks one after the other. A task whose program is missing is left out.
func (w *workBench) measureAll() (all []*measured, err error) {
	for _, t := range tasks {
		missing := t.needs != "" && func() bool { _, err := exec.LookPath(t.needs); return err != nil }()
		if missing || strings.Contains(t.run, "$GO ") && !strings.Contains(w.sites[0].variables, "GO=/") {
			w.notes = append(w.notes, fmt.Sprintf("%s was not measured: sandboxes have no %s.", t.name, t.needs))
			continue
		}
		m := &measured{task: t}
		if err := w.measure(m); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		fmt.Fprintf(os.Stderr, "bench: %s: %.2f of raw gVisor, %.2f of its CPU, %.1f of the host\n", t.name,
			m.ratio(0, 1), m.cpuRatio(), m.ratio(0, 2))
		all = append(all, m)
	}
	return all, nil
}

// measure does a task in all places in turns, each time beginning with another one, after one turn that does not count.
func (w *workBench) measure(m *measured) error {
	began := time.Now()
	for turn := range pick(w.bench, 16, 2) {
		if turn > pick(w.bench, 5, 1) && time.Since(began) > 30*time.Second {
			break
		}
		for i := range w.sites {
			i = (i + turn) % len(w.sites)
			took, cpu, err := w.once(w.sites[i], &m.task)
			if err != nil {
				return err
			}
			if turn > 0 {
				m.took[i] = append(m.took[i], took)
				m.cpu[i] += cpu
			}
		}
	}
	return nil
}

// once does a task once.
func (w *workBench) once(at *site, t *task) (took, cpu time.Duration, err error) {
	if t.before != "" {
		if _, err := w.script(at, t.before, ""); err != nil {
			return 0, 0, err
		}
	}
	began, before := time.Now(), at.cpu()
	for range max(t.calls, 1) {
		answer, err := w.script(at, t.run, t.want)
		if err != nil {
			return 0, 0, err
		}
		if t.want == "" { // all places have to find the same
			t.want = answer
		}
	}
	return time.Since(began), at.cpu() - before, nil
}

// ratio returns the median of what one place took in the turns, as a multiple of what another one took in the
// same turn.
func (m *measured) ratio(a, b int) float64 {
	return medianRatio(m.took[a], m.took[b])
}

// cpuRatio returns the time of processors that Sandlot took, as a multiple of raw gVisor's; 0: not known.
func (m *measured) cpuRatio() float64 {
	if m.cpu[0] == 0 || m.cpu[1] == 0 {
		return 0
	}
	return float64(m.cpu[0]) / float64(m.cpu[1])
}

func (w *workBench) section(rows []*measured) section {
	t := table{Head: []string{"", "turns", "host", "raw gVisor", "Sandlot", "Sandlot / raw", "CPU, Sandlot / raw",
		"Sandlot / host", "goal"}}
	for _, m := range rows {
		cpu := ""
		if r := m.cpuRatio(); r > 0 {
			cpu = fmt.Sprintf("%.2f", r)
		}
		for i, place := range []string{"Sandlot", "raw gVisor", "host"} {
			t.keep(m.name+", "+place, m.took[i])
		}
		t.Rows = append(t.Rows, []string{m.name, fmt.Sprint(len(m.took[0])), show(m.took[2].p(50)),
			show(m.took[1].p(50)), show(m.took[0].p(50)), fmt.Sprintf("%.2f", m.ratio(0, 1)), cpu,
			fmt.Sprintf("%.1f", m.ratio(0, 2)),
			verdict(fmt.Sprintf("≤ %.2f of raw", mostOverRaw), m.ratio(0, 1) <= mostOverRaw) + limits[m.name]})
	}
	if w.quick {
		w.notes = append(w.notes, "**A trial with `-quick`: too few turns to mean anything.**")
	}
	return section{title: "Ordinary work",
		method: "What agents do all day: shell commands by `execute_command`, with a bare call; the same by a " +
			"Python that waits in a sandbox of raw `sandlot-runsc` with the same bundle, flags, variables, " +
			"limits and weight (1 CPU, and half of one more); and on the host, with all its processors. " +
			"Sandboxes work below `/workspace`, a folder of the host. Package managers have their packages on " +
			"the disk, and use no network. The three take turns, each time beginning with another one, after a " +
			"turn that does not count; all outputs are checked. Times are medians. The ratios of time are " +
			"medians of the ratios in each turn, so that what else the machine does meanwhile meets both. The " +
			"processors' time (of the sandbox's cgroup, and of the server beside it) is the sum of all turns: " +
			"it hardly depends on what else the machine does.",
		tables: []table{t}, notes: w.notes}
}

// limits says beside a row why Sandlot is not within the bound there.
var limits = map[string]string{}
