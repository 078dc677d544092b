package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// boot measures new sessions without a pool, and sandboxes that gVisor boots without Sandlot.
func boot(b *bench) (section, error) {
	var copied, booted, printed, ended samples
	err := b.with(func(copies *server) error {
		return b.with(func(boots *server) error {
			if err := copies.awaitImage(); err != nil {
				return err
			}
			c, d := copies.bare(""), boots.bare("")
			defer c.close()
			defer d.close()
			return boots.raw(d, func(raw *bundle) error {
				for i := range pick(b, 100, 3) {
					err := newSession(b.ctx, c, &copied)
					if err == nil {
						err = newSession(b.ctx, d, &booted)
					}
					if err == nil {
						err = raw.run(fmt.Sprintf("raw-%d", i), &printed, &ended)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}, "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false")
	}, "SANDLOT_POOL_SIZE=0")
	if err != nil {
		return section{}, err
	}
	return section{title: "A new session without a pool",
		method: "`SANDLOT_POOL_SIZE=0`. From a bare call with `session_id: \"new\"` to the answer of `40+2`: a " +
			"sandbox starts from the snapshot that the server made of one that had booted, or it boots " +
			"(`SANDLOT_SNAPSHOTS=false`), its agent connects, its Python answers. " +
			"In turns with that, the same `sandlot-runsc` runs `python3 -c 'print(1)'` in the same root file system, " +
			"with the mounts, limits, flags and cgroup of a session's own sandbox, from its start until it has " +
			"printed.",
		tables: []table{compared(copied, booted, printed, ended)}}, nil
}

// awaitImage waits until the server has made its preboot image.
func (s *server) awaitImage() error {
	for range 300 {
		if made, _ := filepath.Glob(filepath.Join(s.state, "snapshots", "[^.]*")); len(made) > 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("the server makes no preboot image")
}

func compared(sandlot, booted, printed, ended samples) table {
	t := timings("boot to the first answer")
	t.add("raw `sandlot-runsc run`, until it has printed", printed)
	t.add("raw `sandlot-runsc run`, until it has ended", ended)
	t.add("Sandlot, from a snapshot", sandlot)
	t.add("Sandlot, without snapshots", booted)
	row := []string{"Sandlot, from a snapshot / raw until it has printed", ""}
	for _, p := range []float64{50, 95, 99} {
		row = append(row, fmt.Sprintf("%.2f", ratio(sandlot, printed, p)))
	}
	t.Rows = append(t.Rows, append(row, verdict("P50 ≤ 1.25", ratio(sandlot, printed, 50) <= 1.25)))
	return t
}

func ratio(a, b samples, percent float64) float64 {
	return float64(a.p(percent)) / float64(b.p(percent))
}
