package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
)

// fakeTokens has the contexts of tokens, for a test to end them.
type fakeTokens struct {
	mu  sync.Mutex
	all map[string]context.CancelCauseFunc
}

func (l *fakeTokens) hold(ctx context.Context, p auth.Principal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]context.CancelCauseFunc{}
	}
	before := l.all[p.Token]
	l.all[p.Token] = func(err error) {
		if before != nil {
			before(err)
		}
		cancel(err)
	}
	return ctx, func() { cancel(nil) }
}

// end ends the contexts of a token.
func (l *fakeTokens) end(id string) {
	l.mu.Lock()
	all := l.all[id]
	l.mu.Unlock()
	all(auth.ErrEnded)
}

func (g *Gateway) numEndpoints() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.endpoints)
}

func newGatewayWithTokens(l *fakeTokens, sources ...tool.Source) *Gateway {
	return New(Config{Hub: hub.New(hub.Config{Sources: sources}), TokenContext: l.hold,
		Log: slog.New(slog.DiscardHandler)})
}

func withToken(name, id string, metrics bool) auth.Principal {
	p := auth.User(name, false)
	p.Token = id
	if metrics {
		p.Roles = auth.NewRoles(auth.Metrics)
	}
	return p
}

// reportCaller returns a source whose tool returns the token and the rights of its caller.
func reportCaller() fakeElicitor {
	return fakeElicitor{func(_ context.Context, c tool.Call) (*tool.Result, error) {
		return &tool.Result{Summary: fmt.Sprint("called by ", c.Principal.Token, c.Principal.HasRole(auth.Metrics))},
			nil
	}}
}

// A call has the rights of its own token, in both protocols, by the SDK and by the fast path,
// also when another token of the same user made the same call before.
func TestCallsCarryTheirToken(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{tools: []tool.Tool{externalTool("ext_a", `{"type":"object"}`)},
		call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
			raw := fmt.Sprintf(`{"content":[{"type":"text","text":"called by %s%t"}]}`, c.Principal.Token,
				c.Principal.HasRole(auth.Metrics))
			return &tool.Result{Raw: json.RawMessage(raw)}, nil
		}})
	one, two := withToken("ann", "tok_1", false), withToken("ann", "tok_2", true)
	sessions := map[string]string{one.Token: begin(t, g, one), two.Token: begin(t, g, two)}
	for range 3 { // the SDK answers the first call, the fast path the others
		for _, p := range []auth.Principal{one, two} {
			want := fmt.Sprint("called by ", p.Token, p.HasRole(auth.Metrics))
			for _, name := range []string{"careful", "careless", "ext_a"} {
				got := askAs(g, p, "tools/call", name, fmt.Sprintf(`"name":%q`, name))
				if !strings.Contains(got, want) {
					t.Errorf("%s of the stateless protocol by %s: %s", name, p.Token, got)
				}
				body := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q}}`, name)
				if w := post(g, p, sessions[p.Token], body); !strings.Contains(w.Body.String(), want) {
					t.Errorf("%s of the stateful protocol by %s: %s", name, p.Token, w.Body)
				}
			}
		}
	}
	// A token cannot use the session of another one, even of the same user.
	w := post(g, two, sessions[one.Token], `{"jsonrpc":"2.0","id":8,"method":"ping"}`)
	if w.Code != http.StatusNotFound {
		t.Errorf("another token's session: %d %s", w.Code, w.Body)
	}
}

// A token's streams, sessions, running calls and stdio connections end with it. Those of other
// tokens of the same user do not.
func TestATokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeTokens{}
		ended := make(chan string, 20)
		g := newGatewayWithTokens(l, fakeElicitor{func(ctx context.Context, c tool.Call) (*tool.Result, error) {
			if string(c.Args) != `{"wait":true}` {
				return &tool.Result{Summary: "ok"}, nil
			}
			<-ctx.Done()
			ended <- c.Principal.Token
			return nil, ctx.Err()
		}}, &fakeExternal{})
		one, two := withToken("ann", "tok_1", false), withToken("ann", "tok_2", false)
		wait, quick := callOf("%d", "careless", `{"wait":true}`), request("1", "tools/call", `"name":"careless"`)
		ids := map[string]string{}
		streams := make(chan string, 20)
		for _, p := range []auth.Principal{one, two} {
			id := begin(t, g, p)
			ids[p.Token] = id
			go post(g, p, id, fmt.Sprintf(wait, 3)) // by the SDK
			synctest.Wait()
			post(g, p, id, quick)
			go post(g, p, id, fmt.Sprintf(wait, 4)) // by the fast path
			go func() {
				r := httptest.NewRequest(http.MethodGet, "/mcp", nil)
				r.Header.Set("Accept", "text/event-stream")
				r.Header.Set("Mcp-Session-Id", id)
				g.ServeHTTP(httptest.NewRecorder(), r.WithContext(auth.NewContext(t.Context(), p)))
				streams <- p.Token
			}()
			go func() {
				in, out := stdioPipe(g, p)
				go func() {
					for out.Scan() {
					}
				}()
				fmt.Fprintln(in, initialize("1"))
				fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
				fmt.Fprintf(in, wait+"\n", 9)
			}()
		}
		synctest.Wait()
		l.end(one.Token)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(ended); n != 3 {
			t.Errorf("%d calls ended", n)
		}
		for range len(ended) {
			if who := <-ended; who != one.Token {
				t.Errorf("a call of %s ended", who)
			}
		}
		if len(streams) != 1 || <-streams != one.Token {
			t.Errorf("%d streams ended", len(streams))
		}
		if w := post(g, two, ids[two.Token], `{"jsonrpc":"2.0","id":5,"method":"ping"}`); w.Code != 200 {
			t.Errorf("the other token's session: %d", w.Code)
		}
		if w := post(g, one, ids[one.Token], `{"jsonrpc":"2.0","id":5,"method":"ping"}`); w.Code != 404 {
			t.Errorf("the session of a token that ended: %d", w.Code)
		}
		l.end(one.Token) // for what began after the first end
		l.end(two.Token)
		time.Sleep(time.Second)
		synctest.Wait()
		if g.numEndpoints() != 0 || len(g.stdioEndpoints) != 0 || len(ended) != 3 {
			t.Errorf("%d endpoints and %d streams are left, %d calls ended", len(g.endpoints), len(g.stdioEndpoints),
				len(ended))
		}
	})
}

// Unused endpoints are freed, and created again.
func TestEndpointsAreFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGatewayWithTokens(&fakeTokens{}, reportCaller(), &fakeExternal{})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go g.Run(ctx)
		for n := range 50 {
			p := withToken(fmt.Sprint("u", n), fmt.Sprint("tok_", n), false)
			if got := askAs(g, p, "tools/list", "", ""); !strings.Contains(got, "careful") {
				t.Fatal(got)
			}
		}
		ann := withToken("ann", "tok_a", false)
		id := begin(t, g, ann) // a session that she may still use
		time.Sleep(9 * time.Minute)
		if g.numEndpoints() != 51 {
			t.Errorf("%d endpoints after nine minutes", g.numEndpoints())
		}
		time.Sleep(3 * time.Minute)
		if g.numEndpoints() != 1 {
			t.Errorf("%d endpoints are kept", g.numEndpoints())
		}
		if w := post(g, ann, id, `{"jsonrpc":"2.0","id":5,"method":"ping"}`); w.Code != 200 {
			t.Errorf("the session is gone: %d", w.Code)
		}
		if got := askAs(g, withToken("u1", "tok_1", false), "tools/list", "", ""); !strings.Contains(got, "careful") {
			t.Errorf("again: %s", got)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if g.numEndpoints() != 0 {
			t.Errorf("%d endpoints are left", g.numEndpoints())
		}
	})
}
