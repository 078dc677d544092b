package oauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
)

// Login is how one server's user logs in. It implements the SDK's OAuthHandler.
type Login struct {
	account *Account
	address string       // of the server, for which alone it is good
	known   spec.OAuth   // how Sandlot is known there, by the settings
	client  *http.Client // to renew tokens with
	inner   *sdk.AuthorizationCodeHandler
	ctx     context.Context // ends when it is given up
	cancel  context.CancelFunc

	restoring sync.Mutex // held while it is looked for what was stored
	restored  bool       // it was

	mu      sync.Mutex
	source  *tokenSource // what the last log-in brought; nil: nothing, or it is used up
	running *attempt
	asked   int  // how often its user had to log in since it last worked
	renewed bool // the token was renewed because it was refused, since it last worked
}

// maxAsked is how often a user is asked to log in at a server that refuses them
// all the same.
const maxAsked = 3

// useful is called when the server does what it is asked to.
func (l *Login) useful() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.renewed = 0, false
}

// attempt is one log-in. It outlives the request that needed it: people take
// their time.
type attempt struct {
	cancel   context.CancelFunc
	metadata metadata
	asked    chan struct{} // closed when the user has to be asked
	link     string        // at which they begin; it is there when asked is closed
	done     chan struct{}
	err      error
}

// giveUp ends the log-in that is on its way, if one is: its link leads nowhere
// from then on. Another one can begin.
func (l *Login) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		l.running.cancel()
		l.running = nil
	}
}

// Running says whether a log-in is on its way.
func (l *Login) Running() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running != nil
}

// Link is where a log-in that is on its way begins; empty: none is.
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

// prepare makes the SDK's part of it.
func (l *Login) prepare() (err error) {
	callback := l.account.logins.Callback
	watched := *l.client
	watched.Transport = guardedTransport{l.client.Transport}
	c := &sdk.AuthorizationCodeHandlerConfig{
		RedirectURL: callback, Client: &watched, AuthorizationCodeFetcher: l.ask, RequestRefreshToken: true,
		NewTokenSource: l.brought, ScopeFilter: l.scopes,
		DynamicClientRegistrationConfig: &sdk.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			RedirectURIs: []string{callback}, ClientName: "Sandlot", GrantTypes: []string{"authorization_code",
				"refresh_token"}}},
	}
	switch o := l.known; {
	case o.ClientID != "" && !l.preregistered():
		c.ClientIDMetadataDocumentConfig = &sdk.ClientIDMetadataDocumentConfig{URL: o.ClientID}
	case o.ClientID != "":
		c.PreregisteredClient = &oauthex.ClientCredentials{ClientID: o.ClientID, Issuer: o.Issuer}
		if o.ClientSecret != "" {
			c.PreregisteredClient.ClientSecretAuth = &oauthex.ClientSecretAuth{ClientSecret: o.ClientSecret}
		}
	}
	l.inner, err = sdk.NewAuthorizationCodeHandler(c)
	return err
}

// preregistered says whether the settings have a client that the authorization
// server knows; an address is that of a client's own metadata.
func (l *Login) preregistered() bool {
	return l.known.ClientID != "" && !strings.HasPrefix(l.known.ClientID, "https://")
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

// Authorize implements the SDK's OAuthHandler. When the user has to log in it
// does not wait for that, but says where. They need not when the token can be
// renewed.
func (l *Login) Authorize(ctx context.Context, req *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusUnauthorized {
		renewed, err := l.Renew()
		if renewed {
			return transport.ErrRenewed
		}
		if err != nil { // it may be good for long yet
			return l.fault(err,
				"has a log-in that could not be renewed: %v; try again later, or, when this has lasted ten minutes, restart it to log in anew", err)
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

// ErrAsked means that a user was asked to log in.
var ErrAsked = errors.New("its user has to log in")

// fault is one that names the server.
func (l *Login) fault(cause error, format string, args ...any) *fault.Error {
	s := l.account.server
	return fault.Wrap(fault.Connection, cause, "%s %s", s.Title, fmt.Sprintf(format, args...)).With("connection_id",
		s.ID).With("name", s.Name)
}

type attemptKey struct{}

// run logs in, and tells when that is done.
func (l *Login) run(ctx context.Context, a *attempt, req *http.Request, resp *http.Response) {
	defer a.cancel()
	ctx = context.WithValue(ctx, attemptKey{}, a)
	if _, err := oauthex.ParseWWWAuthenticate(resp.Header.Values("WWW-Authenticate")); err != nil {
		resp.Body.Close()
		a.err = safeError("the server's WWW-Authenticate cannot be read")
	} else {
		a.err = l.redact(a, l.inner.Authorize(ctx, req.Clone(ctx), resp))
	}
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
	if asked {
		l.account.events.Ended(l, a.link, a.err)
	}
}

// ask makes it known where the user begins to log in, and waits until they come
// back.
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
	if !l.account.events.Asked(ctx, l, a.link) { // what runs under that name is another server by now
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

// request is a log-in at an address of an authorization server, which is judged
// with all that was said of the others.
func (l *Login) request(a *attempt, address string) (*request, error) {
	to, err := logsIn(address)
	if err != nil {
		return nil, safeError("the place to log in cannot be used: " + cause(err))
	}
	receivers, err := a.metadata.receivers(to.Host)
	if err != nil {
		return nil, err
	}
	if !l.preregistered() { // else the SDK has seen to it
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

// scopes are what is asked for: what the server wants, and what an earlier
// program was granted, which a log-in for more must not lose.
func (l *Login) scopes(wanted []string) []string {
	k := l.current()
	if k == nil || !k.earlier { // what this program was granted the SDK knows
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
