package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// blockingSource is a source with one tool, whose calls wait for end.
type blockingSource struct{ began, end chan struct{} }

func (blockingSource) Tools(context.Context, auth.Principal) []tool.Tool {
	return []tool.Tool{{Name: "wait"}}
}

func (b blockingSource) Find(auth.Principal, string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.CodeExecute, Call: b.call}, true
}

func (b blockingSource) call(context.Context, tool.Call) (*tool.Result, error) {
	b.began <- struct{}{}
	<-b.end
	return &tool.Result{Summary: "done"}, nil
}

// The limit of sessions is over all tokens of a principal; the token with the most sessions
// loses its oldest.
func TestSessionsOfAllTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(reportCaller())
		defer g.Close()
		few, many := withToken("ann", "tok_few", false), withToken("ann", "tok_many", false)
		first := begin(t, g, few)
		var ids []string
		for range maxSessions + 10 {
			ids = append(ids, begin(t, g, many))
		}
		synctest.Wait()
		all := 0
		for _, e := range g.endpoints {
			all += len(e.sessions())
			for s := range e.server.Sessions() {
				defer s.Close()
			}
		}
		if all != maxSessions {
			t.Errorf("%d sessions", all)
		}

		if code := post(g, few, first, ping).Code; code != 200 {
			t.Errorf("the token with few lost one: %d", code)
		}
		oldest, newest := post(g, many, ids[0], ping).Code, post(g, many, ids[len(ids)-1], ping).Code
		if oldest != 404 || newest != 200 {
			t.Errorf("the oldest %d, the newest %d", oldest, newest)
		}
	})
}

// post sends a message of the stateful protocol.
func post(g *Gateway, p auth.Principal, session, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), p)))
	return w
}

func begin(t testing.TB, g *Gateway, p auth.Principal) string {
	t.Helper()
	w := post(g, p, "", initialize("1"))
	id := w.Header().Get("Mcp-Session-Id")
	if w.Code != 200 || id == "" {
		t.Fatalf("initialize: %d %q", w.Code, w.Body)
	}
	if w := post(g, p, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); w.Code != 202 {
		t.Fatalf("initialized: %d %q", w.Code, w.Body)
	}
	return id
}

func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := blockingSource{make(chan struct{}), make(chan struct{})}
		g := New(Config{Hub: hub.New(hub.Config{Sources: []tool.Source{source}}), Log: slog.New(slog.DiscardHandler)})
		ann, bob := auth.User("ann", false), auth.User("bob", false)

		bobs := begin(t, g, bob)
		first := begin(t, g, ann)
		go post(g, ann, first, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"wait","arguments":{}}}`)
		<-source.began
		second := begin(t, g, ann)
		third := begin(t, g, ann)
		for range maxSessions - 1 {
			begin(t, g, ann)
		}
		synctest.Wait()
		if w := post(g, ann, second, ping); w.Code != http.StatusNotFound {
			t.Errorf("the oldest session lives: %d", w.Code)
		}
		for who, code := range map[string]int{
			third: post(g, ann, third, ping).Code,
			bobs:  post(g, bob, bobs, ping).Code,
		} {
			if code != 200 {
				t.Errorf("session %s: %d", who, code)
			}
		}
		source.end <- struct{}{} // a session with a call is closed when the call ends
		synctest.Wait()
		if w := post(g, ann, first, ping); w.Code != http.StatusNotFound {
			t.Errorf("the session with a call lives: %d", w.Code)
		}
		for _, e := range g.endpoints {
			n := 0
			for s := range e.server.Sessions() {
				n++
				defer s.Close()
			}
			if n > maxSessions || len(e.closing) > 0 {
				t.Errorf("%d sessions are there, %d are closing", n, len(e.closing))
			}
		}
	})
}
