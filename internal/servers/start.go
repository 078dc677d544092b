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
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// use returns the server's instance, and starts the server if it does not run. The instance is not
// stopped as unused until the returned function is called.
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

// wait waits for the end of the attempt, and returns its error.
func (st *start) wait(ctx context.Context) error {
	select {
	case <-st.done:
		return st.err
	case <-ctx.Done():
		return fault.From(ctx.Err())
	}
}

// launch begins an attempt to start the server. The caller holds s.mu, and there is no other attempt.
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

// attempt waits for the pause after a failure, and then starts the server.
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
	case errors.Is(err, oauth.ErrLoginNeeded):
		s.apply(state.Event{What: state.AwaitsLogin, Why: fault.From(err).Message})
	case errors.As(err, new(unrevealed)):
		s.apply(state.Event{What: state.LacksSecret, Why: fault.From(err).Message})
	default: // no call can start a server whose lists have never been read, so it is started again
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

// interrupt cancels the running attempt to start the server, which holds the lock.
func (s *server) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start != nil {
		s.start.cancel()
	}
}

// connect starts an instance of the server and reads its lists. The caller has acquired the server.
func (s *server) connect(ctx context.Context) (*instance.Instance, error) {
	began := time.Now()
	s.mu.Lock()
	c := instance.Config{Definition: s.Definition, Owner: s, Account: s.account, Output: &s.log,
		Principal: s.owner, Scope: s.rec.Scope, Name: s.Name, Configured: s.Configured, Cwd: s.rec.Cwd,
		Path: s.rec.Path, Stateful: s.rec.Stateful || s.mute, Sessions: s.servers.Sessions, Dial: s.dial,
		Limits: s.servers.Limits, Version: s.servers.Version, Log: s.servers.Log}
	s.Restarter = ""
	s.mu.Unlock()
	limit := c.StartLimit(s.servers.InstallTimeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !s.Configured { // values of the settings never refer to secrets
		var err error
		c.References = c.Values.Env
		if c.Values, err = s.servers.revealed(ctx, s.owner.ID, c.Values); err != nil {
			f := s.lacking(err)
			s.logger.Warn("connection: did not start", "why", f)
			return nil, f
		}
	}
	l := instance.New(c)
	if err := l.Start(ctx, limit); err != nil {
		s.mu.Lock()
		s.mute = !s.mute && errors.Is(err, transport.ErrTimeout)
		s.mu.Unlock()
		f := withRefused(s.startFault(l, err, limit), l.Refusals(ctx))
		l.Close()
		s.logger.Warn("connection: did not start", "why", f, "error", err)
		return nil, f
	}
	s.logger.Info("connection: started", "protocol", l.Session.Version(), "took",
		time.Since(began).Round(time.Millisecond))
	return l, nil
}

// dial implements instance.Dial.
func (s *server) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.servers.Dial == nil {
		return nil, errors.New("this Sandlot server does not connect to remote MCP servers")
	}
	return s.servers.Dial(ctx, s.owner, s.Configured, network, addr)
}

// startFault returns the fault for a start that failed.
func (s *server) startFault(l *instance.Instance, err error, limit time.Duration) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return s.withAdvice(f)
	}
	silent := errors.Is(err, transport.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if how, byItself := l.ExitReason(0); byItself && !silent {
		return s.fault(fault.Connection, err, "did not start: %s%s", how, s.lastWords())
	}
	if s.Configured && l.Settings.Kind != spec.Stdio && !s.owner.HasRole(auth.Logs) { // err may have its address
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

// stop closes the instance, if there is one, and applies an event. The caller has acquired the server.
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
	how, byItself := l.ExitReason(process.ExitGrace)
	l.Close()
	err := l.Session.Err()
	s.mu.Lock()
	if s.instance != l {
		s.mu.Unlock()
		return
	}
	s.instance = nil
	s.restarts++
	if errors.Is(err, transport.ErrSessionLost) || !byItself && l.Local() {
		// Its MCP session or its sandbox has ended, which does not count as a failure of the server.
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

// Subscriptions implements instance.Owner.
func (s *server) Subscriptions() (level string, uris []string) {
	s.servers.mu.Lock()
	if o := s.servers.owners[s.owner.ID]; o != nil {
		level = o.level
	}
	s.servers.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return level, slices.Collect(maps.Keys(s.follows))
}
