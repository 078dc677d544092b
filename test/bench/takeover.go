package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// crashes has the measurements of a server with many sessions.
type crashes struct {
	ended  samples // kill to the end of the old process
	empty  samples // start to answer of a server that has nothing to take over
	serves samples // start to answer
	killed samples // kill to answer
	one    samples // start to the answer of one session
	all    samples // start to the answer of the last
	loads  []string
}

// takeover measures a crash of a server with many idle sessions.
func takeover(b *bench) (section, error) {
	sessions := pick(b, 200, 20)
	c := new(crashes)
	for range pick(b, 5, 1) {
		if err := b.with(func(s *server) error { return s.again(c) }); err != nil {
			return section{}, err
		}
	}
	err := b.with(func(s *server) error {
		ids, err := s.many(sessions)
		if err != nil {
			return err
		}
		for range pick(b, 5, 1) {
			if err := s.takenOver(ids, c); err != nil {
				return err
			}
		}
		return nil
	}, fmt.Sprintf("SANDLOT_MAX_SESSIONS=%d", sessions+1))
	if err != nil {
		return section{}, err
	}
	start, kill := timings("from the start of the new server"), timings("from the kill")
	limit := goal{100, time.Second}
	start.add("until it has answered a request", c.serves, c.serves.against(limit))
	start.add("until one session, picked at random and asked for after that, has answered", c.one)
	start.add(fmt.Sprintf("until all %d have answered, asked one after the other", sessions), c.all)
	start.add("for comparison: a server without any session, until it has answered a request", c.empty)
	kill.add("until the old process is gone: the kernel closes what it had, and each sandbox notices", c.ended)
	kill.add("until the new server, started at that moment, has answered a request", c.killed, c.killed.against(limit))
	return section{title: fmt.Sprintf("A crash of a server with %d sessions", sessions),
		method: "The server is killed with SIGKILL, and started again when its process is gone, as its supervisor " +
			"does. The request is `GET /readyz`, tried again every 2 ms. " +
			"A session is asked for a variable that was set before: an answer counts only if it is still there. " +
			"Before each kill all sessions have answered, and ten seconds have passed.",
		tables: []table{start, kill}, notes: []string{"Load averages of the machine before the kills: " +
			strings.Join(c.loads, "; ") + "."}}, nil
}

// again kills a server without sessions, and starts it again.
func (s *server) again(c *crashes) error {
	if err := s.waitPool("host", poolSize); err != nil {
		return err
	}
	s.kill()
	return c.empty.take(s.launch)
}

// launch starts the server and waits for its first answer.
func (s *server) launch() error {
	if err := s.begin(); err != nil {
		return err
	}
	probe := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(2 * time.Millisecond) {
		r, err := probe.Get(s.url + "/readyz")
		if err != nil {
			continue
		}
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return nil
		}
	}
	return errors.New("the new server does not answer")
}

// many creates sessions, each with its own value of a variable.
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

// takenOver kills the server, starts it again, and makes a call in one session, then in all.
func (s *server) takenOver(ids []string, all *crashes) error {
	time.Sleep(10 * time.Second)
	load, _ := os.ReadFile("/proc/loadavg")
	all.loads = append(all.loads, strings.Join(strings.Fields(string(load))[:2], " "))
	c := s.bare("")
	defer c.close()
	picked := rand.IntN(len(ids))
	killed := time.Now()
	s.kill()
	began := time.Now()
	all.ended = append(all.ended, began.Sub(killed))
	if err := s.launch(); err != nil {
		return err
	}
	all.serves, all.killed = append(all.serves, time.Since(began)), append(all.killed, time.Since(killed))
	if _, err := want(s.ctx, c, ids[picked], "kept", fmt.Sprint(picked)); err != nil {
		return err
	}
	all.one = append(all.one, time.Since(began))
	for i, id := range ids {
		if _, err := want(s.ctx, c, id, "kept", fmt.Sprint(i)); err != nil {
			return err
		}
	}
	all.all = append(all.all, time.Since(began))
	return nil
}
