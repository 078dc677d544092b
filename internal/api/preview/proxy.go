package preview

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/console"
	"sandlot/internal/hub"
)

type visitKey struct{}

// newTransport returns the HTTP transport to programs in sandboxes. It has no keep-alive: a
// connection would outlive the lease of its request, and many small HTTP servers close
// theirs at any time.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			v := ctx.Value(visitKey{}).(*visit)
			c, err := v.hubVisit.Connect()
			if err != nil {
				return nil, &dialError{err}
			}
			return c, nil
		},
		DisableKeepAlives: true, DisableCompression: true,
		ExpectContinueTimeout: time.Second, MaxResponseHeaderBytes: 64 << 10,
		ReadBufferSize: 32 << 10, WriteBufferSize: 32 << 10,
	}
}

type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// bufferPool implements httputil.BufferPool.
type bufferPool struct{}

func (bufferPool) Get() []byte  { return buffers.Get().(*[32 << 10]byte)[:] }
func (bufferPool) Put(b []byte) { buffers.Put((*[32 << 10]byte)(b)) }

// forward sends the request to the program in the sandbox, and its response to the client.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, v *visit, query string) {
	out := &response{ResponseWriter: w, control: http.NewResponseController(w)}
	proxy := httputil.ReverseProxy{Transport: s.transport, FlushInterval: -1, BufferPool: bufferPool{},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		Rewrite:  func(p *httputil.ProxyRequest) { v.rewrite(p, query) },
		ModifyResponse: func(resp *http.Response) error {
			v.cleanHeaders(resp.Header, r.Host)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) { v.programFailed(w, r, err) },
	}
	proxy.ServeHTTP(out, r)
}

// rewrite makes the request for the program in the sandbox.
func (v *visit) rewrite(p *httputil.ProxyRequest, query string) {
	p.Out.URL = &url.URL{Scheme: "http", Host: "inside", RawQuery: query}
	p.Out.URL.RawPath = v.path
	p.Out.URL.Path, _ = url.PathUnescape(v.path)
	p.Out.Host = p.In.Host
	p.SetXForwarded()
	h := p.Out.Header
	if v.secure {
		h.Set("X-Forwarded-Proto", "https")
	}
	h.Del("X-Forwarded-Prefix")
	if v.prefix != "" {
		h.Set("X-Forwarded-Prefix", v.prefix)
	}
	h.Del(TokenHeader)
	if slices.ContainsFunc(h.Values("Authorization"), v.isToken) {
		h.Del("Authorization")
	}
	if ref, err := url.Parse(h.Get("Referer")); err == nil && strings.Contains(ref.RawQuery, hub.PortParam) {
		_, ref.RawQuery = cutToken(ref.RawQuery)
		h.Set("Referer", ref.String())
	}
	cookies := v.requestCookies(h.Values("Cookie"))
	h.Del("Cookie")
	if cookies != "" {
		h.Set("Cookie", cookies)
	}
}

// isSandlotCookie reports whether a cookie of that name is Sandlot's.
func isSandlotCookie(name string) bool {
	return slices.ContainsFunc([]string{Cookie, SecureCookie, console.PlainCookie, console.SecureCookie,
		console.PlainAttempt, console.SecureAttempt},
		func(own string) bool { return strings.EqualFold(name, own) })
}

// requestCookies returns the cookies for the program in the sandbox.
func (v *visit) requestCookies(headers []string) string {
	var kept []string
	for pair := range strings.SplitSeq(strings.Join(headers, ";"), ";") {
		pair = strings.TrimSpace(pair)
		name, _, _ := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		inner, byPath := strings.CutPrefix(pair, programCookiePrefix)
		switch {
		case pair == "":
		case v.prefix != "" && byPath:
			kept = append(kept, inner)
		case v.prefix == "" && !isSandlotCookie(name):
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "; ")
}

// Response headers that are removed, since they would affect more than the program's own
// pages, or a proxy in front of Sandlot: always, and from links by path.
var (
	RemovedHeaders = []string{"Clear-Site-Data", "Alt-Svc", "X-Accel-Redirect", "X-Accel-Expires", "X-Accel-Limit-Rate",
		"X-Accel-Charset", "X-Sendfile", "X-Lighttpd-Send-File", "X-Reproxy-Url"}
	RemovedHeadersByPath = []string{"Service-Worker-Allowed", "Strict-Transport-Security", "Public-Key-Pins",
		"Expect-Ct", "Nel", "Report-To", "Reporting-Endpoints", "Origin-Agent-Cluster", "Accept-Ch", "Critical-Ch",
		"Use-As-Dictionary"}
)

// cleanHeaders removes and rewrites headers of a program's response.
func (v *visit) cleanHeaders(h http.Header, host string) {
	for _, name := range RemovedHeaders {
		h.Del(name)
	}
	cookies := h.Values("Set-Cookie")
	h.Del("Set-Cookie")
	for _, c := range cookies {
		if c = v.responseCookie(c); c != "" {
			h.Add("Set-Cookie", c)
		}
	}
	if v.prefix == "" {
		return
	}
	for _, name := range RemovedHeadersByPath {
		h.Del(name)
	}
	if to := h.Get("Location"); to != "" {
		h.Set("Location", v.rewriteLocation(to, host))
	}
	v.addSandboxHeaders(h)
}

// rewriteLocation puts the prefix before the target of a redirect: the program does not know the
// prefix.
func (v *visit) rewriteLocation(to, host string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return v.prefix + "/"
	case u.Host == "" && u.Scheme == "" && strings.HasPrefix(u.Path, "/"),
		u.Host != "" && strings.EqualFold(u.Host, host):
		inner := &url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, Fragment: u.Fragment,
			RawFragment: u.RawFragment}
		if strings.HasPrefix(inner.Path, v.prefix+"/") {
			return inner.String()
		}
		return v.prefix + "/" + strings.TrimLeft(inner.String(), "/")
	}
	return to
}

// responseCookie returns the Set-Cookie header of a program, limited to its own host and path, or
// "" when it may not set the cookie.
func (v *visit) responseCookie(line string) string {
	parts := strings.Split(line, ";")
	name, value, ok := strings.Cut(parts[0], "=")
	if name = strings.TrimSpace(name); !ok || name == "" || isSandlotCookie(name) {
		return ""
	}
	out := []string{name + "=" + strings.TrimSpace(value)}
	within := "/"
	for _, a := range parts[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key = strings.ToLower(strings.TrimSpace(key)); {
		case key == "domain":
		case key == "path" && v.prefix != "":
			within = path.Clean("/" + strings.TrimSpace(value))
		default:
			out = append(out, strings.TrimSpace(a))
		}
	}
	if v.prefix != "" {
		out[0] = programCookiePrefix + out[0]
		out = append(out, "Path="+v.prefix+within)
	}
	return strings.Join(out, "; ")
}

// response is the response writer for a client. It drops informational responses (1xx) of
// the program.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (o *response) WriteHeader(code int) {
	if code >= 200 {
		o.ResponseWriter.WriteHeader(code)
	}
}

// Unwrap is for http.ResponseController.
func (o *response) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Hijack implements http.Hijacker.
func (o *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := o.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.SetDeadline(time.Time{})
	client := &conn.Client{Buffered: conn.Buffered{Conn: c, Reader: rw.Reader}}
	return struct{ net.Conn }{client}, rw, nil // without CloseWrite: the end of one side ends both
}
