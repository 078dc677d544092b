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
	account  *Account
	address  string       // the server's URL; tokens are sent to no other
	settings spec.OAuth   // the client registration in the settings
	client   *http.Client // for requests to authorization servers
	handler  *sdk.AuthorizationCodeHandler
	ctx      context.Context // ends with the log-in
	cancel   context.CancelFunc

	restoreMu sync.Mutex // held while the stored log-in is loaded
	restored  bool       // the stored log-in was loaded, or must not be

	mu      sync.Mutex
	source  *tokenSource // nil: the user has not logged in, or the token cannot be renewed
	running *attempt     // nil: none is in progress
	prompts int          // how often the user had to log in since the server last accepted a token
	renewed bool         // since then, the token was renewed because the server refused it
}

// maxPrompts is how often a user is asked to log in at a server that refuses every token.
const maxPrompts = 3

// serverAnswered is called when the server answers without asking for a log-in.
func (l *Login) serverAnswered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prompts, l.renewed = 0, false
}

// cancelAttempt cancels the attempt that is in progress, if any: its link becomes invalid. Another
// attempt can begin.
func (l *Login) cancelAttempt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		l.running.cancel()
		l.running = nil
	}
}

// InProgress reports whether an attempt to log in is in progress.
func (l *Login) InProgress() bool {
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
	case <-a.linkReady:
		return a.link
	default:
		return ""
	}
}

// initHandler makes the SDK's handler, which does the log-in.
func (l *Login) initHandler() (err error) {
	callback := l.account.logins.Callback
	guardedClient := *l.client
	guardedClient.Transport = guardedTransport{l.client.Transport}
	registration := &oauthex.ClientRegistrationMetadata{RedirectURIs: []string{callback}, ClientName: "Sandlot",
		GrantTypes: []string{"authorization_code", "refresh_token"}}
	c := &sdk.AuthorizationCodeHandlerConfig{
		RedirectURL: callback, Client: &guardedClient, AuthorizationCodeFetcher: l.fetchCode, RequestRefreshToken: true,
		NewTokenSource: l.newTokenSource, ScopeFilter: l.mergeScopes,
		DynamicClientRegistrationConfig: &sdk.DynamicClientRegistrationConfig{Metadata: registration},
	}
	switch o := l.settings; {
	case preregistered(o):
		c.PreregisteredClient = &oauthex.ClientCredentials{ClientID: o.ClientID, Issuer: o.Issuer}
		if o.ClientSecret != "" {
			c.PreregisteredClient.ClientSecretAuth = &oauthex.ClientSecretAuth{ClientSecret: o.ClientSecret}
		}
	case o.ClientID != "":
		c.ClientIDMetadataDocumentConfig = &sdk.ClientIDMetadataDocumentConfig{URL: o.ClientID}
	}
	l.handler, err = sdk.NewAuthorizationCodeHandler(c)
	return err
}

// TokenSource implements the SDK's OAuthHandler.
func (l *Login) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	if err := l.restore(ctx); err != nil {
		return nil, err
	}
	if source := l.currentSource(); source != nil {
		return source, nil
	}
	return nil, nil
}

func (l *Login) currentSource() *tokenSource {
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
	if a == nil && l.prompts >= maxPrompts {
		l.mu.Unlock()
		return fmt.Errorf("its user has logged in %d times, and it refuses them all the same; restart_external_mcp "+
			"tries again", maxPrompts)
	}
	if a == nil {
		a = &attempt{linkReady: make(chan struct{}), done: make(chan struct{})}
		var attemptCtx context.Context
		attemptCtx, a.cancel = context.WithTimeout(l.ctx, LinkLifetime)
		l.running = a
		respCopy := *resp
		respCopy.Body = io.NopCloser(bytes.NewReader(body))
		if !l.account.logins.Spawn(func(serverCtx context.Context) {
			defer context.AfterFunc(serverCtx, a.cancel)()
			l.runAttempt(attemptCtx, a, req, &respCopy)
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
	case <-a.linkReady:
		return l.fault(ErrLoginNeeded, "wants its user to log in: open %s in a browser, and use it again after that",
			a.link).With("auth_url", a.link).Advise("Open the link in auth_url in a browser, log in, and call again",
			"Open only links that you asked for yourself")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrLoginNeeded means that the user has to open a link to log in.
var ErrLoginNeeded = errors.New("its user has to log in")

// fault returns a fault that names the server.
func (l *Login) fault(cause error, format string, args ...any) *fault.Error {
	s := l.account.server
	return fault.Wrap(fault.Connection, cause, "%s %s", s.Title, fmt.Sprintf(format, args...)).With("connection_id",
		s.ID).With("name", s.Name)
}

// runAttempt carries out an attempt to log in.
func (l *Login) runAttempt(ctx context.Context, a *attempt, req *http.Request, resp *http.Response) {
	defer a.cancel()
	ctx = context.WithValue(ctx, attemptKey{}, a)
	if _, err := oauthex.ParseWWWAuthenticate(resp.Header.Values("WWW-Authenticate")); err != nil {
		resp.Body.Close()
		a.err = safeError("the server's WWW-Authenticate cannot be read")
	} else {
		a.err = a.metadata.redact(l.settings, l.handler.Authorize(ctx, req.Clone(ctx), resp))
	}
	l.mu.Lock()
	if l.running == a {
		l.running = nil
	}
	l.mu.Unlock()
	close(a.done)
	select {
	case <-a.linkReady:
		l.account.events.LoginEnded(l, a.link, a.err)
	default:
	}
}

// fetchCode is the SDK's AuthorizationCodeFetcher: it announces the link at which the user logs
// in, and waits until the browser returns with an authorization code.
func (l *Login) fetchCode(ctx context.Context, args *sdk.AuthorizationArgs) (*sdk.AuthorizationResult, error) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, safeError("nobody waits for it")
	}
	r, err := l.newRequest(a, args.URL)
	if err != nil {
		return nil, err
	}
	logins := l.account.logins
	if err := logins.addRequest(r); err != nil {
		return nil, err
	}
	defer logins.removeRequest(r)
	a.link = logins.startLink(r.id)
	if !l.account.events.LoginNeeded(ctx, l, a.link) { // the server was replaced
		return nil, safeError("it was cancelled")
	}
	l.mu.Lock()
	l.prompts++
	l.mu.Unlock()
	a.metadata.mu.Lock()
	a.metadata.prompted = true
	a.metadata.mu.Unlock()
	close(a.linkReady)
	select {
	case answer := <-r.result:
		if answer.Code == "" {
			return nil, safeError("the authorization server refused")
		}
		return answer, a.metadata.checkIssuer(answer.Iss)
	case <-ctx.Done():
		return nil, safeError("nobody logged in")
	}
}

// newRequest returns the authorization request for address, the authorization endpoint with
// Sandlot's parameters. It checks that and the other endpoints.
func (l *Login) newRequest(a *attempt, address string) (*newRequest, error) {
	loginURL, err := parseLoginURL(address)
	if err != nil {
		return nil, safeError("the place to log in cannot be used: " + safeCause(err))
	}
	receivers, err := a.metadata.receivers(loginURL.Host)
	if err != nil {
		return nil, err
	}
	if !preregistered(l.settings) { // for preregistered clients, the SDK has checked the issuer
		a.metadata.mu.Lock()
		issuer := a.metadata.endpoints.Issuer
		a.metadata.mu.Unlock()
		if l.settings.Issuer != "" && !sameIssuer(issuer, l.settings.Issuer) {
			return nil, errIssuer
		}
	}
	shown, err := shownAddress(l.address, l.account.server.Configured)
	if err != nil {
		return nil, safeError("the server's own address cannot be shown: " + safeCause(err))
	}
	return &newRequest{server: l.account.server, address: shown, receivers: receivers, id: secret.ID(),
		state: loginURL.Query().Get("state"), loginURL: loginURL, result: make(chan *sdk.AuthorizationResult, 1)}, nil
}

// mergeScopes returns the scopes to request: those that the server wants, and those that a
// restored log-in was granted, which would be lost otherwise.
func (l *Login) mergeScopes(wanted []string) []string {
	source := l.currentSource()
	if source == nil || !source.restored { // the SDK adds the scopes that this process was granted
		return wanted
	}
	all := slices.Clone(wanted)
	for _, s := range source.scopes {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
