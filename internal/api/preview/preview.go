// Package preview serves exposed ports: it passes requests for links on to servers in
// sandboxes, and lets neither say or see what is not theirs.
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

// Config is what a Server needs.
type Config struct {
	Hub *hub.Hub
	// Limits bounds the visits of each session's owner.
	Limits *limit.Limiter
	// Known says whether a request is for this server, and refuses it otherwise.
	Known func(w http.ResponseWriter, r *http.Request) bool
	Log   *slog.Logger
}

// Server serves exposed ports.
type Server struct {
	Config
	inside *http.Transport // to servers in sandboxes
}

// New returns a server of exposed ports.
func New(c Config) *Server { return &Server{c, newInside()} }

// Before answers requests for exposed ports; they never reach next, whatever their path.
func (s *Server) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure := r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
		v := &visit{log: s.Log, path: r.URL.EscapedPath(), secure: secure}
		ok := false
		switch {
		case s.Hub.Links().IsPortHost(r.Host):
			v.session, v.port, ok = s.Hub.Links().ParseHost(r.Host)
		case strings.HasPrefix(r.URL.Path, hub.PortPrefix):
			if !s.Known(w, r) {
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
			v.dress(w.Header())
			http.Redirect(w, r, v.prefix+"/"+query(r.URL.RawQuery), http.StatusPermanentRedirect)
		case v.prefix != "" && r.Header.Get("Service-Worker") != "":
			v.page(w, r, http.StatusForbidden, "No service workers here",
				"Service workers need the form of the link with a name of its own.")
		default:
			s.admit(w, r, v)
		}
	})
}

// admit lets those in who may, and takes the token out of what is seen.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, v *visit) {
	token, raw := r.Header.Get(TokenHeader), r.URL.RawQuery
	linked, rest := cutToken(raw)
	reads := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	browses := token == "" && rest != raw && reads
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
	done, err := s.Limits.Acquire(v.use.Owner, limit.PortConns, 1)
	if err != nil {
		v.refuse(w, r, v.use.Fail(hub.ErrTooManyConns))
		return
	}
	defer done()
	defer conn.Serve(r)()
	if err := v.use.Wake(); err != nil {
		v.asleep(w, r, err)
		return
	}
	s.forward(w, r.WithContext(context.WithValue(v.use.Context, visitor{}, v)), v, rest)
}

// welcome keeps the token in a cookie and sends the browser on without it.
func (v *visit) welcome(w http.ResponseWriter, r *http.Request, record hub.PortRecord, token, rest string) {
	if record.HasToken(token) {
		c := &http.Cookie{Name: Cookie, Value: token, Path: v.prefix + "/", Expires: record.Expires,
			HttpOnly: true, Secure: v.secure, SameSite: http.SameSiteLaxMode}
		if v.secure && v.prefix == "" {
			c.Name = SecureCookie
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
	if t := found[SecureCookie]; t != "" && v.prefix == "" {
		return t
	}
	return found[Cookie]
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
