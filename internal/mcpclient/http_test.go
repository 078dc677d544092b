package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// web is a hand-written server: it does the stateful handshake, and the
// rest is for each test to say.
type web struct {
	t    *testing.T
	post func(w http.ResponseWriter, r *http.Request, m spoken)
	get  http.HandlerFunc

	mu      sync.Mutex
	deleted []string
}

func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		if s.get == nil {
			http.Error(w, "no", http.StatusMethodNotAllowed)
			return
		}
		s.get(w, r)
		return
	case http.MethodDelete:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.deleted = append(s.deleted, r.Header.Get("Mcp-Session-Id"))
		return
	}
	var m spoken
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		s.t.Errorf("what was sent is no JSON: %v", err)
	}
	switch m.Method {
	case "server/discover":
		http.Error(w, "what is that?", http.StatusNotFound)
	case "initialize":
		w.Header().Set("Mcp-Session-Id", "s1")
		reply(w, m, allOlder)
	case "notifications/initialized":
		w.WriteHeader(http.StatusAccepted)
	default:
		s.post(w, r, m)
	}
}

func reply(w http.ResponseWriter, m spoken, result string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func events(w http.ResponseWriter) func(format string, args ...any) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(format string, args ...any) {
		fmt.Fprintf(w, format, args...)
		w.(http.Flusher).Flush()
	}
}

func TestHTTPAnswers(t *testing.T) {
	tests := []struct {
		name    string
		post    func(w http.ResponseWriter, r *http.Request, m spoken)
		want    string
		problem string
	}{
		{"JSON", func(w http.ResponseWriter, r *http.Request, m spoken) {
			if r.Header.Get("Mcp-Session-Id") != "s1" || r.Header.Get("MCP-Protocol-Version") != revision.Stateful ||
				r.Header.Get("X-Mine") != "yes" {
				t.Errorf("headers: %v", r.Header)
			}
			reply(w, m, `{"a":1}`)
		}, `{"a":1}`, ""},
		{"a stream", func(w http.ResponseWriter, r *http.Request, m spoken) {
			say := events(w)
			say("\ufeff: hello\r\n\r\nid: 1\r\ndata:\r\n\r\nevent: other\ndata: {}\n\ndata: noise\n\n")
			say("event: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\ndata: \"result\":{}}\n\n", m.ID)
			<-r.Context().Done() // the stream need not end for the answer to be there
		}, `{}`, ""},
		{"a stream without its last line", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			events(w)(`data: {"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}, `{}`, ""},
		{"a stream that ends too early", func(w http.ResponseWriter, _ *http.Request, m spoken) { events(w)(": \n\n") },
			"", "ended its stream"},
		{"nothing", func(w http.ResponseWriter, _ *http.Request, m spoken) { w.WriteHeader(202) }, "",
			"did not answer it (HTTP 202)"},
		{"a page", func(w http.ResponseWriter, _ *http.Request, m spoken) { fmt.Fprint(w, "<html>") }, "",
			"neither JSON"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, "<html>")
		}, "", "not a JSON-RPC message: <html>"},
		{"another id", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			reply(w, spoken{ID: json.RawMessage("99")}, "{}")
		}, "", "one to something else"},
		{"an error without an id", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}`)
		}, "", "error -32700: what?"},
		{"an error with a status", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"what?"}}`, m.ID)
		}, "", "error -32602: what?"},
		{"a status", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			http.Error(w, "out of\x1b order"+strings.Repeat("!", 1<<20), 500)
		}, "", "HTTP 500: out of order!!"},
		{"a login", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			http.Error(w, "who are you?", http.StatusUnauthorized)
		}, "", "wants a login (HTTP 401); check the credentials that it is given. It said: who are you?"},
		{"a huge answer", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			reply(w, m, `{"a":"`+strings.Repeat("x", 1<<20)+`"}`)
		}, "", transport.ErrTooLarge.Error()},
		{"a huge event", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			say := events(w)
			for range 100 {
				say("data: %s\n", strings.Repeat("x", 1<<14))
			}
		}, "", transport.ErrTooLarge.Error()},
		{"an event without end", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			say := events(w)
			for range 100 {
				say("%s", strings.Repeat("x", 1<<14))
			}
		}, "", transport.ErrTooLarge.Error()},
		{"noise", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			say := events(w)
			for range 1000 {
				say("data: x\n\n")
			}
			say("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID)
		}, "{}", ""},
		{"a connection that breaks", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			w.Header().Set("Content-Length", "1000")
			reply(w, m, "{}")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "", "broke off"},
		{"a forgotten method", func(w http.ResponseWriter, _ *http.Request, m spoken) {
			w.WriteHeader(404)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, m.ID)
		}, "", "error -32601: unknown"},
		{"a redirect elsewhere", func(w http.ResponseWriter, r *http.Request, m spoken) {
			http.Redirect(w, r, "http://other.invalid/steal", http.StatusTemporaryRedirect)
		}, "", "another origin, http://other.invalid"},
		{"a redirect to another port", func(w http.ResponseWriter, r *http.Request, m spoken) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusPermanentRedirect)
		}, "", "another origin"},
		{"a redirect here", func(w http.ResponseWriter, r *http.Request, m spoken) {
			if r.URL.Path != "/there" {
				http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
				return
			}
			reply(w, m, "{}")
		}, "{}", ""},
		{"redirects without end", func(w http.ResponseWriter, r *http.Request, m spoken) {
			http.Redirect(w, r, "/x", http.StatusTemporaryRedirect)
		}, "", "redirects over 5 times"},
		{"a redirect to a page", func(w http.ResponseWriter, r *http.Request,
			m spoken) {
			http.Redirect(w, r, "/x", http.StatusSeeOther)
		}, "", "redirects (HTTP 303) to a page"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			h := &web{t: t, post: tt.post}
			r := transport.Remote{URL: listening(t, h).URL, Header: http.Header{"X-Mine": {"yes"}}}
			s := connected(t, transport.HTTP(r), Options{MaxMessage: 1 << 20})
			got, err := s.Call(t.Context(), Request{Method: "x"})
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("%.100s, %v; want %q", got, err, tt.problem)
				}
			} else if err != nil || string(got) != tt.want {
				t.Errorf("%s, %v; want %s", got, err, tt.want)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if fmt.Sprint(h.deleted) != "[s1]" {
				t.Errorf("the session was ended by %v", h.deleted)
			}
		})
	}
}

func TestForgottenSession(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
	}{{404, "session not found"}, {404,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`},
		{400,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`}} {
		t.Run(tt.body, func(t *testing.T) {
			noLeaks(t)
			waiting := make(chan struct{})
			h := &web{t: t, post: func(w http.ResponseWriter, r *http.Request, m spoken) {
				if m.Method == "wait" {
					close(waiting)
					<-r.Context().Done()
					return
				}
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.body)
			}}
			s := connected(t, overHTTP(listening(t, h).URL), Options{})
			other := make(chan error)
			go func() {
				_, err := s.Call(t.Context(), Request{Method: "wait"})
				other <- err
			}()
			<-waiting
			if _, err := s.Call(t.Context(), Request{Method: "x"}); !errors.Is(err, transport.ErrSessionLost) {
				t.Errorf("Call: %v", err)
			}
			<-s.Done()
			if !errors.Is(s.Err(), transport.ErrSessionLost) {
				t.Errorf("Err: %v", s.Err())
			}
			if err := <-other; !errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionLost) {
				t.Errorf("a call that may have run invites to repeat it: %v", err)
			}
			if _, err := s.Call(t.Context(), Request{Method: "x"}); !errors.Is(err, transport.ErrSessionLost) {
				t.Errorf("a later call: %v", err)
			}
			s.Close()
			if len(h.deleted) != 0 {
				t.Error("a session that is forgotten was ended once more")
			}
		})
	}
}

// TestResume has a stream break before the answer.
func TestResume(t *testing.T) {
	noLeaks(t)
	var id atomic.Value
	n := 0
	h := &web{t: t, post: func(w http.ResponseWriter, _ *http.Request, m spoken) {
		id.Store(string(m.ID))
		events(w)("id: e1\nretry: 10\ndata:\n\n")
	}, get: func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		if last == "" {
			http.Error(w, "no", http.StatusMethodNotAllowed)
			return
		}
		n++
		if want := fmt.Sprint("e", n); last != want || r.Header.Get("Mcp-Session-Id") != "s1" {
			t.Errorf("resumed after %q, want %q", last, want)
		}
		say := events(w)
		if n < 10 { // more often than is allowed without anything new
			say("id: e%d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\","+
				"\"params\":{\"progressToken\":%s,\"n\":%d}}\n\n", n+1, id.Load(), n)
			say("id: lost\ndata: {\"jsonrpc\":")
			return
		}
		say("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", id.Load())
	}}
	s := connected(t, overHTTP(listening(t, h).URL), Options{})
	heard := 0
	got, err := s.Call(t.Context(), Request{Method: "x", Progress: func(json.RawMessage) { heard++ }})
	if err != nil || string(got) != "{}" || heard != 9 {
		t.Errorf("%s, %v, %d notifications of progress", got, err, heard)
	}
}

func TestResumeEnds(t *testing.T) {
	tests := []struct {
		name, problem string
		get           http.HandlerFunc
	}{
		{"nothing new", "broke 6 times in a row", func(w http.ResponseWriter, _ *http.Request) { events(w)("") }},
		{"refused", "HTTP 400: no", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 400) }},
		{"out of order", "broke 6 times in a row",
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) }},
		{"forgotten", transport.ErrClosed.Error(),
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 404) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			h := &web{t: t, post: func(w http.ResponseWriter, _ *http.Request,
				m spoken) {
				events(w)("id: e1\nretry: 1\ndata:\n\n")
			},
				get: func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Last-Event-ID") == "" {
						http.Error(w, "no", http.StatusMethodNotAllowed)
						return
					}
					tt.get(w, r)
				}}
			s := connected(t, overHTTP(listening(t, h).URL), Options{})
			_, err := s.Call(t.Context(), Request{Method: "x"})
			if err == nil || !strings.Contains(err.Error(), tt.problem) || errors.Is(err, transport.ErrSessionLost) {
				t.Errorf("%v; want %q", err, tt.problem)
			}
		})
	}
}

// TestHear has a server say things unasked, on a stream that breaks.
func TestHear(t *testing.T) {
	noLeaks(t)
	var opened atomic.Int64
	h := &web{t: t, post: func(w http.ResponseWriter, _ *http.Request, m spoken) { reply(w, m, "{}") },
		get: func(w http.ResponseWriter, r *http.Request) {
			n := opened.Add(1)
			say := events(w)
			if n == 2 && r.Header.Get("Last-Event-ID") != "a" {
				t.Errorf("it is not taken up where it broke: %v", r.Header)
			}
			if n == 2 {
				w.WriteHeader(400) // it cannot
				return
			}
			say("id: a\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":%d}\n\n",
				n)
			if n > 1 {
				<-r.Context().Done()
			}
		}}
	e := &ears{}
	s := connected(t, overHTTP(listening(t, h).URL), Options{Handler: e})
	eventually(t, "both are heard", func() bool { return len(e.all()) >= 2 })
	if got := e.all(); got[0] != "notifications/message1" {
		t.Errorf("%v", got)
	}
	s.Close()
}

// token is an OAuth handler.
type token struct {
	logins  atomic.Int64
	current atomic.Value
	fail    error
	renews  bool // the first time without a login
}

func (k *token) TokenSource(context.Context) (oauth2.TokenSource, error) {
	t, _ := k.current.Load().(string)
	if t == "" {
		return nil, nil
	}
	return oauth2.StaticTokenSource(&oauth2.Token{AccessToken: t}), nil
}

func (k *token) Authorize(_ context.Context, _ *http.Request, resp *http.Response) error {
	resp.Body.Close()
	n := k.logins.Add(1)
	k.current.Store(fmt.Sprint("t", n))
	if k.renews && n == 1 {
		return fmt.Errorf("without a login: %w", transport.ErrRenewed)
	}
	return k.fail
}

func TestLogin(t *testing.T) {
	guard := func(good func(string) bool, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !good(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="x"`)
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	h := &web{t: t, post: func(w http.ResponseWriter, _ *http.Request, m spoken) { reply(w, m, "{}") }}

	t.Run("once for all", func(t *testing.T) {
		noLeaks(t)
		k := &token{}
		var good atomic.Value
		good.Store("t1")
		url := listening(t, guard(func(s string) bool { return s == good.Load() }, h)).URL
		s := connected(t, transport.HTTP(transport.Remote{URL: url, OAuth: k}), Options{})
		good.Store("t2")
		done := make(chan error)
		for range 10 {
			go func() {
				_, err := s.Call(t.Context(), Request{Method: "x"})
				done <- err
			}()
		}
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := k.logins.Load(); n != 2 {
			t.Errorf("%d logins, want 2", n)
		}
	})
	t.Run("in vain", func(t *testing.T) {
		noLeaks(t)
		k := &token{}
		var asked atomic.Int64
		url := listening(t, guard(func(string) bool { asked.Add(1); return false }, h)).URL
		_, err := Connect(t.Context(), transport.HTTP(transport.Remote{URL: url, OAuth: k}), Options{})
		var login *transport.UnauthorizedError
		if !errors.As(err, &login) || login.Status != 401 || login.Challenge == "" || asked.Load() != 2 ||
			k.logins.Load() != 1 {
			t.Errorf("%v after %d requests and %d logins", err, asked.Load(), k.logins.Load())
		}
	})
	// the renewed token, that of the login after it, or neither
	for good, logins := range map[string]int64{"t1": 1, "t2": 2, "none": 2} {
		t.Run("after a renewal, "+good, func(t *testing.T) {
			noLeaks(t)
			k := &token{renews: true}
			_, err := Connect(t.Context(),
				transport.HTTP(transport.Remote{URL: listening(t, guard(func(s string) bool { return s == good },
					http.NotFoundHandler())).URL, OAuth: k}), Options{})
			var login *transport.UnauthorizedError
			if errors.As(err, &login) != (good == "none") || k.logins.Load() != logins {
				t.Errorf("%v after %d logins", err, k.logins.Load())
			}
		})
	}
	t.Run("that fails", func(t *testing.T) {
		noLeaks(t)
		k := &token{fail: errors.New("the user said no")}
		url := listening(t, guard(func(string) bool { return false }, h)).URL
		_, err := Connect(t.Context(), transport.HTTP(transport.Remote{URL: url, OAuth: k}), Options{})
		var login *transport.UnauthorizedError
		if !errors.As(err, &login) || !errors.Is(err, k.fail) ||
			!strings.Contains(err.Error(), "logging in failed: the user said no") {
			t.Error(err)
		}
	})
	t.Run("over SSE", func(t *testing.T) {
		noLeaks(t)
		k := &token{}
		url := listening(t, guard(func(s string) bool { return s == "t1" }, http.NotFoundHandler())).URL
		_, err := Connect(t.Context(), transport.SSE(transport.Remote{URL: url, OAuth: k}), Options{})
		if err == nil || !strings.Contains(err.Error(), "HTTP 404") || k.logins.Load() != 1 {
			t.Errorf("%v after %d logins", err, k.logins.Load())
		}
	})
}

// TestNewerCancelsByItsStream has a call of the stateless protocol be given up.
func TestNewerCancelsByItsStream(t *testing.T) {
	noLeaks(t)
	ended := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m spoken
		b, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(b, &m)
		if r.Header.Get("Mcp-Method") != m.Method || r.Header.Get("MCP-Protocol-Version") != revision.Stateless ||
			r.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("headers of %s: %v", m.Method, r.Header)
		}
		switch m.Method {
		case "server/discover":
			w.Header().Set("Mcp-Session-Id", "unasked")
			reply(w, m, `{"supportedVersions":["2026-07-28"],"capabilities":{}}`)
		case "tools/call":
			if r.Header.Get("Mcp-Name") != "=?base64?w6Q=?=" {
				t.Errorf("Mcp-Name: %s", r.Header.Get("Mcp-Name"))
			}
			events(w)(": \n\n")
			<-r.Context().Done()
			close(ended)
		default:
			t.Errorf("%s was sent", m.Method)
		}
	})
	s := connected(t, overHTTP(listening(t, h).URL), Options{})
	if _, err := s.Call(t.Context(), Request{Method: "tools/call", Params: rawjson.Object{"name": rawjson.Quote("ä")},
		Timeout: 100 * time.Millisecond}); !errors.Is(err, transport.ErrTimeout) {
		t.Error(err)
	}
	<-ended
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestHTTPIsNotThere(t *testing.T) {
	noLeaks(t)
	for url, want := range map[string]string{"http://127.0.0.1:1/mcp": "cannot be reached", "ftp://x": "not a URL",
		"http://": "not a URL", "\x00": "not a URL"} {
		for _, dial := range []transport.Dial{overHTTP(url), overSSE(url)} {
			if _, err := Connect(t.Context(), dial, Options{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", url, err, want)
			}
		}
	}
}

func TestHTTPHangs(t *testing.T) {
	noLeaks(t)
	hang := listening(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	for _, dial := range []transport.Dial{overHTTP(hang.URL), overSSE(hang.URL)} {
		if _, err := Connect(t.Context(), dial, Options{HandshakeTimeout: 300 * time.Millisecond}); !errors.Is(err,
			transport.ErrTimeout) {
			t.Error(err)
		}
	}
}

// TestHTTPProbeHangs has a server that does not answer what it does not know.
func TestHTTPProbeHangs(t *testing.T) {
	noLeaks(t)
	h := &web{t: t, post: func(w http.ResponseWriter, _ *http.Request, m spoken) { reply(w, m, "{}") }}
	s := listening(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") == "server/discover" {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			return
		}
		h.ServeHTTP(w, r)
	}))
	got := connected(t, overHTTP(s.URL), Options{HandshakeTimeout: 2 * time.Second})
	if got.Version() != revision.Stateful {
		t.Errorf("revision %s", got.Version())
	}
}

func TestSSEIsHostile(t *testing.T) {
	tests := []struct {
		name, problem string
		say           string
	}{
		{"another origin", "another origin", "event: endpoint\ndata: http://other.invalid/x\n\n"},
		{"no endpoint", "ready within", ": hello\n\n"},
		{"two endpoints", "says twice", "event: endpoint\ndata: /x\n\nevent: endpoint\ndata: /y\n\n"},
		{"an endpoint that is none", "another origin", "event: endpoint\ndata: http://[::1\n\n"},
		{"noise", "ready within", strings.Repeat("data: x\n\n", 1000)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			h := listening(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.WriteHeader(202)
					return
				}
				events(w)("%s", tt.say)
				<-r.Context().Done()
			}))
			_, err := Connect(t.Context(), overSSE(h.URL), Options{HandshakeTimeout: 500 * time.Millisecond})
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%v; want %q", err, tt.problem)
			}
		})
	}
}
