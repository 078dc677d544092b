package dockercommand

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"
)

const (
	// pingTimeout is how long a daemon may take to answer a ping.
	pingTimeout = 8 * time.Second
	// silenceTime is how long calls fail at once after a daemon has not answered a ping: those that waited for it.
	silenceTime = time.Second
)

// errSilent is the error of a daemon that accepts connections and does not answer.
var errSilent = errors.New("it accepts connections, and has not answered a ping")

// silence bounds the pings by which a client finds out the daemon's version. The client makes one at a time, under a
// lock for which all its calls wait without a deadline, and goes on with the call when the ping has failed.
type silence struct {
	timeout time.Duration
	mu      sync.Mutex
	since   time.Time // when the last ping failed; zero: it was answered
}

// ping is what is known of a ping. One that was not sent says nothing of the daemon.
type ping struct{ sent, answered atomic.Bool }

type pingKey struct{}

// options returns the options of a client whose pings are bounded.
func (s *silence) options() []client.Opt {
	return []client.Opt{client.WithHTTPRequestHook(s.request), client.WithHTTPResponseHook(s.response)}
}

// request bounds a ping. Just after one that failed, it refuses requests.
func (s *silence) request(req *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() && time.Since(s.since) < silenceTime {
		return errSilent
	}
	if !strings.HasSuffix(req.URL.Path, "/_ping") {
		return nil
	}
	p := &ping{}
	parent := req.Context()
	ctx, cancel := context.WithCancelCause(parent)
	time.AfterFunc(s.timeout, func() {
		s.mu.Lock()
		if p.sent.Load() && !p.answered.Load() && parent.Err() == nil {
			s.since = time.Now()
		}
		s.mu.Unlock()
		cancel(errSilent)
	})
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) { p.sent.Store(i.Err == nil) }})
	*req = *req.WithContext(context.WithValue(ctx, pingKey{}, p))
	return nil
}

// response notes that a ping was answered.
func (s *silence) response(resp *http.Response) {
	if resp.Request == nil {
		return
	}
	if p, ok := resp.Request.Context().Value(pingKey{}).(*ping); ok {
		p.answered.Store(true)
		s.mu.Lock()
		s.since = time.Time{}
		s.mu.Unlock()
	}
}
