package api

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
)

// A request that is sent again with its key does nothing, and gets the first answer: that of the same token alone.
func TestIdempotencyKey(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann, other, bob := e.token("ann"), e.token("ann"), e.token("bob")
	create := func(token, key, body string) answer {
		return do(e.Handler(), "POST", "/v1/sessions", body, "Authorization", token, protocol.IdempotencyKey, key)
	}
	first := create(ann, "k1", `{"flavor":"small"}`)
	if first.StatusCode != 201 || first.json()["session_id"] == nil || first.Header.Get(idempotencyReplayed) != "" {
		t.Fatalf("%d %v %s", first.StatusCode, first.Header, first.body)
	}
	again := create(ann, "k1", `{"flavor":"small"}`)
	if again.StatusCode != 201 || again.body != first.body || again.Header.Get(idempotencyReplayed) != "true" ||
		again.Header.Get("Content-Type") != "application/json" {
		t.Errorf("again: %d %v %s", again.StatusCode, again.Header, again.body)
	}
	for name, a := range map[string]answer{
		"another body": create(ann, "k1", `{}`),
		"another path": do(e.Handler(), "POST", "/v1/tools/get_sessions", `{"flavor":"small"}`, "Authorization", ann,
			protocol.IdempotencyKey, "k1"),
	} {
		if a.StatusCode != 422 || a.json()["title"] != "IDEMPOTENCY_KEY_REUSED" {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	for name, token := range map[string]string{"another token of the user": other, "another user": bob} {
		if a := create(token, "k1", `{"flavor":"small"}`); a.StatusCode != 201 || a.body == first.body {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	for _, key := range []string{"", "a b", "ü", strings.Repeat("k", maxKey+1)} {
		if a := create(ann, key, "{}"); a.StatusCode != 400 {
			t.Errorf("the key %.20q: %d %s", key, a.StatusCode, a.body)
		}
	}
	if a := create(ann, "large", strings.Repeat(" ", protocol.MaxKeyed+1)); a.StatusCode != 400 {
		t.Errorf("a large body: %d %s", a.StatusCode, a.body)
	}
	// What was refused may be tried again.
	if a := create(ann, "k2", `{"flavor":"no"}`); a.StatusCode != 400 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := create(ann, "k2", `{"flavor":"small"}`); a.StatusCode != 201 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	isProblem(t, do(e.Handler(), "POST", "/v1/sessions", "{}", protocol.IdempotencyKey, "k1"), 401, "UNAUTHORIZED")
}

// While the first request runs, a second one gets 409. The first one goes on when its client is gone, and
// the second one gets its answer then.
func TestIdempotencyKeyInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{replies: newReplies(nil)}
		defer s.Close()
		finish := make(chan struct{})
		ran := 0
		h := s.onlyOnce(func(w http.ResponseWriter, r *http.Request) {
			ran++
			<-finish
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusAccepted)
			w.Write(append(body, '!'))
		})
		send := func(ctx context.Context) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(auth.NewContext(ctx, auth.Local), "POST", "/x", strings.NewReader("hi"))
			r.Header.Set(protocol.IdempotencyKey, "k")
			w := httptest.NewRecorder()
			h(w, r)
			return w
		}
		ctx, hangUp := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() { send(ctx) })
		synctest.Wait()
		if w := send(t.Context()); w.Code != http.StatusConflict || w.Header().Get("Retry-After") == "" ||
			!strings.Contains(w.Body.String(), "IDEMPOTENCY_KEY_IN_USE") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		hangUp()
		client.Wait()
		close(finish)
		synctest.Wait()
		if w := send(t.Context()); w.Code != http.StatusAccepted || w.Body.String() != "hi!" || ran != 1 {
			t.Errorf("%d %s after %d runs", w.Code, w.Body, ran)
		}
	})
}

// A client whose JWT was renewed between its tries gets the first answer, if the new one has the same rights.
func TestIdempotencyKeyOverTokens(t *testing.T) {
	s := &Server{replies: newReplies(nil)}
	defer s.Close()
	ran := 0
	h := s.onlyOnce(func(w http.ResponseWriter, r *http.Request) { ran++ })
	ann := auth.Principal{ID: "oidc:https://issuer.test ann", Name: "ann", Authenticated: true, Token: "1",
		Expires: time.Now().Add(time.Hour), Scope: auth.NewScope("file.*")}
	send := func(change func(*auth.Principal)) bool {
		p, before := ann, ran
		change(&p)
		r := httptest.NewRequestWithContext(auth.NewContext(t.Context(), p), "POST", "/x", strings.NewReader("hi"))
		r.Header.Set(protocol.IdempotencyKey, "k")
		h(httptest.NewRecorder(), r)
		return ran > before
	}
	renew := func(p *auth.Principal) { p.Token, p.Expires, p.Name = "2", p.Expires.Add(time.Hour), "Ann" }
	if !send(func(*auth.Principal) {}) || send(renew) {
		t.Error("with a renewed JWT the request runs again")
	}
	for what, change := range map[string]func(*auth.Principal){
		"another scope":          func(p *auth.Principal) { p.Scope = auth.NewScope("code.execute") },
		"another role":           func(p *auth.Principal) { p.Roles = auth.NewRoles(auth.Operator) },
		"another user":           func(p *auth.Principal) { p.ID += "2" },
		"a service":              func(p *auth.Principal) { p.Service = true },
		"a token that is no JWT": func(p *auth.Principal) { p.Expires = time.Time{} },
	} {
		if !send(func(p *auth.Principal) { renew(p); change(p) }) {
			t.Errorf("%s gets the answer", what)
		}
	}
}

// A request that is sent again to a server that cannot have its answer any more does nothing: the server of the first
// one may have done it.
func TestIdempotencyKeyOfAnEarlierServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{replies: newReplies(nil), began: time.Now()}
		defer s.Close()
		ran := 0
		h := s.onlyOnce(func(w http.ResponseWriter, r *http.Request) { ran++ })
		send := func(key, age string) *httptest.ResponseRecorder {
			ctx := auth.NewContext(t.Context(), auth.Local)
			r := httptest.NewRequestWithContext(ctx, "POST", "/x", strings.NewReader(""))
			r.Header.Set(protocol.IdempotencyKey, key)
			r.Header.Set(protocol.IdempotencyAge, age)
			w := httptest.NewRecorder()
			h(w, r)
			return w
		}
		for _, bad := range []string{"x", "", "+1", "1 ", "-1", "1.5", "99999999999999999999"} {
			if w := send("k", bad); w.Code != http.StatusBadRequest {
				t.Errorf("the age %q: %d %s", bad, w.Code, w.Body)
			}
		}
		if w := send("", "1"); w.Code != http.StatusBadRequest {
			t.Errorf("an age without a key: %d %s", w.Code, w.Body)
		}
		time.Sleep(10 * time.Second)
		for _, age := range []string{"1", "11000", "9999999999"} {
			w := send("k", age)
			if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), protocol.KeyLost) {
				t.Errorf("the age %s: %d %s", age, w.Code, w.Body)
			}
		}
		if ran != 0 {
			t.Fatal("it ran")
		}
		// What has an answer gets it. What the server never got, or refused, runs.
		if send("k", "0"); ran != 1 {
			t.Error("a first request does not run")
		}
		if w := send("k", "11000"); w.Code != http.StatusOK || w.Header().Get(idempotencyReplayed) == "" || ran != 1 {
			t.Errorf("%d %s after %d runs", w.Code, w.Body, ran)
		}
		time.Sleep(time.Minute)
		if w := send("k2", "1000"); w.Code != http.StatusOK || ran != 2 {
			t.Errorf("%d %s after %d runs", w.Code, w.Body, ran)
		}
		// An answer that was stored may be gone.
		time.Sleep(20 * time.Minute)
		if w := send("k2", "1200000"); w.Code != http.StatusConflict || ran != 2 {
			t.Errorf("%d %s after %d runs", w.Code, w.Body, ran)
		}
	})
}

// A client whose connections break makes one session of each request.
func TestClientMakesOne(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	e.began = time.Now().Add(-time.Hour)
	requests := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done := httptest.NewRecorder()
		e.Handler().ServeHTTP(done, r)
		if requests++; requests < 3 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(done.Code)
		w.Write(done.Body.Bytes())
	}))
	defer s.Close()
	token := e.token("ann")
	c, err := client.New("", s.URL, secret.Value(strings.TrimPrefix(token, "Bearer ")))
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.NewSession(t.Context(), protocol.SessionRequest{})
	p := auth.Principal{ID: "user:ann"}
	list, listErr := e.Hub.Sessions.List(t.Context(), p, "")
	if err != nil || listErr != nil || len(list) != 1 || list[0].ID != id || requests != 3 {
		t.Errorf("%q, %v; %v, %v after %d requests", id, err, list, listErr, requests)
	}
}

// A stored answer is for who may still do the request, and an event tells of it.
func TestReplayAsksPolicy(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	rules := new(policy.Current)
	e.Hub.Rules, e.Hub.Decide = rules, func(q policy.Question) policy.Decision { return rules.Load().Decide(q) }
	ann := e.token("ann")
	events := e.Hub.Events.Subscribe(event.Filter{}, 0)
	defer events.Close()
	send := func(rule string) (answer, string) {
		var list []policy.Rule
		if rule != "" {
			r, err := policy.ParseRule(rule, "x:1")
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, r)
		}
		rules.Set(policy.Compile(list))
		a := do(e.Handler(), "POST", "/v1/sessions", "{}", "Authorization", ann, protocol.IdempotencyKey, "k")
		outcome := ""
		for more := true; more; {
			var all []event.Event
			all, _, more = events.Read()
			for _, v := range all {
				if v.Kind == event.Call && v.Operation == "session.create" {
					outcome = v.Outcome
				}
			}
		}
		return a, outcome
	}
	first, outcome := send("")
	if first.StatusCode != 201 || outcome != event.OK {
		t.Fatalf("%d %q", first.StatusCode, outcome)
	}
	if a, outcome := send("ask * session.create"); a.body != first.body || outcome != event.Replayed {
		t.Errorf("again: %d %s, the event says %q", a.StatusCode, a.body, outcome)
	}
	if a, outcome := send("deny ann session.create"); a.StatusCode != 403 || outcome != "FORBIDDEN" {
		t.Errorf("after a rule: %d %s, the event says %q", a.StatusCode, a.body, outcome)
	}
	if a, _ := send(""); a.body != first.body {
		t.Errorf("without the rule: %d %s", a.StatusCode, a.body)
	}
}

// A request with a key counts against the limits of its principal until it ends, also when its client has left.
func TestARunHoldsItsLimits(t *testing.T) {
	for name, limits := range map[string]limit.Limits{"requests": {limit.Requests: 1, limit.RequestBytes: 1 << 20},
		"bytes": {limit.Requests: 9, limit.RequestBytes: 256 << 10}} {
		t.Run(name, func(t *testing.T) { holdsItsLimits(t, limits) })
	}
}

func holdsItsLimits(t *testing.T, limits limit.Limits) {
	synctest.Test(t, func(t *testing.T) {
		limits[limit.AnswerBytes] = 1 << 20
		s := &Server{Config: Config{Limits: limit.New(limits)}, replies: newReplies(nil)}
		defer s.Close()
		finish := make(chan struct{})
		h := s.onlyOnce(func(http.ResponseWriter, *http.Request) { <-finish })
		send := func(ctx context.Context, key string) int {
			r := httptest.NewRequestWithContext(ctx, "POST", "/x", strings.NewReader(strings.Repeat("x", 130<<10)))
			r.Header.Set(protocol.IdempotencyKey, key)
			w := httptest.NewRecorder()
			s.withinLimits(h, w, r, auth.User("ann", false))
			return w.Code
		}
		ctx, hangUp := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() { send(ctx, "1") })
		synctest.Wait()
		hangUp()
		client.Wait()
		if code := send(t.Context(), "2"); code != http.StatusTooManyRequests {
			t.Errorf("a second request runs beside the first one: %d", code)
		}
		close(finish)
		synctest.Wait()
		if code := send(t.Context(), "3"); code != http.StatusOK {
			t.Errorf("after the run: %d", code)
		}
	})
}
