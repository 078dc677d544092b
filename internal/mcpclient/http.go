package mcpclient

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"sandlot/internal/revision"
)

const (
	maxSessionID = 1 << 10
	deleteLimit  = 3 * time.Second
	openLimit    = 250 * time.Millisecond
)

// HTTP reaches a server by Streamable HTTP.
func HTTP(r Remote) Dial {
	return func(context.Context) (Pipe, error) {
		re, err := r.open()
		if err != nil {
			return nil, err
		}
		h := &httpPipe{remote: re, streams: map[int64]context.CancelFunc{}}
		h.ctx, h.cancel = context.WithCancel(context.Background())
		return h, nil
	}
}

// httpPipe sends each message as a request of its own. What the server says
// comes back as its answer: one message, or a stream of events.
type httpPipe struct {
	remote *remote
	to     inbox
	most   int
	room   func() Room
	ctx    context.Context // ends with the pipe
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	working sync.WaitGroup
	session string // the server's name for it, of the older era
	version string // that is agreed
	gone    bool   // the server does not know the session
	streams map[int64]context.CancelFunc
}

func (h *httpPipe) traits() traits { return traits{streams: true} }

func (h *httpPipe) start(to inbox, limit int, room func() Room) {
	h.to, h.most, h.room = to, limit, room
}

// work runs f in a goroutine that close waits for.
func (h *httpPipe) work(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.working.Go(f)
	return true
}

func (h *httpPipe) send(ctx context.Context, m outgoing) error {
	if m.id == 0 {
		return h.tell(ctx, m)
	}
	ctx, cancel := context.WithCancel(h.ctx)
	h.mu.Lock()
	h.streams[m.id] = cancel
	h.mu.Unlock()
	if !h.work(func() {
		defer h.abandon(m.id)
		if err := h.exchange(ctx, m); err != nil && ctx.Err() == nil {
			h.to.fail(m.id, err) // first: it may be told that it can be repeated
			h.lose(err)
		}
	}) {
		h.abandon(m.id)
		return ErrClosed
	}
	return nil
}

func (h *httpPipe) abandon(id int64) {
	h.mu.Lock()
	cancel := h.streams[id]
	delete(h.streams, id)
	h.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// tell sends a message that has no answer.
func (h *httpPipe) tell(ctx context.Context, m outgoing) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	resp, err := h.post(ctx, m)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = h.refused(resp, 0)
	h.lose(err)
	return err
}

// lose ends the session when the server does not know it any more.
func (h *httpPipe) lose(err error) {
	if !errors.Is(err, ErrLost) {
		return
	}
	h.mu.Lock()
	h.gone = true
	h.mu.Unlock()
	h.to.lost(err)
}

// exchange sends a request and takes what comes back until its answer.
func (h *httpPipe) exchange(ctx context.Context, m outgoing) error {
	resp, err := h.post(ctx, m)
	if err != nil {
		return err
	}
	defer func() { resp.Body.Close() }()
	if err := h.refused(resp, m.id); err != nil {
		return err
	}
	if m.method == "initialize" {
		if err := h.begin(resp); err != nil {
			return err
		}
	}
	switch contentType(resp) {
	case "application/json":
		return h.one(ctx, resp, m.id)
	case "text/event-stream":
		return h.follow(ctx, m, resp)
	}
	if resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent {
		return fmt.Errorf("the server took %s and did not answer it (HTTP %d)", clip(m.method, 100), resp.StatusCode)
	}
	return &statusError{status: resp.StatusCode, said: fmt.Sprintf("neither JSON nor a stream of events, but %q",
		clip(resp.Header.Get("Content-Type"), 100))}
}

// begin notes the session that initialize has made.
func (h *httpPipe) begin(resp *http.Response) error {
	id := resp.Header.Get("Mcp-Session-Id")
	if len(id) > maxSessionID || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return errors.New("the server's Mcp-Session-Id is not one of at most 1024 visible ASCII characters")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session = id
	return nil
}

func (h *httpPipe) post(ctx context.Context, m outgoing) (*http.Response, error) {
	header := h.headers(m.version)
	for k, v := range m.header {
		header[k] = v
	}
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json, text/event-stream")
	return h.remote.do(ctx, ask{method: http.MethodPost, url: h.remote.url, body: m.body, header: header})
}

// headers are those of every request; an empty version is the agreed one.
func (h *httpPipe) headers(version string) http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	header := http.Header{}
	if version = cmp.Or(version, h.version); version != "" {
		header.Set("MCP-Protocol-Version", version)
	}
	if h.session != "" {
		header.Set("Mcp-Session-Id", h.session)
	}
	return header
}

// refused turns an answer that is an error into one.
func (h *httpPipe) refused(resp *http.Response, id int64) error {
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxWords)) // what came before it broke off
	e := &statusError{status: resp.StatusCode, said: clip(string(body), 300)}
	said := spokenError(body, id)
	if said != nil {
		e.cause = said
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == "" {
		return e
	}
	switch {
	case resp.StatusCode == http.StatusNotFound && (said == nil || said.Code != codeUnknownMethod),
		// Servers after the examples of the TypeScript SDK say it so.
		resp.StatusCode == http.StatusBadRequest && said != nil && said.Code == codeBusy &&
			strings.Contains(strings.ToLower(said.Message), "session"):
		return fmt.Errorf("%w (%v)", ErrLost, e)
	}
	return e
}

// spokenError reads a JSON-RPC error that answers a request, or nothing at all.
func spokenError(body []byte, id int64) *Error {
	all, err := decode(body)
	if err != nil || len(all) != 1 || all[0].Method != nil {
		return nil
	}
	if n, ok := ours(all[0].ID); len(all[0].ID) > 0 && string(all[0].ID) != "null" && (!ok || n != id) {
		return nil
	}
	_, err = all[0].outcome()
	said, _ := err.(*Error)
	return said
}

// one takes an answer that is JSON.
func (h *httpPipe) one(ctx context.Context, resp *http.Response, id int64) error {
	b, room, err := h.whole(ctx, resp)
	if err != nil {
		room.Release()
		return err
	}
	answered, ok := h.to.receive(b, room)
	switch {
	case !ok:
		return fmt.Errorf("the server's answer is no JSON-RPC message: %s", clip(string(b[:min(len(b), 200)]), 200))
	case answered == id:
		return nil
	}
	if said := spokenError(b, id); said != nil { // it could not tell what it answers
		return said
	}
	return errors.New("the server's answer is one to something else")
}

// whole reads an answer to its end. The room is the caller's in any case.
func (h *httpPipe) whole(ctx context.Context, resp *http.Response) (b []byte, room Room, err error) {
	room = noRoom{}
	b, err = io.ReadAll(io.LimitReader(resp.Body, min(largeFrom, int64(h.most)+1)))
	if err == nil && len(b) == largeFrom {
		size := h.most
		if resp.ContentLength > 0 {
			size = int(min(int64(size), resp.ContentLength))
		}
		var done func()
		if room, done, err = wait(ctx, h.room, size, func() { resp.Body.Close() }); err != nil {
			return nil, room, err
		}
		defer done()
		all := bytes.NewBuffer(make([]byte, 0, 2*largeFrom))
		all.Write(b)
		_, err = all.ReadFrom(io.LimitReader(resp.Body, int64(h.most)+1-largeFrom))
		b = all.Bytes()
	}
	if len(b) > h.most {
		return nil, room, fmt.Errorf("%w: an answer of over %d bytes", ErrTooLarge, h.most)
	}
	if err != nil {
		return nil, room, fmt.Errorf("the server's answer broke off: %w", err)
	}
	return b, room, nil
}

// agreed implements Pipe. In the older era a stream is opened for what the
// server says unasked. What it says before that is there is lost at many
// servers: so it is waited for, but not long.
func (h *httpPipe) agreed(version string) {
	h.mu.Lock()
	h.version = version
	h.mu.Unlock()
	if revision.IsStateless(version) {
		return
	}
	open, say := context.WithTimeout(h.ctx, openLimit)
	if h.work(func() { h.hear(say) }) {
		<-open.Done()
	}
	say()
}

func (h *httpPipe) close() error {
	h.mu.Lock()
	h.closed = true
	bye := h.session != "" && !h.gone
	h.mu.Unlock()
	var err error
	if bye {
		err = h.delete()
	}
	h.cancel()
	h.working.Wait()
	h.remote.close()
	return err
}

// delete ends the session at the server, which may not want that (405) or not
// know it any more.
func (h *httpPipe) delete() error {
	ctx, cancel := context.WithTimeout(h.ctx, deleteLimit)
	defer cancel()
	resp, err := h.remote.do(ctx, ask{method: http.MethodDelete, url: h.remote.url, header: h.headers(""), quiet: true})
	if err != nil {
		return fmt.Errorf("the session could not be ended at the server: %w", err)
	}
	return resp.Body.Close()
}

func contentType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil { // parameters that cannot be read do not matter
		t, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	}
	return strings.ToLower(strings.TrimSpace(t))
}
