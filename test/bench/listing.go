package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// catalog has the measurements of listing the tools of fifty servers.
type catalog struct {
	raw, decoded, canned samples
	listed               int
	grown                int64 // growth of the server's memory, in bytes
	many                 manyServers
}

func (c *catalog) table() table {
	t := timings(fmt.Sprintf("%d tools of 50 servers, in pages of 1000", c.listed))
	t.add("until the last byte is there", c.raw, c.raw.against(goal{50, 50 * time.Millisecond}))
	t.add("until the official Go client has decoded them", c.decoded)
	t.add("beside: that client, the same bytes from a server that only sends them", c.canned)
	return t
}

func (c *catalog) end() error { return c.many.end() }

// manyServers are MCP servers with many tools.
type manyServers []*http.Server

func (m manyServers) end() (err error) {
	for _, web := range m {
		err = errors.Join(err, web.Close())
	}
	return err
}

// serve starts servers with so many tools each and returns the settings that name them.
func (m *manyServers) serve(servers, each int, define func(n int) *mcp.Tool) (string, error) {
	var text strings.Builder
	text.WriteString("mcp:\n")
	for n := range servers {
		s := mcp.NewServer(&mcp.Implementation{Name: "many", Version: "1"}, nil)
		for k := range each {
			s.AddTool(define(k), func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		web := &http.Server{Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)}
		*m = append(*m, web)
		go web.Serve(l)
		fmt.Fprintf(&text, "  s%02d: {url: \"http://%s/mcp\"}\n", n, l.Addr())
	}
	return text.String(), nil
}

func (c *catalog) measure(b *bench, dir string) error {
	const servers, each = 50, 40
	c.listed = servers * each
	text, err := c.many.serve(servers, each, func(n int) *mcp.Tool {
		return &mcp.Tool{Name: fmt.Sprintf("tool_%d", n), Description: strings.Repeat("Does something useful. ", 10),
			InputSchema: args{"type": "object", "properties": args{"b": args{"type": "number"},
				"a": args{"type": "string", "description": "An argument of this tool."}}}}
	})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "many.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	return b.with(func(s *server) error {
		k, err := s.connect(older, "")
		if err != nil {
			return err
		}
		defer k.close()
		client := k.(*sdkClient)
		if _, err := tools(s.ctx, client); err != nil {
			return err
		}
		before, err := s.metric(s.ctx, "process_resident_memory_bytes")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		for n, began := 0, time.Now(); n < c.listed; n, err = tools(s.ctx, client) {
			if err == nil && time.Since(began) > time.Minute {
				err = fmt.Errorf("%d of %d tools are listed", n, c.listed)
			}
			if err != nil {
				return err
			}
			time.Sleep(500 * time.Millisecond)
		}
		bodies, err := pages(s.ctx, s.url+"/mcp", client.session.ID())
		if err != nil {
			return err
		}
		sender := httptest.NewServer(bodies)
		defer sender.Close()
		other, err := (&server{bench: s.bench, url: sender.URL}).connect(older, "")
		if err != nil {
			return err
		}
		defer other.close()
		if err := c.take(s, client, other.(*sdkClient)); err != nil {
			return err
		}
		after, err := s.metric(s.ctx, "process_resident_memory_bytes")
		c.grown = int64(after - before)
		return err
	}, "SANDLOT_CONFIG="+file, "SANDLOT_POOL_SIZE=0", "SANDLOT_TOOLS=all")
}

// take measures the three clients, alternating.
func (c *catalog) take(s *server, client, other *sdkClient) error {
	all := func(k *sdkClient) func() error {
		return func() error {
			n, err := tools(s.ctx, k)
			if err == nil && n != c.listed {
				err = fmt.Errorf("%d tools were listed, of %d", n, c.listed)
			}
			return err
		}
	}
	raw := func() error {
		got, err := pages(s.ctx, s.url+"/mcp", client.session.ID())
		if err != nil {
			return err
		}
		n := 0
		for _, body := range got {
			n += bytes.Count(body, []byte(`"name":"ext_`))
		}
		if n != c.listed {
			return fmt.Errorf("%d tools were sent, of %d", n, c.listed)
		}
		return nil
	}
	for range pick(s.bench, 100, 5) {
		if err := errors.Join(c.raw.take(raw), c.decoded.take(all(client)), c.canned.take(all(other))); err != nil {
			return err
		}
	}
	return nil
}

// tools lists all pages, and counts the tools of third-party servers.
func tools(ctx context.Context, k *sdkClient) (n int, err error) {
	for t, err := range k.session.Tools(ctx, nil) {
		if err != nil {
			return n, err
		}
		if strings.HasPrefix(t.Name, "ext_") {
			n++
		}
	}
	return n, nil
}

// pageSet has the pages of a list, as the server sent them, by their cursors. It is also an http.Handler that
// serves them.
type pageSet map[string][]byte

// pages reads all pages in a client's session.
func pages(ctx context.Context, endpoint, session string) (pageSet, error) {
	all := pageSet{}
	for cursor := ""; ; {
		params := args{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		body, err := json.Marshal(args{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params})
		if err != nil {
			return nil, err
		}
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		for k, v := range map[string]string{"Content-Type": "application/json",
			"Accept": "application/json, text/event-stream", "Mcp-Session-Id": session, "Mcp-Protocol-Version": older} {
			q.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("HTTP %d: %w", resp.StatusCode, err)
		}
		if _, data, events := bytes.Cut(text, []byte("data: ")); events {
			text = bytes.TrimSpace(data)
		}
		all[cursor] = text
		_, next, more := strings.Cut(string(text), `"nextCursor":"`)
		if !more {
			return all, nil
		}
		cursor, _, _ = strings.Cut(next, `"`)
	}
}

// ServeHTTP sends the pages, and does nothing else.
func (b pageSet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Cursor string }
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil || len(m.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if m.Method == "initialize" {
		fmt.Fprintf(w,
			`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"sender","version":"1"}}}`, m.ID, older)
		return
	}
	w.Write(bytes.Replace(b[m.Params.Cursor], []byte(`"id":1`), append([]byte(`"id":`), m.ID...), 1))
}
