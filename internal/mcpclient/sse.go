package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// endpointLimit is how long the address to write to may be waited for.
const endpointLimit = 15 * time.Second

// SSE reaches a server by the transport that came before Streamable HTTP: one
// stream of events from the server, whose first says where to write to. The
// newer era does not know it.
func SSE(r Remote) Dial {
	return func(ctx context.Context) (Pipe, error) {
		re, err := r.open()
		if err != nil {
			return nil, err
		}
		p := &ssePipe{remote: re, known: make(chan struct{})}
		p.ctx, p.cancel = context.WithCancel(context.Background())
		stop := context.AfterFunc(ctx, p.cancel) // the stream outlives the dialling, if that succeeds
		p.resp, err = re.do(p.ctx, ask{method: http.MethodGet, url: re.url,
			header: http.Header{"Accept": {"text/event-stream"}}})
		if !stop() {
			if err == nil {
				p.resp.Body.Close()
			}
			err = context.Cause(ctx)
		}
		if err == nil {
			err = p.opened()
		}
		if err != nil {
			p.cancel()
			re.close()
			return nil, err
		}
		return p, nil
	}
}

type ssePipe struct {
	remote *remote
	resp   *http.Response
	ctx    context.Context // ends with the pipe
	cancel context.CancelFunc
	to     inbox
	most   int
	room   func() Room
	known  chan struct{} // closed when endpoint is set
	// endpoint is where to write to.
	endpoint *url.URL

	mu      sync.Mutex
	closed  bool
	working sync.WaitGroup
}

// opened judges the answer to the GET.
func (p *ssePipe) opened() error {
	if p.resp.StatusCode == http.StatusOK && contentType(p.resp) == "text/event-stream" {
		return nil
	}
	defer p.resp.Body.Close()
	if p.resp.StatusCode == http.StatusOK {
		return &statusError{status: p.resp.StatusCode, said: fmt.Sprintf("not a stream of events, but %q",
			clip(contentType(p.resp), 100))}
	}
	return &statusError{status: p.resp.StatusCode, said: words(p.resp)}
}

func (p *ssePipe) traits() traits { return traits{older: true} }
func (p *ssePipe) agreed(string)  {}
func (p *ssePipe) abandon(int64)  {}

func (p *ssePipe) start(to inbox, limit int, room func() Room) {
	p.to, p.most, p.room = to, limit, room
	p.work(func() {
		defer p.resp.Body.Close()
		if err := p.listen(); p.ctx.Err() == nil {
			to.lost(fmt.Errorf("%w: its stream of events ended (%w)", ErrClosed, err))
		}
	})
}

func (p *ssePipe) work(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.working.Go(f)
	return true
}

func (p *ssePipe) listen() error {
	r := newEventReader(p.resp.Body, p.most)
	r.wants = func() (Room, func(), error) { return wait(p.ctx, p.room, p.most, func() { p.resp.Body.Close() }) }
	for {
		e, err := r.next()
		if err != nil {
			return err
		}
		switch e.name {
		case "endpoint":
			e.room.Release()
			if err := p.address(string(e.data)); err != nil {
				return err
			}
		case "", "message":
			p.to.receive(e.data, e.room) // or drop it: some keep a stream open by events that are none
		default:
			e.room.Release()
		}
	}
}

// address notes where to write to. It must be at the origin that was asked:
// credentials go there.
func (p *ssePipe) address(s string) error {
	u, err := p.remote.url.Parse(s)
	if err != nil || !sameOrigin(p.remote.url, u) {
		return fmt.Errorf("the server wants to be written to at another origin, %q, which is not done", clip(s, 200))
	}
	select {
	case <-p.known:
		return errors.New("the server says twice where to write to")
	default:
	}
	p.endpoint = u
	close(p.known)
	return nil
}

func (p *ssePipe) send(ctx context.Context, m outgoing) error {
	if m.id == 0 {
		return p.post(ctx, m)
	}
	// A server may hold its answer to the POST back until the call is done.
	if !p.work(func() {
		if err := p.post(p.ctx, m); err != nil && p.ctx.Err() == nil {
			p.to.fail(m.id, err)
		}
	}) {
		return ErrClosed
	}
	return nil
}

func (p *ssePipe) post(ctx context.Context, m outgoing) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	t := time.NewTimer(endpointLimit)
	defer t.Stop()
	select {
	case <-p.known:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return fmt.Errorf("%w: it did not say where to write to within %s", ErrTimeout, endpointLimit)
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if m.version != "" {
		header.Set("MCP-Protocol-Version", m.version)
	}
	resp, err := p.remote.do(ctx, ask{method: http.MethodPost, url: p.endpoint, body: m.body, header: header})
	if err != nil {
		return err
	}
	defer drain(resp.Body)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return &statusError{status: resp.StatusCode, said: words(resp)}
	}
	return nil
}

func (p *ssePipe) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.working.Wait()
	p.resp.Body.Close()
	p.remote.close()
	return nil
}
