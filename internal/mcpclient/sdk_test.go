package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// realServer is a server of the Go SDK.
func realServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "real", Version: "1"}, &mcp.ServerOptions{
		Instructions:       "Be kind.",
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	schema := json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`)
	s.AddTool(&mcp.Tool{Name: "count", InputSchema: schema},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 5 {
				_ = r.Session.NotifyProgress(ctx,
					&mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(),
						Progress: float64(i + 1)})
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "counted " +
				string(r.Params.Arguments)}}}, nil
		})
	s.AddTool(&mcp.Tool{Name: "wait", InputSchema: schema}, func(ctx context.Context,
		_ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	s.AddTool(&mcp.Tool{Name: "ask", InputSchema: schema}, func(ctx context.Context,
		r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		res, err := r.Session.Elicit(ctx,
			&mcp.ElicitParams{Message: "Where?",
				RequestedSchema: json.RawMessage(`{"type":"object","properties":{"place":{"type":"string"}}}`)})
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(res.Content["place"])}}},
			nil
	})
	s.AddResource(&mcp.Resource{Name: "r", URI: "file:///r"},
		func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "file:///r", Text: "hello"}}}, nil
		})
	return s
}

// overPipes runs a server of the SDK behind the pipes of a program. It speaks
// both protocols.
func overPipes(t *testing.T, s *mcp.Server) transport.Dial {
	return func(context.Context) (transport.Transport, error) {
		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		ss, err := s.Connect(context.Background(), &mcp.IOTransport{Reader: inR, Writer: outW}, nil)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { inW.Close(); outR.Close(); _ = ss.Wait() })
		return transport.Stdio(outR, inW, nil), nil
	}
}

func listening(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// ways are all in which a real server is reached.
func ways(t *testing.T, s *mcp.Server) map[string]transport.Dial {
	get := func(*http.Request) *mcp.Server { return s }
	stateful := listening(t, mcp.NewStreamableHTTPHandler(get, nil))
	stateless := listening(t, mcp.NewStreamableHTTPHandler(get,
		&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
	sse := listening(t, mcp.NewSSEHandler(get, nil))
	return map[string]transport.Dial{
		"lines":     overPipes(t, s),
		"stateful":  overHTTP(stateful.URL),
		"stateless": overHTTP(stateless.URL),
		"sse":       overSSE(sse.URL),
	}
}

func TestRealServers(t *testing.T) {
	version := map[string]string{"lines": revision.Stateless, "stateful": revision.Stateful,
		"stateless": revision.Stateless, "sse": revision.Stateful}
	for name, want := range version {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			server := realServer()
			e := &ears{}
			s := connected(t, ways(t, server)[name], Options{Name: "me", Version: "1", Handler: e,
				Capabilities: json.RawMessage(`{"roots":{}}`)})
			if s.Version() != want || s.Instructions() != "Be kind." || !strings.Contains(string(s.Info()), `"real"`) {
				t.Errorf("revision %s, %q, %s", s.Version(), s.Instructions(), s.Info())
			}
			tools, err := s.List(t.Context(), "tools/list", "tools", 10)
			if err != nil || len(tools) != 3 {
				t.Fatalf("%d tools, %v", len(tools), err)
			}
			useTool(t, s)
			cancelTool(t, s)
			raw, err := s.Call(t.Context(), Request{Method: "resources/read",
				Params: rawjson.Object{"uri": rawjson.Quote("file:///r")}})
			if err != nil || !strings.Contains(string(raw), "hello") {
				t.Errorf("resources/read: %s, %v", raw, err)
			}
			var said *transport.Error
			if _, err := s.Call(t.Context(), Request{Method: "no/such"}); err == nil {
				t.Error("a method that does not exist was answered")
			} else if want == revision.Stateless && !errors.As(err, &said) {
				t.Errorf("no/such: %v", err)
			}
			hearChanges(t, s, server, e)
		})
	}
}

func useTool(t *testing.T, s *Session) {
	t.Helper()
	var tool struct{ InputSchema json.RawMessage }
	tools, _ := s.List(t.Context(), "tools/list", "tools", 10)
	if err := json.Unmarshal(tools[1], &tool); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var progress []string
		raw, err := s.Call(t.Context(),
			Request{Method: "tools/call", Params: rawjson.Object{"name": rawjson.Quote("count"),
				"arguments": json.RawMessage(`{"region":"Zürich"}`)},
				Schema: tool.InputSchema, Progress: func(p json.RawMessage) { progress = append(progress, string(p)) }})
		if err != nil || !strings.Contains(string(raw), "counted") {
			t.Fatalf("tools/call: %s, %v", raw, err)
		}
		if want := `[{"progress":1} {"progress":2} {"progress":3} {"progress":4} {"progress":5}]`; fmt.Sprint(progress) != want {
			t.Errorf("progress %v, want %s", progress, want)
		}
	}
}

func cancelTool(t *testing.T, s *Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Call(ctx, toolCall("wait")); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("a call that is given up: %v", err)
	}
	slow := toolCall("wait")
	slow.Timeout = 100 * time.Millisecond
	if _, err := s.Call(t.Context(), slow); !errors.Is(err, transport.ErrTimeout) {
		t.Errorf("a call that takes too long: %v", err)
	}
}

// hearChanges changes the server, and waits until that is announced.
func hearChanges(t *testing.T, s *Session, server *mcp.Server, e *ears) {
	t.Helper()
	count := func(what string) (n int) {
		for _, h := range e.all() {
			if strings.HasPrefix(h, what) {
				n++
			}
		}
		return n
	}
	n := 0
	eventually(t, "a changed list is announced", func() bool {
		n++
		server.AddTool(&mcp.Tool{Name: fmt.Sprint("new", n), InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		return count("notifications/tools/list_changed") > 0
	})
	if err := s.Subscribe(t.Context(), "file:///r"); err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	eventually(t, "a changed resource is announced", func() bool {
		_ = server.ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: "file:///r"})
		return count("notifications/resources/updated") > 0
	})
	if err := s.Unsubscribe(t.Context(), "file:///r"); err != nil {
		t.Fatalf("Unsubscribe: %v", err)
	}
	before := count("notifications/tools/list_changed")
	eventually(t, "a changed list is announced after a subscription has ended", func() bool {
		n++
		server.AddTool(&mcp.Tool{Name: fmt.Sprint("new", n), InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		return count("notifications/tools/list_changed") > before+1
	})
}

func TestRealServerAsks(t *testing.T) {
	for _, name := range []string{"stateful", "sse"} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			s := connected(t, ways(t, realServer())[name], Options{Capabilities: json.RawMessage(`{"elicitation":{}}`),
				Handler: &ears{ask: func(_ context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
					return json.RawMessage(`{"action":"accept","content":{"place":"here"}}`), nil
				}}})
			raw, err := s.Call(t.Context(), toolCall("ask"))
			if err != nil || !strings.Contains(string(raw), `"here"`) {
				t.Errorf("%s, %v", raw, err)
			}
		})
	}
}
