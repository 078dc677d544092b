package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// table is what all servers of a test know: who is there, and who owns what.
type table struct {
	mu      sync.Mutex
	known   map[string]bool
	owner   map[string]*node
	epoch   map[string]int64
	mistake map[string]*node // what the next Find of a unit says wrongly
}

// node is a server: the listener for others, and the one for clients, whose requests are ann's.
type node struct {
	*Forwarder
	table   *table
	others  *httptest.Server
	clients *httptest.Server
	self    Peer
	forgot  int
	asked   atomic.Int32
	mute    atomic.Bool // it does not say that it lives: that is what a stopped process does
}

func (n *node) Find(_ context.Context, unit string) (Place, error) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	owner := n.table.owner[unit]
	if wrong := n.table.mistake[unit]; wrong != nil && wrong != n {
		owner = wrong
	}
	switch owner {
	case nil:
		return Place{}, fault.New(fault.Connection, "away")
	case n:
		return Place{Epoch: n.table.epoch[unit], Here: context.Background()}, nil
	}
	return Place{Epoch: n.table.epoch[unit], Peer: owner.self}, nil
}

func (n *node) Forget(unit string) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	delete(n.table.mistake, unit)
	n.forgot++
}

func (n *node) Owned(unit string, epoch int64) (Place, bool) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	return Place{Epoch: epoch, Here: context.Background()}, n.table.owner[unit] == n && n.table.epoch[unit] == epoch
}

func (n *node) Known(_ context.Context, fingerprint string) bool {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	return n.table.known[fingerprint]
}

func newTable() *table {
	return &table{known: map[string]bool{}, owner: map[string]*node{}, epoch: map[string]int64{}, mistake: map[string]*node{}}
}

var ann = auth.Principal{ID: "user:ann", Name: "ann", Authenticated: true, Token: "tok_1", Roles: auth.NewRoles(auth.Logs)}

// add starts a server that serves requests with serve.
func (x *table) add(t *testing.T, serve http.HandlerFunc) *node {
	t.Helper()
	c, fingerprint, err := NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{table: x}
	n.Forwarder = New(Config{Owners: n, Certificate: c, Log: slog.New(slog.DiscardHandler), AskInterval: time.Second})
	others := n.Handler(serve)
	n.others = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == alivePath {
			n.asked.Add(1)
		}
		if r.URL.Path == alivePath && n.mute.Load() {
			<-r.Context().Done()
			return
		}
		others.ServeHTTP(w, r)
	}))
	n.others.TLS = n.ServerTLS()
	n.others.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	n.others.StartTLS()
	n.clients = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Serve(w, r, Call{Principal: ann, Address: "https://for.clients", Begin: func() {}, Fail: func(err error) {
			f := fault.From(err)
			w.Header().Set("May-Have-Run", fmt.Sprint(f.Context["may_have_run"] == true))
			http.Error(w, f.Error(), f.HTTP())
		}}, serve)
	}))
	n.self = Peer{n.others.Listener.Addr().String(), fingerprint}
	x.mu.Lock()
	x.known[fingerprint] = true
	x.mu.Unlock()
	t.Cleanup(func() {
		n.clients.CloseClientConnections()
		n.clients.Close()
		n.Close()
		n.others.CloseClientConnections()
		n.others.Close()
	})
	return n
}

func (x *table) own(unit string, n *node) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.owner[unit] = n
	x.epoch[unit]++
}

func do(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, _ := io.ReadAll(a.Body)
	return a, string(text)
}

// says answers with what it knows of a request.
func says(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p, sent := Principal(r.Context())
		at, _ := Address(r.Context())
		fmt.Fprintf(w, "%s %s %s %s body=%s sent=%v principal=%v key=%s header=%q host=%s at=%s", name, r.Method, r.URL.Path,
			r.URL.RawQuery, body, sent, p == ann, r.Header.Get(retryKey), r.Header.Get(header), r.Host, at)
	}
}

// TestWhole: a request reaches the owner whole, with the principal that the first server has authenticated. What a client
// says in the servers' header means nothing.
func TestWhole(t *testing.T) {
	x := newTable()
	a, b := x.add(t, says("a")), x.add(t, says("b"))
	x.own("user:ann", a)
	for _, method := range []string{"POST", "DELETE", "PUT"} {
		_, text := do(t, method, b.clients.URL+"/v1/x%2Fy?q=a;b&c=%20", "content", retryKey, "k1", header, "Zm9yZ2Vk")
		want := "a " + method + " /v1/x/y q=a;b&c=%20 body=content sent=true principal=true key=k1 header=\"\" host=" +
			strings.TrimPrefix(b.clients.URL, "http://") + " at=https://for.clients"
		if text != want {
			t.Errorf("\n%s, want\n%s", text, want)
		}
	}
	if _, text := do(t, "GET", a.clients.URL+"/v1/x", ""); !strings.HasPrefix(text, "a GET /v1/x  body= sent=false") {
		t.Errorf("at the owner: %s", text)
	}
	large := strings.Repeat("0123456789abcdef", 1<<18)
	if _, text := do(t, "PUT", b.clients.URL+"/v1/large", large); !strings.Contains(text, "body="+large+" ") {
		t.Errorf("a large body: %d bytes came back", len(text))
	}
}

// TestStrangers: who has no certificate of a server gets no connection.
func TestStrangers(t *testing.T) {
	x := newTable()
	a := x.add(t, says("a"))
	x.own("user:ann", a)
	stranger, _, err := NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	for name, certificates := range map[string][]tls.Certificate{"none": nil, "another": {stranger}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates}}
		r, _ := http.NewRequest("GET", "https://"+a.self.Address+"/v1/x", nil)
		r.Header.Set(header, "eyJQcmluY2lwYWwiOnsiSUQiOiJ1c2VyOmFubiJ9LCJFcG9jaCI6MX0=")
		answer, err := transport.RoundTrip(r)
		if err == nil {
			answer.Body.Close()
			t.Errorf("%s: %d", name, answer.StatusCode)
		}
		transport.CloseIdleConnections()
	}
	// A server at the address of another one gets nothing.
	b := x.add(t, says("b"))
	x.own("user:ann", &node{self: Peer{a.self.Address, b.self.Fingerprint}})
	if answer, text := do(t, "POST", b.clients.URL+"/v1/x", "secret"); answer.StatusCode < 500 ||
		!strings.Contains(text, "nothing was done") {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
}

// TestStream: a stream arrives as it is made, and ends at the owner when the client leaves.
func TestStream(t *testing.T) {
	x := newTable()
	left := make(chan struct{})
	a := x.add(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(left)
	})
	b := x.add(t, says("b"))
	x.own("user:ann", a)
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "GET", b.clients.URL+"/v1/events", nil)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(answer.Body).ReadString('\n'); line != "data: one\n" {
		t.Errorf("%q %v", line, err)
	}
	cancel()
	answer.Body.Close()
	<-left
}

// TestUpgrade: a connection that leaves HTTP passes through, both ways, with its half-closed end.
func TestUpgrade(t *testing.T) {
	x := newTable()
	a := x.add(t, func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		all, _ := io.ReadAll(io.LimitReader(rw, 5))
		fmt.Fprintf(c, "got %s", all)
	})
	b := x.add(t, says("b"))
	x.own("user:ann", a)
	c, err := net.Dial("tcp", b.clients.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(c)
	answer, err := http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols || answer.Header.Get("Upgrade") != "echo" {
		t.Fatalf("%v %v", answer, err)
	}
	fmt.Fprint(c, "hello")
	if text, err := io.ReadAll(in); string(text) != "got hello" {
		t.Errorf("%q %v", text, err)
	}
}

// TestMoved: a request for a server that is not the owner any longer reaches the one that is, with its body. A server
// sends on no request that another one has sent it: there are no loops.
func TestMoved(t *testing.T) {
	x := newTable()
	a, b, c := x.add(t, says("a")), x.add(t, says("b")), x.add(t, says("c"))
	for _, to := range []*node{c, b} {
		x.own("user:ann", to)
		x.mistake["user:ann"] = a
		if _, text := do(t, "POST", b.clients.URL+"/v1/x", "content"); !strings.Contains(text, "body=content") ||
			!strings.HasPrefix(text, map[*node]string{b: "b", c: "c"}[to]) {
			t.Errorf("%s", text)
		}
	}
	// Two servers that each take the other one for the owner.
	x.own("user:ann", &node{self: a.self})
	answer, text := do(t, "POST", b.clients.URL+"/v1/x", "content")
	if answer.StatusCode < 500 || !strings.Contains(text, "nothing was done") || answer.Header.Get("May-Have-Run") != "false" {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
	if b.forgot < 3 {
		t.Errorf("asked anew %d times", b.forgot)
	}
}

// TestEnds: the answer says whether a call may have run, when its owner cannot be reached, ends while it runs, or hangs.
func TestEnds(t *testing.T) {
	x := newTable()
	hangs := make(chan struct{})
	defer close(hangs)
	a := x.add(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/hang" {
			select {
			case <-hangs:
			case <-r.Context().Done():
			}
			return
		}
		panic(http.ErrAbortHandler)
	})
	b := x.add(t, says("b"))
	x.own("user:ann", a)
	check := func(what, path string, ran bool) {
		t.Helper()
		answer, text := do(t, "POST", b.clients.URL+path, "content", retryKey, "k")
		if answer.StatusCode < 500 || answer.Header.Get("May-Have-Run") != fmt.Sprint(ran) ||
			strings.Contains(text, "nothing was done") == ran {
			t.Errorf("%s: %d %s", what, answer.StatusCode, text)
		}
	}
	check("ends", "/end", true)
	a.mute.Store(true)
	check("hangs", "/hang", true)
	a.others.CloseClientConnections()
	a.others.Listener.Close()
	check("cannot be reached", "/x", false)
	if _, err := b.Find(t.Context(), "user:nobody"); err == nil {
		t.Error("nobody owns it")
	}
}

// TestQuestions: however many requests came before, one goroutine asks whether a server still answers.
func TestQuestions(t *testing.T) {
	x := newTable()
	var a *node
	a = x.add(t, func(_ http.ResponseWriter, r *http.Request) {
		for r.URL.Path == "/held" && a.asked.Load() < 3 {
			time.Sleep(10 * time.Millisecond)
		}
	})
	b := x.add(t, says("b"))
	x.own("user:ann", a)
	for range 1000 {
		do(t, "GET", b.clients.URL+"/x", "")
	}
	p := b.peer(a.self)
	a.asked.Store(0)
	do(t, "GET", b.clients.URL+"/held", "")
	if n := a.asked.Load(); n > 4 { // one more while the request ends
		t.Errorf("%d questions", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.requests) != 0 {
		t.Errorf("%d requests are left", len(p.requests))
	}
}

// TestRefused: when the owner does not know the certificate, nothing was done.
func TestRefused(t *testing.T) {
	x := newTable()
	a, b := x.add(t, says("a")), x.add(t, says("b"))
	x.own("user:ann", a)
	x.mu.Lock()
	delete(x.known, b.self.Fingerprint)
	x.mu.Unlock()
	for range 20 {
		for _, body := range []string{"", "content"} {
			answer, text := do(t, "POST", b.clients.URL+"/v1/x", body)
			if answer.StatusCode < 500 || answer.Header.Get("May-Have-Run") != "false" ||
				!strings.Contains(text, "nothing was done") {
				t.Fatalf("%q: %d %s", body, answer.StatusCode, text)
			}
		}
	}
}

// TestOwnershipEnds: what runs for a principal ends when the server is not the owner any longer.
func TestOwnershipEnds(t *testing.T) {
	owner, end := context.WithCancelCause(t.Context())
	cause := errors.New("lost")
	w := httptest.NewRecorder()
	serveWhile(owner, w, httptest.NewRequest("GET", "/", nil), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end(cause)
		<-r.Context().Done()
		if !errors.Is(context.Cause(r.Context()), cause) {
			t.Error(context.Cause(r.Context()))
		}
	}))
}
