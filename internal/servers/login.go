package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/upstream"
)

// client is what a server that runs elsewhere is reached with. What a user
// names is reached as far as policy lets their sandbox. What the operator's
// settings name is reached as it is; where that leads to, such as the place to
// log in, is no more than anyone's public address.
func (b *Book) client(s *server, settings Configured) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	t.ResponseHeaderTimeout = callMost
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 30 * time.Second
	reach := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if b.Reach == nil {
			return nil, errors.New("this server reaches no others for its users")
		}
		return b.Reach(ctx, s.owner, s.configured, network, addr)
	}
	if !s.configured {
		t.Proxy = nil // the way out knows the operator's
		t.DialContext = reach
		return &http.Client{Transport: t}
	}
	return &http.Client{Transport: ways{named: origin(settings.URL), direct: t, reach: reach}}
}

// ways are how a configured server is reached, and what it leads to.
type ways struct {
	named  string
	direct *http.Transport
	reach  func(ctx context.Context, network, addr string) (net.Conn, error)
}

func origin(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// RoundTrip implements http.RoundTripper.
func (w ways) RoundTrip(r *http.Request) (*http.Response, error) {
	if origin(r.URL.String()) == w.named {
		return w.direct.RoundTrip(r)
	}
	t := w.direct.Clone()
	t.Proxy, t.DialContext, t.DisableKeepAlives = nil, w.reach, true
	return t.RoundTrip(r)
}

// CloseIdleConnections is what http.Client calls.
func (w ways) CloseIdleConnections() { w.direct.CloseIdleConnections() }

// login is how one server's user logs in. It implements the SDK's OAuthHandler.
type login struct {
	s       *server
	address string       // of the server, for which alone it is good
	known   OAuth        // how Sandlot is known there, by the settings
	client  *http.Client // to renew tokens with
	inner   *sdk.AuthorizationCodeHandler
	ctx     context.Context // ends when it is given up
	cancel  context.CancelFunc

	restoring sync.Mutex // held while it is looked for what was stored
	restored  bool       // it was

	mu      sync.Mutex
	source  *source // what the last log-in brought; nil: nothing, or it is used up
	running *attempt
	asked   int  // how often its user had to log in since it last worked
	renewed bool // the token was renewed because it was refused, since it last worked
}

// maxAsked is how often a user is asked to log in at a server that refuses them
// all the same.
const maxAsked = 3

// useful is called when the server does what it is asked to.
func (l *login) useful() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.renewed = 0, false
}

// attempt is one log-in. It outlives the request that needed it: people take
// their time.
type attempt struct {
	cancel context.CancelFunc
	heard  heard
	asked  chan struct{} // closed when the user has to be asked
	link   string        // at which they begin; it is there when asked is closed
	done   chan struct{}
	err    error
}

// giveUp ends the log-in that is on its way, if one is: its link leads nowhere
// from then on. Another one can begin.
func (l *login) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		l.running.cancel()
		l.running = nil
	}
}

// link is where a log-in that is on its way begins; empty: none is.
func (l *login) link() string {
	l.mu.Lock()
	a := l.running
	l.mu.Unlock()
	if a == nil {
		return ""
	}
	select {
	case <-a.asked:
		return a.link
	default:
		return ""
	}
}

// login returns how the server's user logs in, or nil when they cannot.
func (b *Book) login(s *server) sdk.OAuthHandler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Callback == "" {
		return nil
	}
	if s.auth != nil {
		return s.auth
	}
	l := &login{s: s, address: s.settings.URL, known: s.settings.OAuth, client: b.client(s, s.settings), restored: s.anew}
	l.ctx, l.cancel = context.WithCancel(b.life)
	if l.known.ClientSecret != "" && l.known.Issuer == "" {
		b.Log.Error("log-ins are not possible: a client's secret is sent to its issuer alone, and oauth_issuer does not say which that is", "connection", s.id)
		return nil
	}
	heeded := *l.client
	heeded.Transport = heeding{l.client.Transport}
	c := &sdk.AuthorizationCodeHandlerConfig{
		RedirectURL: b.Callback, Client: &heeded, AuthorizationCodeFetcher: l.ask, RequestRefreshToken: true,
		NewTokenSource: l.brought, ScopeFilter: l.scopes,
		DynamicClientRegistrationConfig: &sdk.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			RedirectURIs: []string{b.Callback}, ClientName: "Sandlot", GrantTypes: []string{"authorization_code", "refresh_token"}}},
	}
	switch o := s.settings.OAuth; {
	case strings.HasPrefix(o.ClientID, "https://"):
		c.ClientIDMetadataDocumentConfig = &sdk.ClientIDMetadataDocumentConfig{URL: o.ClientID}
	case o.ClientID != "":
		c.PreregisteredClient = &oauthex.ClientCredentials{ClientID: o.ClientID, Issuer: o.Issuer}
		if o.ClientSecret != "" {
			c.PreregisteredClient.ClientSecretAuth = &oauthex.ClientSecretAuth{ClientSecret: o.ClientSecret}
		}
	}
	var err error
	if l.inner, err = sdk.NewAuthorizationCodeHandler(c); err != nil {
		b.Log.Error("log-ins are not possible", "connection", s.id, "error", err)
		return nil
	}
	s.auth = l
	return l
}

// TokenSource implements the SDK's OAuthHandler.
func (l *login) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	if err := l.restore(ctx); err != nil {
		return nil, err
	}
	if k := l.current(); k != nil {
		return k, nil
	}
	return nil, nil
}

func (l *login) current() *source {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source
}

// Authorize implements the SDK's OAuthHandler. When the user has to log in it
// does not wait for that, but says where. They need not when the token can be
// renewed.
func (l *login) Authorize(ctx context.Context, req *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusUnauthorized {
		renewed, err := l.renew()
		if renewed {
			return upstream.ErrRenewed
		}
		if err != nil { // it may be good for long yet
			return fault.Wrap(fault.Connection, err, "%s has a log-in that could not be renewed: %v; try again later, or, when this has lasted ten minutes, restart it to log in anew", l.s.title(), err).
				With("connection_id", l.s.id).With("name", l.s.name)
		}
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
	l.mu.Lock()
	a := l.running
	if a == nil && l.asked >= maxAsked {
		l.mu.Unlock()
		return fmt.Errorf("its user has logged in %d times, and it refuses them all the same; restart_external_mcp tries again", maxAsked)
	}
	if a == nil {
		a = &attempt{asked: make(chan struct{}), done: make(chan struct{})}
		var life context.Context
		life, a.cancel = context.WithTimeout(l.ctx, loginLimit)
		l.running = a
		again := *resp
		again.Body = io.NopCloser(bytes.NewReader(body))
		if !l.s.book.spawn(func(context.Context) { l.run(life, a, req, &again) }) {
			a.cancel()
			a.err = errors.New("the server is stopping")
			l.running = nil
			close(a.done)
		}
	}
	l.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-a.asked:
		f := fault.Wrap(fault.Connection, errAsked, "%s wants its user to log in: open %s in a browser, and use it again after that", l.s.title(), a.link).
			With("connection_id", l.s.id).With("name", l.s.name).With("auth_url", a.link)
		f.Advice = []string{"Open the link in auth_url in a browser, log in, and call again", "Open only links that you asked for yourself"}
		return f
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errAsked means that a user was asked to log in.
var errAsked = errors.New("its user has to log in")

type attemptKey struct{}

// run logs in, and starts the server when that is done.
func (l *login) run(ctx context.Context, a *attempt, req *http.Request, resp *http.Response) {
	defer a.cancel()
	ctx = context.WithValue(ctx, attemptKey{}, a)
	a.err = a.told(l.inner.Authorize(ctx, req.Clone(ctx), resp))
	l.mu.Lock()
	if l.running == a {
		l.running = nil
	}
	l.mu.Unlock()
	asked := false
	select {
	case <-a.asked:
		asked = true
	default:
	}
	close(a.done)
	if !asked {
		return
	}
	s := l.s
	s.mu.Lock()
	if s.auth != l || s.authURL != a.link { // it was given up
		s.mu.Unlock()
		return
	}
	s.authURL = ""
	if s.state == NeedsAuth {
		s.failures, s.next = 0, time.Time{}
		switch {
		case s.live != nil: // it was in the middle of its work
			s.set(Connected, "")
		case a.err != nil:
			s.set(Idle, fmt.Sprintf("the log-in failed: %s", text(a.err.Error(), 300)))
		default:
			s.set(Idle, "")
			if s.start == nil && s.unusable() == nil {
				s.begin()
			}
		}
	}
	s.mu.Unlock()
	s.book.changed(s.owner.ID)
}

// ask makes it known where the user begins to log in, and waits until they come
// back.
func (l *login) ask(ctx context.Context, args *sdk.AuthorizationArgs) (*sdk.AuthorizationResult, error) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, ours("nobody waits for it")
	}
	p, err := l.pending(a, args.URL)
	if err != nil {
		return nil, err
	}
	s := l.s
	all := &s.book.logins
	if err := all.put(p); err != nil {
		return nil, err
	}
	defer all.drop(p)
	s.mu.Lock()
	if s.auth != l || s.removed || ctx.Err() != nil { // what runs under that name is another server by now
		s.mu.Unlock()
		return nil, ours("it was given up")
	}
	a.link = s.book.startsAt(p.id)
	s.authURL, s.fresh = a.link, false
	s.set(NeedsAuth, errAsked.Error())
	s.mu.Unlock()
	l.mu.Lock()
	l.asked++
	l.mu.Unlock()
	close(a.asked)
	l.s.book.changed(l.s.owner.ID)
	select {
	case r := <-p.back:
		if r.Code == "" {
			return nil, ours("the authorization server refused")
		}
		return r, nil
	case <-ctx.Done():
		return nil, ours("nobody logged in")
	}
}

// pending is a log-in at an address of an authorization server, which is judged
// with all that was said of the others.
func (l *login) pending(a *attempt, address string) (*pending, error) {
	to, err := logsIn(address)
	if err != nil {
		return nil, ours("the place to log in cannot be used: " + reason(err))
	}
	receivers, err := a.heard.receivers(to.Host)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(l.known.ClientID, "https://") || l.known.ClientID == "" { // else the SDK has seen to it
		a.heard.mu.Lock()
		issuer := a.heard.named.Issuer
		a.heard.mu.Unlock()
		if l.known.Issuer != "" && !issuerIs(issuer, l.known.Issuer) {
			return nil, errIssuer
		}
	}
	shown, err := shownAddress(l.address, l.s.configured)
	if err != nil {
		return nil, ours("the server's own address cannot be shown: " + reason(err))
	}
	return &pending{s: l.s, address: shown, receivers: receivers, id: secret.ID(), state: to.Query().Get("state"), to: to, back: make(chan *sdk.AuthorizationResult, 1)}, nil
}

// scopes are what is asked for: what the server wants, and what an earlier server
// of ours was granted, which a log-in for more must not lose.
func (l *login) scopes(wanted []string) []string {
	k := l.current()
	if k == nil || !k.earlier { // what this server was granted the SDK knows
		return wanted
	}
	all := slices.Clone(wanted)
	for _, s := range k.scopes {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// ours is an error in our own words, which may be told.
type ours string

func (r ours) Error() string { return string(r) }

// errIssuer means that the operator's settings name another authorization server
// than the MCP server does.
const errIssuer = ours("the server leads to another authorization server than the one that its settings name (oauth_issuer)")

// steps are those of a log-in, by how the SDK's errors begin. What follows there
// may be an authorization server's own words, and is told nobody.
var steps = []struct{ begins, say string }{
	{"failed to parse WWW-Authenticate", "the server's WWW-Authenticate cannot be read"},
	{"protected resource metadata has no", "the server names no authorization server"},
	{"failed to get authorization server metadata", "the authorization server's metadata cannot be used"},
	{"authorization server issuer", string(errIssuer)},
	{"failed to register client", "the authorization server does not register Sandlot as a client"},
	{"no configured client registration", "the authorization server registers no clients by itself: the operator's settings have to name one (oauth_client_id)"},
	{"authorization response issuer", "it was not the authorization server itself that answered (iss)"},
	{"authorization server advertises RFC 9207", "the authorization server did not say that it was it that answered (iss)"},
	{"authorization server does not advertise RFC 9207", "the authorization server says who it is (iss) though its metadata do not have that"},
	{"token exchange failed", "the authorization server gives no token"},
}

// told is what may be told of an error of a log-in: the words of an authorization
// server may repeat what it was sent, or what it gave.
func (a *attempt) told(err error) error {
	var refused *oauth2.RetrieveError
	var unregistered *oauthex.ClientRegistrationError
	if own, ok := errors.AsType[ours](err); ok || err == nil || errors.As(err, &refused) {
		if ok {
			return own
		}
		return told(err)
	}
	for _, s := range steps {
		if !strings.HasPrefix(err.Error(), s.begins) {
			continue
		}
		if errors.As(err, &unregistered) && slices.Contains(registrationErrors, unregistered.ErrorCode) {
			return ours(s.say + a.heard.told() + ": " + unregistered.ErrorCode)
		}
		return ours(s.say + a.heard.told())
	}
	return ours("the log-in could not be done" + a.heard.told())
}

// told is what may be told of why there is no token.
func told(err error) error {
	var refused *oauth2.RetrieveError
	if err == nil || !errors.As(err, &refused) {
		if err != nil {
			err = ours("the authorization server gives no token: " + reason(err))
		}
		return err
	}
	r := &tokenRefusal{}
	if refused.Response != nil {
		r.status = refused.Response.StatusCode
	}
	if slices.Contains(tokenErrors, refused.ErrorCode) {
		r.code = refused.ErrorCode
	}
	return r
}

// reason is what may be told of why a request was not made, or not answered: our
// own words, and never those of who was asked, such as the names of a certificate.
func reason(err error) string {
	var f *fault.Error
	own, ok := errors.AsType[ours](err)
	var slow net.Error
	switch {
	case ok:
		return string(own)
	case errors.As(err, &f):
		return f.Message
	case errors.Is(err, context.Canceled):
		return "it was given up"
	case errors.As(err, &slow) && slow.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "there was no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.As(err, &slow):
		return "it cannot be reached"
	}
	return "there was no answer that can be used"
}

// registrationErrors are the errors of RFC 7591, 3.2.2.
var registrationErrors = []string{"invalid_redirect_uri", "invalid_client_metadata", "invalid_software_statement", "unapproved_software_statement"}

// tokenErrors are the errors of RFC 6749, 5.2.
var tokenErrors = []string{"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}

// tokenRefusal is what is left of an answer of an authorization server.
type tokenRefusal struct {
	status int // of HTTP; 0: none was an error
	code   string
}

func (r *tokenRefusal) Error() string {
	s := "the authorization server gives no token"
	if r.status != 0 {
		s += fmt.Sprintf(" (HTTP %d)", r.status)
	}
	if r.code != "" {
		s += ": " + r.code
	}
	return s
}

// Unwrap gives what the code says to those who act on it.
func (r *tokenRefusal) Unwrap() error { return &oauth2.RetrieveError{ErrorCode: r.code} }

// final says whether a log-in is over: it will not be renewed, however often that
// is asked for.
func final(err error) bool {
	var refused *oauth2.RetrieveError
	return errors.As(err, &refused) && upstream.LoginOver(refused.ErrorCode)
}
