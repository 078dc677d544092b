package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// crowds are the numbers of clients that call at the same time.
var crowds = []int{1, 2, 4, 8, 16, 32}

// crowd has the measurements of a number of clients of one kind.
type crowd struct {
	clients int
	took    samples
	length  time.Duration
	busy    []float64 // percent of the cores, each time
}

func (c *crowd) rate() float64 { return float64(len(c.took)) / c.length.Seconds() }

// group has the measurements of one kind of client.
type group struct {
	name  string
	found []*crowd
}

// clients measures many clients at once, each with a session of its own.
func clients(b *bench) (section, error) {
	most := crowds[len(crowds)-1]
	kinds := []*group{{name: "bare calls, HTTP keep-alive"}, {name: "MCP " + newer + ", the official Go client"},
		{name: "beside: a question to each of so many Pythons in raw sandboxes"}}
	err := b.with(func(s *server) error {
		all, sessions, err := s.members(most)
		for _, kind := range all {
			for _, c := range kind {
				defer c.close()
			}
		}
		if err != nil {
			return err
		}
		return b.grow(kinds[:2], all[:], sessions)
	}, fmt.Sprintf("MSB_MAX_SESSIONS=%d", most), "SANDLOT_POOL_SIZE=0")
	if err == nil {
		err = b.alone(func(raw *bundle) error {
			boxes, end, err := raw.newRawPythons(most)
			if err == nil {
				err = b.grow(kinds[2:], [][]client{boxes}, make([]string, most))
			}
			return errors.Join(err, end())
		})
	}
	if err != nil {
		return section{}, err
	}
	sec := section{title: "Many clients",
		method: fmt.Sprintf("Clients that call `1+1` one call after the other, each over a connection and in a "+
			"session of its own; all %d sessions live all the time, without a pool beside them. Each number of "+
			"clients has %d turns of %v, after a warm-up. "+
			"The clients are part of one program on the same machine; \"busy\" is the share of all %d cores that "+
			"anything used meanwhile. Beside that, as many sandboxes of raw `sandlot-runsc`: the program writes "+
			"`1+1` to a socket of each, from which a Python reads, and waits for the 2.", most, b.rounds(), b.turn(),
			runtime.NumCPU())}
	for _, k := range kinds {
		sec.tables = append(sec.tables, growth(k.name, k.found))
	}
	sec.notes = []string{"Throughput has grown to the limit of the cores where it no longer grows and the cores are " +
		"busy: its goal is at least 90 % of the best of the fewer clients, so that it does not collapse."}
	return sec, nil
}

func (b *bench) rounds() int         { return pick(b, 3, 1) }
func (b *bench) turn() time.Duration { return pick(b, 4*time.Second, 300*time.Millisecond) }

// grow measures each kind with more and more clients.
func (b *bench) grow(kinds []*group, all [][]client, sessions []string) error {
	for _, k := range kinds {
		for _, n := range crowds {
			k.found = append(k.found, &crowd{clients: n})
		}
	}
	for range b.rounds() {
		for i, k := range kinds {
			for _, f := range k.found {
				if err := f.run(b.ctx, all[i], sessions, b.turn()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// members creates the sessions, and a client of each kind for each.
func (s *server) members(n int) (all [2][]client, sessions []string, err error) {
	for range n {
		sdk, err := s.connect(newer, "")
		if err != nil {
			return all, nil, err
		}
		all[0], all[1] = append(all[0], s.bare("")), append(all[1], sdk)
		session, err := open(s.ctx, sdk)
		if err != nil {
			return all, nil, err
		}
		sessions = append(sessions, session)
	}
	return all, sessions, nil
}

// run makes the first clients call for some time, and adds the durations.
func (f *crowd) run(ctx context.Context, all []client, sessions []string, length time.Duration) error {
	var (
		took    = make([]samples, f.clients)
		errs    = make([]error, f.clients)
		begin   = time.Now().Add(length / 4)
		end     = begin.Add(length)
		callers sync.WaitGroup
	)
	for i := range f.clients {
		callers.Go(func() {
			for now := time.Now(); now.Before(end) && errs[i] == nil; now = time.Now() {
				errs[i] = onePlusOne(ctx, all[i], sessions[i])
				if now.After(begin) { // also calls that end later, so that slow calls count
					took[i] = append(took[i], time.Since(now))
				}
			}
		})
	}
	time.Sleep(time.Until(begin))
	before := cpuNow()
	time.Sleep(time.Until(end))
	f.busy = append(f.busy, cpuNow().since(before))
	callers.Wait()
	f.length += length
	for _, t := range took {
		f.took = append(f.took, t...)
	}
	return errors.Join(errs...)
}

func growth(name string, all []*crowd) table {
	t := table{Head: append(append([]string{name, "calls/s"}, headings...), "P99 / P50", "busy", "goal")}
	best := 0.0
	for _, f := range all {
		tail := ratio99(f.took)
		goals := verdict("P99 ≤ 20 × P50", tail <= 20)
		if f.clients > 1 {
			goals += "; " + verdict("≥ 90 % of the best before", f.rate() >= 0.9*best)
		}
		best = max(best, f.rate())
		row := append([]string{fmt.Sprint(f.clients), fmt.Sprintf("%.0f", f.rate())}, f.took.cells()...)
		t.keep(row[0], f.took)
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.1f", tail), fmt.Sprintf("%.0f %%", average(f.busy)), goals))
	}
	return t
}

func ratio99(s samples) float64 {
	if len(s) == 0 {
		return 0
	}
	return float64(s.p(99)) / float64(s.p(50))
}

func average(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(len(list))
}
