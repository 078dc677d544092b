package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/api/protocol"
)

// edge is the MCP edge of one server after the other, which a test plays.
type edge struct {
	t     *testing.T
	conns chan *played
	web   *httptest.Server
}

// played is a client's connection to a server.
type played struct {
	net.Conn
	t    *testing.T
	read *bufio.Reader
}

func newEdge(t *testing.T) *edge {
	e := &edge{t: t, conns: make(chan *played, 10)}
	e.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
			protocol.UpgradeMCP)
		e.conns <- &played{conn, t, buffered.Reader}
	}))
	t.Cleanup(e.web.Close)
	return e
}

func (e *edge) next() *played {
	select {
	case c := <-e.conns:
		return c
	case <-time.After(20 * time.Second):
		e.t.Fatal("nobody connects")
		return nil
	}
}

// gets reads a message, which has the method.
func (p *played) gets(method string) message {
	p.t.Helper()
	p.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := p.read.ReadBytes('\n')
	m := parse(line)
	if err != nil || m.Method != method {
		p.t.Fatalf("the server got %q, %v; want %s", line, err, method)
	}
	return m
}

func (p *played) says(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *played) answers(m message) { p.says(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID) }

// mcpClient is an MCP client on standard input and output.
type mcpClient struct {
	t    *testing.T
	in   io.WriteCloser
	out  *bufio.Reader
	err  chan error
	mu   sync.Mutex
	note string
}

func (e *edge) client(connect func(context.Context, <-chan struct{}) (*Client, error)) *mcpClient {
	e.t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &mcpClient{t: e.t, in: inW, out: bufio.NewReader(outR), err: make(chan error, 1)}
	if connect == nil {
		connect = func(context.Context, <-chan struct{}) (*Client, error) { return New("", e.web.URL, "") }
	}
	s := &Stdio{In: inR, Out: outW, Connect: connect, Note: func(text string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.note += text + "\n"
	}}
	if err := s.Open(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
	go func() {
		c.err <- s.Run(e.t.Context())
		outW.Close()
	}()
	return c
}

func (c *mcpClient) says(format string, args ...any) { fmt.Fprintf(c.in, format+"\n", args...) }

// gets reads a line with these words.
func (c *mcpClient) gets(words ...string) {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	for _, w := range words {
		if err != nil || !strings.Contains(line, w) {
			c.t.Fatalf("the client got %q, %v; want %q", line, err, words)
		}
	}
}

// notices waits until the log has these words.
func (c *mcpClient) notices(words string) {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		has := strings.Contains(c.note, words)
		c.mu.Unlock()
		if has {
			return
		}
	}
	c.t.Fatalf("the log does not say %q", words)
}

func (c *mcpClient) ends() error {
	c.in.Close()
	io.Copy(io.Discard, c.out)
	return <-c.err
}

// begins does the handshake.
func (c *mcpClient) begins(p *played) {
	c.t.Helper()
	c.says(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"n"}}}`)
	p.answers(p.gets("initialize"))
	c.gets(`"id":0`)
	c.says(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	p.gets("notifications/initialized")
}

// TestStdioOutlivesServer: the next server knows what the client has said to the one before, and the client goes on.
func TestStdioOutlivesServer(t *testing.T) {
	e := newEdge(t)
	c := e.client(nil)
	first := e.next()
	c.begins(first)
	for i, m := range []string{`"resources/subscribe","params":{"uri":"a://1"}`,
		`"resources/subscribe","params":{"uri":"a://2"}`, `"resources/unsubscribe","params":{"uri":"a://1"}`,
		`"logging/setLevel","params":{"level":"error"}`} {
		c.says(`{"jsonrpc":"2.0","id":%d,"method":%s}`, 10+i, m)
		method, _, _ := strings.Cut(m[1:], `"`)
		first.answers(first.gets(method))
		c.gets(fmt.Sprintf(`"id":%d`, 10+i))
	}
	first.says(`{"jsonrpc":"2.0","id":77,"method":"elicitation/create","params":{}}`)
	c.gets(`"id":77`)
	c.says(`{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":"x"}}`)
	first.gets("tools/call")
	c.says(`{"jsonrpc":"2.0","id":"read","method":"resources/read","params":{"uri":"x"}}`)
	first.gets("resources/read")
	c.says(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	first.gets("tools/list")
	first.Write([]byte(`{"jsonrpc":"2.0","id":"call","res`)) // it is killed meanwhile
	first.Close()
	c.gets(`"id":"call"`, `"isError":true`, "the Sandlot server has ended")
	c.gets(`"id":"read"`, `"error"`, "the Sandlot server has ended")
	c.gets("notifications/cancelled", "77")
	c.says(`{"jsonrpc":"2.0","id":77,"result":{"action":"accept"}}`) // too late

	second := e.next()
	m := second.gets("initialize")
	var said struct{ ClientInfo struct{ Name string } }
	if err := json.Unmarshal(m.Params, &said); err != nil || said.ClientInfo.Name != "n" {
		t.Errorf("initialize says %s", m.Params)
	}
	second.answers(m)
	second.gets("notifications/initialized")
	second.answers(second.gets("logging/setLevel"))
	m = second.gets("resources/subscribe")
	if !strings.Contains(string(m.Params), "a://2") {
		t.Errorf("subscribed to %s", m.Params)
	}
	second.answers(m)
	for _, l := range lists {
		c.gets(l.method)
	}
	m = second.gets("tools/list") // it changes nothing, and is asked again
	if string(m.ID) != `"list"` {
		t.Errorf("the list has the id %s", m.ID)
	}
	second.answers(m)
	c.gets(`"id":"list"`)
	c.says(`{"jsonrpc":"2.0","id":"next","method":"tools/call","params":{"name":"x"}}`)
	second.answers(second.gets("tools/call"))
	c.gets(`"id":"next"`)
	c.in.Close()
	if _, err := second.read.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the server does not see the client's end: %v", err)
	}
	second.Close()
	if err := c.ends(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(c.note, "has ended") {
		t.Errorf("the log says %q", c.note)
	}
}

// TestStdioStateless: a client without a handshake goes on, too, with its subscription.
func TestStdioStateless(t *testing.T) {
	e := newEdge(t)
	c := e.client(nil)
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	first := e.next()
	c.says(`{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` +
		meta + `}}`)
	first.gets("subscriptions/listen")
	c.says(`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	first.gets("tools/call")
	first.Close()
	c.gets(`"id":6`, `"isError":true`, `"resultType":"complete"`)
	second := e.next()
	c.gets("tools/list_changed", `"io.modelcontextprotocol/subscriptionId":5`)
	if m := second.gets("subscriptions/listen"); string(m.ID) != "5" {
		t.Errorf("it has the id %s", m.ID)
	}
	c.says(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	second.answers(second.gets("tools/call"))
	c.gets(`"id":7`)
	second.Close() // and a third one
	third := e.next()
	c.gets("tools/list_changed")
	third.gets("subscriptions/listen")
	c.in.Close()
	if _, err := third.read.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the server does not see the client's end: %v", err)
	}
	third.Close()
	if err := c.ends(); err != nil {
		t.Error(err)
	}
}

// TestStdioWithoutServer: while no server can be had, calls say so, and the next one tries again. What came meanwhile is
// not lost.
func TestStdioWithoutServer(t *testing.T) {
	e := newEdge(t)
	var mu sync.Mutex
	refusals := 0
	c := e.client(func(ctx context.Context, wanted <-chan struct{}) (*Client, error) {
		select {
		case <-wanted:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		mu.Lock()
		defer mu.Unlock()
		if refusals > 0 {
			refusals--
			return nil, errors.New("the disk is full")
		}
		return New("", e.web.URL, "")
	})
	first := e.next()
	c.begins(first)
	mu.Lock()
	refusals = 2
	mu.Unlock()
	first.Close()
	c.notices("has ended")
	for id := range 2 {
		c.says(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id)
		c.gets(fmt.Sprintf(`"id":%d`, id), "the disk is full", "nothing was done")
	}
	c.says(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"x"}}`)
	second := e.next()
	second.answers(second.gets("initialize"))
	second.gets("notifications/initialized")
	for _, l := range lists {
		c.gets(l.method)
	}
	second.answers(second.gets("tools/call"))
	c.gets(`"id":9`)
	// The client ends while a call runs, and so does the server: that is no success.
	c.says(`{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"x"}}`)
	second.gets("tools/call")
	c.in.Close()
	if _, err := second.read.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the server does not see the client's end: %v", err)
	}
	second.Close()
	c.gets(`"id":10`, "the Sandlot server has ended")
	if err := c.ends(); err == nil {
		t.Error("it has ended without an error")
	}
}
