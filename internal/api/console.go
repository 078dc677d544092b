package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/console"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
)

// ofConsole reports whether a route is the web console's.
func ofConsole(pattern string) bool { return strings.Contains(pattern, "/console/") }

// consoleFile sends the console's page, or a file that it loads.
func (s *Server) consoleFile(w http.ResponseWriter, r *http.Request) {
	if !console.ServeFile(w, r, r.PathValue("path")) {
		s.problem(w, r, fault.New(fault.NotFound, "there is no such file; the console is at %s", console.Path))
	}
}

// home answers requests for the server's root: programs get its health, and browsers are sent to the console.
func (s *Server) home(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept")
	if s.Logins != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Location", strings.TrimPrefix(console.Path, "/"))
		w.WriteHeader(http.StatusFound)
		return
	}
	s.health(w, r)
}

// origin returns the scheme and the host under which a browser reaches this server; empty: the request does not show
// it. The operator knows the scheme of the server's own host better than a request that came through a proxy which is not
// trusted.
func (s *Server) origin(r *http.Request) string {
	base, ok := requestURL(r)
	if !ok {
		return ""
	}
	if u, err := url.Parse(s.PublicURL); err == nil && u.Host != "" {
		if _, host, _ := strings.Cut(base, "://"); strings.EqualFold(host, u.Host) {
			return u.Scheme + "://" + host
		}
	}
	return base
}

// consoleLogin logs a browser in: with a one-time code, or with a token.
func (s *Server) consoleLogin(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	at := s.origin(r)
	grant, from, err := s.consoleGrant(w, r, at)
	// The hub refuses an unknown principal, unless nobody may log in.
	var cookie secret.Value
	key, refused := hub.Do(withOrigin(r).Context(), s.Hub,
		hub.Request{Principal: grant.Principal(), Operation: policy.ConsoleLogin},
		func(context.Context) (key secret.Value, _ error) {
			if err != nil {
				return "", err
			}
			cookie, key = s.Logins.Begin(grant, from)
			return key, nil
		})
	if err != nil && !fault.Is(refused, fault.Forbidden) {
		refused = err
	}
	if refused != nil {
		s.problem(w, r, refused)
		return
	}
	s.Logins.EndOthers(r, at, from)
	http.SetCookie(w, console.Cookie(at, cookie))
	if from.AtProvider() {
		http.SetCookie(w, console.AttemptCookie(at, ""))
	}
	writeJSON(w, http.StatusOK, protocol.ConsoleKey{Key: key.Reveal()})
}

// checkConsolePage returns an error unless the console's page has sent a request, at an origin under which browsers may
// log in.
func (s *Server) checkConsolePage(r *http.Request, origin string) error {
	if origin == "" || r.Header.Get(console.Header) == "" || fromAnotherPage(r) {
		return fault.New(fault.Unauthorized, "only the console's page at %s can log in", console.Path)
	}
	return s.Logins.CheckSite(origin)
}

// consoleGrant returns the grant of what the body of a log-in has, and what else the log-in depends on. Attempts
// that fail are few for each address. The grant is somebody's beside an error if it is known whose log-in was refused.
func (s *Server) consoleGrant(w http.ResponseWriter, r *http.Request, origin string) (g auth.Grant, _ *console.Source,
	err error) {
	if err := s.checkConsolePage(r, origin); err != nil {
		return g, nil, err
	}
	var q protocol.ConsoleLogin
	if err := decode(w, r, 64<<10, &q, "code, token or response"); err != nil {
		return g, nil, err
	}
	switch a := q.Response; {
	case (q.Code != "") != (q.Token != "") && a == nil:
		return s.grantOf(r, q)
	case q.Code == "" && q.Token == "" && a != nil:
		return s.Logins.Finish(r, origin, a.Key, oidc.Response{Provider: a.Provider, Code: a.Code, State: a.State,
			Issuer: a.Issuer, Error: a.Error})
	}
	return g, nil, fault.New(fault.InvalidParameters, "the body must have either code, token or response")
}

// grantOf returns the grant of the code or the token of a log-in, and what else the log-in depends on.
func (s *Server) grantOf(r *http.Request, q protocol.ConsoleLogin) (g auth.Grant, from *console.Source, err error) {
	if q.Code != "" {
		g, from, err = s.Logins.TakeCode(r.Context(), q.Code)
	} else {
		header := "Bearer " + strings.TrimSpace(q.Token)
		var p auth.Principal
		if p, err = s.Authenticator.Authenticate(r.Context(), header); err == nil {
			g = auth.NewGrant(p, header, nil)
		}
	}
	if fault.Is(err, fault.Unauthorized) {
		if tooMany := s.Logins.Failed(r.RemoteAddr); tooMany != nil {
			err = tooMany
		}
	}
	return g, from, err
}

// consoleProviders lists the OIDC providers at which browsers can log in.
func (s *Server) consoleProviders(w http.ResponseWriter, _ *http.Request) {
	answer := protocol.ConsoleProviders{Providers: []protocol.ConsoleProvider{}}
	for _, p := range s.Logins.Providers() {
		answer.Providers = append(answer.Providers, protocol.ConsoleProvider{ID: p.ID, Issuer: p.Issuer})
	}
	writeJSON(w, http.StatusOK, answer)
}

// consoleBegin begins a log-in at an OIDC provider: its page is where the browser goes next.
func (s *Server) consoleBegin(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	at := s.origin(r)
	var cookie secret.Value
	answer, err := hub.Do(r.Context(), s.Hub, hub.Request{Operation: policy.ConsoleBegin},
		func(ctx context.Context) (b protocol.ConsoleBegun, err error) {
			if err := s.checkConsolePage(r, at); err != nil {
				return b, err
			}
			var q protocol.ConsoleAttempt
			if err := decode(w, r, 4<<10, &q, "nothing but provider"); err != nil {
				return b, err
			}
			base, err := s.callbackBase(at)
			if err != nil {
				return b, err
			}
			var key secret.Value
			cookie, key, b.URL, err = s.Logins.Start(ctx, q.Provider, base)
			b.Key = key.Reveal()
			return b, err
		})
	if err != nil {
		s.problem(w, r, err)
		return
	}
	http.SetCookie(w, console.AttemptCookie(at, cookie))
	writeJSON(w, http.StatusOK, answer)
}

// callbackBase returns the address of this server to which providers send a browser back that is at an origin. Who chooses
// the Host of a request must not choose it, unless that is this machine.
func (s *Server) callbackBase(origin string) (string, error) {
	if s.PublicURL == "" {
		if s.Origins.Loopback {
			return origin, nil
		}
		return "", fault.New(fault.Configuration, "nobody can log in by OIDC here: the server does not know its address").
			Advise("The operator sets public_url")
	}
	u, err := url.Parse(s.PublicURL)
	if err != nil || !strings.EqualFold(u.Scheme+"://"+u.Host, origin) {
		return "", fault.New(fault.Forbidden, "log in at %s: the provider sends browsers back there, and not to %s",
			s.PublicURL+console.Path, origin)
	}
	return s.PublicURL, nil
}

// consoleCallback is the address to which a provider sends a browser back. It passes the response on to the console's page,
// in the fragment: the page alone has the other half of the attempt. The address of the page is fixed.
func (s *Server) consoleCallback(w http.ResponseWriter, r *http.Request) {
	given, kept := r.URL.Query(), url.Values{"provider": {r.PathValue("provider")}}
	for _, name := range []string{"state", "code", "iss", "error"} {
		if values := given[name]; len(values) == 1 {
			kept.Set(name, values[0])
		}
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Location", "../#login?"+kept.Encode())
	w.WriteHeader(http.StatusFound)
}

// consoleLogout ends the log-in of the browser that asks. It was identified by its cookie.
func (s *Server) consoleLogout(r *http.Request) (protocol.ConsoleEnded, error) {
	x, _ := r.Context().Value(loginKey{}).(*console.Login)
	if x == nil {
		return protocol.ConsoleEnded{}, fault.New(fault.InvalidParameters, "no browser is logged in with this request")
	}
	s.Logins.End(x)
	base, err := s.callbackBase(s.origin(r))
	if err != nil { // logged in elsewhere than at the public address, and so not by OIDC
		return protocol.ConsoleEnded{}, nil
	}
	return protocol.ConsoleEnded{URL: s.Logins.LogoutURL(x, base)}, nil
}

// consoleLink makes a one-time link to the console for who asks.
func (s *Server) consoleLink(r *http.Request) (protocol.ConsoleLink, error) {
	p, _ := auth.FromContext(r.Context())
	grant := auth.NewGrant(p, r.Header.Get("Authorization"), r.Header.Values(auth.UserHeader))
	in, _ := r.Context().Value(loginKey{}).(*console.Login)
	if in != nil { // by a browser, for another one
		grant = in.Grant()
	}
	base, ok := s.consoleURL(r)
	if !ok {
		return protocol.ConsoleLink{}, fault.New(fault.Internal,
			"the server has no address for browsers: set public_url")
	}
	code, expires := s.Logins.NewCode(grant, in)
	return protocol.ConsoleLink{URL: base + console.Path + "#code=" + code.Reveal(),
		Expires: expires.UTC().Truncate(time.Second)}, nil
}

// consoleURL returns the URL at which a browser reaches this server, without a slash at its end.
func (s *Server) consoleURL(r *http.Request) (string, bool) {
	base, ok := s.baseURL(r)
	if at := s.address.Load(); !ok && at != nil {
		base, ok = strings.TrimSuffix(*at, "/mcp"), true
	}
	u, err := url.Parse(base)
	if ok && err == nil && s.PublicURL == "" && s.Origins.Loopback && isLoopback(u.Host) && u.Scheme == "http" {
		port := u.Port()
		if u.Host = console.LocalHost; port != "" {
			u.Host += ":" + port
		}
		base = u.String()
	}
	return base, ok
}

// loginKey is the context key of the log-in with whose cookie a request came.
type loginKey struct{}

// authenticate returns the principal of a request by its token or, without one, by the cookie of its browser's log-in.
// The returned request ends with the log-in.
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request) (
	_ *http.Request, p auth.Principal, release func(), err error) {
	header := r.Header.Get("Authorization")
	if s.Logins != nil && header == "" {
		x, p, err := s.Logins.Of(r, s.origin(r))
		if err != nil {
			return r, p, func() {}, err
		}
		if x != nil {
			w.Header().Set("Cache-Control", "no-store")
			ctx, release := s.Logins.Hold(context.WithValue(r.Context(), loginKey{}, x), x)
			return r.WithContext(ctx), p, release, nil
		}
	}
	p, err = s.Authenticator.Authenticate(r.Context(), header)
	return r, p, func() {}, err
}

// whoAsks returns the principal of a request.
func (s *Server) whoAsks(r *http.Request) (protocol.Principal, error) {
	p, _ := auth.FromContext(r.Context())
	login := r.Context().Value(loginKey{}) != nil
	return protocol.Principal{Principal: p.ID, Name: p.Name, Roles: append([]auth.Role{}, p.Roles.List()...),
		Version: s.Version, Login: login}, nil
}
