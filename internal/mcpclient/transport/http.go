package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"sandlot/internal/revision"
)

const (
	maxSessionID  = 1 << 10
	deleteTimeout = 3 * time.Second
	// openTimeout is how long the stream of notifications may take to open.
	openTimeout = 250 * time.Millisecond
)

// HTTP dials a server over Streamable HTTP.
func HTTP(r Remote) Dial {
	return func(context.Context) (Transport, error) {
		re, err := r.newRemote()
		if err != nil {
			return nil, err
		}
		return &streamable{remote: re, cancels: map[int64]context.CancelFunc{}}, nil
	}
}

// streamable sends each message as an HTTP POST. The response has the server's messages:
// one as JSON, or any number as a stream of events.
type streamable struct {
	*remote

	// Guarded by remote.mu.
	sessionID   string                       // the Mcp-Session-Id, in the stateful protocol; "": none
	negotiated  string                       // the negotiated revision of the protocol; "": none yet
	sessionLost bool                         // the server answered that it does not know the session
	cancels     map[int64]context.CancelFunc // cancel HTTP requests, by the id of the JSON-RPC request
}

// Traits implements Transport.
func (h *streamable) Traits() Traits { return Traits{StreamPerRequest: true} }

// Send implements Transport.
func (h *streamable) Send(ctx context.Context, m Outgoing) error {
	if m.ID == 0 {
		return h.notify(ctx, m)
	}
	ctx, cancel := context.WithCancel(h.ctx)
	h.mu.Lock()
	h.cancels[m.ID] = cancel
	h.mu.Unlock()
	if !h.startGoroutine(func() {
		defer h.Abandon(m.ID)
		if err := h.exchange(ctx, m); err != nil && ctx.Err() == nil {
			h.receiver.Fail(m.ID, err) // before the session ends: ErrSessionLost allows to repeat this call
			h.endIfLost(err)
		}
	}) {
		h.Abandon(m.ID)
		return ErrClosed
	}
	return nil
}

// Abandon implements Transport.
func (h *streamable) Abandon(id int64) {
	h.mu.Lock()
	cancel := h.cancels[id]
	delete(h.cancels, id)
	h.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// notify sends a message that has no response: a notification, or an answer to the server.
func (h *streamable) notify(ctx context.Context, m Outgoing) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	resp, err := h.post(ctx, m)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = h.checkStatus(resp, 0)
	h.endIfLost(err)
	return err
}

// endIfLost ends the session if err is ErrSessionLost.
func (h *streamable) endIfLost(err error) {
	if !errors.Is(err, ErrSessionLost) {
		return
	}
	h.mu.Lock()
	h.sessionLost = true
	h.mu.Unlock()
	h.receiver.Ended(err)
}

// exchange sends a request, and reads messages until its response has come.
func (h *streamable) exchange(ctx context.Context, m Outgoing) error {
	resp, err := h.post(ctx, m)
	if err != nil {
		return err
	}
	defer func() { resp.Body.Close() }()
	if err := h.checkStatus(resp, m.ID); err != nil {
		return err
	}
	if m.Method == "initialize" {
		if err := h.storeSessionID(resp); err != nil {
			return err
		}
	}
	switch contentType(resp) {
	case "application/json":
		return h.readJSON(ctx, resp, m.ID)
	case "text/event-stream":
		return h.followStream(ctx, m, resp)
	}
	if resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent {
		return fmt.Errorf("the server took %s and did not answer it (HTTP %d)", Clip(m.Method, 100), resp.StatusCode)
	}
	return &statusError{status: resp.StatusCode, body: fmt.Sprintf("neither JSON nor a stream of events, but %q",
		Clip(resp.Header.Get("Content-Type"), 100))}
}

// storeSessionID stores the session id that the response to initialize has.
func (h *streamable) storeSessionID(resp *http.Response) error {
	id := resp.Header.Get("Mcp-Session-Id")
	if len(id) > maxSessionID || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return errors.New("the server's Mcp-Session-Id is not one of at most 1024 visible ASCII characters")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessionID = id
	return nil
}

func (h *streamable) post(ctx context.Context, m Outgoing) (*http.Response, error) {
	header := h.headers(m.Version)
	maps.Copy(header, m.Header)
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json, text/event-stream")
	return h.do(ctx, httpRequest{method: http.MethodPost, url: h.url, body: m.Body, header: header})
}

// headers returns the headers of every request. An empty version means the negotiated one.
func (h *streamable) headers(version string) http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	header := http.Header{}
	if version = cmp.Or(version, h.negotiated); version != "" {
		header.Set("MCP-Protocol-Version", version)
	}
	if h.sessionID != "" {
		header.Set("Mcp-Session-Id", h.sessionID)
	}
	return header
}

// checkStatus returns an error for a response without a success status, and nil for others.
func (h *streamable) checkStatus(resp *http.Response, id int64) error {
	if isSuccess(resp) {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // on an error, body has what was read before
	e := &statusError{status: resp.StatusCode, body: Clip(string(body), maxExcerpt)}
	rpcErr := errorResponse(body, id)
	if rpcErr != nil {
		e.cause = rpcErr
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessionID == "" {
		return e
	}
	switch {
	case resp.StatusCode == http.StatusNotFound && (rpcErr == nil || rpcErr.Code != CodeUnknownMethod),
		// Servers based on the examples of the TypeScript SDK answer so for an unknown session.
		resp.StatusCode == http.StatusBadRequest && rpcErr != nil && rpcErr.Code == CodeBusy &&
			strings.Contains(strings.ToLower(rpcErr.Message), "session"):
		return fmt.Errorf("%w (%v)", ErrSessionLost, e)
	}
	return e
}

// errorResponse returns the JSON-RPC error in body, if body is an error response with the
// id of the request or without an id; else nil.
func errorResponse(body []byte, id int64) *Error {
	all, err := Decode(body)
	if err != nil || len(all) != 1 || all[0].Method != nil {
		return nil
	}
	if n, ok := ParseRequestID(all[0].ID); len(all[0].ID) > 0 && string(all[0].ID) != "null" && (!ok || n != id) {
		return nil
	}
	_, err = all[0].Outcome()
	rpcErr, _ := err.(*Error)
	return rpcErr
}

// readJSON reads a response body that is JSON.
func (h *streamable) readJSON(ctx context.Context, resp *http.Response, id int64) error {
	reserver := h.newReserver(ctx, resp, id)
	defer reserver.release()
	b, err := h.readBody(resp, &reserver)
	if err != nil {
		return err
	}
	answered, ok := h.receiver.Receive(b, reserver.transfer())
	switch {
	case !ok:
		return fmt.Errorf("the server's answer is not a JSON-RPC message: %s", Clip(string(b[:min(len(b), 200)]), 200))
	case answered == id:
		return nil
	}
	if rpcErr := errorResponse(b, id); rpcErr != nil { // without an id: the server could not parse the request
		return rpcErr
	}
	return errors.New("the server's answer is one to something else")
}

// readBody reads a response body to its end.
func (h *streamable) readBody(resp *http.Response, reserver *reserver) ([]byte, error) {
	if resp.ContentLength > 0 {
		reserver.size = int(min(int64(reserver.size), resp.ContentLength))
	}
	var all []byte
	part := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(part)
		if refused := reserver.admit(len(all) + n); refused != nil {
			return nil, refused
		}
		all = extend(all, part[:n])
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil && reserver.isLost():
			return nil, ErrSlow
		case err != nil:
			return nil, fmt.Errorf("the server's answer broke off: %w", err)
		}
	}
}

// Negotiated implements Transport. In the stateful protocol it opens the stream of the
// notifications that belong to no request. Many servers drop notifications while the
// stream is not open, so Negotiated waits for it, for at most openTimeout.
func (h *streamable) Negotiated(version string) {
	h.mu.Lock()
	h.negotiated = version
	h.mu.Unlock()
	if revision.IsStateless(version) {
		return
	}
	openCtx, opened := context.WithTimeout(h.ctx, openTimeout)
	defer opened()
	if h.startGoroutine(func() { h.readNotifications(opened) }) {
		<-openCtx.Done()
	}
}

// Close implements Transport.
func (h *streamable) Close() error {
	h.stopStarting()
	h.mu.Lock()
	hasSession := h.sessionID != "" && !h.sessionLost
	h.mu.Unlock()
	var err error
	if hasSession {
		err = h.deleteSession()
	}
	h.close()
	return err
}

// deleteSession ends the session at the server. The status of the response is ignored: servers
// need not offer that (405), and may have forgotten the session (404).
func (h *streamable) deleteSession() error {
	ctx, cancel := context.WithTimeout(h.ctx, deleteTimeout)
	defer cancel()
	resp, err := h.do(ctx, httpRequest{method: http.MethodDelete, url: h.url, header: h.headers(""), noLogin: true})
	if err != nil {
		return fmt.Errorf("the session could not be ended at the server: %w", err)
	}
	return resp.Body.Close()
}
