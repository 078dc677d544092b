package main

import (
	"fmt"
	"sync"
	"time"
)

// takeover measures a crash of a server with many sessions, which do nothing.
func takeover(b *bench) (section, error) {
	sessions := pick(b, 200, 20)
	var serves, one, all samples
	err := b.with(func(s *server) error {
		ids, err := s.many(sessions)
		if err != nil {
			return err
		}
		for range pick(b, 3, 1) {
			if err := s.takenOver(ids, &serves, &one, &all); err != nil {
				return err
			}
		}
		return nil
	}, fmt.Sprintf("SANDLOT_MAX_SESSIONS=%d", sessions+1))
	if err != nil {
		return section{}, err
	}
	t := timings("from the kill")
	t.add("until the new server accepts connections", serves, serves.against(goal{100, time.Second}))
	t.add("until one session, picked at random, has answered", one)
	t.add("until all have answered, asked one after the other", all)
	return section{title: fmt.Sprintf("A crash of a server with %d sessions", sessions),
		method: "As above. What is left of the last crash has settled before the next: each session has answered, and ten seconds have passed.",
		tables: []table{t}}, nil
}

// many makes that many sessions, each with a variable of its own.
func (s *server) many(sessions int) ([]string, error) {
	ids := make([]string, sessions)
	errs := make([]error, 2)
	var work sync.WaitGroup
	for part := range errs {
		work.Go(func() {
			c := s.bare("")
			defer c.close()
			for i := part; i < sessions && errs[part] == nil; i += len(errs) {
				var r answer
				r, errs[part] = want(s.ctx, c, "new", fmt.Sprintf("kept = %d; kept", i), fmt.Sprint(i))
				ids[i] = r.session
			}
		})
	}
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// takenOver kills the server, starts it again, and asks one session, then all.
func (s *server) takenOver(ids []string, serves, one, all *samples) error {
	time.Sleep(10 * time.Second)
	c := s.bare("")
	defer c.close()
	picked := int(time.Now().UnixNano() % int64(len(ids)))
	began := time.Now()
	s.kill()
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.accepts(); err != nil {
		return err
	}
	*serves = append(*serves, time.Since(began))
	if _, err := want(s.ctx, c, ids[picked], "kept", fmt.Sprint(picked)); err != nil {
		return err
	}
	*one = append(*one, time.Since(began))
	for i, id := range ids {
		if _, err := want(s.ctx, c, id, "kept", fmt.Sprint(i)); err != nil {
			return err
		}
	}
	*all = append(*all, time.Since(began))
	return nil
}
