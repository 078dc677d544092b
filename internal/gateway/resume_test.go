package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/mcpsession"
	"sandlot/internal/tool"
)

// records is a store of MCP sessions in memory; fails: it cannot be reached.
type records struct {
	mu    sync.Mutex
	all   map[string]mcpsession.Record
	fails bool
}

func (s *records) PutMCPSession(_ context.Context, r mcpsession.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return errors.New("the disk is gone")
	}
	if s.all == nil {
		s.all = map[string]mcpsession.Record{}
	}
	s.all[r.ID] = r
	return nil
}

func (s *records) MCPSession(_ context.Context, id string) (mcpsession.Record, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return mcpsession.Record{}, false, errors.New("the disk is gone")
	}
	r, ok := s.all[id]
	return r, ok, nil
}

func (s *records) RemoveMCPSession(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
	return nil
}

func (s *records) RemoveMCPSessions(context.Context, time.Time) error { return nil }

func (s *records) set(id string, change func(*mcpsession.Record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.all[id]
	change(&r)
	s.all[id] = r
}

// next returns the gateway of the next server: the one before was killed, or has ended.
func (s *records) next(sources ...tool.Source) *Gateway {
	g := newGateway(sources...)
	g.MCPSessions = s
	return g
}

const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`

// TestResume: a session goes on with the next server, as what the client has made of it.
func TestResume(t *testing.T) {
	item := []tool.Item{{Key: "a://b", Raw: []byte(`{"uri":"a://b","name":"b"}`)},
		{Key: "a://c", Raw: []byte(`{"uri":"a://c","name":"c"}`)}}
	store := &records{}
	ann := withToken("ann", "tok_1", false)
	before := store.next(fakeBuiltin{}, &fakeExternal{resources: item})
	defer before.Close()
	id := begin(t, before, ann)
	for _, m := range []string{request("3", "resources/subscribe", `"uri":"a://b"`),
		request("4", "resources/subscribe", `"uri":"a://c"`), request("5", "resources/unsubscribe", `"uri":"a://b"`),
		request("6", "logging/setLevel", `"level":"debug"`)} {
		if w := post(before, ann, id, m); w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"error"`) {
			t.Fatalf("%s: %d %s", m, w.Code, w.Body)
		}
	}

	external := subscribable{&fakeExternal{resources: item}, make(chan string, 10)}
	g := store.next(fakeBuiltin{}, external)
	var all sync.WaitGroup
	for n := range 10 { // clients send several requests at once
		all.Go(func() {
			if w := post(g, ann, id, request(fmt.Sprint(10+n), "tools/list", "")); w.Code != http.StatusOK ||
				!strings.Contains(w.Body.String(), `"own"`) {
				t.Errorf("with the next server: %d %s", w.Code, w.Body)
			}
		})
	}
	all.Wait()
	select {
	case uri := <-external.to:
		if uri != "a://c" {
			t.Errorf("subscribed to %q", uri)
		}
	case <-time.After(20 * time.Second):
		t.Error("no subscription goes on")
	}
	e, release := g.acquire(endpointKey{principal: ann})
	release()
	sessions := e.sessions()
	if len(sessions) != 1 || sessions[0].ID() != id {
		t.Fatalf("there are %d sessions", len(sessions))
	}
	if p := sessions[0].InitializeParams(); p.ProtocolVersion != "2025-11-25" || p.ClientInfo.Name != "t" {
		t.Errorf("the client is %+v", p)
	}
	for what, code := range map[string]int{
		"another user":            post(g, auth.User("bob", false), id, ping).Code,
		"another token":           post(g, withToken("ann", "tok_2", false), id, ping).Code,
		"a session that is not":   post(g, ann, "NONE", ping).Code,
		"an address with a view":  postAs(g, ann, "/mcp?tools=code", id, ping).Code,
		"another user, stateless": post(g, auth.Local, id, ping).Code,
	} {
		if code != http.StatusNotFound {
			t.Errorf("%s: %d", what, code)
		}
	}
	g.Close()
	if n := len(external.to); n > 0 {
		t.Errorf("%d more subscriptions", n)
	}
}

// subscribable is a source of third-party servers that says what is subscribed to.
type subscribable struct {
	*fakeExternal
	to chan string
}

func (s subscribable) Subscribe(_ context.Context, _ auth.Principal, _, uri string) error {
	s.to <- uri
	return nil
}

// TestResumeEachWay: other requests than calls go on, too, and a session that its client has ended does not.
func TestResumeEachWay(t *testing.T) {
	store := &records{}
	first := store.next(fakeBuiltin{})
	defer first.Close()
	id := begin(t, first, auth.Local)
	viewed := postAs(first, auth.Local, "/mcp?tools=code", "", initialize("1")).Header().Get("Mcp-Session-Id")

	g := store.next(fakeBuiltin{})
	r := standingRequest(http.MethodGet, "", map[string]string{"Mcp-Session-Id": id})
	ctx, end := context.WithCancel(r.Context())
	w, ended := httptest.NewRecorder(), make(chan struct{})
	go func() { g.ServeHTTP(w, r.WithContext(ctx)); close(ended) }()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		n := len(g.endpoints)
		g.mu.Unlock()
		if n > 0 || time.Since(began) > 10*time.Second {
			break
		}
	}
	if w := post(g, auth.Local, id, ping); w.Code != http.StatusOK {
		t.Errorf("beside a stream: %d", w.Code)
	}
	end()
	<-ended
	if w.Code != http.StatusOK {
		t.Errorf("a stream: %d %s", w.Code, w.Body)
	}
	if w := post(g, auth.Local, id, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`); w.Code != 202 {
		t.Errorf("a notification: %d", w.Code)
	}
	if w := postAs(g, auth.Local, "/mcp?tools=code", viewed, ping); w.Code != http.StatusOK {
		t.Errorf("at its address with a view: %d", w.Code)
	}
	w = post(g, auth.Local, "STALE", initialize("1"))
	if anew := w.Header().Get("Mcp-Session-Id"); w.Code != http.StatusOK || anew == "" || anew == "STALE" {
		t.Errorf("initialize with a stale id: %d %q", w.Code, anew)
	}
	g.Close()

	g = store.next(fakeBuiltin{})
	w = post(g, auth.Local, id, initialize("1"))
	if anew := w.Header().Get("Mcp-Session-Id"); w.Code != http.StatusOK || anew == "" || anew == id {
		t.Errorf("initialize with an id of the server before: %d %q", w.Code, anew)
	}
	other := standingRequest(http.MethodDelete, "", map[string]string{"Mcp-Session-Id": id})
	gone := httptest.NewRecorder()
	g.ServeHTTP(gone, other.WithContext(auth.NewContext(t.Context(), auth.User("bob", false))))
	if _, kept, _ := store.MCPSession(t.Context(), id); gone.Code != http.StatusNotFound || !kept {
		t.Errorf("another user's DELETE: %d, and the session is kept: %v", gone.Code, kept)
	}
	gone = httptest.NewRecorder()
	g.ServeHTTP(gone, standingRequest(http.MethodDelete, "", map[string]string{"Mcp-Session-Id": id}))
	if gone.Code != http.StatusNoContent {
		t.Errorf("DELETE: %d", gone.Code)
	}
	g.Close()
	g = store.next(fakeBuiltin{})
	defer g.Close()
	if w := post(g, auth.Local, id, ping); w.Code != http.StatusNotFound {
		t.Errorf("after DELETE: %d", w.Code)
	}
}

// TestResumeIsBounded: what is too old or too large does not go on, and a store that fails is no proof that there is no
// session.
func TestResumeIsBounded(t *testing.T) {
	store := &records{}
	g := store.next(fakeBuiltin{})
	old, young := begin(t, g, auth.Local), begin(t, g, auth.Local)
	large := post(g, auth.Local, "", request("1", "initialize", initParams("2025-11-25",
		`{"experimental":{"x":{"y":"`+strings.Repeat("z", 64<<10)+`"}}}`))).Header().Get("Mcp-Session-Id")
	for n := range 300 {
		uri, _ := json.Marshal("sandlot://" + strings.Repeat("u", 300+n))
		post(g, auth.Local, young, request("9", "resources/subscribe", `"uri":`+string(uri)))
	}
	if n := len(store.all[young].URIs); n == 0 || n > 256 {
		t.Errorf("%d subscriptions are stored", n)
	}
	g.Close()
	store.set(old, func(r *mcpsession.Record) { r.Used = r.Used.Add(-mcpsession.MaxAge) })
	store.set(young, func(r *mcpsession.Record) { r.Used = r.Used.Add(time.Hour - mcpsession.MaxAge) })
	g = store.next(fakeBuiltin{})
	defer g.Close()
	store.fails = true
	if w := post(g, auth.Local, young, ping); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without a store: %d %s", w.Code, w.Body)
	}
	store.fails = false
	for id, code := range map[string]int{old: 404, large: 404, young: 200} {
		if w := post(g, auth.Local, id, ping); w.Code != code {
			t.Errorf("%d, want %d: %s", w.Code, code, w.Body)
		}
	}
	if used := store.all[young].Used; time.Since(used) > time.Hour {
		t.Errorf("the session counts as used last at %s", used)
	}
}

// postTo is post to another address.
func postAs(g *Gateway, p auth.Principal, at, session, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, at, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), p)))
	return w
}

// TestResumeWhole: a call that comes while its session is made again waits until all is said that the client had said.
func TestResumeWhole(t *testing.T) {
	store := &records{}
	ann := withToken("ann", "tok_1", false)
	before := store.next(fakeBuiltin{call: printed}, &fakeExternal{})
	defer before.Close()
	id := begin(t, before, ann)
	for range 10 {
		g := store.next(fakeBuiltin{call: printed}, &fakeExternal{})
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				call := request(fmt.Sprint(10+n), "tools/call", `"name":"own","arguments":{}`)
				if w := post(g, ann, id, call); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "42") {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		g.Close()
	}
}
