package api

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/secret"
)

// read reads the events that are kept.
func (e *edge) read(token, query string) (all []event.Event, lost []protocol.Lost) {
	e.t.Helper()
	server := httptest.NewServer(e.Handler())
	defer server.Close()
	c, err := client.New("", server.URL, secret.Value(strings.TrimPrefix(token, "Bearer ")))
	if err != nil {
		e.t.Fatal(err)
	}
	q, _ := url.ParseQuery(query)
	q.Set("follow", "false")
	err = c.Events(e.t.Context(), q, func(ev *event.Event, l *protocol.Lost) error {
		if l != nil {
			lost = append(lost, *l)
			return nil
		}
		all = append(all, *ev)
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return all, lost
}

// Everyone sees what they did and how it ended, operators what all did, and nobody
// sees an argument.
func TestEvents(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets()
	ann, bob := e.token("ann"), e.token("bob")
	_, v, err := auth.Issue(t.Context(), e.tokens, "eve", false, 0, auth.Operator)
	if err != nil {
		t.Fatal(err)
	}
	eve := "Bearer " + v.Reveal()
	id, _ := do(e.Handler(), "POST", "/v1/sessions", "", "Authorization", ann).json()["session_id"].(string)
	do(e.Handler(), "PUT", "/v1/secrets/HIDDEN", "hunter2", "Authorization", ann)
	do(e.Handler(), "POST", "/v1/tools/fails", `{"code":"hunter2"}`, "Authorization", ann)
	do(e.Handler(), "POST", "/v1/tools/hunter2", `{}`, "Authorization", ann)
	do(e.Handler(), "GET", "/v1/sessions/"+id+"/files/hunter2", "", "Authorization", bob)
	do(e.Handler(), "GET", "/v1/network", "", "Authorization", bob)
	want := map[string][]string{
		ann: {"session.create ok " + id, "secret.set ok ", "session.list COMMAND_EXECUTION_ERROR ",
			"tool.find NOT_FOUND "},
		bob: {"file.read SESSION_NOT_FOUND " + id, "network.read_all FORBIDDEN "},
	}
	want[eve] = append(append([]string{}, want[ann]...), want[bob]...)
	for token, lines := range want {
		all, lost := e.read(token, "")
		var got []string
		for _, ev := range all {
			got = append(got, ev.Operation+" "+ev.Outcome+" "+ev.Session)
			if ev.Time.IsZero() || ev.Kind != event.Call || ev.ID == 0 {
				t.Errorf("%+v", ev)
			}
			if strings.Contains(ev.Name, "hunter2") || strings.Contains(ev.Name, "HIDDEN") {
				t.Errorf("an argument is in %+v", ev)
			}
		}
		if strings.Join(got, "\n") != strings.Join(lines, "\n") || len(lost) > 0 {
			t.Errorf("got\n%s\nwant\n%s\nlost %v", strings.Join(got, "\n"), strings.Join(lines, "\n"), lost)
		}
	}
	if all, _ := e.read(ann, "session="+id); len(all) != 1 {
		t.Errorf("of the session: %v", all)
	}
	if all, _ := e.read(ann, "kind=egress,session"); len(all) != 0 {
		t.Errorf("of other kinds: %v", all)
	}
	isProblem(t, do(e.Handler(), "GET", "/v1/events?kind=secrets", "", "Authorization", ann), 400,
		"INVALID_PARAMETERS")
	isProblem(t, do(e.Handler(), "GET", "/v1/events?follow=maybe", "", "Authorization", ann), 400,
		"INVALID_PARAMETERS")
	isProblem(t, do(e.Handler(), "GET", "/v1/events", ""), 401, "UNAUTHORIZED")
}

// follow opens a stream of events, and returns its lines.
func (e *edge) follow(server, token, last string) (*http.Response, *bufio.Scanner) {
	e.t.Helper()
	r, err := http.NewRequestWithContext(e.t.Context(), "GET", server+"/v1/events", nil)
	if err != nil {
		e.t.Fatal(err)
	}
	r.Header.Set("Authorization", token)
	r.Header.Set("Last-Event-ID", last)
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		e.t.Fatal(resp, err)
	}
	e.t.Cleanup(func() { resp.Body.Close() })
	return resp, bufio.NewScanner(resp.Body)
}

// A HEAD request gets the headers of the stream, and ends.
func TestHeadOfEvents(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodHead, "/v1/events", nil)
	r.Host = "localhost:8000"
	r.Header.Set("Authorization", e.token("ann"))
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	if err := ctx.Err(); err != nil {
		t.Errorf("the response did not end: %v", err)
	}
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/event-stream" || w.Body.Len() > 0 {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
}

// until reads lines up to one that begins so, and returns that one.
func until(t *testing.T, lines *bufio.Scanner, begins string) string {
	t.Helper()
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), begins) {
			return lines.Text()
		}
	}
	t.Fatalf("no line begins with %q: %v", begins, lines.Err())
	return ""
}

// A stream tells what happens while it is open, begins where the client says that
// it was, and ends with the token and with the server.
func TestFollowEvents(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	server := httptest.NewServer(e.Handler())
	e.t.Cleanup(server.Close)
	token := e.token("ann")
	_, lines := e.follow(server.URL, token, "")
	until(t, lines, ": heartbeat")
	for _, name := range []string{"get_sessions", "old_name"} {
		do(e.Handler(), "POST", "/v1/tools/"+name, "{}", "Authorization", token)
	}
	first := strings.TrimPrefix(until(t, lines, "id: "), "id: ")
	if data := until(t, lines, "data: "); !strings.Contains(data, `"name":"get_sessions"`) {
		t.Errorf("the first event is %s", data)
	}
	// Who comes again with the id of the first one gets the second one alone.
	_, again := e.follow(server.URL, token, first)
	if data := until(t, again, "data: "); !strings.Contains(data, `"name":"old_name"`) {
		t.Errorf("behind the first one is %s", data)
	}
	// An id of an earlier server means nothing here, and that is said.
	_, other := e.follow(server.URL, token, "00000000-1")
	until(t, other, "event: lost")
	if data := until(t, other, "data: "); data != `data: {"count":0,"more":true}` {
		t.Errorf("it says %s", data)
	}
	if data := until(t, other, "data: "); !strings.Contains(data, `"name":"get_sessions"`) {
		t.Errorf("then comes %s", data)
	}
	e.Hub.Events.Close()
	for _, l := range []*bufio.Scanner{lines, again, other} {
		for l.Scan() {
		}
		if l.Err() != nil {
			t.Errorf("the stream breaks: %v", l.Err())
		}
	}
}

// What a token holds ends with it; events are no exception.
func TestEventsEndWithTheToken(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	e.TokenWatch = auth.NewTokenWatch(e.Authenticator, e.Log, e.Hub.Events)
	server := httptest.NewServer(e.Handler())
	e.t.Cleanup(server.Close)
	tok, v, err := auth.Issue(t.Context(), e.tokens, "ann", false, 0)
	if err != nil {
		t.Fatal(err)
	}
	e.token("bob") // so that tokens stay required
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		e.TokenWatch.Run(ctx)
	}()
	defer func() { cancel(); <-watching }()
	_, lines := e.follow(server.URL, "Bearer "+v.Reveal(), "")
	until(t, lines, ": heartbeat")
	if err := e.tokens.RemoveToken(t.Context(), tok.ID); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for lines.Scan() {
		}
	}()
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Error("the stream outlives its token")
	}
}

// Streams of events count for their principal.
func TestEventStreamsAreBounded(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	server := httptest.NewServer(e.Handler())
	e.t.Cleanup(server.Close)
	ann := e.token("ann")
	for range 64 {
		e.follow(server.URL, ann, "")
	}
	isProblem(t, do(e.Handler(), "GET", "/v1/events", "", "Authorization", ann), 429, "RESOURCE_LIMIT_EXCEEDED")
	e.follow(server.URL, e.token("bob"), "")
}

// An id that no session can have is in no event; one that a session could have is, whether or not there is one.
func TestRequestedTextsAreNoSessions(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann, bob := e.token("ann"), e.token("bob")
	other, _ := do(e.Handler(), "POST", "/v1/sessions", "", "Authorization", ann).json()["session_id"].(string)
	for _, c := range []struct{ path, id string }{{"a%ffb", ""}, {"a%00b", ""}, {"a%0Ab", ""}, {"nothing", ""},
		{other, other}, {strings.Repeat("a", 26), strings.Repeat("a", 26)}} {
		if a := do(e.Handler(), "GET", "/v1/sessions/"+c.path+"/files/x", "", "Authorization",
			bob); a.StatusCode < 400 {
			t.Errorf("%s: %d", c.path, a.StatusCode)
		}
		all, _ := e.read(bob, "")
		if len(all) == 0 {
			t.Fatalf("%s: there is no event", c.path)
		}
		if last := all[len(all)-1]; last.Session != c.id || last.Operation != "file.read" {
			t.Errorf("%s: the event is %+v", c.path, last)
		}
	}
}
