package test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// redirectURI is where the test's MCP client gets its code. Nothing listens there: the browser stops before.
const redirectURI = "http://127.0.0.1:1/callback"

// startProgram starts a program of the tools, and waits until address answers.
func startProgram(t *testing.T, address string, web http.RoundTripper, env []string, argv ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(tools(t), "bin", argv[0]), argv[1:]...)
	log := &logBuffer{}
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, env
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; run `make tools`", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %s", argv[0], log)
		}
	})
	for range 600 {
		r, err := (&http.Client{Transport: web}).Get(address)
		if err == nil {
			r.Body.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s does not come up", argv[0])
}

// startProvider starts an OIDC provider, and returns its issuer.
func startProvider(t *testing.T) string {
	t.Helper()
	port := freePort(t)
	issuer := fmt.Sprintf("http://localhost:%d", port)
	startProgram(t, issuer+"/.well-known/openid-configuration", http.DefaultTransport, nil, "oidcprovider",
		fmt.Sprint(port), redirectURI)
	return issuer
}

// browse logs a user in at the provider's page, in a browser with its own cookies, and returns where it is sent.
func browse(ctx context.Context, address, user string) (url.Values, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	var end *url.URL
	b := &http.Client{Jar: jar, Timeout: 20 * time.Second,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if strings.HasPrefix(r.URL.String(), redirectURI) {
				end = r.URL
				return http.ErrUseLastResponse
			}
			return nil
		}}
	send := func(method, address string, form url.Values) (string, *http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
		if err != nil {
			return "", nil, err
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := b.Do(r)
		if err != nil {
			return "", nil, err
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		return string(page), resp, err
	}
	page, resp, err := send("GET", address, nil)
	if err != nil {
		return nil, err
	}
	form := regexp.MustCompile(`action="([^"]+)"(?s:.*)name="id" value="([^"]+)"`).FindStringSubmatch(page)
	if form == nil {
		return nil, fmt.Errorf("no page to log in: %s %s", resp.Status, page)
	}
	to := resp.Request.URL.ResolveReference(&url.URL{Path: form[1]})
	page, resp, err = send("POST", to.String(), url.Values{"id": {form[2]}, "username": {user},
		"password": {"verysecure"}})
	if err != nil || end == nil {
		return nil, fmt.Errorf("the log-in ends at %v, %v: %s", resp, err, page)
	}
	return end.Query(), nil
}

// remembering is an OAuth client that keeps the tokens that it got.
type remembering struct {
	*auth.AuthorizationCodeHandler
	logins int
}

// Authorize implements the handler of the SDK.
func (r *remembering) Authorize(ctx context.Context, q *http.Request, resp *http.Response) error {
	r.logins++
	return r.AuthorizationCodeHandler.Authorize(ctx, q, resp)
}

// token is the access token that the client has.
func (r *remembering) token(t *testing.T) string {
	t.Helper()
	source, err := r.TokenSource(t.Context())
	if err != nil || source == nil {
		t.Fatalf("no token: %v", err)
	}
	token, err := source.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token.AccessToken
}

// connectByLogin connects with the MCP SDK's client, which gets no token: it finds the provider, and its user logs
// in there.
func (s *server) connectByLogin(version, user string) (*client, *remembering) {
	s.t.Helper()
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{RedirectURL: redirectURI,
		PreregisteredClient: &oauthex.ClientCredentials{ClientID: "mcp-client"},
		AuthorizationCodeFetcher: func(ctx context.Context,
			a *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			q, err := browse(ctx, a.URL, user)
			return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, err
		}})
	if err != nil {
		s.t.Fatal(err)
	}
	login := &remembering{AuthorizationCodeHandler: handler}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(s.t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp",
		HTTPClient: &http.Client{Transport: s.web()}, OAuthHandler: login, DisableStandaloneSSE: true},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.t.Fatalf("connecting: %v\n%s", err, s.log)
	}
	s.t.Cleanup(func() { session.Close() })
	return &client{s.t, session}, login
}

// TestOIDCLogin: an MCP client that knows the address alone logs its user in at a real provider, and calls tools, in
// both protocols. Users are apart; their tokens work over HTTP too, and end with the issuer's line in the settings.
func TestOIDCLogin(t *testing.T) {
	t.Parallel()
	issuer := startProvider(t)
	s := prepare(t)
	s.port = freePort(t)
	address := fmt.Sprintf("http://127.0.0.1:%d", s.port)
	settings := fmt.Sprintf("public_url: %s\n", address)
	s.settings(settings + fmt.Sprintf("oidc:\n  - issuer: %s\n    scopes: [openid, profile]\n", issuer))
	s.begin([]string{"SANDLOT_LOG_LEVEL=DEBUG"})
	one, login := s.connectByLogin(newer, "test-user@localhost")
	session := one.want("", "print(6*7)", "42").session()
	one.want(session, "x = 'mine'", "")
	old, _ := s.connectByLogin(older, "test-user@localhost")
	old.want(session, "print(x)", "mine") // the same user, with another token
	if login.logins != 1 {
		t.Errorf("%d log-ins", login.logins)
	}
	other, otherLogin := s.connectByLogin(newer, "test-user2")
	if r, err := other.try(t.Context(), "execute_code", args{"code": "print(x)", "session_id": session}); err == nil ||
		!strings.Contains(err.Error(), "Session not found") {
		t.Errorf("another user: %v, %v", r, err)
	}
	token, otherToken := login.token(t), otherLogin.token(t)
	bearer := []string{"Authorization", "Bearer " + token}
	code, _, text := s.request("GET", "/v1/sessions", nil, bearer...)
	if code != 200 || !strings.Contains(text, session) {
		t.Errorf("the session over HTTP: %d %s", code, text)
	}
	if _, _, text = s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+otherToken); strings.Contains(text,
		session) {
		t.Errorf("another user's list: %s", text)
	}
	for _, where := range []string{"/v1/sessions?access_token=" + token, "/mcp?access_token=" + token} {
		if code, h, text := s.request("POST", where, strings.NewReader("{}")); code != 401 ||
			!strings.Contains(h.Get("WWW-Authenticate"), address+"/.well-known/oauth-protected-resource") {
			t.Errorf("a token in the query: %d %v %s", code, h, text)
		}
	}
	if code, h, text := s.request("POST", "/mcp", strings.NewReader("{}"),
		"Authorization", "Bearer "+token+"x"); code !=
		401 || !strings.Contains(h.Get("WWW-Authenticate"), `error="invalid_token"`) {
		t.Errorf("a changed token: %d %v %s", code, h, text)
	}
	if log := s.log.String(); strings.Contains(log, token) || !strings.Contains(log, "principal=oidc:localhost-") ||
		!strings.Contains(log, "/id1") {
		t.Error("the log has the token, or not the user")
	}
	env := s.env
	s.env = append(env, "SANDLOT_SERVER="+s.URL, "SANDLOT_TOKEN="+token)
	if out, errs, code := s.cli("exec", "--session", session, "--", "echo", "by the command line"); code != 0 ||
		!strings.Contains(out, "by the command line") {
		t.Errorf("sandlot exec: %d %s %s", code, out, errs)
	}
	s.env = env
	if out, errs, code := s.cli("doctor"); code != 0 || !strings.Contains(out, issuer+" has 1 key;") {
		t.Errorf("sandlot doctor: %d %s %s", code, out, errs)
	}
	s.settings(settings)
	s.restart()
	s.token("ann") // now a token is required
	if code, h, text := s.request("GET", "/v1/sessions", nil, bearer...); code != 401 ||
		strings.Contains(h.Get("WWW-Authenticate"), "resource_metadata") {
		t.Errorf("without the issuer: %d %v %s", code, h, text)
	}
}

// TestOIDCProviderDown: a server starts while its provider is down, says so to who comes with a token, and takes the
// token once the provider is there. A token for another resource is refused.
func TestOIDCProviderDown(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	issuer := fmt.Sprintf("http://localhost:%d", port)
	s := prepare(t)
	s.settings(fmt.Sprintf("oidc:\n  - issuer: %s\n    audience: https://sandlot.example.com/mcp\n", issuer))
	s.begin(nil)
	// Signed by a key that nobody has; the header and claims are {"alg":"RS256","kid":"sig"} and the issuer's.
	claims := fmt.Sprintf(`{"iss":%q,"sub":"1","aud":"https://sandlot.example.com/mcp","exp":9999999999}`, issuer)
	forged := "eyJhbGciOiJSUzI1NiIsImtpZCI6InNpZyJ9." + rawBase64(claims) + "." + rawBase64(strings.Repeat("x", 256))
	code, _, text := s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+forged)
	if code != 503 || !strings.Contains(text, issuer) || !strings.Contains(text, "cannot be checked now") {
		t.Errorf("while the provider is down: %d %s", code, text)
	}
	until(t, "the log says so", func() bool {
		return strings.Contains(s.log.String(), "cannot fetch the keys of an issuer")
	})
	startProgram(t, issuer+"/.well-known/openid-configuration", http.DefaultTransport, nil, "oidcprovider",
		fmt.Sprint(port), redirectURI)
	token := codeFlow(t, issuer)
	deadline := time.Now().Add(time.Minute)
	for code = 503; code == 503 && time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		code, _, text = s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+token)
	}
	if code != 401 || !strings.Contains(text, "audience") {
		t.Errorf("a token for the client itself: %d %s", code, text)
	}
	if code, _, text = s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+forged); code != 401 {
		t.Errorf("a forged token: %d %s", code, text)
	}
}

// codeFlow gets an access token of a provider by itself, without a resource: it is for the client.
func codeFlow(t *testing.T, issuer string) string {
	t.Helper()
	const verifier = "a-verifier-of-more-than-forty-three-characters-0"
	q := url.Values{"client_id": {"mcp-client"}, "redirect_uri": {redirectURI}, "response_type": {"code"},
		"scope": {"openid"}, "state": {"s"}, "code_challenge": {verifier}, "code_challenge_method": {"plain"}}
	got, err := browse(t.Context(), issuer+"/auth?"+q.Encode(), "test-user@localhost")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.PostForm(issuer+"/oauth/token", url.Values{"grant_type": {"authorization_code"},
		"code": {got.Get("code")}, "redirect_uri": {redirectURI}, "client_id": {"mcp-client"},
		"code_verifier": {verifier}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	found := regexp.MustCompile(`"access_token":"([^"]+)"`).FindSubmatch(text)
	if err != nil || found == nil || bytes.Count(found[1], []byte(".")) != 2 {
		t.Fatalf("%v, %s", err, text)
	}
	return string(found[1])
}

func rawBase64(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
