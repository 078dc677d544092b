// Package preview serves exposed ports: it forwards requests with a valid link to programs
// in sandboxes. It removes this server's tokens and cookies from the requests, and headers
// that would affect more than the program's own pages from the responses.
package preview

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sandlot/internal/api/conn"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
)

// Config has the collaborators of a Server.
type Config struct {
	Hub *hub.Hub
	// Limits bounds the connections to exposed ports of each session's owner.
	Limits *limit.Limiter
	// CheckHost reports whether the Host of a request is this server. If not, it sends the error.
	CheckHost func(w http.ResponseWriter, r *http.Request) bool
	// IsToken reports whether an Authorization header has a token of this server.
	IsToken func(header string) bool
	Log     *slog.Logger
}

// Server serves exposed ports.
type Server struct {
	Config
	transport *http.Transport // to programs in sandboxes
}

// New returns a server of exposed ports.
func New(c Config) *Server { return &Server{c, newTransport()} }

// Middleware serves requests for exposed ports, whatever their path, and passes all other
// requests on to next, which is the API.
func (s *Server) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure := r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
		v := &visit{log: s.Log, isToken: s.IsToken, path: r.URL.EscapedPath(), secure: secure}
		ok := false
		switch {
		case s.Hub.IsPortHost(r.Host):
			v.session, v.port, ok = s.Hub.PortByHost(r.Host)
		case strings.HasPrefix(r.URL.Path, hub.PortPrefix):
			if !s.CheckHost(w, r) {
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
			v.refuse(w, r, hub.ErrUnknownPort)
		case v.path == "":
			v.addSandboxHeaders(w.Header())
			http.Redirect(w, r, v.prefix+"/"+query(r.URL.RawQuery), http.StatusPermanentRedirect)
		case v.prefix != "" && r.Header.Get("Service-Worker") != "":
			v.sendPage(w, r, http.StatusForbidden, "No service workers here",
				"Service workers need a link with a host name of its own.")
		default:
			s.admit(w, r, v)
		}
	})
}

// admit checks the link's token, removes it from the request, and forwards the request.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, v *visit) {
	token, raw := r.Header.Get(TokenHeader), r.URL.RawQuery
	linkToken, restQuery := cutToken(raw)
	isRead := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	fromBrowser := token == "" && restQuery != raw && isRead
	if token = cmp.Or(token, linkToken); token == "" {
		token = v.cookie(r)
	}
	if fromBrowser {
		link := hub.Link{Session: v.session, Port: v.port, Token: token}
		record, err := s.Hub.CheckLink(r.Context(), link)
		if err != nil {
			v.refuse(w, r, err)
			return
		}
		v.redirectWithoutToken(w, r, record, link, restQuery)
		return
	}
	var err error
	if v.hubVisit, err = s.Hub.VisitPort(r.Context(), hub.Link{Session: v.session, Port: v.port,
		Token: token}); err != nil {
		v.refuse(w, r, err)
		return
	}
	defer v.hubVisit.Close()
	done, err := s.Limits.Acquire(v.hubVisit.Owner, limit.PortConns, 1)
	if err != nil {
		v.refuse(w, r, v.hubVisit.Fail(hub.ErrTooManyConns))
		return
	}
	defer done()
	defer conn.MarkServing(r)()
	if err := v.hubVisit.Wake(); err != nil {
		v.startFailed(w, r, err)
		return
	}
	s.forward(w, r.WithContext(context.WithValue(v.hubVisit.Context, visitKey{}, v)), v, restQuery)
}

// redirectWithoutToken stores the token in a cookie and redirects the browser to the URL without it, so
// that the token is not in the browser's history and in Referer headers.
func (v *visit) redirectWithoutToken(w http.ResponseWriter, r *http.Request, record hub.PortRecord, link hub.Link,
	rest string) {
	if link.HasTokenOf(record) {
		c := &http.Cookie{Name: Cookie, Value: link.Token, Path: v.prefix + "/", Expires: record.Expires,
			HttpOnly: true, Secure: v.secure, SameSite: http.SameSiteLaxMode}
		if v.secure && v.prefix == "" {
			c.Name = SecureCookie
		}
		http.SetCookie(w, c)
	}
	to := r.URL.EscapedPath()
	if strings.HasPrefix(to, "//") { // a browser would read "//name" as another host
		to = "/." + to
	}
	h := w.Header()
	v.addSandboxHeaders(h)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Location", to+query(rest))
	w.WriteHeader(http.StatusSeeOther)
}

// cutToken returns the token in the query of a link, and the query without it.
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

// cookie returns the token in the browser's cookie, or "" when a page of another origin sent
// the request.
func (v *visit) cookie(r *http.Request) string {
	if !v.fromOwnPage(r) {
		return ""
	}
	found := map[string]string{}
	for _, c := range r.Cookies() {
		if _, twice := found[c.Name]; !twice {
			found[c.Name] = c.Value
		}
	}
	if t := found[SecureCookie]; t != "" && v.prefix == "" {
		return t
	}
	return found[Cookie]
}

// fromOwnPage reports whether a request comes from a page of the port itself, or from no page.
// SameSite cookies are not enough: host names below one domain are same-site, and browsers
// send the cookies with requests from their pages.
func (v *visit) fromOwnPage(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if v.prefix != "" { // these pages have an opaque origin, so Sec-Fetch-Site is never same-origin
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
