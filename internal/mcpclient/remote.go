package mcpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"golang.org/x/oauth2"
)

const (
	maxRedirects = 5
	maxWords     = 64 << 10 // of an answer that is an error
	maxHeader    = 1 << 20
)

// Remote is where a server is reached by HTTP, and with what.
type Remote struct {
	URL    string
	Header http.Header // sent with every request
	// Client makes the requests; nil: one of its own, which bounds the headers of
	// answers. Its Timeout and CheckRedirect are not used: sessions have their own
	// limits, and follow no redirect to another origin.
	Client *http.Client
	// OAuth logs in when the server asks for that; nil: nobody does.
	OAuth auth.OAuthHandler
}

// remote makes HTTP requests to one origin.
type remote struct {
	Remote
	url    *url.URL
	client *http.Client
	own    *http.Transport // which is closed with the session

	logins sync.Mutex // one login after the other
}

func (r Remote) open() (*remote, error) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the server's address %q is not a URL with http or https", clip(r.URL, 200))
	}
	c := &http.Client{}
	out := &remote{Remote: r, url: u, client: c}
	if r.Client != nil {
		*c = *r.Client
	} else {
		t, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			t = &http.Transport{Proxy: http.ProxyFromEnvironment}
		}
		out.own = t.Clone()
		out.own.MaxResponseHeaderBytes = maxHeader
		c.Transport = out.own
	}
	c.Timeout = 0
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return out, nil
}

func (r *remote) close() {
	if r.own != nil {
		r.own.CloseIdleConnections()
	}
}

// ask is one HTTP request.
type ask struct {
	method string
	url    *url.URL
	body   []byte
	header http.Header
	quiet  bool // nobody is there who would log in for it
}

// do makes a request. When the server wants a login, it is made once, and the
// request again; after a token that was renewed without one, too. The answer's status is the
// caller's to judge, but for 401 and
// 403, which are an *ErrUnauthorized.
func (r *remote) do(ctx context.Context, a ask) (*http.Response, error) {
	for tries, asked := 0, false; ; tries++ {
		req, resp, token, err := r.once(ctx, a)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return resp, nil
		}
		if r.OAuth == nil || asked || tries > 1 || a.quiet {
			defer resp.Body.Close()
			return nil, &ErrUnauthorized{Status: resp.StatusCode, Said: words(resp),
				Challenge: clip(resp.Header.Get("WWW-Authenticate"), 1000)}
		}
		if asked, err = r.login(ctx, req, resp, token); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &ErrUnauthorized{Status: resp.StatusCode,
				Challenge: clip(resp.Header.Get("WWW-Authenticate"), 1000), Cause: err}
		}
	}
}

// login has the handler log in, unless another request has had that done since
// the token that was refused.
func (r *remote) login(ctx context.Context, req *http.Request, resp *http.Response,
	used string) (asked bool, err error) {
	r.logins.Lock()
	defer r.logins.Unlock()
	if now, err := r.token(ctx); err == nil && now != used {
		return false, resp.Body.Close()
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxWords), resp.Body}
	defer resp.Body.Close() // twice does no harm
	if err := r.OAuth.Authorize(ctx, req, resp); !errors.Is(err, ErrRenewed) {
		return true, err
	}
	return false, nil
}

// ErrRenewed is what a handler returns from Authorize when it has another token
// without having asked anyone. Should that be refused too, it is called again.
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
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && LoginOver(refused.ErrorCode):
		return "", nil // it cannot be renewed: the server will ask for a login
	case err != nil:
		return "", &ErrUnauthorized{Status: http.StatusUnauthorized, Cause: err}
	case t == nil:
		return "", nil
	}
	return t.AccessToken, nil
}

// LoginOver says whether an error of an authorization server (RFC 6749, 5.2) means
// that a log-in cannot be renewed any more: it was revoked, or the client is not
// known there.
func LoginOver(code string) bool {
	return code == "invalid_grant" || code == "invalid_client" || code == "unauthorized_client"
}

// once makes a request and follows redirects within the origin.
func (r *remote) once(ctx context.Context, a ask) (*http.Request, *http.Response, string, error) {
	token, err := r.token(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	to := a.url
	for range maxRedirects + 1 {
		req, err := http.NewRequestWithContext(ctx, a.method, to.String(), bytes.NewReader(a.body))
		if err != nil {
			return nil, nil, "", err
		}
		r.dress(req, a, token)
		resp, err := r.client.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, "", context.Cause(ctx)
			}
			var in *url.Error // whose text has the whole address, and a secret may be in that
			if errors.As(err, &in) {
				err = in.Err
			}
			return nil, nil, "", &unreachable{err}
		}
		next, err := redirected(a.method, to, resp)
		if err != nil || next != nil {
			resp.Body.Close()
		}
		if err != nil {
			return nil, nil, "", err
		}
		if next == nil {
			return req, resp, token, nil
		}
		to = next
	}
	return nil, nil, "", fmt.Errorf("the server redirects over %d times", maxRedirects)
}

// dress sets the headers of a request: the caller's, and over them ours.
func (r *remote) dress(req *http.Request, a ask, token string) {
	for k, v := range r.Header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	for k, v := range a.header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
}

// redirected returns where an answer leads; nil: nowhere. It must not lead to
// another origin, which would get to see what was meant for this one.
func redirected(method string, from *url.URL, resp *http.Response) (*url.URL, error) {
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
			"address if you trust it",
			clip(next.Scheme, 20), clip(next.Host, 200))
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

// words returns the beginning of what an answer says.
func words(resp *http.Response) string {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 2<<10)) // what came before it broke off
	return clip(string(b), 300)
}

// drain lets a connection be used again, if what is left of an answer is small
// and comes soon.
func drain(body io.ReadCloser) {
	t := time.AfterFunc(time.Second, func() { body.Close() })
	defer t.Stop()
	_, _ = io.CopyN(io.Discard, body, maxWords) // an error ends the connection, and that is all
	body.Close()
}
