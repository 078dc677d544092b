package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
)

// Client talks to a server, through its socket or its URL.
type Client struct {
	base  string
	token secret.Value
	dial  func(ctx context.Context) (net.Conn, error)
	http  *http.Client
}

// NewClient returns a client. With an empty server, it uses the socket.
func NewClient(socket, server string, token secret.Value) (*Client, error) {
	c := &Client{base: "http://sandlot", token: token}
	if server == "" {
		c.dial = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	} else {
		u, err := url.Parse(strings.TrimSuffix(strings.TrimSuffix(server, "/"), "/mcp"))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("server %q must be a URL such as http://localhost:8000", server)
		}
		c.base = u.String()
		host, port := u.Hostname(), u.Port()
		secure := u.Scheme == "https"
		if port == "" {
			port = map[bool]string{false: "80", true: "443"}[secure]
		}
		c.dial = func(ctx context.Context) (net.Conn, error) {
			if secure {
				return new(tls.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
			}
			return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }
	c.http = &http.Client{Transport: &http.Transport{DialContext: dial, DialTLSContext: dial, WriteBufferSize: copyBuffer, ReadBufferSize: copyBuffer}}
	return c, nil
}

// NewSession makes a session and returns its id.
func (c *Client) NewSession(ctx context.Context) (string, error) {
	var made struct {
		SessionID string `json:"session_id"`
	}
	err := c.JSON(ctx, "POST", "/v1/sessions", nil, &made)
	return made.SessionID, err
}

// Alive says whether a server answers.
func (c *Client) Alive(ctx context.Context) bool {
	conn, err := c.dial(ctx)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	return r, nil
}

// do sends the request and returns a response with a good status.
func (c *Client) do(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		var no *net.OpError
		if errors.As(err, &no) && no.Op == "dial" {
			return nil, fmt.Errorf("no server answers: %w; start one with `sandlot serve`, or name one with --server", err)
		}
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, failure(resp.StatusCode, resp.Body)
}

func failure(status int, body io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(body, 64<<10))
	p := new(Problem)
	if json.Unmarshal(text, p) == nil && p.Detail != "" {
		return p
	}
	return fmt.Errorf("the server answered with status %d: %s", status, fault.Printable(string(text), 500))
}

func (p *Problem) Error() string {
	s := p.Detail
	for _, a := range p.RecoverySuggestions {
		s += "\n  - " + a
	}
	return s
}

// JSON sends in, if it is not nil, and reads the answer into out, if it is not nil.
func (c *Client) JSON(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	r, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	resp, err := c.do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// SetSecret stores a secret of the caller. It returns what there is to know of it.
func (c *Client) SetSecret(ctx context.Context, name string, value secret.Value) (hub.Secret, error) {
	var s hub.Secret
	r, err := c.request(ctx, http.MethodPut, "/v1/secrets/"+url.PathEscape(name), strings.NewReader(value.Reveal()))
	if err != nil {
		return s, err
	}
	resp, err := c.do(r)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// Events reads events: those that match the query (kind, session, follow). Each is
// called for every event, or for what was lost, one of which is nil. It ends with
// each's error, or with nil when the server has no more.
func (c *Client) Events(ctx context.Context, query url.Values, each func(*event.Event, *Lost) error) error {
	r, err := c.request(ctx, http.MethodGet, "/v1/events?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := c.do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	kind := ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "event":
			kind = value
		case name == "data" && kind == "lost":
			lost := new(Lost)
			if err = json.Unmarshal([]byte(value), lost); err == nil {
				err = each(nil, lost)
			}
		case name == "data":
			e := new(event.Event)
			if err = json.Unmarshal([]byte(value), e); err == nil {
				err = each(e, nil)
			}
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

func filesPath(session, file string) string {
	return "/v1/sessions/" + url.PathEscape(session) + "/files" + (&url.URL{Path: "/" + strings.TrimPrefix(file, "/")}).EscapedPath()
}

// Download copies a file of a session to w.
func (c *Client) Download(ctx context.Context, session, file string, w io.Writer) (int64, error) {
	r, err := c.request(ctx, http.MethodGet, filesPath(session, file), nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{resp.Body}, make([]byte, copyBuffer))
}

// Upload writes a file of a session from r, which has size bytes.
func (c *Client) Upload(ctx context.Context, session, file string, r io.Reader, size int64) error {
	q, err := c.request(ctx, http.MethodPut, filesPath(session, file), io.NopCloser(r))
	if err != nil {
		return err
	}
	q.ContentLength = size
	if size == 0 {
		q.Body = http.NoBody
	}
	resp, err := c.do(q)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// upgrade opens a stream to the server.
func (c *Client) upgrade(ctx context.Context, path, protocol string) (net.Conn, *bufio.Reader, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("no server answers: %w; start one with `sandlot serve`, or name one with --server", err)
	}
	r, err := c.request(ctx, http.MethodPost, path, nil)
	if err == nil {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", protocol)
		err = r.Write(conn)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	br := bufio.NewReaderSize(conn, 64<<10)
	resp, err := http.ReadResponse(br, r)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = failure(resp.StatusCode, resp.Body)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, br, nil
}

// Stdio connects in and out to the server's MCP edge until in or the server ends.
func (c *Client) Stdio(ctx context.Context, in io.Reader, out io.Writer) error {
	conn, br, err := c.upgrade(ctx, "/v1/stdio", upgradeMCP)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(out, br)
	}()
	go func() {
		io.Copy(conn, in)
		if h, ok := conn.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
		}
	}()
	<-done
	return nil
}

// Dial connects to a port of a session. The connection has a CloseWrite, which
// ends what is sent.
func (c *Client) Dial(ctx context.Context, session string, port int) (net.Conn, error) {
	conn, br, err := c.upgrade(ctx, fmt.Sprintf("/v1/sessions/%s/ports/%d", url.PathEscape(session), port), upgradeDial)
	if err != nil {
		return nil, err
	}
	return &dialed{conn, br}, nil
}

// dialed is a connection of which some was read already.
type dialed struct {
	net.Conn
	from *bufio.Reader
}

func (d *dialed) Read(b []byte) (int, error) { return d.from.Read(b) }

func (d *dialed) CloseWrite() error {
	h, ok := d.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return h.CloseWrite()
}

// Terminal is what an interactive process is connected to.
type Terminal struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize tells rows and cols, Signal a signal's number, while the process runs.
	Resize chan [2]uint16
	Signal chan byte
}

// Exec runs a process in a session and returns its exit code.
func (c *Client) Exec(ctx context.Context, session string, cmd agent.Command, t Terminal) (int, error) {
	conn, br, err := c.upgrade(ctx, "/v1/sessions/"+url.PathEscape(session)+"/exec", upgradeExec)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := agent.WriteCommand(conn, cmd); err != nil {
		return 0, err
	}
	started, err := agent.ReadStarted(br)
	if err != nil {
		return 0, err
	}
	if started.Failure != "" {
		return 0, errors.New(started.Failure)
	}
	over := make(chan struct{})
	defer close(over)
	frames := make(chan []byte)
	go read(t.Stdin, frames, over)
	go send(conn, t, frames, over)
	return receive(br, t)
}

// read passes stdin on; an empty piece is its end.
func read(r io.Reader, frames chan<- []byte, over <-chan struct{}) {
	for {
		buf := make([]byte, 32<<10)
		n, err := r.Read(buf)
		if n > 0 {
			select {
			case frames <- buf[:n]:
			case <-over:
				return
			}
		}
		if err != nil {
			select {
			case frames <- nil:
			case <-over:
			}
			return
		}
	}
}

func send(conn net.Conn, t Terminal, frames <-chan []byte, over <-chan struct{}) {
	for {
		var err error
		select {
		case b := <-frames:
			err = wire.WriteFrame(conn, wire.FrameStdin, b)
		case s := <-t.Resize:
			err = wire.WriteFrame(conn, wire.FrameResize, []byte{byte(s[0] >> 8), byte(s[0]), byte(s[1] >> 8), byte(s[1])})
		case s := <-t.Signal:
			err = wire.WriteFrame(conn, wire.FrameSignal, []byte{s})
		case <-over:
			return
		}
		if err != nil {
			return
		}
	}
}

func receive(r io.Reader, t Terminal) (int, error) {
	buf := make([]byte, wire.MaxFrame)
	for {
		kind, payload, err := wire.ReadFrame(r, buf)
		if err != nil {
			return 0, fmt.Errorf("the connection to the process broke: %w", err)
		}
		switch kind {
		case wire.FrameStdout:
			_, err = t.Stdout.Write(payload)
		case wire.FrameStderr:
			_, err = t.Stderr.Write(payload)
		case wire.FrameExit:
			if len(payload) < 4 {
				return 0, errors.New("the process ended without an exit code")
			}
			if len(payload) > 4 {
				fmt.Fprintln(os.Stderr, "sandlot: "+fault.Printable(string(payload[4:]), 500))
			}
			return int(int32(uint32(payload[0])<<24 | uint32(payload[1])<<16 | uint32(payload[2])<<8 | uint32(payload[3]))), nil
		}
		if err != nil {
			return 0, err
		}
	}
}
