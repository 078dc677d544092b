package bound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/egress"
)

const (
	protoH1 = "http/1.1"
	protoH2 = "h2"

	handshakeTimeout = 15 * time.Second
	headerTimeout    = 30 * time.Second
)

// exchange is one connection of a program, and the connection to the host that belongs to it.
type exchange struct {
	t     *Terminator
	owner egress.Owner
	host  string
	port  uint16

	remote      *http.ClientConn // to the host; nil when its TLS failed
	upstreamErr error            // why there is none, for the program
	proxy       *httputil.ReverseProxy

	server   *http.Server
	closed   chan struct{} // closed when the program's connection is
	closing  sync.Once
	handlers sync.WaitGroup

	mu       sync.Mutex
	served   int  // requests that were sent to the host
	hijacked bool // the connection speaks another protocol than HTTP from now on
}

// Serve implements egress.Terminator.
func (t *Terminator) Serve(owner egress.Owner, host string, port uint16, in, out net.Conn) {
	defer in.Close()
	defer out.Close()
	e := &exchange{t: t, owner: owner, host: host, port: port, closed: make(chan struct{})}
	a, err := t.authority(owner.Principal, owner.Session)
	if err != nil {
		t.log.Error("the certificate for a connection with a bound secret cannot be made", "principal", owner.Principal,
			"host", host, "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	var upstream *tls.Conn
	downstream := tls.Server(in, &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			leaf, err := a.leaf(host)
			if err != nil {
				return nil, err
			}
			var protocol string
			upstream, protocol, err = t.handshake(hello, host, out)
			if errors.Is(err, errProtocol) {
				return nil, err
			}
			if err != nil {
				e.upstreamErr = err
			}
			c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*leaf}}
			if protocol != "" {
				c.NextProtos = []string{protocol}
			}
			return c, nil
		}})
	if err := downstream.HandshakeContext(ctx); err != nil {
		return
	}
	if e.upstreamErr == nil {
		e.upstreamErr = e.connect(ctx, upstream)
	}
	e.serve(downstream)
}

// errProtocol is the error for a program that speaks no protocol that requests can be read of.
var errProtocol = errors.New("a secret is bound to this host: only HTTP/1.1 and HTTP/2 are spoken to it")

// handshake makes the TLS connection to the host, and returns the protocol that both have chosen: the program gets no
// other one, so that each of its requests can be sent on as it is. The certificate is verified for the host's name.
func (t *Terminator) handshake(hello *tls.ClientHelloInfo, host string, out net.Conn) (*tls.Conn, string, error) {
	offered := slices.DeleteFunc(slices.Clone(hello.SupportedProtos),
		func(p string) bool { return p != protoH1 && p != protoH2 })
	fallback := ""
	if len(hello.SupportedProtos) > 0 {
		fallback = protoH1
		if len(offered) == 0 {
			return nil, "", errProtocol
		}
		if !slices.Contains(offered, protoH1) {
			fallback = protoH2
		}
	} else {
		offered = []string{protoH1}
	}
	c := tls.Client(out, &tls.Config{ServerName: host, NextProtos: offered, MinVersion: tls.VersionTLS12,
		RootCAs: t.roots})
	if err := c.HandshakeContext(hello.Context()); err != nil {
		return nil, fallback, t.handshakeError(host, err)
	}
	chosen := c.ConnectionState().NegotiatedProtocol
	if chosen == protoH2 || chosen == protoH1 && fallback != "" {
		return c, chosen, nil
	}
	if fallback == protoH2 {
		return nil, protoH2, fmt.Errorf("%s does not speak HTTP/2, and the program nothing else", host)
	}
	return c, fallback, nil
}

// handshakeError returns the text for the program.
func (t *Terminator) handshakeError(host string, err error) error {
	t.log.Info("no TLS with a host that a secret is bound to", "host", host, "error", err)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("the certificate of %s is not valid for this name, or none that the Sandlot server trusts; "+
			"nothing was sent. The operator of this server can make its machine trust another CA", host)
	}
	return fmt.Errorf("no TLS connection to %s: it ended or failed before there was one; nothing was sent", host)
}

// connect makes HTTP requests possible on the connection to the host.
func (e *exchange) connect(ctx context.Context, upstream *tls.Conn) error {
	c, err := e.t.transport.NewClientConn(context.WithValue(ctx, dialed{}, upstream), "https", hostPort(e.host, e.port))
	if err != nil {
		e.t.log.Info("no HTTP with a host that a secret is bound to", "host", e.host, "error", err)
		return fmt.Errorf("%s does not speak HTTP", e.host)
	}
	e.remote = c
	e.proxy = &httputil.ReverseProxy{Transport: e, Rewrite: e.rewrite, ModifyResponse: e.modifyResponse,
		ErrorHandler: e.failed, FlushInterval: -1, BufferPool: buffers, ErrorLog: silent}
	return nil
}

var silent = log.New(io.Discard, "", 0)

// serve answers the program's requests until its connection ends.
func (e *exchange) serve(program *tls.Conn) {
	e.server = &http.Server{Handler: e, ErrorLog: silent, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout,
		Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: connBuffer,
			MaxReceiveBufferPerStream: streamBuffer},
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				e.end()
			}
		}}
	e.server.Protocols.SetHTTP1(true)
	e.server.Protocols.SetHTTP2(true)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var closing sync.WaitGroup
	if e.remote != nil {
		closed := make(chan struct{})
		var once sync.Once
		e.remote.SetStateHook(func(c *http.ClientConn) {
			if c.Err() != nil {
				once.Do(func() { close(closed) })
			}
		})
		closing.Go(func() { e.followHost(ctx, closed) })
	}
	e.server.Serve(&listener{conn: program, closed: e.closed})
	<-e.closed
	cancel()
	if e.remote != nil {
		e.remote.Close()
	}
	e.handlers.Wait()
	closing.Wait()
}

// followHost closes the program's connection, once no request runs, when the host has closed its own: the program would
// see that, too, and can make another one.
func (e *exchange) followHost(ctx context.Context, hostClosed <-chan struct{}) {
	select {
	case <-hostClosed:
	case <-ctx.Done():
		return
	}
	e.mu.Lock()
	hijacked := e.hijacked
	e.mu.Unlock()
	if hijacked {
		return
	}
	e.server.Shutdown(ctx)
}

func (e *exchange) end() { e.closing.Do(func() { close(e.closed) }) }

// listener accepts one connection.
type listener struct {
	conn   net.Conn
	closed <-chan struct{}
	given  bool
}

func (l *listener) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *listener) Close() error   { return nil }
func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }

// withheldMethods are not passed on: CONNECT leads to another host, and the other two ask a host to send back in the
// body what it got.
var withheldMethods = []string{http.MethodConnect, http.MethodTrace, "TRACK"}

// ServeHTTP handles a request of the program.
func (e *exchange) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.handlers.Add(1)
	defer func() {
		e.mu.Lock()
		hijacked := e.hijacked
		e.mu.Unlock()
		if hijacked { // then nothing else says that the connection has ended
			e.end()
		}
		e.handlers.Done()
	}()
	switch {
	case !e.isHost(r.Host):
		http.Error(w, "Sandlot: this connection is to "+e.host+", and to no other host", http.StatusMisdirectedRequest)
	case slices.Contains(withheldMethods, strings.ToUpper(r.Method)):
		http.Error(w, "Sandlot: a secret is bound to this host, and "+strings.ToUpper(r.Method)+
			" is not passed on; use another method", http.StatusMethodNotAllowed)
	case e.upstreamErr != nil:
		http.Error(w, "Sandlot: "+e.upstreamErr.Error(), http.StatusBadGateway)
	default:
		if r.ProtoMajor == 1 {
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
		sent := new([]substitution)
		r = r.WithContext(context.WithValue(r.Context(), sentKey{}, sent))
		e.proxy.ServeHTTP(&responseWriter{w, sent}, r)
	}
}

// isHost reports whether a Host header, or an :authority, names the host of this connection.
func (e *exchange) isHost(s string) bool {
	return strings.EqualFold(s, e.host) || strings.EqualFold(s, hostPort(e.host, e.port))
}

// RoundTrip implements http.RoundTripper.
func (e *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	return e.remote.RoundTrip(r)
}

// failed answers a request that could not be sent, or whose answer could not be read. The error may contain what the
// host has sent, so it is neither logged nor shown.
func (e *exchange) failed(w http.ResponseWriter, r *http.Request, _ error) {
	e.mu.Lock()
	first := e.served <= 1
	e.mu.Unlock()
	if !first && e.remote.Err() != nil {
		panic(http.ErrAbortHandler) // as if the host had closed this connection: the program may try again
	}
	http.Error(w, "Sandlot: "+e.host+" ended the connection, or its answer is not HTTP", http.StatusBadGateway)
}

type bufferPool struct{ sync.Pool }

func (p *bufferPool) Get() []byte  { return p.Pool.Get().(*[32 << 10]byte)[:] }
func (p *bufferPool) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }

var buffers = &bufferPool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

// responseWriter passes a response to the program, without values of secrets in its headers.
type responseWriter struct {
	http.ResponseWriter
	sent *[]substitution
}

// WriteHeader implements http.ResponseWriter. Early responses (1xx) pass here alone.
func (w *responseWriter) WriteHeader(code int) {
	hide(w.Header(), *w.sent)
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// sentKey is the key of what is to be hidden in the response to a request, in the request's context.
type sentKey struct{}

// rewrite makes the request to the host of the one of the program. Only headers change.
func (e *exchange) rewrite(p *httputil.ProxyRequest) {
	in, out := p.In, p.Out
	out.URL.Scheme, out.URL.Host = "https", hostPort(e.host, e.port)
	out.URL.RawQuery = in.URL.RawQuery // ReverseProxy drops what it cannot parse
	if strings.HasPrefix(in.RequestURI, "/") && !strings.HasPrefix(in.RequestURI, "//") {
		out.URL.Opaque, _, _ = strings.Cut(in.RequestURI, "?") // the path as it was written
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := in.Header[name]; ok {
			out.Header[name] = v
		}
	}
	if sent, ok := out.Context().Value(sentKey{}).(*[]substitution); ok {
		*sent = replace(out.Header, e.t.forHost(e.owner.Principal, e.host, e.port))
	}
	e.mu.Lock()
	e.served++
	e.mu.Unlock()
}

// modifyResponse hides the values of secrets in the response's headers, and, when the body has ended, in its trailers.
func (e *exchange) modifyResponse(r *http.Response) error {
	sent, _ := r.Request.Context().Value(sentKey{}).(*[]substitution)
	if sent != nil {
		hide(r.Header, *sent)
		hide(r.Trailer, *sent) // the names that the host has announced
	}
	switch {
	case r.StatusCode == http.StatusSwitchingProtocols:
		r.Status = "" // ReverseProxy would pass on the host's own text
		e.mu.Lock()
		e.hijacked = true
		e.mu.Unlock()
	case sent != nil && len(*sent) > 0:
		r.Body = &body{r.Body, r, *sent}
	}
	if r.Close && r.ProtoMajor == 1 {
		r.Header.Set("Connection", "close") // the program's connection ends with the host's
	}
	return nil
}

// body is the body of a response. It hides values in the trailers that come after it.
type body struct {
	io.ReadCloser
	response *http.Response
	sent     []substitution
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		hide(b.response.Trailer, b.sent)
	}
	return n, err
}
