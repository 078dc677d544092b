package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// endpointTimeout is how long the server may take to send the event with the endpoint.
const endpointTimeout = 15 * time.Second

// SSE dials a server over HTTP+SSE, the transport before Streamable HTTP: one stream of
// events from the server, whose first event names the endpoint to post messages to. The
// stateless protocol does not have this transport.
func SSE(r Remote) Dial {
	return func(ctx context.Context) (Transport, error) {
		re, err := r.newRemote()
		if err != nil {
			return nil, err
		}
		s := &sse{remote: re, endpointSet: make(chan struct{})}
		stop := context.AfterFunc(ctx, s.cancel) // the stream outlives ctx, if it opens
		s.resp, err = s.do(s.ctx, httpRequest{method: http.MethodGet, url: s.url,
			header: http.Header{"Accept": {"text/event-stream"}}})
		if !stop() {
			if err == nil {
				s.resp.Body.Close()
			}
			err = context.Cause(ctx)
		}
		if err == nil {
			err = s.checkOpened()
		}
		if err != nil {
			s.close()
			return nil, err
		}
		return s, nil
	}
}

type sse struct {
	*remote
	resp        *http.Response
	endpointSet chan struct{} // closed when endpoint is set
	// endpoint is where messages are posted to.
	endpoint *url.URL
}

// checkOpened checks the response to the GET.
func (s *sse) checkOpened() error {
	isStream := contentType(s.resp) == "text/event-stream"
	if s.resp.StatusCode == http.StatusOK && isStream {
		return nil
	}
	defer s.resp.Body.Close()
	if s.resp.StatusCode == http.StatusOK {
		return errNotEventStream(s.resp)
	}
	return &statusError{status: s.resp.StatusCode, body: bodyExcerpt(s.resp)}
}

func (s *sse) Traits() Traits    { return Traits{StatefulOnly: true} }
func (s *sse) Negotiated(string) {}
func (s *sse) Abandon(int64)     {}

// Start implements Transport.
func (s *sse) Start(to Receiver, l Limits) {
	s.remote.Start(to, l)
	s.startGoroutine(func() {
		defer s.resp.Body.Close()
		if err := s.listen(); s.ctx.Err() == nil {
			to.Ended(fmt.Errorf("%w: its stream of events ended (%w)", ErrClosed, err))
		}
	})
}

func (s *sse) listen() error {
	r := s.newEventReader(s.ctx, s.resp, 0)
	for {
		e, err := r.next()
		switch {
		case err != nil:
			return err
		case e.isMessage():
			s.receiver.Receive(e.data, e.reservation) // ignores what is no message, such as keep-alives
			continue
		case e.name == "endpoint":
			err = s.setEndpoint(string(e.data))
		}
		e.reservation.Release()
		if err != nil {
			return err
		}
	}
}

// setEndpoint sets the URL that messages are posted to. It must have the origin of the
// server's URL, because the requests have the credentials for that.
func (s *sse) setEndpoint(address string) error {
	u, err := s.url.Parse(address)
	if err != nil || !sameOrigin(s.url, u) {
		return fmt.Errorf("the server wants to be written to at another origin, %q, which is not done",
			Clip(address, 200))
	}
	if s.endpoint != nil {
		return errors.New("the server says twice where to write to")
	}
	s.endpoint = u
	close(s.endpointSet)
	return nil
}

// Send implements Transport.
func (s *sse) Send(ctx context.Context, m Outgoing) error {
	if m.ID == 0 {
		return s.post(ctx, m)
	}
	// Some servers answer the POST only when the call has ended.
	if !s.startGoroutine(func() {
		if err := s.post(s.ctx, m); err != nil && s.ctx.Err() == nil {
			s.receiver.Fail(m.ID, err)
		}
	}) {
		return ErrClosed
	}
	return nil
}

func (s *sse) post(ctx context.Context, m Outgoing) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	select {
	case <-s.endpointSet:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(endpointTimeout):
		return fmt.Errorf("%w: it did not say where to write to within %s", ErrTimeout, endpointTimeout)
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if m.Version != "" {
		header.Set("MCP-Protocol-Version", m.Version)
	}
	resp, err := s.do(ctx, httpRequest{method: http.MethodPost, url: s.endpoint, body: m.Body, header: header})
	if err != nil {
		return err
	}
	defer discard(resp.Body)
	if !isSuccess(resp) {
		return &statusError{status: resp.StatusCode, body: bodyExcerpt(resp)}
	}
	return nil
}

// Close implements Transport.
func (s *sse) Close() error {
	s.close()
	_ = s.resp.Body.Close() // its connection is closed already
	return nil
}
