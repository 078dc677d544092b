package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/revision"
)

const (
	older = revision.Stateful
	newer = revision.Stateless
)

type args = map[string]any

// answer is the part of a tool's result that the benchmarks check.
type answer struct {
	text    string // of the first block
	session string
	created bool
}

// client calls tools, on its own connection.
type client interface {
	call(ctx context.Context, tool string, a args) (answer, error)
	close()
}

// sdkClient is the official Go client.
type sdkClient struct {
	session   *mcp.ClientSession
	transport *http.Transport
}

// bearer adds a token to each request.
type bearer struct {
	token string
	http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.RoundTripper.RoundTrip(r)
}

// connect connects with the official client; the token may be empty.
func (s *server) connect(version, token string) (client, error) {
	return connectTo(s.ctx, s.url+"/mcp", version, token)
}

func connectTo(ctx context.Context, endpoint, version, token string) (client, error) {
	t := &http.Transport{}
	c := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: endpoint,
		HTTPClient: &http.Client{Transport: bearer{token, t}}, DisableStandaloneSSE: true},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return &sdkClient{session, t}, nil
}

func (c *sdkClient) close() {
	c.session.Close()
	c.transport.CloseIdleConnections()
}

func (c *sdkClient) call(ctx context.Context, tool string, a args) (answer, error) {
	r, err := c.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: a})
	if err != nil {
		return answer{}, err
	}
	var out answer
	if len(r.Content) > 0 {
		if t, ok := r.Content[0].(*mcp.TextContent); ok {
			out.text = t.Text
		}
	}
	fields, _ := r.StructuredContent.(map[string]any)
	out.session, _ = fields["session_id"].(string)
	out.created, _ = fields["session_created"].(bool)
	return out, nil
}

// bareClient makes bare calls, as with curl, over one keep-alive connection.
type bareClient struct {
	url  string
	http *http.Client
}

func (s *server) bare(token string) *bareClient {
	return &bareClient{s.url + "/mcp", &http.Client{Transport: bearer{token, &http.Transport{MaxConnsPerHost: 1}}}}
}

func (c *bareClient) close() { c.http.CloseIdleConnections() }

func (c *bareClient) call(ctx context.Context, tool string, a args) (answer, error) {
	text, err := c.post(ctx, tool, a)
	if err != nil {
		return answer{}, err
	}
	return parse(text)
}

// post makes a call and returns the body of the response.
func (c *bareClient) post(ctx context.Context, tool string, a args) ([]byte, error) {
	body, err := json.Marshal(args{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": args{"name": tool, "arguments": a}})
	if err != nil {
		return nil, err
	}
	q, err := http.NewRequestWithContext(ctx, "POST", c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

func parse(text []byte) (answer, error) {
	var r struct {
		Result *struct {
			Content   []struct{ Text string }
			SessionID string `json:"session_id"`
			Created   bool   `json:"session_created"`
		}
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Result == nil || len(r.Result.Content) == 0 {
		return answer{}, fmt.Errorf("no result: %s", text)
	}
	all := r.Result.Content
	return answer{all[0].Text, r.Result.SessionID, r.Result.Created}, nil
}

// want runs Python code in a session, and returns an error if the answer differs.
func want(ctx context.Context, c client, session, code, text string) (answer, error) {
	r, err := c.call(ctx, "execute_code", args{"code": code, "session_id": session})
	if err != nil {
		return r, err
	}
	if r.text != text {
		return r, fmt.Errorf("%s: a wrong answer: %q, not %q", code, r.text, text)
	}
	if session != "new" && r.session != session || r.created != (session == "new") {
		return r, fmt.Errorf("%s: a wrong session: %q (created: %v), not %q", code, r.session, r.created, session)
	}
	return r, nil
}

// onePlusOne makes the call that most topics measure.
func onePlusOne(ctx context.Context, c client, session string) error {
	_, err := want(ctx, c, session, "1+1", "2")
	return err
}

// open creates a session.
func open(ctx context.Context, c client) (string, error) {
	r, err := want(ctx, c, "new", "40+2", "42")
	return r.session, err
}

// discard stops a session.
func discard(ctx context.Context, c client, session string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := c.call(ctx, "stop_session", args{"session_id": session})
	if err == nil && !strings.Contains(r.text, "stopped successfully") {
		err = fmt.Errorf("stopping session %s: %q", session, r.text)
	}
	return err
}

// get reads a path of the server.
func (s *server) get(ctx context.Context, path string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: HTTP %d: %s", path, resp.StatusCode, text)
	}
	return string(text), err
}
