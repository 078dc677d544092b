package main

import (
	"context"
	"fmt"
	"time"
)

// poolSize is the default of the setting pool_size.
const poolSize = 2

// fresh measures new sessions with a sandbox of the pool.
func fresh(b *bench) (section, error) {
	sec := section{title: "A new session from the pool",
		method: fmt.Sprintf("`execute_code(\"40+2\")` with `session_id: \"new\"`, from the call to the answer. The "+
			"pool has its default size, %d. Before each sample it is full again, and 100 ms more have passed; the "+
			"session is stopped after it.", poolSize)}
	all := []*contender{{name: "MCP " + newer + ", the official Go client"}, {name: "bare call, HTTP keep-alive"}}
	err := b.with(func(s *server) error {
		sdk, err := s.connect(newer, "")
		if err != nil {
			return err
		}
		defer sdk.close()
		bare := s.bare("")
		defer bare.close()
		for range pick(b, 100, 3) {
			for i, c := range []client{sdk, bare} {
				if err := s.waitPool("host", poolSize); err != nil {
					return err
				}
				if err := newSession(b.ctx, c, &all[i].took); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, c := range all {
		c.goals = []goal{{50, 10 * time.Millisecond}}
	}
	sec.tables = []table{results("a new session's first answer", all)}
	return sec, err
}

// newSession creates a session, adds how long that took, and stops it.
func newSession(ctx context.Context, c client, took *samples) error {
	session := ""
	err := took.take(func() (err error) {
		session, err = open(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	return discard(ctx, c, session)
}
