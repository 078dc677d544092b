package bound

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/egress"
	"sandlot/internal/leaktest"
	"sandlot/internal/vault"
)

func TestMain(m *testing.M) { leaktest.Main(m, "egress/bound.") }

const (
	host  = "api.test"
	value = "hunter2-the-value-itself"
	mark  = "sandlot_abcdefghijklmnop"
)

// secrets are the bound secrets of ann.
type secrets struct {
	mu   sync.Mutex
	list []vault.BoundSecret
	err  error
	key  string
}

func (s *secrets) Bound(_ context.Context, owner string) ([]vault.BoundSecret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner != "user:ann" {
		return nil, s.err
	}
	return s.list, s.err
}

func (s *secrets) Derive(label string, n int) ([]byte, error) {
	return hkdf.Key(sha256.New, []byte("key"+s.key), nil, label, n)
}

// rig is a Terminator between a program and a host, both of the test, on loopback.
type rig struct {
	t       testing.TB
	secrets *secrets
	*Terminator
	log    safeBuffer
	roots  *x509.CertPool // with the CA of the session
	served sync.WaitGroup

	addr string // of the host

	mu   sync.Mutex
	seen []string // what the host got, as HTTP, raw
}

type safeBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(b)
}
func (s *safeBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.Buffer.String() }

var owner = egress.Owner{Principal: "user:ann", Session: "s1", Sandbox: "box1"}

// newRig starts a host with that handler. It speaks both protocols, unless change says otherwise.
func newRig(t testing.TB, handler http.HandlerFunc, change ...func(*tls.Config)) *rig {
	r := &rig{t: t, secrets: &secrets{list: []vault.BoundSecret{{Name: "KEY", Value: value,
		Binding: vault.Binding{Hosts: []string{host + ":443"}, Placeholder: mark}}}}}
	r.Terminator = New(r.secrets, slog.New(slog.NewTextHandler(&r.log, nil)))
	cert, roots := certificate(t, host)
	r.Terminator.roots = roots
	a, err := r.authority(owner.Principal, owner.Session)
	if err != nil {
		t.Fatal(err)
	}
	r.roots = x509.NewCertPool()
	r.roots.AddCert(a.cert)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	c := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protoH2, protoH1}}
	for _, f := range change {
		f(c)
	}
	s := &http.Server{TLSConfig: c, ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			r.record(q)
			handler(w, q)
		})}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	go s.ServeTLS(l, "", "")
	t.Cleanup(func() { s.Close(); r.served.Wait() })
	return r
}

// record records what the host got but the body.
func (r *rig) record(q *http.Request) {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s host %s length %d\n", q.Method, q.RequestURI, q.Proto, q.Host, q.ContentLength)
	q.Header.Write(&text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, text.String())
}

// got returns what the host got since the last call.
func (r *rig) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.seen, "\n")
	r.seen = nil
	return s
}

// certificate makes a certificate for a name, and a pool with its issuer.
func certificate(t testing.TB, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// dial returns the program's end of a connection that the Terminator serves.
func (r *rig) dial() net.Conn {
	out, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Error(err)
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Error(err)
		return nil
	}
	defer l.Close()
	program, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		r.t.Error(err)
		return nil
	}
	in, err := l.Accept()
	if err != nil {
		r.t.Error(err)
		return nil
	}
	r.served.Go(func() { r.Serve(owner, host, 443, in, out) })
	r.t.Cleanup(func() { program.Close() })
	return program
}

// connect does the program's TLS.
func (r *rig) connect(protocols ...string) (*tls.Conn, error) {
	c := tls.Client(r.dial(), &tls.Config{ServerName: host, RootCAs: r.roots, NextProtos: protocols})
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c, c.Handshake()
}

// client returns a client of one protocol, which follows no redirect.
func (r *rig) client(protocol string) *http.Client {
	t := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		return r.connect(protocol)
	}, Protocols: new(http.Protocols), DisableCompression: true}
	t.Protocols.SetHTTP1(protocol == protoH1)
	t.Protocols.SetHTTP2(protocol == protoH2)
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// send sends a request, and returns the response with its body.
func (r *rig) send(c *http.Client, method, path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	q, err := http.NewRequest(method, "https://"+host+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Add(header[i], header[i+1])
	}
	resp, err := c.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Error(err)
	}
	return resp, string(text)
}

func (r *rig) bind(change func(*vault.BoundSecret)) {
	r.secrets.mu.Lock()
	list := []vault.BoundSecret{r.secrets.list[0]}
	change(&list[0])
	r.secrets.list = list
	r.secrets.mu.Unlock()
	r.Changed(owner.Principal)
}

func both(t *testing.T, f func(t *testing.T, protocol string)) {
	for _, p := range []string{protoH1, protoH2} {
		t.Run(strings.ReplaceAll(p, "/", ""), func(t *testing.T) { t.Parallel(); f(t, p) })
	}
}

func basic(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }

// The value comes into headers that carry credentials, in place of the placeholder, and nowhere else.
func TestWhereTheValueGoes(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			b, _ := io.ReadAll(q.Body)
			w.Write(b)
		})
		c := r.client(protocol)
		for _, test := range []struct{ header, sent, want string }{
			{"Authorization", "Bearer " + mark, "Bearer " + value},
			{"Authorization", "token " + mark, "token " + value},
			{"Authorization", basic("x:" + mark), basic("x:" + value)},
			{"Authorization", basic(mark + ":"), basic(value + ":")},
			{"X-Api-Key", mark, value},
			{"Private-Token", mark, value},
			{"Authorization", "Bearer " + mark[1:], "Bearer " + mark[1:]},
			{"Cookie", "a=" + mark, "a=" + mark},
			{"Referer", "https://x/" + mark, "https://x/" + mark},
			{"User-Agent", mark, mark},
			{"Accept", mark, mark},
			{"Content-Type", mark, mark},
			{"X-Forwarded-For", mark, mark},
			{"If-None-Match", mark, mark},
		} {
			_, text := r.send(c, "POST", "/p/"+mark+"/%2F;a=b?q="+mark+";&%zz", "body "+mark, test.header, test.sent)
			got := r.got()
			if !strings.Contains(got, test.header+": "+test.want+"\r\n") {
				t.Errorf("%s: %s: the host got %s", test.header, test.sent, got)
			}
			if strings.Count(got, value) > 1 || !strings.Contains(got,
				"POST /p/"+mark+"/%2F;a=b?q="+mark+";&%zz HTTP/") {
				t.Errorf("the host got %s", got)
			}
			if text != "body "+mark {
				t.Errorf("the body is %q", text)
			}
		}
		r.bind(func(s *vault.BoundSecret) { s.Header = "x-token" })
		r.send(c, "GET", "/", "", "Authorization", "Bearer "+mark, "X-Token", "v "+mark)
		if got := r.got(); !strings.Contains(got, "X-Token: v "+value) || !strings.Contains(got, "Bearer "+mark) {
			t.Errorf("with a header: %s", got)
		}
		r.bind(func(s *vault.BoundSecret) { s.Header, s.Basic, s.Value = "", true, "user:"+value })
		r.send(c, "GET", "/", "", "Authorization", basic("x:"+mark), "X-Token", mark)
		if got := r.got(); !strings.Contains(got, basic("user:"+value)+"\r\n") || !strings.Contains(got,
			"X-Token: "+mark) {
			t.Errorf("with user and password: %s", got)
		}
		r.send(c, "GET", "/", "", "Authorization", "Bearer "+mark)
		if got := r.got(); !strings.Contains(got, "Bearer "+mark) {
			t.Errorf("user and password as a bearer: %s", got)
		}
		// A new value, and none any more, hold for the next request of the same connection.
		r.bind(func(s *vault.BoundSecret) { s.Basic, s.Value = false, "another-value" })
		r.send(c, "GET", "/", "", "Authorization", "Bearer "+mark)
		if got := r.got(); !strings.Contains(got, "Bearer another-value") {
			t.Errorf("with a new value: %s", got)
		}
		r.secrets.mu.Lock()
		r.secrets.list = nil
		r.secrets.mu.Unlock()
		r.Changed(owner.Principal)
		r.send(c, "GET", "/", "", "Authorization", "Bearer "+mark)
		if got := r.got(); !strings.Contains(got, "Bearer "+mark) {
			t.Errorf("with none: %s", got)
		}
	})
}

// A host that sends back what it got, in headers, trailers and early responses, tells the program nothing.
func TestEchoedValues(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			sent := q.Header.Get("Authorization")
			w.Header().Set("Link", "<"+value+">")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Trailer", "Late")
			w.Header().Set("Echo", sent+" "+base64.StdEncoding.EncodeToString([]byte("x:"+value)))
			w.Header().Set("Location", "https://elsewhere.test/?key="+value)
			w.WriteHeader(http.StatusFound)
			w.Write([]byte("x"))
			w.Header().Set("Late", "it was "+value)
		})
		for _, sent := range []string{"Bearer " + mark, basic("x:" + mark)} {
			q, _ := http.NewRequest("GET", "https://"+host+"/", nil)
			q.Header.Set("Authorization", sent)
			resp, err := r.client(protocol).Do(q)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			all := fmt.Sprint(resp.Header, resp.Trailer)
			encoded := base64.StdEncoding.EncodeToString([]byte("x:" + value))
			if strings.Contains(all, value) || strings.HasPrefix(sent, "Basic") && strings.Contains(all, encoded) {
				t.Errorf("the program got %s", all)
			}
			if resp.StatusCode != 302 || !strings.Contains(resp.Header.Get("Location"), mark) ||
				!strings.Contains(resp.Trailer.Get("Late"), mark) {
				t.Errorf("the response is %s", all)
			}
			if !strings.Contains(r.got(), "Authorization: ") {
				t.Error("the host got nothing, or more than one request")
			}
		}
	})
}

// A host whose certificate is not valid for its name gets nothing, and the program is told.
func TestInvalidCertificate(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		for what, change := range map[string]func(*rig, *tls.Config){
			"another name":  func(r *rig, c *tls.Config) { c.Certificates[0], _ = certificate(t, "evil.test") },
			"an unknown CA": func(r *rig, c *tls.Config) { c.Certificates[0], _ = certificate(t, host) },
			"an old protocol": func(r *rig, c *tls.Config) {
				c.MaxVersion = tls.VersionTLS11
				c.MinVersion = tls.VersionTLS10
			},
		} {
			r := newRig(t, func(w http.ResponseWriter, q *http.Request) { t.Error("the host got a request") },
				func(c *tls.Config) { change(nil, c) })
			resp, text := r.send(r.client(protocol), "GET", "/", "", "Authorization", "Bearer "+mark)
			if resp.StatusCode != 502 || !strings.Contains(text, "nothing was sent") || r.got() != "" {
				t.Errorf("%s: %d %s", what, resp.StatusCode, text)
			}
		}
	})
}

// A connection to one host carries requests to that one alone.
func TestOtherHosts(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "hello") })
	for _, protocol := range []string{protoH1, protoH2} {
		for authority, status := range map[string]int{host: 200, host + ":443": 200, "API.test": 200, "other.test": 421,
			host + ":444": 421, host + ".": 421, "x@" + host: 400, "evil.test:443": 421, "": 400} {
			q, _ := http.NewRequest("GET", "https://"+host+"/", nil)
			q.Host = authority
			q.Header.Set("Authorization", "Bearer "+mark)
			if authority == "" || strings.Contains(authority, "@") {
				if protocol == protoH1 {
					text := r.raw("GET / HTTP/1.1\r\nHost: " + authority + "\r\nAuthorization: Bearer " + mark +
						"\r\nConnection: close\r\n\r\n")
					if !strings.HasPrefix(text, "HTTP/1.1 4") {
						t.Errorf("%q: %s", authority, text)
					}
				}
				continue
			}
			resp, err := r.client(protocol).Do(q)
			if err != nil {
				t.Fatalf("%s %s: %v", protocol, authority, err)
			}
			resp.Body.Close()
			if got := r.got(); resp.StatusCode != status || (got == "") != (status != 200) {
				t.Errorf("%s, %q: %d, the host got %q", protocol, authority, resp.StatusCode, got)
			}
		}
	}
	if got := r.raw("GET https://evil.test/ HTTP/1.1\r\nHost: " + host +
		"\r\nConnection: close\r\n\r\n"); !strings.Contains(
		got, " 421 ") {
		t.Errorf("a URL of another host: %s", got)
	}
	if got := r.raw("CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host +
		"\r\nConnection: close\r\n\r\n"); !strings.Contains(got,
		" 405 ") {
		t.Errorf("CONNECT: %s", got)
	}
}

// raw sends bytes over HTTP/1.1, and returns all that comes back.
func (r *rig) raw(text string) string {
	r.t.Helper()
	c, err := r.connect(protoH1)
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error()
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

// Whatever a program sends, the host gets well-formed requests, and the value in headers of the program's own alone.
func TestSmuggling(t *testing.T) {
	var bodies []string
	var mu sync.Mutex
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		mu.Lock()
		bodies = append(bodies, string(b))
		mu.Unlock()
		fmt.Fprint(w, "hello")
	})
	const inner = "GET /smuggled HTTP/1.1\r\nHost: " + host + "\r\nX-Api-Key: " + mark + "\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(s), s) }
	head := "POST / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n"
	for what, text := range map[string]string{
		"length and chunks": head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(inner),
		"chunks and length": head + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunk(inner),
		"two lengths":       head + "Content-Length: 4\r\nContent-Length: 6\r\n\r\n" + inner,
		"odd chunked":       head + "Transfer-Encoding: xchunked\r\n\r\n" + chunk(inner),
		"two encodings": head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" +
			chunk(inner),
		"space before colon": head + "Transfer-Encoding : chunked\r\n\r\n" + chunk(inner),
		"a folded header":    head + "X-Api-Key: a\r\n " + mark + "\r\nContent-Length: 0\r\n\r\n",
		"a bare line feed":   head + "X-A: b\nX-Api-Key: " + mark + "\r\nContent-Length: 0\r\n\r\n",
		"a NUL":              head + "X-A: b\x00\r\nContent-Length: 0\r\n\r\n",
		"a placeholder split": head + "X-Api-Key: " + mark[:9] + "\r\nX-Api-Key: " + mark[9:] +
			"\r\nContent-Length: 0\r\n\r\n",
		"a huge header": head + "X-A: " + strings.Repeat("a", 4<<20) + "\r\n\r\n",
		"in a chunk's end": head + "Transfer-Encoding: chunked\r\n\r\n1;" + mark + "\r\nx\r\n0\r\nX-Api-Key: " +
			mark + "\r\n\r\n",
		"in chunks": head + "Transfer-Encoding: chunked\r\n\r\n9\r\n" + mark[:9] + "\r\n" + chunk(mark[9:]),
	} {
		r.raw(text)
		got := r.got()
		if strings.Contains(got, "/smuggled") || strings.Count(got, "POST / ") > 1 {
			t.Errorf("%s: the host got %s", what, got)
		}
		if strings.Contains(got, "Transfer-Encoding") && strings.Contains(got, "Content-Length") {
			t.Errorf("%s: with both: %s", what, got)
		}
		if strings.Contains(got, value) && what != "a folded header" && what != "a bare line feed" {
			t.Errorf("%s: the host got the value: %s", what, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if all := strings.Join(bodies, "|"); strings.Contains(all, value) || !strings.Contains(all, mark) {
		t.Errorf("the bodies are %q", all)
	}
}

// A request has the value 16 times at most: a program cannot make the server hold many of it.
func TestManyPlaceholders(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {})
	r.send(r.client(protoH1), "GET", "/", "", "X-Api-Key", strings.Repeat(mark+" ", 40), "X-Token", mark)
	if got := r.got(); strings.Count(got, value) != maxReplaced || strings.Count(got, mark) != 41-maxReplaced {
		t.Errorf("%d times the value, %d times the placeholder", strings.Count(got, value), strings.Count(got, mark))
	}
}

// Only the principal's own placeholders are replaced, and only for the secrets' hosts and ports.
func TestTerminates(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) {})
	for _, test := range []struct {
		owner egress.Owner
		host  string
		port  uint16
		want  bool
	}{{owner, host, 443, true}, {owner, host, 444, false}, {owner, "x." + host, 443, false}, {owner, "test", 443,
		false},
		{egress.Owner{Principal: "user:bob", Session: "s1"}, host, 443, false},
		{egress.Owner{Principal: "user:ann"}, host, 443, false}} {
		if got := r.Terminates(test.owner, test.host, test.port); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	r.secrets.err = errors.New("no disk")
	r.Changed(owner.Principal)
	if r.Terminates(owner, host, 443) || r.Version(owner.Principal) == 0 {
		t.Error("secrets that cannot be read are used")
	}
}

// The CA of a session is the same after a restart, and another one for each session, principal and key.
func TestAuthorities(t *testing.T) {
	pem := func(key, owner, session string) string {
		terminator := New(&secrets{key: key}, slog.New(slog.DiscardHandler))
		a, err := terminator.authority(owner, session)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(a.pem), "PRIVATE") {
			t.Error("the certificate has its key")
		}
		return string(a.pem)
	}
	first := pem("", "user:ann", "s1")
	if again := pem("", "user:ann", "s1"); again != first {
		t.Error("it is another one after a restart")
	}
	for _, other := range []string{pem("", "user:ann", "s2"), pem("", "user:bob", "s1"), pem("x", "user:ann", "s1")} {
		if other == first {
			t.Error("two sessions have one CA")
		}
	}
}

// The certificate of another session's CA is not accepted: a program trusts its own session's alone.
func TestOtherAuthority(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) { t.Error("the host got a request") })
	a, err := r.authority("user:bob", "s1")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	if err := tls.Client(r.dial(), &tls.Config{ServerName: host, RootCAs: pool}).Handshake(); err == nil {
		t.Error("the program accepted it")
	}
}

// Both sides speak the same protocol; a program without one that has requests gets none.
func TestProtocols(t *testing.T) {
	only := func(protocols ...string) func(*tls.Config) {
		return func(c *tls.Config) { c.NextProtos = protocols }
	}
	for _, test := range []struct {
		host    func(*tls.Config)
		program []string
		want    string
	}{{only(protoH2, protoH1), []string{protoH2, protoH1}, protoH2}, {only(protoH2, protoH1), []string{protoH1},
		protoH1},
		{only(protoH1), []string{protoH2, protoH1}, protoH1}, {only(protoH2, protoH1), nil, ""}} {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {}, test.host)
		c, err := r.connect(test.program...)
		if err != nil || c.ConnectionState().NegotiatedProtocol != test.want {
			t.Errorf("%q: %v, %v; want %q", test.program, c.ConnectionState().NegotiatedProtocol, err, test.want)
		}
		c.Close()
	}
	r := newRig(t, func(http.ResponseWriter, *http.Request) {})
	if _, err := r.connect("acme-tls/1"); err == nil {
		t.Error("another protocol is spoken")
	}
}

// A WebSocket passes, with the value in the request that begins it, and bytes in both directions.
func TestWebSocket(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(rw,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nEcho: %s\r\n\r\n",
			q.Header.Get("Authorization"))
		rw.Flush()
		io.Copy(c, rw)
	})
	c, err := r.connect(protoH1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c,
		"GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: Bearer %s\r\n\r\n",
		host, mark)
	b := bufio.NewReader(c)
	resp, err := http.ReadResponse(b, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Echo") != "Bearer "+mark {
		t.Fatalf("%+v, %v", resp, err)
	}
	if got := r.got(); !strings.Contains(got, "Bearer "+value) {
		t.Errorf("the host got %s", got)
	}
	for _, frame := range []string{"first " + mark, strings.Repeat("y", 100_000)} {
		go io.WriteString(c, frame)
		got := make([]byte, len(frame))
		if _, err := io.ReadFull(b, got); err != nil || string(got) != frame {
			t.Fatalf("%.40q, %v", got, err)
		}
	}
}

// Streams pass as they come, in both directions at the same time.
func TestStreams(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			rc := http.NewResponseController(w)
			rc.EnableFullDuplex()
			w.WriteHeader(200)
			rc.Flush()
			b := make([]byte, 100)
			for {
				n, err := q.Body.Read(b)
				w.Write(b[:n])
				rc.Flush()
				if err != nil {
					return
				}
			}
		})
		body, in := io.Pipe()
		q, _ := http.NewRequest("POST", "https://"+host+"/", body)
		resp, err := r.client(protocol).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for n := range 20 {
			text := fmt.Sprintf("event %02d", n)
			go io.WriteString(in, text)
			got := make([]byte, len(text))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != text {
				t.Fatalf("%q, %v", got, err)
			}
		}
		in.Close()
		if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

// A host that ends a connection, at once or in the middle of a response, ends the program's.
func TestHostEnds(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			switch q.URL.Path {
			case "/middle":
				w.Header().Set("Content-Length", "100")
				w.Write([]byte("x"))
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case "/now":
				panic(http.ErrAbortHandler)
			case "/close":
				w.Header().Set("Connection", "close")
			}
		})
		c := r.client(protocol)
		q, _ := http.NewRequest("GET", "https://"+host+"/middle", nil)
		resp, err := c.Do(q)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil {
			t.Error("half a response is a whole one")
		}
		if resp, text := r.send(r.client(protocol), "POST", "/now", "x"); resp.StatusCode != 502 ||
			strings.Contains(text, value) {
			t.Errorf("at once: %d %s", resp.StatusCode, text)
		}
		for range 3 { // each on a connection of its own
			if resp, _ := r.send(c, "GET", "/close", ""); resp.StatusCode != 200 {
				t.Error(resp.Status)
			}
		}
	})
}
