package servers

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// use returns the server as it runs, and starts it when it does not. The caller
// calls release.
func (s *server) use(ctx context.Context) (*instance.Instance, func(), error) {
	for {
		s.mu.Lock()
		if l := s.instance; l != nil {
			l.Used++
			s.used = time.Now()
			s.mu.Unlock()
			return l, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				l.Used--
				s.used = time.Now()
			}, nil
		}
		st := s.start
		if st == nil {
			if err := s.unusable(); err != nil {
				s.mu.Unlock()
				return nil, nil, err
			}
			st = s.launch()
		}
		s.mu.Unlock()
		if err := st.wait(ctx); err != nil {
			return nil, nil, err
		}
	}
}

// wait waits for the end of an attempt.
func (st *start) wait(ctx context.Context) error {
	select {
	case <-st.done:
		return st.err
	case <-ctx.Done():
		return fault.From(ctx.Err())
	}
}

// launch starts an attempt. The lock is held, and there is none.
func (s *server) launch() *start {
	ctx, cancel := context.WithCancel(s.servers.life)
	st := &start{cancel: cancel, done: make(chan struct{})}
	s.start = st
	wait := time.Until(s.Earliest)
	s.on(state.Begins)
	if !s.servers.spawn(func(context.Context) { defer cancel(); s.attempt(ctx, st, wait) }) {
		cancel()
		st.err = fault.New(fault.Connection, "the server is stopping")
		s.start = nil
		close(st.done)
	}
	return st
}

// attempt waits for the pause to end, and starts the server.
func (s *server) attempt(ctx context.Context, st *start, wait time.Duration) {
	var l *instance.Instance
	err := s.acquire(ctx)
	if err == nil {
		defer s.release()
		select {
		case <-time.After(wait):
			s.mu.Lock()
			if err = s.unusable(); err == nil {
				s.on(state.Begins)
			}
			s.mu.Unlock()
			if err == nil {
				l, err = s.connect(ctx)
			}
		case <-ctx.Done():
			err = fault.From(ctx.Err())
		}
	}
	s.mu.Lock()
	s.start = nil
	switch {
	case err == nil && s.Removed:
		err = s.unusable()
	case err == nil:
		s.account.ServerAnswered()
		s.instance, s.used = l, time.Now()
		s.on(state.Started)
	case ctx.Err() != nil && !s.Removed && s.State != state.Disabled:
		s.on(state.Interrupted)
		err = fault.New(fault.Connection, "%s was stopped while it started", s.Title()).With("connection_id",
			s.ID).With("name", s.Name)
	case errors.As(err, new(unrevealed)):
		s.apply(state.Event{What: state.LacksSecret, Why: fault.From(err).Message})
	default: // one of which nothing is known yet cannot be used, so that nobody would start it
		s.apply(state.Event{What: state.StartFailed, Why: fault.From(err).Message,
			Wanted: s.Configured && !s.rec.Catalog.Loaded})
	}
	s.mu.Unlock()
	if err == nil && !s.servers.spawn(l.Watch) {
		s.mu.Lock()
		s.instance = nil
		s.mu.Unlock()
		err = fault.New(fault.Connection, "the server is stopping")
	}
	if err != nil && l != nil {
		l.Close()
	}
	st.err = err
	s.Changed()
	close(st.done)
}

// interrupt ends a start that is on its way: whoever wants the lock need not wait
// for it.
func (s *server) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start != nil {
		s.start.cancel()
	}
}

// connect starts the server and reads what it offers. The server is acquired.
func (s *server) connect(ctx context.Context) (*instance.Instance, error) {
	began := time.Now()
	s.mu.Lock()
	c := instance.Config{Definition: s.Definition, Owner: s, Account: s.account, Output: &s.log,
		Principal: s.owner, Name: s.Name, Configured: s.Configured, Cwd: s.rec.Cwd, Path: s.rec.Path,
		Stateful: s.rec.Stateful, Sessions: s.servers.Sessions, Reach: s.reach, Limits: s.servers.Limits,
		Version: s.servers.Version, Log: s.servers.Log}
	s.mu.Unlock()
	limit := c.StartLimit(s.servers.InstallTimeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !s.Configured { // the operator's values are not references
		var err error
		if c.Values, err = s.servers.revealed(ctx, s.owner.ID, c.Values); err != nil {
			f := s.lacking(err)
			s.logger.Warn("connection: did not start", "why", f)
			return nil, f
		}
	}
	l := instance.New(c)
	if err := l.Start(ctx, limit); err != nil {
		f := s.startFault(l, err, limit)
		l.Close()
		s.logger.Warn("connection: did not start", "why", f, "error", err)
		return nil, f
	}
	s.logger.Info("connection: started", "protocol", l.Session.Version(), "took",
		time.Since(began).Round(time.Millisecond))
	return l, nil
}

func (s *server) reach(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.servers.Reach == nil {
		return nil, errors.New("this server reaches no others for its users")
	}
	return s.servers.Reach(ctx, s.owner, s.Configured, network, addr)
}

// startFault says in words why a server did not start.
func (s *server) startFault(l *instance.Instance, err error, limit time.Duration) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return s.withAdvice(f)
	}
	silent := errors.Is(err, transport.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if how, itself := l.How(0); itself && !silent {
		return s.fault(fault.Connection, err, "did not start: %s%s", how, s.lastWords())
	}
	if s.Configured && l.Settings.Kind != spec.Stdio && !s.owner.HasRole(auth.Logs) { // where it is, is the operator's
		return s.fault(fault.Connection, err, "cannot be reached, or does not speak MCP; the server's log says more")
	}
	if silent {
		return s.fault(fault.Connection, err,
			"did not answer within %s of its start; it has to speak MCP on its %s%s", limit.Round(time.Second),
			map[bool]string{true: "standard input and output",
				false: "address"}[l.Settings.Kind == spec.Stdio], s.lastWords())
	}
	return s.fault(fault.Connection, err, "did not start: %s", spec.SafeText(err.Error(), 500))
}

// stop closes the instance, if one runs, and changes the state. The server is acquired.
func (s *server) stop(what state.Occurrence) {
	s.mu.Lock()
	l := s.instance
	s.instance = nil
	s.on(what)
	s.mu.Unlock()
	if l != nil {
		l.Close()
	}
}

// Exited implements instance.Owner.
func (s *server) Exited(l *instance.Instance) {
	how, itself := l.How(process.ExitGrace)
	l.Close()
	err := l.Session.Err()
	s.mu.Lock()
	if s.instance != l {
		s.mu.Unlock()
		return
	}
	s.instance = nil
	s.restarts++
	if errors.Is(err, transport.ErrSessionLost) || !itself && l.Local() {
		// Its session, or the sandbox that it ran in, is over: it did nothing wrong.
		s.on(state.SessionOver)
	} else {
		if how == "" && err != nil {
			how = spec.SafeText(err.Error(), 500)
		}
		s.log.Printf("[sandlot] %s", how)
		s.apply(state.Event{What: state.Exited, Why: how, Lasted: time.Since(l.Since) > state.StableAfter,
			Wanted: l.Used > 0 || len(s.follows) > 0 || time.Since(s.used) < state.StableAfter})
	}
	failures := s.Failures
	s.mu.Unlock()
	s.logger.Warn("connection: lost", "why", how, "error", err, "failures", failures)
	s.Changed()
}

// Publish implements instance.Owner.
func (s *server) Publish(ctx context.Context, l *instance.Instance, o catalog.Offer) error {
	s.servers.awaitPrefix(ctx, s)
	return s.servers.publish(s, l.Number, o, !l.Session.Stateless())
}

// Changed implements instance.Owner.
func (s *server) Changed() { s.servers.changed(s.owner.ID) }

// Elicits implements instance.Owner.
func (s *server) Elicits() {
	if s.record().Elicits {
		return
	}
	if err := s.update(func(r *Record) { r.Elicits = true }); err != nil {
		s.logger.Error("could not store a connection", "error", err)
	}
}

// Logged implements instance.Owner.
func (s *server) Logged(params json.RawMessage) {
	if s.servers.OnLog != nil {
		s.servers.OnLog(s.owner.ID, params)
	}
}

// Wanted implements instance.Owner.
func (s *server) Wanted() (level string, follows []string) {
	s.servers.mu.Lock()
	if o := s.servers.owners[s.owner.ID]; o != nil {
		level = o.level
	}
	s.servers.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return level, slices.Collect(maps.Keys(s.follows))
}
