package api

import (
	_ "embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// loginCookie is the prefix, before the log-in's id, of the name of the cookie that binds
// a log-in to the browser in which it began.
const loginCookie = "sandlot_login_"

//go:embed login.html
var loginHTML string

// loginPage is the page for a log-in at a third-party server: the request for the user's
// consent, or a message. It has no script, and loads nothing.
var loginPage = template.Must(template.New("").Parse(loginHTML))

// showLogin sends a page with a title and a text or, with a consent page, the request for the user's consent.
func showLogin(w http.ResponseWriter, status int, title, text string, consent *hub.ConsentPage) {
	loginHeaders(w)
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	page := struct {
		Title, Text string
		Invitation  *hub.ConsentPage
	}{title, text, consent}
	_ = loginPage.Execute(w, page) // fails when the browser is gone
}

func loginHeaders(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
}

// newLink is the advice for a log-in that failed.
const newLink = " Use the connection again to get a new link, and open that in the browser in which you log in."

// showLoginError sends the page for a failed log-in. otherBrowser is the text for hub.ErrOtherBrowser.
func showLoginError(w http.ResponseWriter, err error, otherBrowser string) {
	if f, ok := errors.AsType[*fault.Error](err); ok { // refused
		showLogin(w, f.HTTP(), "Not allowed", f.Error(), nil)
		return
	}
	if errors.Is(err, hub.ErrOtherBrowser) {
		showLogin(w, http.StatusForbidden, "Not in this browser", otherBrowser+newLink, nil)
		return
	}
	showLogin(w, http.StatusNotFound, "This log-in is over",
		"Nobody waits for this log-in any more: it was done, given up, or not begun within ten minutes."+newLink, nil)
}

// startLogin serves the link with which a user logs in at a third-party server: first a
// page that says what the log-in is for, then, with the query of that page, the redirect.
func (s *Server) startLogin(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	cookies := loginCookies(r, id)
	if proof := r.URL.Query().Get("go"); proof != "" {
		to, err := hub.BeginLogin.Do(r.Context(), s.Hub, auth.Principal{}, hub.Login{ID: id, Cookies: cookies,
			Proof: proof})
		if err != nil {
			showLoginError(w, err,
				"This log-in is another browser's, or this one did not send back the cookie of the page before, "+
					"without which it cannot log in here.")
			return
		}
		loginHeaders(w)
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
		return
	}
	i, err := hub.LoginPage.Do(r.Context(), s.Hub, auth.Principal{}, hub.Login{ID: id, Cookies: cookies})
	if err != nil {
		showLoginError(w, err, "Somebody went on to log in with this link in another browser.")
		return
	}
	http.SetCookie(w, s.cookie(id, i.Browser, int(hub.LoginTimeout.Seconds())))
	showLogin(w, http.StatusOK, "Log in for "+i.Server, "", &i)
}

// cookie returns the cookie of a log-in, valid for age seconds; a negative age deletes it.
func (s *Server) cookie(id, value string, age int) *http.Cookie {
	c := &http.Cookie{Name: loginCookie + id, Value: value, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if u, err := url.Parse(s.Hub.CallbackURL()); err == nil {
		c.Path, c.Secure = u.Path[:strings.LastIndex(u.Path, "/")+1], u.Scheme == "https"
	}
	return c
}

// loginCookies returns the values of all cookies of a log-in. Another site of the same
// domain can set a cookie of the same name, for a longer path or for the domain.
func loginCookies(r *http.Request, id string) (values []string) {
	for _, c := range r.CookiesNamed(loginCookie + id) {
		values = append(values, c.Value)
	}
	return values
}

// finishLogin serves the OAuth redirect, to which the authorization server sends the browser.
// The state in the query identifies the log-in; the cookie proves that it is the browser
// in which the log-in began.
func (s *Server) finishLogin(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	id, err := hub.FinishLogin.Do(r.Context(), s.Hub, auth.Principal{},
		hub.LoginCallback{Query: q, Cookies: func(id string) []string { return loginCookies(r, id) }})
	if err != nil {
		showLoginError(w, err,
			"This log-in was begun in another browser, or the cookie of it is gone. Nothing was connected.")
		return
	}
	http.SetCookie(w, s.cookie(id, "", -1))
	if q.Get("code") == "" {
		showLogin(w, http.StatusOK, "Not logged in", "The log-in was refused."+newLink, nil)
		return
	}
	showLogin(w, http.StatusOK, "Back at Sandlot",
		"Sandlot finishes the log-in now; you can close this page. The connection shows whether it worked.", nil)
}
