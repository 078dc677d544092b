// Package client is a client of the HTTP API, through the server's socket or its URL.
package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
)

// buffer is the size of the buffers through which files are copied, in bytes.
const buffer = 256 << 10

// Client is a client of one server.
type Client struct {
	base  string
	token secret.Value
	user  string // of the service whose token it is; empty: none
	dial  func(ctx context.Context) (net.Conn, error)
	http  *http.Client
}

// New returns a client of the server at a URL, or, when server is empty, of the one at the
// path socket. It does not connect.
func New(socket, server string, token secret.Value) (*Client, error) {
	c := &Client{base: "http://sandlot", token: token}
	c.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	if server != "" {
		u, err := url.Parse(strings.TrimSuffix(strings.TrimSuffix(server, "/"), "/mcp"))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("server %q must be a URL such as http://localhost:8000", server)
		}
		c.base = u.String()
		c.dial = dialTo(u)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }
	c.http = &http.Client{Transport: &http.Transport{DialContext: dial, DialTLSContext: dial,
		WriteBufferSize: buffer, ReadBufferSize: buffer}}
	return c, nil
}

// ActFor makes c send its requests for a user of the service whose token it has.
func (c *Client) ActFor(user string) { c.user = user }

func dialTo(u *url.URL) func(ctx context.Context) (net.Conn, error) {
	dial, port := new(net.Dialer).DialContext, "80"
	if u.Scheme == "https" {
		dial, port = new(tls.Dialer).DialContext, "443"
	}
	if u.Port() != "" {
		port = u.Port()
	}
	address := net.JoinHostPort(u.Hostname(), port)
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, "tcp", address) }
}

// NewSession creates a session and returns its id.
func (c *Client) NewSession(ctx context.Context, r protocol.SessionRequest) (string, error) {
	var made hub.Session
	err := c.JSON(ctx, "POST", "/v1/sessions", r, &made)
	return made.ID, err
}

// Alive reports whether the server accepts connections.
func (c *Client) Alive(ctx context.Context) bool {
	conn, err := c.dial(ctx)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Address returns the MCP address at which the server of the socket listens for clients of this machine; empty: it does
// not, or c is not a client of a socket.
func (c *Client) Address(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var alive protocol.Readiness
	if err := c.JSON(ctx, "GET", "/healthz", nil, &alive); err != nil {
		return ""
	}
	return alive.Address
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	if c.user != "" {
		r.Header.Set(auth.UserHeader, c.user)
	}
	return r, nil
}

// do sends a request. The response has a status below 300; any other is an error. size is
// the length of the body in bytes; negative: net/http finds it out.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	r, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if size >= 0 {
		r.ContentLength = size
	}
	return c.send(r)
}

func (c *Client) send(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
			return nil, noServer(err)
		}
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, responseError(resp)
}

func noServer(err error) error {
	return fmt.Errorf("no server answers: %w; start one with `sandlot serve`, or name one with --server", err)
}

func responseError(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	p := new(protocol.Problem)
	if json.Unmarshal(text, p) == nil && p.Detail != "" {
		return p
	}
	return fmt.Errorf("the server answered with status %d: %s", resp.StatusCode, fault.Printable(string(text), 500))
}

// JSON sends in as JSON, unless it is nil, and reads the JSON response into out, unless it
// is nil. A request that makes something has an idempotency key, and is sent again when its connection is lost.
func (c *Client) JSON(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	var encoded []byte
	if in != nil {
		var err error
		if encoded, err = json.Marshal(in); err != nil {
			return err
		}
		body = bytes.NewReader(encoded)
	}
	if makes(method, path) && len(encoded) <= protocol.MaxKeyed {
		return c.readOnce(ctx, path, encoded, out)
	}
	return c.read(ctx, method, path, body, out)
}

// pageSize is how many entries List asks for at once.
const pageSize = "1000"

// List reads a list of the API with all its pages. out is a pointer to a struct with the fields of the answer.
func (c *Client) List(ctx context.Context, path string, out any) error {
	fields, lists := map[string]json.RawMessage{}, map[string][]json.RawMessage{}
	path, given, _ := strings.Cut(path, "?")
	query, err := url.ParseQuery(given)
	if err != nil {
		return err
	}
	for query.Set("limit", pageSize); ; {
		page := map[string]json.RawMessage{}
		if err := c.JSON(ctx, "GET", path+"?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		for name, value := range page {
			var entries []json.RawMessage
			if json.Unmarshal(value, &entries) != nil || entries == nil {
				fields[name] = value
				continue
			}
			lists[name] = append(lists[name], entries...)
		}
		var next string
		if json.Unmarshal(page[nextCursor], &next) != nil || next == "" {
			break
		}
		if next == query.Get("cursor") {
			return errors.New("the server answers with the same page again")
		}
		query.Set("cursor", next)
	}
	delete(fields, nextCursor)
	for name, entries := range lists {
		if entries == nil {
			entries = []json.RawMessage{}
		}
		fields[name], _ = json.Marshal(entries) // JSON of the server
	}
	whole, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return json.Unmarshal(whole, out)
}

// nextCursor is the field of an answer that has the cursor of the next page.
const nextCursor = "next_cursor"

// read sends the body unchanged, and reads the JSON response into out, unless it is nil.
func (c *Client) read(ctx context.Context, method, path string, body io.Reader, out any) error {
	resp, err := c.do(ctx, method, path, body, -1)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// SetSecret stores a secret of the caller, and returns it without its value. The query has what it is bound to: host,
// header, basic.
func (c *Client) SetSecret(ctx context.Context, name string, query url.Values,
	value secret.Value) (s hub.Secret, err error) {
	err = c.read(ctx, "PUT", "/v1/secrets/"+url.PathEscape(name)+"?"+query.Encode(),
		strings.NewReader(value.Reveal()), &s)
	return s, err
}

// Events reads the events that match the query (kind, session, principal, since, limit, follow). It
// calls each for every event, and for every report of lost events; the other argument is nil. It
// returns the first error of each, or nil when the server ends the stream.
func (c *Client) Events(ctx context.Context, query url.Values, each func(*event.Event, *protocol.Lost) error) error {
	return c.EventLines(ctx, query, func(data []byte, lost bool) error {
		if lost {
			l := new(protocol.Lost)
			if err := json.Unmarshal(data, l); err != nil {
				return err
			}
			return each(nil, l)
		}
		e := new(event.Event)
		if err := json.Unmarshal(data, e); err != nil {
			return err
		}
		return each(e, nil)
	})
}

// EventLines is Events with the JSON as the server sent it: of an event, or of a report of lost events.
func (c *Client) EventLines(ctx context.Context, query url.Values, each func(data []byte, lost bool) error) error {
	resp, err := c.do(ctx, "GET", "/v1/events?"+query.Encode(), nil, -1)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	kind := ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			kind = value
		case "data":
			if err := each([]byte(value), kind == "lost"); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// SessionPath is the path of a session in the API.
func SessionPath(session string) string { return "/v1/sessions/" + url.PathEscape(session) }

// FilePath is the path of a session's file in the API.
func FilePath(session, file string) string {
	return SessionPath(session) + "/files" + (&url.URL{Path: "/" + strings.TrimPrefix(file, "/")}).EscapedPath()
}

// Download copies a file of a session to w.
func (c *Client) Download(ctx context.Context, session, file string, w io.Writer) (int64, error) {
	resp, err := c.do(ctx, "GET", FilePath(session, file), nil, -1)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return conn.Copy(w, resp.Body, buffer)
}

// Upload writes a file of a session from r, which has size bytes.
func (c *Client) Upload(ctx context.Context, session, file string, r io.Reader, size int64) error {
	var body io.Reader = http.NoBody
	if size > 0 {
		body = io.NopCloser(r)
	}
	resp, err := c.do(ctx, "PUT", FilePath(session, file), body, size)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// databasePath is the path of the database in the API.
const databasePath = "/v1/database"

// Restore sends a backup of size bytes, which replaces all that the server has stored, and waits until the server has
// restarted with it. It returns how that ended.
func (c *Client) Restore(ctx context.Context, backup io.Reader, size int64) (r hub.Restore, err error) {
	resp, err := c.do(ctx, http.MethodPut, databasePath, io.NopCloser(backup), size)
	if err != nil {
		return r, err
	}
	err = errors.Join(json.NewDecoder(resp.Body).Decode(&r), resp.Body.Close())
	if err != nil {
		return r, err
	}
	for began := time.Now(); ; {
		var now hub.Database
		err := c.read(ctx, http.MethodGet, databasePath, nil, &now)
		switch problem, _ := errors.AsType[*protocol.Problem](err); {
		case err == nil && now.Restore != nil && now.Restore.ID == r.ID && now.Restore.State != hub.RestorePending:
			return *now.Restore, nil
		case problem != nil && problem.Status < 500:
			return r, fmt.Errorf("the server has restarted, and does not say whether the backup is restored: %w", err)
		case time.Since(began) > restoreTimeout:
			return r, fmt.Errorf("the backup is on the server, which has not restarted yet; its log says more (%w)",
				cmp.Or(err, errors.New("it answers as before")))
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(restorePoll):
		}
	}
}

// How long Restore waits for the server, and how often it asks.
const (
	restoreTimeout = 3 * time.Minute
	restorePoll    = 200 * time.Millisecond
)
