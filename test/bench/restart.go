package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// restart measures how long users wait after a crash of the server.
func restart(b *bench) (section, error) {
	const sessions = 5
	var serves, first, last samples
	err := b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		var ids []string
		for i := range sessions {
			r, err := want(b.ctx, c, "new", fmt.Sprintf("kept = %d; kept", i), fmt.Sprint(i))
			if err != nil {
				return err
			}
			ids = append(ids, r.session)
		}
		for range pick(b, 20, 2) {
			if err := s.waitPool("host", poolSize); err != nil {
				return err
			}
			if err := s.crash(c, ids, &serves, &first, &last); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return section{}, err
	}
	t := timings("from the kill")
	limit := goal{100, 2 * time.Second}
	t.add("until the new server accepts connections", serves)
	t.add("until the first session has answered", first, first.against(limit))
	t.add(fmt.Sprintf("until all %d sessions have answered", sessions), last, last.against(limit))
	return section{title: "A crash of the server",
		method: fmt.Sprintf("The server, which has %d sessions and a full pool of %d, is killed with SIGKILL and "+
			"started again at once. The clock starts at the kill. A client tries to connect every millisecond, then "+
			"asks each session for a variable that was set before: an answer counts only if the sandbox is the same "+
			"and the variable is still there. P100 is the longest.", sessions, poolSize),
		tables: []table{t}}, nil
}

// crash kills the server, starts it again, and makes a call in each session of a bare client.
func (s *server) crash(c client, ids []string, serves, first, last *samples) error {
	began := time.Now()
	s.kill()
	c.close() // its connection is dead
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.accepts(); err != nil {
		return err
	}
	*serves = append(*serves, time.Since(began))
	for i, id := range ids {
		if _, err := want(s.ctx, c, id, "kept", fmt.Sprint(i)); err != nil {
			return err
		}
		if i == 0 {
			*first = append(*first, time.Since(began))
		}
	}
	*last = append(*last, time.Since(began))
	return nil
}

// accepts waits until the server's port is open.
func (s *server) accepts() error {
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(s.url, "http://"))
		if err == nil {
			return conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
