package api

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
)

// visit is one request for an exposed port.
type visit struct {
	session string
	port    int
	prefix  string // of its path, /ports/SESSION/PORT, where it came by path; else empty
	path    string // for the server inside, escaped
	secure  bool   // the client came by HTTPS
	use     *hub.Visit
}

// TokenHeader carries a link's token for programs.
const TokenHeader = "Sandlot-Port-Token"

const (
	portCookie       = "sandlot_port"
	securePortCookie = "__Host-" + portCookie
	// By path, the cookies of a server inside are told from those of other
	// programs on this host by their names.
	innerCookie = "sandlot_in_"
	// Pages by path have this server's address, but never its origin.
	pathPolicy = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"
	ownPolicy  = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
)

// apart answers requests for exposed ports; they never reach what else there is,
// whatever their path.
func (s *Server) apart(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{path: r.URL.EscapedPath(), secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")}
		ok := false
		switch {
		case s.Hub.Links().Claims(r.Host):
			v.session, v.port, ok = s.Hub.Links().Named(r.Host)
		case strings.HasPrefix(r.URL.Path, hub.PortPrefix):
			if !s.Guard.knows(w, r) {
				return
			}
			v.prefix = hub.PortPrefix
			if v.session, v.port, v.path, ok = hub.PortByPath(r.URL.EscapedPath()); ok {
				v.prefix = fmt.Sprintf("%s%s/%d", hub.PortPrefix, v.session, v.port)
			}
		default:
			next.ServeHTTP(w, r)
			return
		}
		switch {
		case !ok, r.Method == http.MethodConnect:
			v.refuse(w, r, hub.ErrUnknown)
		case v.path == "":
			v.dress(w.Header())
			http.Redirect(w, r, v.prefix+"/"+query(r.URL.RawQuery), http.StatusPermanentRedirect)
		case v.prefix != "" && r.Header.Get("Service-Worker") != "":
			v.page(w, r, http.StatusForbidden, "No service workers here", "Service workers need the form of the link with a name of its own.")
		default:
			s.admit(w, r, v)
		}
	})
}

// admit lets those in who may, and takes the token out of what is seen.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, v *visit) {
	token, raw := r.Header.Get(TokenHeader), r.URL.RawQuery
	linked, rest := cutToken(raw)
	browses := token == "" && rest != raw && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	if token = cmp.Or(token, linked); token == "" {
		token = v.cookie(r)
	}
	if browses {
		record, err := s.Hub.CheckLink(hub.Link{Session: v.session, Port: v.port, Token: token})
		if err != nil {
			v.refuse(w, r, err)
			return
		}
		v.welcome(w, r, record, token, rest)
		return
	}
	var err error
	if v.use, err = s.Hub.VisitPort(r.Context(), hub.Link{Session: v.session, Port: v.port, Token: token}); err != nil {
		v.refuse(w, r, err)
		return
	}
	defer v.use.Close()
	done, err := s.Limits.Take(v.use.Owner, limit.Visits, 1)
	if err != nil {
		v.refuse(w, r, v.use.Fail(hub.ErrFull))
		return
	}
	defer done()
	defer serves(r)()
	if err := v.use.Wake(); err != nil {
		v.asleep(w, r, err)
		return
	}
	s.forward(w, r.WithContext(context.WithValue(v.use.Context, visitor{}, v)), v, rest)
}

// welcome keeps the token in a cookie and sends the browser on without it.
func (v *visit) welcome(w http.ResponseWriter, r *http.Request, record hub.PortRecord, token, rest string) {
	if record.Opens(token) {
		c := &http.Cookie{Name: portCookie, Value: token, Path: v.prefix + "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
			Secure: v.secure, Expires: record.Expires}
		if v.secure && v.prefix == "" {
			c.Name = securePortCookie
		}
		http.SetCookie(w, c)
	}
	to := r.URL.EscapedPath()
	if strings.HasPrefix(to, "//") { // which would be another host
		to = "/." + to
	}
	h := w.Header()
	v.dress(h)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Location", to+query(rest))
	w.WriteHeader(http.StatusSeeOther)
}

// cutToken returns the token of a link's query, and what is left of the query.
func cutToken(raw string) (token, rest string) {
	if !strings.Contains(raw, hub.PortParam) {
		return "", raw
	}
	kept := slices.DeleteFunc(strings.Split(raw, "&"), func(pair string) bool {
		name, value, _ := strings.Cut(pair, "=")
		if name != hub.PortParam {
			return false
		}
		token, _ = url.QueryUnescape(value)
		return true
	})
	return token, strings.Join(kept, "&")
}

func query(raw string) string {
	if raw == "" {
		return ""
	}
	return "?" + raw
}

// cookie returns the token that the browser keeps, unless a page of another
// origin sent the request.
func (v *visit) cookie(r *http.Request) string {
	if !v.ownPage(r) {
		return ""
	}
	found := map[string]string{}
	for _, c := range r.Cookies() {
		if _, twice := found[c.Name]; !twice {
			found[c.Name] = c.Value
		}
	}
	if t := found[securePortCookie]; t != "" && v.prefix == "" {
		return t
	}
	return found[portCookie]
}

// ownPage says that a request comes from a page of the port itself, or from no
// page: names in one domain are of one site, whose cookies browsers send.
func (v *visit) ownPage(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if v.prefix != "" { // these pages have an opaque origin, which is of no site
		embeds := r.Header.Get("Sec-Fetch-Site") == "same-site" && r.Header.Get("Sec-Fetch-Dest") != "document"
		return (origin == "" || origin == "null") && !embeds
	}
	if origin != "" {
		u, err := url.Parse(origin)
		return err == nil && strings.EqualFold(u.Host, r.Host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return r.Header.Get("Sec-Fetch-Dest") == "document"
	}
	return true
}

type visitor struct{}

// newInside returns what speaks HTTP to servers in sandboxes. No connection is
// kept: it would outlive its request's lease, and many small servers close
// theirs at any time.
func newInside() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			v := ctx.Value(visitor{}).(*visit)
			c, err := v.use.Connect()
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

// pooled implements httputil.BufferPool.
type pooled struct{}

func (pooled) Get() []byte  { return buffers.Get().(*[32 << 10]byte)[:] }
func (pooled) Put(b []byte) { buffers.Put((*[32 << 10]byte)(b)) }

// forward passes the request to the server inside, and its answer to the client.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, v *visit, query string) {
	out := &outlet{ResponseWriter: w, control: http.NewResponseController(w)}
	defer out.control.SetWriteDeadline(time.Time{})
	proxy := httputil.ReverseProxy{Transport: s.inside, FlushInterval: -1, BufferPool: pooled{},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		Rewrite:  func(p *httputil.ProxyRequest) { v.rewrite(p, query) },
		ModifyResponse: func(resp *http.Response) error {
			v.clean(resp.Header, r.Host)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) { v.failed(w, r, err) },
	}
	proxy.ServeHTTP(out, r)
}

// rewrite makes the request that the server inside sees.
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
	if slices.ContainsFunc(h.Values("Authorization"), ours) {
		h.Del("Authorization")
	}
	if ref, err := url.Parse(h.Get("Referer")); err == nil && strings.Contains(ref.RawQuery, hub.PortParam) {
		_, ref.RawQuery = cutToken(ref.RawQuery)
		h.Set("Referer", ref.String())
	}
	cookies := v.cookiesIn(h.Values("Cookie"))
	h.Del("Cookie")
	if cookies != "" {
		h.Set("Cookie", cookies)
	}
}

// ours says that the header carries a token of this server's API.
func ours(authorization string) bool {
	_, token, _ := strings.Cut(authorization, " ")
	return strings.HasPrefix(strings.TrimSpace(token), "slt_")
}

// cookiesIn returns the cookies that are for the server inside.
func (v *visit) cookiesIn(headers []string) string {
	var kept []string
	for pair := range strings.SplitSeq(strings.Join(headers, ";"), ";") {
		pair = strings.TrimSpace(pair)
		name, _, _ := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		inner, byPath := strings.CutPrefix(pair, innerCookie)
		switch {
		case pair == "":
		case v.prefix != "" && byPath:
			kept = append(kept, inner)
		case v.prefix == "" && !strings.EqualFold(name, portCookie) && !strings.EqualFold(name, securePortCookie):
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "; ")
}

// What a server inside cannot say: it would be about more than its own pages, or
// to a proxy of the operator.
var (
	unsaid = []string{"Clear-Site-Data", "Alt-Svc", "X-Accel-Redirect", "X-Accel-Expires", "X-Accel-Limit-Rate", "X-Accel-Charset",
		"X-Sendfile", "X-Lighttpd-Send-File", "X-Reproxy-Url"}
	unsaidByPath = []string{"Service-Worker-Allowed", "Strict-Transport-Security", "Public-Key-Pins", "Expect-Ct", "Nel", "Report-To",
		"Reporting-Endpoints", "Origin-Agent-Cluster", "Accept-Ch", "Critical-Ch", "Use-As-Dictionary"}
)

// clean takes out of an answer's header what is not the server's inside to say.
func (v *visit) clean(h http.Header, host string) {
	for _, name := range unsaid {
		h.Del(name)
	}
	cookies := h.Values("Set-Cookie")
	h.Del("Set-Cookie")
	for _, c := range cookies {
		if c = v.cookieOut(c); c != "" {
			h.Add("Set-Cookie", c)
		}
	}
	if v.prefix == "" {
		return
	}
	for _, name := range unsaidByPath {
		h.Del(name)
	}
	if to := h.Get("Location"); to != "" {
		h.Set("Location", v.location(to, host))
	}
	v.dress(h)
}

// dress adds what keeps pages by path from acting as this server's origin. More
// than one policy holds together: none takes anything from this one.
func (v *visit) dress(h http.Header) {
	if v.prefix == "" {
		return
	}
	h.Add("Content-Security-Policy", pathPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
}

// location keeps a redirect of the server inside, which does not know of the
// prefix, beneath it.
func (v *visit) location(to, host string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return v.prefix + "/"
	case u.Host == "" && u.Scheme == "" && strings.HasPrefix(u.Path, "/"), u.Host != "" && strings.EqualFold(u.Host, host):
		inner := &url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, Fragment: u.Fragment, RawFragment: u.RawFragment}
		if strings.HasPrefix(inner.Path, v.prefix+"/") {
			return inner.String()
		}
		return v.prefix + "/" + strings.TrimLeft(inner.String(), "/")
	}
	return to
}

// cookieOut returns a cookie as the server inside may set it, or nothing.
func (v *visit) cookieOut(line string) string {
	parts := strings.Split(line, ";")
	name, value, ok := strings.Cut(parts[0], "=")
	if name = strings.TrimSpace(name); !ok || name == "" || strings.EqualFold(name, portCookie) || strings.EqualFold(name, securePortCookie) {
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
		out[0] = innerCookie + out[0]
		out = append(out, "Path="+v.prefix+within)
	}
	return strings.Join(out, "; ")
}

// outlet is an answer on its way to a client, who has to take it. What the
// server inside says before its status is not passed on.
type outlet struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (o *outlet) WriteHeader(code int) {
	if code >= 200 {
		o.ResponseWriter.WriteHeader(code)
	}
}

func (o *outlet) Write(b []byte) (int, error) {
	o.control.SetWriteDeadline(time.Now().Add(stall))
	return o.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (o *outlet) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Hijack implements http.Hijacker.
func (o *outlet) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := o.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.SetDeadline(time.Time{})
	return &taking{Conn: c, from: rw.Reader}, rw, nil
}

// taking is a client's connection; the client has to take what is written.
type taking struct {
	net.Conn
	from *bufio.Reader
}

func (t *taking) Read(b []byte) (int, error) { return t.from.Read(b) }

// Write gives each piece of b a time of its own: who reads steadily is not cut off
// in a long answer.
func (t *taking) Write(b []byte) (written int, err error) {
	const piece = 64 << 10
	for {
		part := b[:min(len(b), piece)]
		t.Conn.SetWriteDeadline(time.Now().Add(stall))
		n, err := t.Conn.Write(part)
		written += n
		if b = b[n:]; err != nil || len(b) == 0 {
			return written, err
		}
	}
}

// refuse answers those who may not use a port, in the same words whatever the
// reason: they learn nothing of which sessions and ports there are.
func (v *visit) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f, refused := errors.AsType[*fault.Error](err)
	switch {
	case refused:
		v.page(w, r, f.HTTP(), "Not allowed", f.Error())
	case errors.Is(err, hub.ErrNoToken):
		v.page(w, r, http.StatusUnauthorized, "A link is needed", "Open this address with its whole link, which has a "+hub.PortParam+" in it. Programs can send the token in the header "+TokenHeader+".")
	case errors.Is(err, hub.ErrFull):
		w.Header().Set("Retry-After", "1")
		v.page(w, r, http.StatusServiceUnavailable, "Too many connections", fmt.Sprintf("This session, or its user, has %d connections from outside; more can be opened when some of them end.", hub.MaxPortConns))
	default:
		v.page(w, r, http.StatusNotFound, "There is nothing here", "This link is not valid, or not any more: it was closed, has expired, or a newer one took its place.")
	}
}

// asleep answers when the session cannot be woken.
func (v *visit) asleep(w http.ResponseWriter, r *http.Request, err error) {
	f := fault.From(err)
	if f.Kind == fault.SessionNotFound {
		v.refuse(w, r, hub.ErrUnknown)
		return
	}
	if cause := f.Unwrap(); cause != nil {
		slog.WarnContext(r.Context(), "a session could not be woken", "session", v.session, "fault", f.Code(), "cause", cause)
	}
	v.page(w, r, f.HTTP(), "The session does not start", f.Error())
}

// failed answers when the server inside does not.
func (v *visit) failed(w http.ResponseWriter, r *http.Request, err error) {
	v.use.Fail(err)
	var dial *dialError
	switch {
	case errors.Is(err, hub.ErrNobody):
		v.page(w, r, http.StatusBadGateway, "Nothing listens here", fmt.Sprintf("Nothing listens on port %d of this session. Start the server in it, and load this again. When a session has stopped, or was started again, what ran in it is gone.", v.port))
	case errors.Is(err, context.DeadlineExceeded):
		v.page(w, r, http.StatusGatewayTimeout, "No answer", fmt.Sprintf("Port %d of this session takes no connection.", v.port))
	case errors.As(err, &dial):
		f := v.use.Fault(r.Context(), dial.error)
		v.page(w, r, http.StatusBadGateway, "The session does not answer", f.Error())
	default:
		v.page(w, r, http.StatusBadGateway, "No proper answer", fmt.Sprintf("The server on port %d of this session gave no answer that is HTTP.", v.port))
	}
}

// page answers in the server's own words: for people, or as problem details.
func (v *visit) page(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	h := w.Header()
	v.dress(h)
	h.Add("Content-Security-Policy", ownPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		code := strings.ToUpper(strings.ReplaceAll(http.StatusText(status), " ", "_"))
		writeProblem(w, Problem{Title: code, Status: status, Detail: text,
			Data: fault.Data{ErrorCode: code, Category: "network", Severity: "low", RecoverySuggestions: []string{}, Context: map[string]any{}}})
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%s</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 15vh auto; padding: 0 1em"><h1 style="font-size: 1.4em">%[1]s</h1><p>%s</p>
<p style="color: gray">Sandlot, %d</p>
`, html.EscapeString(title), html.EscapeString(text), status)
}

// dial connects the client to a port of its session: after the upgrade bytes go
// both ways, and each side's end by itself.
func (s *Server) dial(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || number < 1 || number > 65535 {
		problem(w, r, fault.New(fault.InvalidParameters, "the port must be a number from 1 to 65535"))
		return
	}
	done, err := s.hold(r.Context(), limit.Streams)
	if err != nil {
		busy(w, r, err)
		return
	}
	defer done()
	p, _ := auth.From(r.Context())
	stream, err := s.Hub.DialPort(r.Context(), p, r.PathValue("id"), number)
	if err != nil {
		problem(w, r, err)
		return
	}
	defer stream.End()
	c, rw, ok := upgrade(w, r, upgradeDial)
	if !ok {
		return
	}
	Splice(&caller{dialed{c, rw.Reader}}, halves{stream})
}

// Splice passes bytes both ways, and the end of each side by itself, until both
// have ended or one is lost. It closes both.
func Splice(a, b net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	pass(b, a)
	both.Wait()
	a.Close()
	b.Close()
}

func pass(to, from net.Conn) {
	_, err := io.CopyBuffer(plainWriter{to}, struct{ io.Reader }{from}, make([]byte, 64<<10))
	h, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || h.CloseWrite() != nil {
		to.Close()
		from.Close()
	}
}

// caller is the client's side of a dialed connection. When the server inside has
// ended its half, the other half has as long as the link leaves it.
type caller struct{ dialed }

// Write gives the client a minute to take what comes.
func (c *caller) Write(b []byte) (int, error) {
	c.SetWriteDeadline(time.Now().Add(stall))
	return c.dialed.Write(b)
}

func (c *caller) CloseWrite() error {
	c.SetReadDeadline(time.Now().Add(wire.Mux().StreamCloseTimeout))
	return c.dialed.CloseWrite()
}

// halves is a stream of the link: closing it ends what is sent.
type halves struct{ net.Conn }

func (h halves) CloseWrite() error { return h.Close() }
