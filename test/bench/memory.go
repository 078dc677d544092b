package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// share is the memory of a sandbox's processes, in bytes.
type share struct {
	sentry, gofer, stubs int64
	charged              int64 // what its cgroup counts; 0: it has none
}

func (s share) all() int64 { return s.sentry + s.gofer + s.stubs }

// memory measures idle sessions.
func memory(b *bench) (section, error) {
	sessions, rest := 10, pick(b, 10*time.Second, time.Second)
	var shares []share
	err := b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		for range sessions {
			session, err := open(b.ctx, c)
			if err != nil {
				return err
			}
			if err := onePlusOne(b.ctx, c, session); err != nil {
				return err
			}
		}
		time.Sleep(rest)
		boxes := s.boxes()
		if len(boxes) != sessions {
			return fmt.Errorf("%d sandboxes for %d sessions", len(boxes), sessions)
		}
		for _, box := range boxes {
			share, err := measure(filepath.Base(box))
			if err != nil {
				return err
			}
			share.charged = charged(filepath.Base(box))
			shares = append(shares, share)
		}
		return nil
	}, "SANDLOT_POOL_SIZE=0")
	if err != nil {
		return section{}, err
	}
	return section{title: "Memory of an idle session",
		method: fmt.Sprintf("%d sessions, each with a Python that has answered twice and then rested for %v. The "+
			"proportional set size (`Pss` of `/proc/PID/smaps_rollup`: a page that n processes share counts as 1/n) "+
			"of all processes of a sandbox: "+
			"gVisor's kernel, which holds the memory of the agent and of Python; its file server; and the stubs, in "+
			"which the agent and Python run, with all their descendants; processes with one address space (`kcmp`) "+
			"count once. "+
			"Beside it what the kernel charges the sandbox's cgroup for: the cache that others filled first is not "+
			"in it, the kernel's own memory may be.", sessions, rest),
		tables: []table{sizes(shares)}}, nil
}

// measure adds up the memory of a sandbox's processes: those of runsc, which have the sandbox's id as an argument,
// and their descendants. Several of gVisor's processes share one address space, which counts once.
func measure(id string) (s share, err error) {
	kinds := map[string]map[int]bool{"runsc-sandbox": {}, "runsc-gofer": {}}
	roots := map[int]bool{}
	for pid, line := range commandLines() {
		args := strings.Split(line, "\x00")
		if kinds[args[0]] != nil && slices.Contains(args, id) {
			kinds[args[0]][pid], roots[pid] = true, true
		}
	}
	pids, err := spaces(roots)
	if err != nil {
		return s, err
	}
	for _, pid := range pids {
		n, err := proportional(pid)
		switch {
		case err != nil:
			return s, err
		case kinds["runsc-sandbox"][pid]:
			s.sentry += n
		case kinds["runsc-gofer"][pid]:
			s.gofer += n
		default:
			s.stubs += n
		}
	}
	if s.sentry == 0 || s.gofer == 0 || s.stubs == 0 {
		return s, fmt.Errorf("not all processes of sandbox %s were found: %+v", id, s)
	}
	return s, nil
}

// charged returns the memory that the kernel counts for the sandbox's cgroup.
func charged(id string) (n int64) {
	for _, pattern := range []string{"/sys/fs/cgroup/memory/sandlot-*/" + id + "/memory.usage_in_bytes",
		"/sys/fs/cgroup/sandlot-*/" + id + "/memory.current"} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			text, _ := os.ReadFile(f)
			fmt.Sscan(string(text), &n)
		}
	}
	return n
}

func sizes(shares []share) table {
	t := table{Head: append(append([]string{"MB (10⁶ bytes) for each session", "sessions", "average"}, headings[1:]...),
		"goal")}
	for _, r := range []struct {
		name string
		of   func(share) int64
	}{
		{"gVisor's kernel (`runsc-sandbox`)", func(s share) int64 { return s.sentry }},
		{"file server (`runsc-gofer`)", func(s share) int64 { return s.gofer }},
		{"stubs (agent, Python)", func(s share) int64 { return s.stubs }},
		{"all", share.all},
		{"beside: what the sandbox's cgroup is charged", func(s share) int64 { return s.charged }},
	} {
		var all samples // a byte as a nanosecond: the percentiles are the same
		var bytes []float64
		var sum float64
		for _, s := range shares {
			all = append(all, time.Duration(r.of(s)))
			bytes = append(bytes, float64(r.of(s)))
			sum += float64(r.of(s))
		}
		average := sum / float64(len(shares)) / 1e6
		row := []string{r.name, fmt.Sprint(len(all)), fmt.Sprintf("%.1f", average)}
		for _, p := range []float64{50, 95, 99} {
			row = append(row, fmt.Sprintf("%.1f", float64(all.p(p))/1e6))
		}
		if r.name == "all" {
			row = append(row, verdict("average ≤ 30", average <= 30))
		}
		t.Rows = append(t.Rows, row)
		t.keepIn("bytes", r.name, bytes)
	}
	return t
}
