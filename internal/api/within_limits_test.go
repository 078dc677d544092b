package api

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/metric"
	"sandlot/internal/api/preview"
	"sandlot/internal/auth"
	"sandlot/internal/limit"
)

// A flood of connections without a token closes its own: a client with a token keeps its
// connection, though others of its address are without one.
func TestFloodWithoutToken(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann := e.token("ann")
	conns := conn.NewLimiterOf(60, 20)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e.Handler(), ConnContext: conns.ConnContext}
	served := make(chan struct{})
	go func() { defer close(served); srv.Serve(conns.Listener(l)) }()
	t.Cleanup(func() { srv.Close(); <-served })
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	get := func(c net.Conn, header string) (status int, err error) {
		c.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(c, "GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n%s\r\n", header)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, r.Body)
		return r.StatusCode, err
	}
	authorization := "Authorization: " + ann + "\r\n"
	anns, first := dial(), dial()
	if status, err := get(anns, authorization); err != nil || status != 200 {
		t.Fatalf("ann: %d, %v", status, err)
	}
	for range 100 {
		if status, err := get(dial(), ""); err != nil || status != 401 {
			t.Fatalf("without a token: %d, %v", status, err)
		}
	}
	if status, err := get(anns, authorization); err != nil || status != 200 {
		t.Errorf("ann lost her connection: %d, %v", status, err)
	}
	if status, err := get(first, ""); err == nil {
		t.Errorf("the oldest connection without a token is open: %d", status)
	}
}

// Who holds too much is told so, in the words of the protocol, and others are not.
func TestLimitsAreTold(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	e.Limits = limit.New(limit.Limits{limit.Requests: 2, limit.Streams: 1, limit.PortConns: 1,
		limit.RequestBytes: 64 << 10,
		limit.AnswerBytes:  1 << 20, limit.IncomingAnswerBytes: 1 << 20})
	ann, bob := e.token("ann"), e.token("bob")
	h := e.Handler()
	told := func(what string, a answer, mcp bool) {
		t.Helper()
		m := a.json()
		if mcp {
			m, _ = m["error"].(map[string]any)
			m, _ = m["data"].(map[string]any)
		}
		if a.StatusCode != 429 || a.Header.Get("Retry-After") == "" || m["error_code"] != "RESOURCE_LIMIT_EXCEEDED" ||
			!strings.Contains(a.body, "one user may have") {
			t.Errorf("%s: %d %v %s", what, a.StatusCode, a.Header, a.body)
		}
	}
	big := `{"a":"` + strings.Repeat("x", 100<<10) + `"}`
	told("a body", do(h, "POST", "/v1/tools/get_sessions", big, "Authorization", ann), false)
	told("a body for MCP", do(h, "POST", "/mcp", big, "Authorization", ann), true)
	if a := do(h, "POST", "/v1/tools/get_sessions", big[:60<<10]+`"}`, "Authorization", ann); a.StatusCode != 200 {
		t.Errorf("what was held is not given back: %d %s", a.StatusCode, a.body)
	}
	var release []func()
	hold := func(k limit.Kind, n int64) {
		t.Helper()
		done, err := e.Limits.Acquire("user:ann", k, n)
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, done)
	}
	hold(limit.Streams, 1)
	for _, r := range [][2]string{{"POST", "/v1/stdio"}, {"POST", "/v1/sessions/x/exec"},
		{"POST", "/v1/sessions/x/ports/80"}, {"GET", "/v1/sessions/x/files/f"}, {"PUT", "/v1/sessions/x/files/f"}} {
		told(r[1], do(h, r[0], r[1], "x", "Authorization", ann), false)
		if a := do(h, r[0], r[1], "x", "Authorization", bob); a.StatusCode == 429 {
			t.Errorf("bob, %s: %s", r[1], a.body)
		}
		if a := do(e.SocketHandler(), r[0], r[1], "x"); a.StatusCode == 429 {
			t.Errorf("the owner, %s: %s", r[1], a.body)
		}
	}
	hold(limit.Requests, 2)
	told("a request", do(h, "GET", "/v1/sessions", "", "Authorization", ann), false)
	told("a request with her other token", do(h, "GET", "/v1/sessions", "", "Authorization", e.token("ann")), false)
	told("MCP", do(h, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", ann), true)
	if a := do(h, "GET", "/v1/sessions", "", "Authorization", bob); a.StatusCode != 200 {
		t.Errorf("bob: %d", a.StatusCode)
	}
	for _, done := range release {
		done()
	}
	if a := do(h, "GET", "/v1/sessions", "", "Authorization", ann); a.StatusCode != 200 {
		t.Errorf("afterwards: %d", a.StatusCode)
	}
}

// Visits to a user's ports are bounded over all their sessions, and told so as a page.
func TestVisitsAreBounded(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	x := expose(t, OriginCheck{Loopback: true}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(entered)
			<-leave
		}
	}))
	x.Limits = limit.New(limit.Limits{limit.Requests: 1, limit.PortConns: 1})
	x.previews.Limits = x.Limits
	over := make(chan int)
	go func() { over <- x.ask("GET", "/wait", preview.TokenHeader, x.token).StatusCode }()
	<-entered
	if a := x.ask("GET", "/", preview.TokenHeader, x.token); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" ||
		!strings.Contains(a.body, "connections from outside") {
		t.Errorf("one too many: %d %v %s", a.StatusCode, a.Header, a.body)
	}
	if a := x.ask("GET", x.path+"/", preview.TokenHeader, x.token); a.StatusCode != 503 {
		t.Errorf("one too many, by path: %d", a.StatusCode)
	}
	if done, err := x.Limits.Acquire("user:ann", limit.Requests, 1); err != nil {
		t.Errorf("her own requests are bounded by visits of others: %v", err)
	} else {
		done()
	}
	close(leave)
	if code := <-over; code != 200 {
		t.Errorf("the first one: %d", code)
	}
	if a := x.ask("GET", "/", preview.TokenHeader, x.token); a.StatusCode != 200 {
		t.Errorf("afterwards: %d %s", a.StatusCode, a.body)
	}
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// within serves h in memory, in a bubble of synctest.
func within(t *testing.T, h http.Handler) (dial func() net.Conn) {
	l := make(pipes)
	srv := &http.Server{Handler: h}
	over := make(chan struct{})
	go func() { defer close(over); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-over })
	return func() net.Conn {
		a, b := net.Pipe()
		l <- b
		t.Cleanup(func() { a.Close() })
		return a
	}
}

// A body of which nothing comes for a minute ends; a slow one that moves does not.
func TestBodiesMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
		token := e.token("ann")
		dial := within(t, e.Handler())
		for path, want := range map[string]int{"/mcp": 400, "/v1/tools/get_sessions": 400} {
			c := dial()
			began := time.Now()
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nContent-Length: 100\r\n\r\n",
				path, token)
			for range 5 {
				time.Sleep(50 * time.Second)
				fmt.Fprint(c, " ")
			}
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			text, _ := io.ReadAll(r.Body)
			if took := time.Since(began); r.StatusCode != want || took < 5*time.Minute || took > 6*time.Minute ||
				!strings.Contains(string(text), "nothing of the request came") {
				t.Errorf("%s: %d after %v: %s", path, r.StatusCode, took, text)
			}
		}
	})
}

// A body that comes a byte at a time comes to an end too, unless nothing of it is kept.
func TestBodiesComeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
		c := within(t, e.Handler())()
		over := make(chan int)
		go func() {
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Error(err)
				return
			}
			over <- r.StatusCode
		}()
		fmt.Fprintf(c,
			"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nTransfer-Encoding: chunked\r\n\r\n",
			e.token("ann"))
		for began := time.Now(); time.Since(began) < 11*time.Minute; time.Sleep(59 * time.Second) {
			go fmt.Fprint(c, "1\r\n \r\n")
		}
		select {
		case code := <-over:
			if code != 400 {
				t.Errorf("answered with %d", code)
			}
		default:
			t.Error("it is still read")
		}
	})
}

// A client that takes nothing of an answer for a minute is cut off.
func TestReadersMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metric.New(func() int { return 0 }, func() map[string]int { return nil }, nil)
		ended := make(chan error, 1)
		dial := within(t, count(m, slog.New(slog.DiscardHandler),
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for {
					if _, err := w.Write(make([]byte, 1<<20)); err != nil {
						ended <- err
						return
					}
				}
			})))
		c := dial()
		began := time.Now()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		for range 150 { // slow is not stuck
			time.Sleep(time.Second)
			if _, err := io.ReadFull(c, make([]byte, 2<<10)); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-ended; err == nil || time.Since(began) > 4*time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// The connection is as good as new for the next request, however long that takes.
func TestDeadlinesEndWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
		token := e.token("ann")
		c := within(t, e.Handler())()
		from := bufio.NewReader(c)
		for range 3 {
			fmt.Fprintf(c,
				"POST /v1/tools/get_sessions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nAuthorization: "+
					"%s\r\nContent-Length: 2\r\n\r\n", token)
			if r, err := http.ReadResponse(from, nil); err != nil || r.StatusCode != 100 {
				t.Fatal(err)
			}
			fmt.Fprint(c, "{}")
			r, err := http.ReadResponse(from, nil)
			if err != nil || r.StatusCode != 200 {
				t.Fatal(err)
			}
			io.Copy(io.Discard, r.Body)
			time.Sleep(5 * time.Minute)
		}
	})
}
