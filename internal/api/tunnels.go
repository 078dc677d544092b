package api

import (
	"context"
	"sync"
	"time"

	"sandlot/internal/fault"
)

// tunnels are the connections that no longer speak HTTP, and may use a session. http.Server.Shutdown does not wait for
// them, and the context of their requests does not end: without this they would use their sessions when the server stops,
// which then could not sleep.
type tunnels struct {
	cut    context.Context // ends when they have to
	cutAll context.CancelFunc

	mu     sync.Mutex
	closed bool // no more are served
	work   sync.WaitGroup
}

func newTunnels() *tunnels {
	t := &tunnels{}
	t.cut, t.cutAll = context.WithCancel(context.Background())
	return t
}

// begin counts a connection until done is called. end is called when the connection has to end, once at most, and not
// after done.
func (t *tunnels) begin(end func()) (done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fault.New(fault.Internal, "the server stops")
	}
	t.work.Add(1)
	stop := context.AfterFunc(t.cut, end)
	return func() {
		stop()
		t.work.Done()
	}, nil
}

// lastWords is how long connections may take to end that have to.
const lastWords = 3 * time.Second

// EndTunnels waits until all connections have ended that no longer speak HTTP. When ctx ends, it ends the others. It is
// called when no request is served any more.
func (s *Server) EndTunnels(ctx context.Context) {
	t := s.tunnels
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.work.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	t.cutAll()
	select {
	case <-ended:
	case <-time.After(lastWords):
		s.Log.Warn("connections did not end in time", "after", lastWords)
	}
}
