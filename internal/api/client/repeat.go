package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/api/protocol"
	"sandlot/internal/secret"
)

// repeatAfter is how long the client waits before it sends a request again whose connection was lost.
var repeatAfter = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

const (
	pollInUse = time.Second     // between two questions whether the first request has ended
	maxInUse  = 9 * time.Minute // how long to ask; the server stores the answer a little longer
)

// makes reports whether a request makes something, so that it must not be done twice. Calls of other tools have no
// key: they end when the client disconnects, and with a key they would go on.
func makes(method, path string) bool {
	return method == http.MethodPost && (!strings.HasPrefix(path, "/v1/tools/") || path == "/v1/tools/expose_port")
}

// readOnce sends a POST that is done once, however often its connection is lost, and reads the JSON response into out,
// unless it is nil. The server does nothing when it cannot know whether it has done the request.
func (c *Client) readOnce(ctx context.Context, path string, body []byte, out any) error {
	key, first := secret.ID(), time.Now()
	var lost error // the last connection
	for losses := 0; ; {
		age := time.Duration(0)
		if lost != nil {
			age = time.Since(first)
		}
		text, sent, err := c.tryOnce(ctx, path, key, age, body)
		problem, _ := errors.AsType[*protocol.Problem](err)
		_, broken := errors.AsType[*url.Error](err)
		wait := pollInUse
		switch {
		case err == nil && out == nil:
			return nil
		case err == nil:
			return json.Unmarshal(text, out)
		case ctx.Err() != nil:
			return err
		case problem != nil && problem.Title == protocol.KeyInUse && time.Since(first) < maxInUse: // of the first try
		case problem != nil && problem.Title == protocol.KeyLost:
			return fmt.Errorf("the connection was lost (%w): %w", lost, problem)
		case !broken, !sent && lost == nil:
			return err
		case losses == len(repeatAfter):
			return fmt.Errorf("the connection was lost, and nobody can tell whether the request was done: %w", err)
		default:
			lost, wait = err, repeatAfter[losses]
			losses++
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// tryOnce sends a POST with a key, and returns the body of the response. sent says whether the server may have got it.
func (c *Client) tryOnce(ctx context.Context, path, key string, age time.Duration,
	body []byte) (text []byte, sent bool, err error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }})
	r, err := c.request(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	// net/http would send a request with a key again by itself, and not say how old it is.
	r.GetBody, r.Body = nil, io.NopCloser(bytes.NewReader(body))
	r.Header.Set(protocol.IdempotencyKey, key)
	if age > 0 {
		r.Header.Set(protocol.IdempotencyAge, strconv.FormatInt(max(1, age.Milliseconds()), 10))
	}
	resp, err := c.send(r)
	if err != nil {
		return nil, sent, err
	}
	defer resp.Body.Close()
	if text, err = io.ReadAll(resp.Body); err != nil {
		return nil, true, &url.Error{Op: "Post", URL: path, Err: err}
	}
	return text, true, nil
}
