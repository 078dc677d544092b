package main

import (
	"errors"
	"fmt"
)

// boot measures new sessions without a pool beside gVisor alone.
func boot(b *bench) (section, error) {
	var sandlot, printed, ended samples
	err := b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		raw, err := s.newBundle(c)
		if err != nil {
			return err
		}
		for i := range pick(b, 100, 3) {
			if err := newSession(b.ctx, c, &sandlot); err != nil {
				return errors.Join(err, raw.close())
			}
			if err := raw.run(fmt.Sprintf("raw-%d", i), &printed, &ended); err != nil {
				return errors.Join(err, raw.close())
			}
		}
		return raw.close()
	}, "SANDLOT_POOL_SIZE=0")
	if err != nil {
		return section{}, err
	}
	return section{title: "A new session without a pool",
		method: "`SANDLOT_POOL_SIZE=0`. From a bare call with `session_id: \"new\"` to the answer of `40+2`: a sandbox boots, its agent connects, its Python starts and answers. " +
			"Alternately with that, the same `sandlot-runsc` runs `python3 -c 'print(1)'` in the same root file system, with the mounts, limits, flags and cgroup of the session's own sandbox, from its start until it has printed.",
		tables: []table{compared(sandlot, printed, ended)}}, nil
}

func compared(sandlot, printed, ended samples) table {
	t := timings("boot to the first answer")
	t.add("raw `sandlot-runsc run`, until it has printed", printed)
	t.add("raw `sandlot-runsc run`, until it has ended", ended)
	t.add("Sandlot", sandlot)
	row := []string{"Sandlot / raw until it has printed", ""}
	for _, p := range []float64{50, 95, 99} {
		row = append(row, fmt.Sprintf("%.2f", ratio(sandlot, printed, p)))
	}
	t.rows = append(t.rows, append(row, verdict("P50 ≤ 1.25", ratio(sandlot, printed, 50) <= 1.25)))
	return t
}

func ratio(a, b samples, percent float64) float64 {
	return float64(a.p(percent)) / float64(b.p(percent))
}
