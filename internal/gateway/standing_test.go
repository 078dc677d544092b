package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"sandlot/internal/auth"
)

// standingRequest returns a request that waits for notifications.
func standingRequest(method, body string, headers map[string]string) *http.Request {
	r := httptest.NewRequest(method, "/mcp", strings.NewReader(body))
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	return r.WithContext(auth.NewContext(r.Context(), auth.Local))
}

// TestEndStreams: a server that stops ends what only waits for notifications, in each revision; a running call goes on.
func TestEndStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := blockingSource{make(chan struct{}), make(chan struct{})}
		g := newGateway(source)
		defer g.Close()
		old := func(method string) *http.Request {
			id := begin(t, g, auth.Local)
			return standingRequest(method, "", map[string]string{"Mcp-Session-Id": id})
		}
		listen := request("7", "subscriptions/listen", `"notifications":{"toolsListChanged":true},`+
			statelessMeta("{}", ""))
		standing := map[string]*http.Request{
			"a standing stream": old(http.MethodGet),
			"a subscription": standingRequest(http.MethodPost, listen, map[string]string{
				"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}),
		}
		var mu sync.Mutex
		ended := map[string]*httptest.ResponseRecorder{}
		serve := func(name string, r *http.Request) {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			mu.Lock()
			defer mu.Unlock()
			ended[name] = w
		}
		answer := func(name string) *httptest.ResponseRecorder {
			mu.Lock()
			defer mu.Unlock()
			return ended[name]
		}
		for name, r := range standing {
			go serve(name, r)
		}
		synctest.Wait()
		call := make(chan int)
		id := begin(t, g, auth.Local)
		go func() { call <- post(g, auth.Local, id, callOf("2", "wait", "{}")).Code }()
		<-source.began
		for name := range standing {
			if w := answer(name); w != nil {
				t.Errorf("%s ended before the server stops: %d", name, w.Code)
			}
		}
		g.EndStreams()
		synctest.Wait()
		for name := range standing {
			if w := answer(name); w == nil || w.Code != http.StatusOK {
				t.Errorf("%s: %+v", name, w)
			}
		}
		late := old(http.MethodGet) // on a connection that is still open
		go serve("late", late)
		synctest.Wait()
		if answer("late") == nil {
			t.Error("a stream that begins afterwards stands")
		}
		select {
		case code := <-call:
			t.Errorf("the running call ended: %d", code)
		default:
		}
		source.end <- struct{}{}
		if code := <-call; code != http.StatusOK {
			t.Errorf("the running call: %d", code)
		}
		for _, e := range g.endpoints {
			for s := range e.server.Sessions() {
				defer s.Close()
			}
		}
	})
}
