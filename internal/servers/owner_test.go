package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"sandlot/internal/auth"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/tool"
)

// storedRecords is a store with connections of an earlier server.
type storedRecords struct {
	memStore
	was []Record
}

func (s *storedRecords) Connections(_ context.Context, owner string) ([]Record, error) {
	return slices.DeleteFunc(slices.Clone(s.was), func(r Record) bool { return r.Owner != owner }), nil
}

// What is stored for an owner who is not known is nobody's, and above all not the
// local user's.
func TestUnknownOwnersAreNobody(t *testing.T) {
	now := time.Now().UTC()
	record := func(owner, id string) Record {
		return Record{ID: id, Owner: owner, Spec: spec.Spec{Name: id, Kind: spec.Stdio, Command: "true"},
			Created: now, Updated: now}
	}
	owners := map[string]string{"aaaaaa": "local", "bbbbbb": "user:ann", "cccccc": "team:ann", "dddddd": "",
		"eeeeee": "user:a b", "ffffff": "oidc:x#local"}
	st := &storedRecords{}
	for id, owner := range owners {
		st.was = append(st.was, record(owner, id))
	}
	servers := New(Config{Store: st, Version: "1", Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(servers.Close)
	if err := servers.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, owner := range owners {
		for _, p := range []auth.Principal{auth.Local, auth.User("ann", false)} {
			known := get(servers, p, id) != nil
			if want := p.ID == owner; known != want {
				t.Errorf("%q has that of %q: %v", p.ID, owner, known)
			}
		}
	}
	if n := len(servers.owners); n != 2 {
		t.Errorf("there are %d owners", n)
	}
}

// library is a store of many owners, each with one server that offers one tool.
type library struct {
	memStore
	reads  atomic.Int32
	broken atomic.Bool
}

func (l *library) Connections(_ context.Context, owner string) ([]Record, error) {
	if l.reads.Add(1); l.broken.Load() {
		return nil, errors.New("the disk is full")
	}
	c := catalog.Catalog{Loaded: true, Valid: true, Names: map[string]string{"tool/t": "ext_aaaaaa_t"},
		Tools: []catalog.Definition{{Remote: "t", Exposed: "ext_aaaaaa_t",
			Raw: fmt.Appendf(nil, `{"name":"t","description":%q}`, strings.Repeat("x", 8<<10))}}}
	r := Record{ID: "aaaaaa", Owner: owner, Spec: spec.Spec{Name: "x", Kind: spec.HTTP, URL: "http://192.0.2.1/"},
		Catalog: c}
	if owner == "user:values" {
		r.HeaderKeys = []string{"A"}
	}
	return []Record{r}, nil
}

const libraryTool = "ext_aaaaaa_t"

// Of thousands of users nothing is read before they come, and nothing is left of
// them in memory when they have not come for a while; then it is read again.
func TestOwnersRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &library{}
		servers := New(Config{Store: st, Version: "1"})
		ctx, stop := context.WithCancel(t.Context())
		go servers.Run(ctx)
		owners := func() int {
			servers.mu.Lock()
			defer servers.mu.Unlock()
			return len(servers.owners)
		}
		if err := servers.Recover(ctx); err != nil || st.reads.Load() != 0 || owners() != 0 {
			t.Errorf("at the start %d are read: %v", st.reads.Load(), err)
		}
		users := make([]auth.Principal, 2000)
		var weakly []weak.Pointer[server]
		for i := range users {
			users[i] = auth.User(fmt.Sprint("u", i), false)
			if !has(servers, users[i], libraryTool) || has(servers, users[i], "other") {
				t.Fatal("a tool is not there")
			}
			weakly = append(weakly, weak.Make(get(servers, users[i], "x")))
		}
		if st.reads.Load() != 2000 {
			t.Errorf("%d reads", st.reads.Load())
		}
		time.Sleep(restAfter - time.Minute)
		if len(servers.List(users[0])) != 1 || owners() != 2000 {
			t.Errorf("there are %d owners", owners())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if owners() != 1 || servers.owners[users[0].ID] == nil {
			t.Errorf("after a while there are %d owners", owners())
		}
		runtime.GC()
		runtime.GC()
		left := 0
		for _, s := range weakly[1:] {
			if s.Value() != nil {
				left++
			}
		}
		if left > 0 {
			t.Errorf("%d servers are in memory", left)
		}
		for _, p := range users {
			if !has(servers, p, libraryTool) || len(servers.Tools(ctx, p)) != 1 {
				t.Fatal("a tool does not come again")
			}
		}
		stop()
		servers.Close()
	})
}

// What runs, waits, or is in memory alone stays, and the rest of its owner with
// it; of a server that rests only what the store has is freed.
func TestOwnersWhoStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &library{}
		servers := New(Config{Store: st, Version: "1"})
		ctx, stop := context.WithCancel(t.Context())
		whole := map[string]func(p auth.Principal, s *server){
			"running": func(_ auth.Principal, s *server) { s.instance = &instance.Instance{Used: 1} },
			"starting": func(_ auth.Principal, s *server) {
				s.start = &start{cancel: func() {},
					done: make(chan struct{})}
			},
			"trying":     func(_ auth.Principal, s *server) { s.retry = time.AfterFunc(24*time.Hour, func() {}) },
			"following":  func(_ auth.Principal, s *server) { s.follows.add("x://a", "client") },
			"listening":  func(p auth.Principal, _ *server) { servers.SetLevel(ctx, p, "client", "info") },
			"installing": func(p auth.Principal, _ *server) { _, _ = servers.beginInstall(p, "y", "/workspace/y") },
			"changing":   func(_ auth.Principal, s *server) { _ = s.acquire(ctx) },
			"asked":      func(p auth.Principal, _ *server) { _, _ = servers.hold(p) },
			"reading":    func(p auth.Principal, _ *server) { _, _ = servers.FollowLog(p, "x", "") },
			"logging-in": func(_ auth.Principal, s *server) {
				servers.waiting = func() map[string]bool { return map[string]bool{s.owner.ID: true} }
			},
		}
		for name, do := range whole {
			p := auth.User(name, false)
			do(p, get(servers, p, "x"))
		}
		values, failed := auth.User("values", false), auth.User("failed", false)
		get(servers, values, "x").Values = spec.Values{Headers: map[string]string{"A": "given"}, Complete: true}
		get(servers, failed, "x").apply(state.Event{What: state.Broken, Why: "it was given up"})
		before := st.reads.Load()
		go servers.Run(ctx)
		time.Sleep(3 * restAfter)
		synctest.Wait()
		for name := range whole {
			o := servers.owners["user:"+name]
			if o == nil || !o.loaded || o.servers["aaaaaa"].rec.Catalog.Size() == 0 {
				t.Errorf("%s was forgotten", name)
			}
		}
		for _, p := range []auth.Principal{values, failed} {
			if o := servers.owners[p.ID]; o == nil || o.loaded || o.servers["aaaaaa"].rec.Catalog.Size() != 0 ||
				len(o.view.List) != 0 {
				t.Errorf("%s: what the store has is in memory, or the rest is not", p.Name)
			}
			if !has(servers, p, libraryTool) || len(get(servers, p, "x").rec.Catalog.Tools) != 1 {
				t.Errorf("%s: it does not come again", p.Name)
			}
		}
		if st.reads.Load() != before+2 {
			t.Errorf("%d reads, before %d", st.reads.Load(), before)
		}
		if s := get(servers, values, "x"); s.Values.Headers["A"] != "given" || s.info().State != state.Idle {
			t.Errorf("values are lost: %+v", s.info())
		}
		if i := servers.List(failed)[0]; i.State != state.Failed || i.LastError != "it was given up" {
			t.Errorf("%+v", i)
		}
		stop()
		servers.Close()
	})
}

// Whom something is being done for is not forgotten in the middle of it, however
// long it takes: an approval, a look, a log-in that waits for a browser.
func TestRestAndApprovals(t *testing.T) {
	servers := New(Config{Store: &library{}, Version: "1"})
	defer servers.Close()
	ann, bob := auth.User("ann", false), auth.User("bob", false)
	var pending atomic.Bool // bob's log-in
	servers.waiting = func() map[string]bool { return map[string]bool{bob.ID: pending.Load()} }
	over := make(chan struct{})
	var resting, all sync.WaitGroup
	resting.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			servers.mu.Lock()
			for _, o := range servers.owners { // as if they had not come for long
				o.used = time.Time{}
				for _, s := range o.servers {
					s.mu.Lock()
					s.used = time.Time{}
					s.mu.Unlock()
				}
			}
			servers.mu.Unlock()
			servers.forgetIdle()
		}
	})
	for range 4 {
		all.Go(func() {
			for range 50 {
				i, err := servers.Approve(t.Context(), ann, "x", nil)
				if err != nil || i.Name != "x" {
					t.Errorf("%+v, %v", i, err)
					return
				}
				_ = servers.WhyMissing(ann, "ext_aaaaaa_none")
				_ = servers.List(ann)
			}
		})
	}
	all.Go(func() {
		for range 50 {
			release, err := servers.hold(bob)
			if err != nil {
				t.Error(err)
				return
			}
			s := get(servers, bob, "x")
			pending.Store(true)
			release()
			for range 20 {
				if get(servers, bob, "x") != s {
					t.Error("its server was forgotten while a log-in waits")
					return
				}
			}
			pending.Store(false)
		}
	})
	all.Wait()
	close(over)
	resting.Wait()
	for _, p := range []auth.Principal{ann, bob} {
		if !has(servers, p, libraryTool) {
			t.Errorf("the tool of %s is lost", p.Name)
		}
	}
}

// A user whose connections cannot be read is told so, has none meanwhile, and
// makes none that would take the place of one.
func TestOwnersThatCannotBeRead(t *testing.T) {
	st := &library{}
	servers := New(Config{Store: st, Version: "1"})
	t.Cleanup(servers.Close)
	st.broken.Store(true)
	_, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: "x", URL: "http://192.0.2.1/"})
	_, _, infoErr := servers.Info(P, "x")
	for what, err := range map[string]error{"connecting": err, "looking": infoErr,
		"calling": servers.WhyMissing(P, libraryTool)} {
		if err == nil || !strings.Contains(err.Error(), "could not be read") || strings.Contains(err.Error(), "disk") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if has(servers, P, libraryTool) || len(st.recs) != 0 {
		t.Error("something is there")
	}
	st.broken.Store(false)
	if !has(servers, P, libraryTool) {
		t.Error("it does not come when it can be read again")
	}
}

// What an earlier version stored of schemas that refer elsewhere is not offered.
func TestStoredReferences(t *testing.T) {
	st := &storedRecords{was: []Record{{ID: "aaaaaa", Owner: P.ID, Spec: spec.Spec{Name: "x", Kind: spec.HTTP,
		URL: "http://192.0.2.1/"}, Catalog: catalog.Catalog{Loaded: true, Tools: []catalog.Definition{
		{Remote: "good", Exposed: "ext_aaaaaa_good",
			Raw: []byte(`{"name":"ext_aaaaaa_good","inputSchema":{"type":"object"}}`)},
		{Remote: "evil", Exposed: "ext_aaaaaa_evil",
			Raw: []byte(`{"name":"ext_aaaaaa_evil","inputSchema":{"type":"object","$ref":"https://schemas.example"}}`)}}}}}}
	servers := New(Config{Store: st, Version: "1"})
	t.Cleanup(servers.Close)
	if !has(servers, P, "ext_aaaaaa_good") || has(servers, P, "ext_aaaaaa_evil") {
		t.Error(servers.Tools(t.Context(), P))
	}
	if err := servers.WhyMissing(P, "ext_aaaaaa_evil"); err == nil || !strings.Contains(err.Error(),
		"refers to something outside") {
		t.Error(err)
	}
}

// What an owner's servers say of themselves does not depend on the rights of the
// token that was there first.
func TestOwnersHaveNoToken(t *testing.T) {
	servers := New(Config{Store: &library{}, Version: "1"})
	t.Cleanup(servers.Close)
	first := P
	first.Token, first.Roles, first.Service = "tok_1", auth.NewRoles(auth.Operator), true
	s := get(servers, first, "x")
	if s == nil || s.owner != P.Identity() || s.owner.Roles != 0 || get(servers, P, "x") != s {
		t.Errorf("%+v", s)
	}
	if s := get(servers, auth.SocketOwner(), "x"); s.owner != auth.Local {
		t.Errorf("%+v", s.owner)
	}
}

// Who may use a configured server is told by ids: a name that somebody is shown
// under decides nothing.
func TestPrincipalsAreIDs(t *testing.T) {
	c := spec.Configured{Name: "x", Principals: []string{"local", "user:ann"}}
	for _, tt := range []struct {
		p    auth.Principal
		want bool
	}{
		{auth.Local, true}, {auth.User("ann", false), true}, {auth.User("ann", true), true}, {auth.User("bob", false),
			false},
		{auth.User("local", false), false}, {auth.Principal{ID: "user:eve", Name: "ann"},
			false}, {auth.Principal{ID: "user:eve", Name: "local"}, false},
		{auth.Principal{ID: "user:eve", Name: "user:ann"}, false}, {auth.Principal{}, false},
		{auth.Principal{ID: "user:eve", Roles: auth.NewRoles(auth.Operator)}, false}, {auth.User("operator", false),
			false},
	} {
		if got := c.AllowsPrincipal(tt.p.ID); got != tt.want {
			t.Errorf("%+v: %v", tt.p, got)
		}
	}
	if (spec.Configured{}).AllowsPrincipal(auth.Principal{}.ID) || !(spec.Configured{}).AllowsPrincipal(auth.Local.ID) {
		t.Error("one for everybody")
	}
}

// Looking something up starts no server; who lists, or misses something, does.
func TestLookingUpStartsNothing(t *testing.T) {
	for what, starts := range map[string]bool{"find": false, "follow": false, "list": true, "miss": true, "ask": true,
		"subscribe": true} {
		servers := newServers(t, &memStore{}, nil)
		servers.SetConfigured([]spec.Configured{onhost("x", script(t, pyLoop), nil)})
		switch what {
		case "find":
			if _, ok := servers.Find(P, "ext_x_t"); ok {
				t.Error("what is not known is found")
			}
		case "follow":
			_ = servers.Unsubscribe(t.Context(), P, "client", "x://a")
		case "ask":
			if _, err := servers.Proxy(t.Context(), tool.Request{Principal: P, Method: "prompts/get"}); err == nil {
				t.Error("what is not known is answered")
			}
		case "subscribe":
			_ = servers.Subscribe(t.Context(), P, "client", "x://a")
		case "list":
			servers.Tools(t.Context(), P)
		case "miss":
			_ = servers.WhyMissing(P, "ext_x_t")
		}
		all := servers.all(P.ID)
		if len(all) != 1 {
			t.Fatalf("%s: there are %d servers", what, len(all))
		}
		all[0].mu.Lock()
		started := all[0].start != nil || all[0].State != state.Idle
		all[0].mu.Unlock()
		if started != starts {
			t.Errorf("%s: started is %v", what, started)
		}
		servers.Close()
	}
}

// What comes with an error counts for nobody: much of it is not passed on.
func TestDataOfErrorsIsBounded(t *testing.T) {
	for size, passed := range map[int]bool{1 << 10: true, 1 << 20: false} {
		data := json.RawMessage(`"` + strings.Repeat("<", size) + `"`)
		err := new(server).callFault(nil, &transport.Error{Code: -1, Message: "no", Data: data})
		said, ok := errors.AsType[*tool.ExternalError](err)
		if !ok || said.Message != "no" || (len(said.Data) > 0) != passed {
			t.Errorf("of %d bytes %d are passed on: %v", size, len(said.Data), err)
		}
	}
}
