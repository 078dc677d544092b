package servers

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// use returns the server as it runs, and starts it when it does not. The caller
// calls release.
func (s *server) use(ctx context.Context) (*instance, func(), error) {
	for {
		s.mu.Lock()
		if l := s.instance; l != nil {
			l.held++
			s.used = time.Now()
			s.mu.Unlock()
			return l, func() { s.releaseInstance(l) }, nil
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
		select {
		case <-st.done:
			if st.err != nil {
				return nil, nil, st.err
			}
		case <-ctx.Done():
			return nil, nil, fault.From(ctx.Err())
		}
	}
}

func (s *server) releaseInstance(l *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.held--
	s.used = time.Now()
}

// launch starts an attempt. The lock is held, and there is none.
func (s *server) launch() *start {
	ctx, cancel := context.WithCancel(s.servers.life)
	st := &start{cancel: cancel, done: make(chan struct{})}
	s.start = st
	wait := time.Until(s.Earliest)
	s.on(state.Event{What: state.Begins})
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
	var l *instance
	err := s.acquire(ctx)
	if err == nil {
		defer s.release()
		select {
		case <-time.After(wait):
			s.mu.Lock()
			if err = s.unusable(); err == nil {
				s.on(state.Event{What: state.Begins})
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
		s.account.Useful()
		s.instance, s.used = l, time.Now()
		s.on(state.Event{What: state.Started})
	case ctx.Err() != nil && !s.Removed && s.State != state.Disabled:
		s.on(state.Event{What: state.Interrupted})
		err = fault.New(fault.Connection, "%s was stopped while it started", s.title()).With("connection_id",
			s.id).With("name", s.name)
	case errors.As(err, new(unrevealed)):
		s.on(state.Event{What: state.LacksSecret, Why: fault.From(err).Message})
	default: // one of which nothing is known yet cannot be used, so that nobody would start it
		s.on(state.Event{What: state.StartFailed, Why: fault.From(err).Message, Wanted: s.configured && !s.rec.Catalog.Read})
	}
	s.mu.Unlock()
	if err == nil && !s.servers.spawn(l.watch) {
		s.mu.Lock()
		s.instance = nil
		s.mu.Unlock()
		err = fault.New(fault.Connection, "the server is stopping")
	}
	if err != nil && l != nil {
		l.close()
	}
	st.err = err
	s.servers.changed(s.owner.ID)
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
func (s *server) connect(ctx context.Context) (*instance, error) {
	began := time.Now()
	l := newInstance(s)
	limit := handshake(l.settings, s.servers.InstallTimeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !s.configured { // what the operator wrote is as it is
		full, err := s.servers.revealed(ctx, s.owner.ID, l.values)
		if err != nil {
			f := s.lacking(err)
			s.servers.Log.Warn("connection: did not start", "owner", s.owner.ID, "connection", s.id, "name", s.name,
				"why", f)
			return nil, f
		}
		l.values = full
	}
	sess, err := mcpclient.Connect(ctx, l.dial, mcpclient.Options{Name: "sandlot", Version: s.servers.Version,
		Capabilities: l.capabilities(),
		Handshake:    limit, Probe: min(limit/3, 10*time.Second), Older: l.rec.Older || slices.Contains(fetching, path.Base(l.settings.Command)), // what fetches is not started twice
		Handler: l, Reserve: s.servers.room(s.owner.ID), Log: s.servers.Log})
	if err == nil {
		l.session = sess
		err = l.read(ctx, true)
	}
	if err != nil {
		f := s.startFault(l, err, limit)
		l.close()
		s.servers.Log.Warn("connection: did not start", "owner", s.owner.ID, "connection", s.id, "name", s.name, "why",
			f, "error", err)
		return nil, f
	}
	l.resume(ctx)
	s.servers.Log.Info("connection: started", "owner", s.owner.ID, "connection", s.id, "name", s.name,
		"protocol", sess.Version(), "took", time.Since(began).Round(time.Millisecond))
	return l, nil
}

// startFault says in words why a server did not start.
func (s *server) startFault(l *instance, err error, limit time.Duration) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return s.advised(f)
	}
	silent := errors.Is(err, transport.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if how, itself := l.how(0); itself && !silent {
		return s.fault(fault.Connection, err, "did not start: %s%s", how, s.lastWords(l.settings))
	}
	if s.configured && l.settings.Kind != spec.Stdio && !s.owner.Has(auth.Logs) { // where it is, is the operator's
		return s.fault(fault.Connection, err, "cannot be reached, or does not speak MCP; the server's log says more")
	}
	if silent {
		return s.fault(fault.Connection, err,
			"did not answer within %s of its start; it has to speak MCP on its %s%s", limit.Round(time.Second),
			map[bool]string{true: "standard input and output",
				false: "address"}[l.settings.Kind == spec.Stdio], s.lastWords(l.settings))
	}
	return s.fault(fault.Connection, err, "did not start: %s", spec.Text(err.Error(), 500))
}

// stop stops the server for what happens to it; it keeps its place. The server is acquired.
func (s *server) stop(e state.Event) {
	s.mu.Lock()
	l := s.instance
	s.instance = nil
	s.on(e)
	s.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// ended is called when a session is over that nobody ended.
func (s *server) ended(l *instance) {
	how, itself := l.how(process.Farewell)
	l.close()
	err := l.session.Err()
	s.mu.Lock()
	if s.instance != l {
		s.mu.Unlock()
		return
	}
	s.instance = nil
	s.restarts++
	if errors.Is(err, transport.ErrLost) || !itself && l.local() {
		// Its session, or the sandbox that it ran in, is over: it did nothing wrong.
		s.on(state.Event{What: state.SessionOver})
	} else {
		if how == "" && err != nil {
			how = spec.Text(err.Error(), 500)
		}
		s.log.Line("[sandlot] %s", how)
		s.on(state.Event{What: state.Exited, Why: how, Lasted: time.Since(l.since) > state.StableAfter,
			Wanted: l.held > 0 || len(s.follows) > 0 || time.Since(s.used) < state.StableAfter})
	}
	failures := s.Failures
	s.mu.Unlock()
	s.servers.Log.Warn("connection: lost", "owner", s.owner.ID, "connection", s.id, "name", s.name, "why", how, "error",
		err, "failures", failures)
	s.servers.changed(s.owner.ID)
}
