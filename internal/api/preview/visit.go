package preview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"sandlot/internal/api/protocol"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// visit is one request for an exposed port.
type visit struct {
	session  string
	port     int
	prefix   string     // /ports/SESSION/PORT for a link by path; empty for a link by host name
	path     string     // of the request to the program in the sandbox, escaped
	secure   bool       // the client uses HTTPS
	hubVisit *hub.Visit // set when the hub has admitted the request
	isToken  func(header string) bool
	log      *slog.Logger
}

// TokenHeader is the header in which programs send a link's token.
const TokenHeader = "Sandlot-Port-Token"

const (
	// Cookie and SecureCookie are the names of the cookie with a link's token.
	Cookie       = "sandlot_port"
	SecureCookie = "__Host-" + Cookie
	// programCookiePrefix is the prefix of the cookies of programs, for links by path: it
	// distinguishes them from Sandlot's cookies on the same host.
	programCookiePrefix = "sandlot_in_"
	// PathCSP is the Content-Security-Policy of pages of links by path. Their URLs have the origin of
	// this server; with this policy, browsers give them an opaque origin instead.
	PathCSP = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"
	// PageCSP is the Content-Security-Policy of this server's own pages.
	PageCSP = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
	// reloads is how long after a port was exposed its page loads itself again while nothing listens, every reloadAfter
	// seconds. It is bounded: each visit keeps the session awake.
	reloads     = 10 * time.Minute
	reloadAfter = "2"
)

// addSandboxHeaders adds the headers that give pages of links by path an opaque origin. A policy that the
// program sends applies too, and cannot weaken this one.
func (v *visit) addSandboxHeaders(h http.Header) {
	if v.prefix == "" {
		return
	}
	h.Add("Content-Security-Policy", PathCSP)
	h.Set("X-Content-Type-Options", "nosniff")
}

// refuse sends the page for a refused request. It is the same for an invalid token and for
// a port that is not exposed, so that nobody learns which sessions and ports exist.
func (v *visit) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f, refused := errors.AsType[*fault.Error](err)
	switch {
	case refused:
		v.sendPage(w, r, f.HTTP(), "Not allowed", f.Error())
	case errors.Is(err, hub.ErrNoToken):
		v.sendPage(w, r, http.StatusUnauthorized, "A link is needed",
			"Open this address with its whole link, which has a "+
				hub.PortParam+" in it. Programs can send the token in the header "+TokenHeader+".")
	case errors.Is(err, hub.ErrTooManyConns):
		w.Header().Set("Retry-After", "1")
		v.sendPage(w, r, http.StatusServiceUnavailable, "Too many connections",
			fmt.Sprintf("This session, or its user, "+
				"has %d connections from outside; more can be opened when some of them end.", hub.MaxPortConns))
	default:
		v.sendPage(w, r, http.StatusNotFound, "There is nothing here",
			"This link is not valid, or not any more: it was "+
				"closed, has expired, or a newer one took its place.")
	}
}

// startFailed sends the page for a session that could not be started.
func (v *visit) startFailed(w http.ResponseWriter, r *http.Request, err error) {
	f := fault.From(err)
	if f.Kind == fault.SessionNotFound {
		v.refuse(w, r, hub.ErrUnknownPort)
		return
	}
	if cause := f.Unwrap(); cause != nil {
		v.log.WarnContext(r.Context(), "a session could not be woken", "session", v.session, "fault", f.Code(),
			"cause", cause)
	}
	title := "The session does not start"
	if f.Kind == fault.SessionPaused {
		title = "The session is paused"
	}
	v.sendPage(w, r, f.HTTP(), title, f.Error())
}

// programFailed sends the page for a program that does not answer.
func (v *visit) programFailed(w http.ResponseWriter, r *http.Request, err error) {
	v.hubVisit.Fail(err)
	var dial *dialError
	switch {
	case errors.Is(err, hub.ErrNotListening):
		again := "load this again"
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && time.Since(v.hubVisit.Created) < reloads {
			again = "this page loads again by itself"
			w.Header().Set("Refresh", reloadAfter)
		}
		v.sendPage(w, r, http.StatusBadGateway, "Nothing listens here",
			fmt.Sprintf("Nothing listens on port %d of this session. Start the server in it, and %s. When a session "+
				"has stopped, or was started again, what ran in it is gone.", v.port, again))
	case errors.Is(err, context.DeadlineExceeded):
		v.sendPage(w, r, http.StatusGatewayTimeout, "No answer",
			fmt.Sprintf("Port %d of this session accepts no connection.", v.port))
	case errors.As(err, &dial):
		f := v.hubVisit.Fault(r.Context(), dial.error)
		v.sendPage(w, r, http.StatusBadGateway, "The session does not answer", f.Error())
	default:
		v.sendPage(w, r, http.StatusBadGateway, "No proper answer",
			fmt.Sprintf("The server on port %d of this session gave no answer that is HTTP.", v.port))
	}
}

// sendPage sends a message: as HTML to a client that accepts it, else as problem details.
func (v *visit) sendPage(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	h := w.Header()
	v.addSandboxHeaders(h)
	csp := PageCSP
	if h.Get("Refresh") != "" { // browsers load no page again that may run no scripts; this one has none
		csp += " allow-scripts"
	}
	h.Add("Content-Security-Policy", csp)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		code := strings.ToUpper(strings.ReplaceAll(http.StatusText(status), " ", "_"))
		h.Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		p := protocol.ProblemAs(status, code, fault.New(fault.Connection, ""))
		p.Detail, p.Data = text, fault.Data{ErrorCode: code, Category: "network", Severity: "low",
			RecoverySuggestions: []string{}, Context: map[string]any{}}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		// It fails when the client is gone.
		_ = enc.Encode(p)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<!doctype html><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>%s</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 15vh auto; padding: 0 1em">
<h1 style="font-size: 1.4em">%[1]s</h1><p>%s</p>
<p style="color: gray">Sandlot, %d</p>
`, html.EscapeString(title), html.EscapeString(text), status)
}
