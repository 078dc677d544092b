package oauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
)

// Login is the log-in of a server's user at one URL. It implements the SDK's OAuthHandler.
type Login struct {
	account *Account
	address string       // the server's URL; tokens are sent to no other
	known   spec.OAuth   // the client registration in the settings
	client  *http.Client // for requests to authorization servers
	inner   *sdk.AuthorizationCodeHandler
	ctx     context.Context // ends with the log-in
	cancel  context.CancelFunc

	restoring sync.Mutex // held while the stored log-in is loaded
	restored  bool       // the stored log-in was loaded, or must not be

	mu      sync.Mutex
	source  *tokenSource // nil: the user has not logged in, or the token cannot be renewed
	running *attempt     // nil: none is in progress
	asked   int          // how often the user had to log in since the server last accepted a token
	renewed bool         // since then, the token was renewed because the server refused it
}

// maxAsked is how often a user is asked to log in at a server that refuses every token.
const maxAsked = 3

// useful is called when the server answers without asking for a log-in.
func (l *Login) useful() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.renewed = 0, false
}

// giveUp cancels the attempt that is in progress, if any: its link becomes invalid. Another
// attempt can begin.
func (l *Login) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		l.running.cancel()
		l.running = nil
	}
}

// Running reports whether an attempt to log in is in progress.
func (l *Login) Running() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running != nil
}

// Link returns the link at which the user has to log in; empty: no attempt waits for the user.
func (l *Login) Link() string {
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

// prepare makes the SDK's handler, which does the log-in.
func (l *Login) prepare() (err error) {
	callback := l.account.logins.Callback
	watched := *l.client
	watched.Transport = guardedTransport{l.client.Transport}
	registration := &oauthex.ClientRegistrationMetadata{RedirectURIs: []string{callback}, ClientName: "Sandlot",
		GrantTypes: []string{"authorization_code", "refresh_token"}}
	c := &sdk.AuthorizationCodeHandlerConfig{
		RedirectURL: callback, Client: &watched, AuthorizationCodeFetcher: l.ask, RequestRefreshToken: true,
		NewTokenSource: l.brought, ScopeFilter: l.scopes,
		DynamicClientRegistrationConfig: &sdk.DynamicClientRegistrationConfig{Metadata: registration},
	}
	switch o := l.known; {
	case preregistered(o):
		c.PreregisteredClient = &oauthex.ClientCredentials{ClientID: o.ClientID, Issuer: o.Issuer}
		if o.ClientSecret != "" {
			c.PreregisteredClient.ClientSecretAuth = &oauthex.ClientSecretAuth{ClientSecret: o.ClientSecret}
		}
	case o.ClientID != "":
		c.ClientIDMetadataDocumentConfig = &sdk.ClientIDMetadataDocumentConfig{URL: o.ClientID}
	}
	l.inner, err = sdk.NewAuthorizationCodeHandler(c)
	return err
}

// TokenSource implements the SDK's OAuthHandler.
func (l *Login) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	if err := l.restore(ctx); err != nil {
		return nil, err
	}
	if k := l.current(); k != nil {
		return k, nil
	}
	return nil, nil
}

func (l *Login) current() *tokenSource {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source
}

// Authorize implements the SDK's OAuthHandler. It renews the token or, if that is not
// possible, starts an attempt to log in. It does not wait for the user: it returns an
// error with the link.
func (l *Login) Authorize(ctx context.Context, req *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusUnauthorized {
		renewed, err := l.Renew()
		if renewed {
			return transport.ErrRenewed
		}
		if err != nil { // a later renewal may work
			return l.fault(err, "has a log-in that could not be renewed: %v; try again later, or, when this has "+
				"lasted ten minutes, restart it to log in anew", err)
		}
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
	l.mu.Lock()
	a := l.running
	if a == nil && l.asked >= maxAsked {
		l.mu.Unlock()
		return fmt.Errorf("its user has logged in %d times, and it refuses them all the same; restart_external_mcp "+
			"tries again", maxAsked)
	}
	if a == nil {
		a = &attempt{asked: make(chan struct{}), done: make(chan struct{})}
		var life context.Context
		life, a.cancel = context.WithTimeout(l.ctx, Limit)
		l.running = a
		again := *resp
		again.Body = io.NopCloser(bytes.NewReader(body))
		if !l.account.logins.Spawn(func(owner context.Context) {
			defer context.AfterFunc(owner, a.cancel)()
			l.run(life, a, req, &again)
		}) {
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
		f := l.fault(ErrAsked, "wants its user to log in: open %s in a browser, and use it again after that",
			a.link).With("auth_url", a.link)
		f.Advice = []string{"Open the link in auth_url in a browser, log in, and call again",
			"Open only links that you asked for yourself"}
		return f
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrAsked means that the user has to open a link to log in.
var ErrAsked = errors.New("its user has to log in")

// fault returns a fault that names the server.
func (l *Login) fault(cause error, format string, args ...any) *fault.Error {
	s := l.account.server
	return fault.Wrap(fault.Connection, cause, "%s %s", s.Title, fmt.Sprintf(format, args...)).With("connection_id",
		s.ID).With("name", s.Name)
}

// run carries out an attempt to log in.
func (l *Login) run(ctx context.Context, a *attempt, req *http.Request, resp *http.Response) {
	defer a.cancel()
	ctx = context.WithValue(ctx, attemptKey{}, a)
	if _, err := oauthex.ParseWWWAuthenticate(resp.Header.Values("WWW-Authenticate")); err != nil {
		resp.Body.Close()
		a.err = safeError("the server's WWW-Authenticate cannot be read")
	} else {
		a.err = a.metadata.redact(l.known, l.inner.Authorize(ctx, req.Clone(ctx), resp))
	}
	l.mu.Lock()
	if l.running == a {
		l.running = nil
	}
	l.mu.Unlock()
	close(a.done)
	select {
	case <-a.asked:
		l.account.events.Ended(l, a.link, a.err)
	default:
	}
}

// ask is the SDK's AuthorizationCodeFetcher: it announces the link at which the user logs
// in, and waits until the browser returns with an authorization code.
func (l *Login) ask(ctx context.Context, args *sdk.AuthorizationArgs) (*sdk.AuthorizationResult, error) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, safeError("nobody waits for it")
	}
	r, err := l.request(a, args.URL)
	if err != nil {
		return nil, err
	}
	all := l.account.logins
	if err := all.put(r); err != nil {
		return nil, err
	}
	defer all.drop(r)
	a.link = all.startsAt(r.id)
	if !l.account.events.Asked(ctx, l, a.link) { // the server was replaced
		return nil, safeError("it was given up")
	}
	l.mu.Lock()
	l.asked++
	l.mu.Unlock()
	a.metadata.mu.Lock()
	a.metadata.asked = true
	a.metadata.mu.Unlock()
	close(a.asked)
	select {
	case answer := <-r.back:
		if answer.Code == "" {
			return nil, safeError("the authorization server refused")
		}
		return answer, a.metadata.answers(answer.Iss)
	case <-ctx.Done():
		return nil, safeError("nobody logged in")
	}
}

// request returns the authorization request for address, the authorization endpoint with
// Sandlot's parameters. It checks that and the other endpoints.
func (l *Login) request(a *attempt, address string) (*request, error) {
	to, err := logsIn(address)
	if err != nil {
		return nil, safeError("the place to log in cannot be used: " + cause(err))
	}
	receivers, err := a.metadata.receivers(to.Host)
	if err != nil {
		return nil, err
	}
	if !preregistered(l.known) { // for preregistered clients, the SDK has checked the issuer
		a.metadata.mu.Lock()
		issuer := a.metadata.named.Issuer
		a.metadata.mu.Unlock()
		if l.known.Issuer != "" && !issuerIs(issuer, l.known.Issuer) {
			return nil, errIssuer
		}
	}
	shown, err := shownAddress(l.address, l.account.server.Configured)
	if err != nil {
		return nil, safeError("the server's own address cannot be shown: " + cause(err))
	}
	return &request{server: l.account.server, address: shown, receivers: receivers, id: secret.ID(),
		state: to.Query().Get("state"), to: to, back: make(chan *sdk.AuthorizationResult, 1)}, nil
}

// scopes returns the scopes to request: those that the server wants, and those that a
// restored log-in was granted, which would be lost otherwise.
func (l *Login) scopes(wanted []string) []string {
	k := l.current()
	if k == nil || !k.earlier { // the SDK adds the scopes that this process was granted
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
