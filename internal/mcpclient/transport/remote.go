package transport

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"golang.org/x/oauth2"
)

const (
	maxRedirects = 5
	maxErrorBody = 64 << 10 // bytes that are read of the body of an error
	maxExcerpt   = 300      // bytes of a response body that an error repeats
)

// Remote is the address of a server, and how HTTP requests to it are made.
type Remote struct {
	URL    string
	Header http.Header // sent with every request
	// Client makes the requests; nil: http.DefaultClient. It has to bound the headers of responses.
	// Its Timeout and CheckRedirect are not used: sessions have their own limits, and follow no
	// redirect to another origin.
	Client *http.Client
	// OAuth logs in when the server asks for it; nil: no log-in is possible.
	OAuth auth.OAuthHandler
}

// remote makes the HTTP requests of one session to one origin.
type remote struct {
	Remote
	url    *url.URL
	client http.Client

	// Set by Start.
	receiver Receiver
	limits   Limits

	ctx     context.Context // ends with the session
	cancel  context.CancelFunc
	loginMu sync.Mutex // held during a log-in

	mu         sync.Mutex
	closed     bool
	goroutines sync.WaitGroup
}

func (r Remote) newRemote() (*remote, error) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the server's address %q is not a URL with http or https", Clip(r.URL, 200))
	}
	out := &remote{Remote: r, url: u, client: *cmp.Or(r.Client, http.DefaultClient)}
	out.client.Timeout = 0
	out.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	out.ctx, out.cancel = context.WithCancel(context.Background())
	return out, nil
}

// Start implements Transport.
func (r *remote) Start(to Receiver, l Limits) { r.receiver, r.limits = to, l }

// startGoroutine runs f in a goroutine that close waits for. It returns false when the session
// is over.
func (r *remote) startGoroutine(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.goroutines.Go(f)
	return true
}

// stopStarting prevents further goroutines from starting.
func (r *remote) stopStarting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// close ends all requests, and waits for the goroutines.
func (r *remote) close() {
	r.stopStarting()
	r.cancel()
	r.goroutines.Wait()
}

// newReserver returns a reserver for the messages of a response, of which those that answer the request with an id may
// be large. The id is for TakesLarge; negative: none may.
func (r *remote) newReserver(ctx context.Context, resp *http.Response, id int64) reserver {
	return reserver{ctx: ctx, limits: r.limits, size: r.limits.Message, abort: func() { resp.Body.Close() },
		takesLarge: func() bool { return id >= 0 && r.receiver.TakesLarge(id) }}
}

// newEventReader returns a reader of a response that is a stream of events; for the id see newReserver.
func (r *remote) newEventReader(ctx context.Context, resp *http.Response, id int64) *eventReader {
	e := newEventReader(resp.Body, r.newReserver(ctx, resp, id))
	return e
}

// httpRequest is an HTTP request.
type httpRequest struct {
	method  string
	url     *url.URL
	body    []byte
	header  http.Header
	noLogin bool // do not log in for it
}

// do makes a request. When the server answers 401 or 403, do logs in, at most once, and
// repeats the request; the same when another token is available without a log-in. A
// final 401 or 403 is an *UnauthorizedError; the caller handles all other statuses.
func (r *remote) do(ctx context.Context, a httpRequest) (*http.Response, error) {
	for tries, loggedIn := 0, false; ; tries++ {
		req, resp, token, err := r.doOnce(ctx, a)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return resp, nil
		}
		refusal := &UnauthorizedError{Status: resp.StatusCode,
			Challenge: Clip(resp.Header.Get("WWW-Authenticate"), 1000)}
		if r.OAuth == nil || loggedIn || tries > 1 || a.noLogin {
			defer resp.Body.Close()
			refusal.Body = bodyExcerpt(resp)
			return nil, refusal
		}
		if loggedIn, err = r.login(ctx, req, resp, token); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			refusal.Cause = err
			return nil, refusal
		}
	}
}

// login calls the OAuth handler, unless another request got a new token since used was
// read. asked reports whether there was a log-in.
func (r *remote) login(ctx context.Context, req *http.Request, resp *http.Response,
	usedToken string) (loggedIn bool, err error) {
	r.loginMu.Lock()
	defer r.loginMu.Unlock()
	if current, err := r.token(ctx); err == nil && current != usedToken {
		return false, resp.Body.Close()
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxErrorBody), resp.Body}
	defer resp.Body.Close() // the handler may have closed it already
	if err := r.OAuth.Authorize(ctx, req, resp); !errors.Is(err, ErrRenewed) {
		return true, err
	}
	return false, nil
}

// ErrRenewed is returned by the Authorize of an OAuth handler that got another token
// without a log-in. If the server refuses that token too, Authorize is called again.
var ErrRenewed = errors.New("the token was renewed")

// token returns the access token to send; empty: none.
func (r *remote) token(ctx context.Context) (string, error) {
	if r.OAuth == nil {
		return "", nil
	}
	source, err := r.OAuth.TokenSource(ctx)
	if err != nil || source == nil {
		return "", err
	}
	t, err := source.Token()
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && CannotRenew(refused.ErrorCode) {
		return "", nil // without a token, the server asks for a log-in
	}
	if err != nil {
		return "", &UnauthorizedError{Status: http.StatusUnauthorized, Cause: err}
	}
	if t == nil {
		return "", nil
	}
	return t.AccessToken, nil
}

// CannotRenew reports whether an error code of an authorization server (RFC 6749, 5.2)
// means that its token can never be renewed: the grant was revoked, or the client is
// unknown.
func CannotRenew(code string) bool {
	return code == "invalid_grant" || code == "invalid_client" || code == "unauthorized_client"
}

// doOnce makes a request, without a log-in, and follows redirects within the origin. It
// also returns the token that it sent.
func (r *remote) doOnce(ctx context.Context, a httpRequest) (*http.Request, *http.Response, string, error) {
	token, err := r.token(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	target := a.url
	for range maxRedirects + 1 {
		req, err := http.NewRequestWithContext(ctx, a.method, target.String(), bytes.NewReader(a.body))
		if err != nil {
			return nil, nil, "", err
		}
		r.setHeaders(req, a, token)
		resp, err := r.client.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, "", context.Cause(ctx)
			}
			// The text of a url.Error has the whole URL, which may contain a secret.
			if urlErr, ok := errors.AsType[*url.Error](err); ok {
				err = urlErr.Err
			}
			return nil, nil, "", &UnreachableError{err}
		}
		next, err := redirectTarget(a.method, target, resp)
		if err == nil && next == nil {
			return req, resp, token, nil
		}
		resp.Body.Close()
		if err != nil {
			return nil, nil, "", err
		}
		target = next
	}
	return nil, nil, "", fmt.Errorf("the server redirects over %d times", maxRedirects)
}

// setHeaders sets the headers of a request: those of Remote, and those of the protocol,
// which win.
func (r *remote) setHeaders(req *http.Request, a httpRequest, token string) {
	for _, h := range []http.Header{r.Header, a.header} {
		for k, v := range h {
			req.Header[http.CanonicalHeaderKey(k)] = v
		}
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
}

// redirectTarget returns the target of a redirect; nil: the response is none. A redirect to
// another origin is an error: that origin would get the credentials for this one.
func redirectTarget(method string, from *url.URL, resp *http.Response) (*url.URL, error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	case http.StatusSeeOther:
		if method != http.MethodGet {
			return nil, errors.New("the server redirects (HTTP 303) to a page; check its address")
		}
	default:
		return nil, nil
	}
	next, err := from.Parse(resp.Header.Get("Location"))
	if err != nil || resp.Header.Get("Location") == "" {
		return nil, fmt.Errorf("the server redirects (HTTP %d) to nowhere", resp.StatusCode)
	}
	if !sameOrigin(from, next) {
		return nil, fmt.Errorf("the server redirects to another origin, %s://%s, which is not followed; use that "+
			"address if you trust it", Clip(next.Scheme, 20), Clip(next.Host, 200))
	}
	return next, nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && a.Hostname() == b.Hostname() && port(a) == port(b)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// isSuccess reports whether the status of a response is 2xx.
func isSuccess(resp *http.Response) bool { return resp.StatusCode/100 == 2 }

// errNotEventStream returns the error for a response that should be a stream of events, but is not.
func errNotEventStream(resp *http.Response) error {
	return &statusError{status: resp.StatusCode,
		body: fmt.Sprintf("not a stream of events, but %q", Clip(contentType(resp), 100))}
}

func contentType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil { // invalid parameters do not matter
		t, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	}
	return strings.ToLower(strings.TrimSpace(t))
}

// bodyExcerpt returns the beginning of a response body, for an error.
func bodyExcerpt(resp *http.Response) string {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 2<<10)) // on an error, b has what was read before
	return Clip(string(b), maxExcerpt)
}

// discard reads the rest of a response body, so that the connection can be reused, if the
// rest is small and comes within a second. It closes the body.
func discard(body io.ReadCloser) {
	t := time.AfterFunc(time.Second, func() { body.Close() })
	defer t.Stop()
	_, _ = io.CopyN(io.Discard, body, maxErrorBody) // after an error, the connection is not reused
	body.Close()
}

// sleep waits for d, or until the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
