package tui

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/coder/websocket"

	"sandlot/internal/api/client"
	"sandlot/internal/event"
	"sandlot/internal/hub"
)

// TestFeed: what a server says beside data, also what this program does not know, does not break the connection.
func TestFeed(t *testing.T) {
	var connections atomic.Int64
	serve := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/live" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		connections.Add(1)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		for {
			_, text, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			var asked struct {
				Kind    string
				Channel uint32
			}
			if json.Unmarshal(text, &asked) != nil || asked.Kind != "events" {
				continue
			}
			for _, m := range []map[string]any{{"op": "opened"}, {"op": "data", "data": event.Event{ID: 1}}, {"op": "current"},
				{"op": "novel", "data": []int{1}}, {"op": "lost"}, {"op": "data", "data": event.Event{ID: 2}}} {
				m["channel"] = asked.Channel
				line, _ := json.Marshal(m)
				if err := ws.Write(r.Context(), websocket.MessageText, line); err != nil {
					return
				}
			}
		}
	}
	server := httptest.NewServer(http.HandlerFunc(serve))
	defer server.Close()
	c, err := client.New("", server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan tea.Msg, 100)
	f := &feed{client: c, send: func(m tea.Msg) { got <- m }, again: make(chan struct{}, 1)}
	go f.run(t.Context())
	for {
		select {
		case m := <-got:
			if e, is := m.(event.Event); is && e.ID == 2 {
				if n := connections.Load(); n != 1 {
					t.Errorf("it has connected %d times", n)
				}
				return
			}
			if off, is := m.(offline); is {
				t.Fatalf("it is offline: %s", off.why)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the second event does not come")
		}
	}
}

// TestListsBeforeTheyCome: that there is nothing is said once it is known.
func TestListsBeforeTheyCome(t *testing.T) {
	b := newBench(t, 80, 24)
	if s := b.screen(); strings.Contains(s, "none") || strings.Contains(s, "no MCP servers") {
		t.Errorf("before the lists have come:\n%s", s)
	}
	b.tell(hub.SessionsChange{Change: "all", Sessions: &[]hub.SessionRow{}})
	b.tell(hub.ServersChange{Change: "all", Servers: &[]hub.ServerRow{}})
	b.shows("none", "no MCP servers")
}
