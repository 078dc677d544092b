package oci

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sandlot/internal/fault"
)

// dockerConfig writes Docker's configuration of the user.
func dockerConfig(t *testing.T, config map[string]any) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), must[[]byte](t)(json.Marshal(config)),
		0o600); err != nil {
		t.Fatal(err)
	}
}

func basic(user, password string) map[string]any {
	return map[string]any{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
}

// requireBasic has the registry ask for a user and a password.
func (r *testRegistry) requireBasic() {
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if user, password, _ := q.BasicAuth(); user == "ann" && password == "right" {
			return w
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return nil
	})
}

// requireToken has the registry ask for a token, which it gives for a user and a password.
func (r *testRegistry) requireToken() {
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if q.URL.Path == "/token" {
			user, password, _ := q.BasicAuth()
			if user != "ann" || password != "right" || q.URL.Query().Get("scope") != "repository:app:pull" {
				w.WriteHeader(http.StatusUnauthorized)
				return nil
			}
			fmt.Fprint(w, `{"token":"the-token"}`)
			return nil
		}
		if q.Header.Get("Authorization") == "Bearer the-token" {
			return w
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, r.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return nil
	})
}

func TestCredentials(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app:1", imageOf(t, layerOf(t, map[string][]byte{"f": []byte("secret")})))
	helpers := t.TempDir()
	helper := "#!/bin/sh\n[ \"$1\" = get ] && [ \"$(cat)\" = " + r.host + " ] || { echo 'credentials not found in " +
		"native keychain'; exit 1; }\n" +
		`echo '{"ServerURL":"x","Username":"ann","Secret":"right"}'` + "\n"
	if err := os.WriteFile(filepath.Join(helpers, "docker-credential-sandlottest"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", helpers+":"+os.Getenv("PATH"))
	for ask, require := range map[string]func(){"basic": r.requireBasic, "token": r.requireToken} {
		for name, config := range map[string]map[string]any{
			"the file":            {"auths": map[string]any{r.host: basic("ann", "right")}},
			"a helper":            {"credsStore": "sandlottest"},
			"a registry's helper": {"credHelpers": map[string]any{r.host: "sandlottest"}},
		} {
			t.Run(ask+" from "+name, func(t *testing.T) {
				require()
				dockerConfig(t, config)
				s := newStore(t)
				got, err := s.Pull(testContext(t), ref, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if content(t, got, "f") != "secret" {
					t.Error("the file differs")
				}
			})
		}
		for name, config := range map[string]map[string]any{
			"none": {}, "others": {"auths": map[string]any{"other.test": basic("ann", "right")}},
			"wrong": {"auths": map[string]any{r.host: basic("ann", "wrong")}},
		} {
			t.Run(ask+" with "+name, func(t *testing.T) {
				require()
				dockerConfig(t, config)
				_, err := newStore(t).Pull(testContext(t), ref, Options{})
				refused(t, err, fault.Unauthorized, "log in (`docker login "+r.host)
				if strings.Contains(fmt.Sprintf("%v %+v", err, err), "wrong") {
					t.Errorf("the error has a password: %v", err)
				}
			})
		}
	}
}

func TestAnswersInPlainWords(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app:1", imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")})))
	s := newStore(t)
	_, err := s.Pull(testContext(t), strings.Replace(ref, "app:1", "app:2", 1), Options{})
	refused(t, err, fault.NotFound, r.host+" has no "+r.host+"/app with 2")
	for status, want := range map[int]struct {
		kind fault.Kind
		word string
	}{
		http.StatusForbidden:           {fault.Forbidden, "does not let you read"},
		http.StatusTooManyRequests:     {fault.Connection, "too many requests"},
		http.StatusInternalServerError: {fault.Connection, "try again later"},
		http.StatusTeapot:              {fault.InvalidParameters, "status 418"},
	} {
		r.answer("/manifests/", status, nil, []byte("\x1b[31mred"))
		_, err := s.Pull(testContext(t), ref, Options{})
		refused(t, err, want.kind, want.word)
		if cause := fault.From(err).Cause; cause == nil || strings.Contains(cause.Error(), "\x1b") {
			t.Errorf("the cause is %q", cause)
		}
	}
	r.Close()
	_, err = s.Pull(testContext(t), ref, Options{})
	refused(t, err, fault.Connection, r.host+" cannot be reached")
}

// Plain HTTP is spoken with this machine only, and a redirect from elsewhere does not lead into this network.
func TestWhereRequestsGo(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "localhost:5000": true, "127.0.0.1:80": true,
		"127.1.2.3":  true,
		"[::1]:5000": true, "::1": true, "x.localhost:1": true, "10.0.0.1:5000": false, "192.168.1.1": false,
		"example.test": false, "localhost.example.test": false, "127.0.0.1.example.test": false} {
		if got := isLoopback(host); got != want {
			t.Errorf("isLoopback(%q) is %t", host, got)
		}
	}
	for _, tt := range []struct {
		registry, to string
		refused      bool
	}{
		{"registry.test", "https://cdn.test/blob", false},
		{"registry.test", "https://169.254.169.254/latest", true},
		{"registry.test", "https://127.0.0.1/x", true},
		{"registry.test", "https://[::1]/x", true},
		{"registry.test", "https://localhost/x", true},
		{"registry.test", "https://LOCALHOST.:443/x", true},
		{"registry.test", "https://x.localhost/x", true},
		{"registry.test", "https://0.0.0.0/x", true},
		{"registry.test", "https://registry.test/x", false},
		{"localhost:5000", "http://localhost:6000/x", false},
		{"registry.test", "https://[::ffff:10.0.0.1]/x", true},
		{"10.0.0.2", "https://10.0.0.3/x", false},
		{"127.0.0.1:5000", "http://127.0.0.1:6000/x", false},
		{"registry.test", "http://registry.test/x", true},
		{"registry.test", "http://localhost/x", true},
		{"10.0.0.1", "http://10.0.0.1/v2/", true},
		{"10.0.0.1:5000", "https://127.0.0.1/x", true},
		{"[fd00::1]:5000", "https://10.0.0.3/x", false},
	} {
		err := reach{registry: tt.registry}.check(must[*url.URL](t)(url.Parse(tt.to)))
		if (err != nil) != tt.refused {
			t.Errorf("for %s to %s: %v", tt.registry, tt.to, err)
		}
	}
}

// A registry of the internet leads no request to this machine: not when it is asked whether it is one, not for a token,
// and not for an image.
func TestNoWayToThisMachine(t *testing.T) {
	var hits atomic.Int32
	canary := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	plain, secured := httptest.NewServer(canary), httptest.NewTLSServer(canary)
	defer plain.Close()
	defer secured.Close()
	var lead http.HandlerFunc
	evil := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { lead(w, q) }))
	defer evil.Close()
	usual := http.DefaultTransport
	defer func() { http.DefaultTransport = usual }()
	toTest := usual.(*http.Transport).Clone()
	toTest.Proxy, toTest.TLSClientConfig = nil, &tls.Config{InsecureSkipVerify: true}
	toTest.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "registry.test:443" {
			address = evil.Listener.Addr().String()
		} else if host, _, err := net.SplitHostPort(address); err != nil || !isLoopback(host) {
			return nil, errors.New("not in this test: " + address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	http.DefaultTransport = toTest
	dockerConfig(t, map[string]any{})
	asked := 0
	redirect := func(part, to string) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			if asked++; strings.HasPrefix(q.URL.Path, part) {
				http.Redirect(w, q, to, http.StatusFound)
			}
		}
	}
	token := func(realm string, next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			if asked++; q.URL.Path == "/v2/" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next(w, q)
		}
	}
	_, plainPort, _ := strings.Cut(plain.URL, "127.0.0.1")
	_, securedPort, _ := strings.Cut(secured.URL, "127.0.0.1")
	for name, handler := range map[string]http.HandlerFunc{
		"/v2/ to plain":     redirect("/v2/", plain.URL+"/any?query"),
		"/v2/ to a name":    redirect("/v2/", "http://localhost"+plainPort),
		"/v2/ to TLS":       redirect("/v2/", secured.URL),
		"a realm by name":   token("https://localhost"+securedPort+"/token", nil),
		"a token to plain":  token("https://registry.test/token", redirect("/token", "http://localhost"+plainPort)),
		"a token to TLS":    token("https://registry.test/token", redirect("/token", "https://localhost"+securedPort)),
		"an image to plain": redirect("/v2/app", "http://localhost"+plainPort),
		"an image to TLS":   redirect("/v2/app", "https://[::ffff:127.0.0.1]"+securedPort),
	} {
		lead, asked = handler, 0
		_, err := newStore(t).Pull(testContext(t), "registry.test/app:1", Options{})
		if hits.Swap(0) != 0 || asked == 0 {
			t.Errorf("%s: this machine was asked, or the registry was not (%d)", name, asked)
		}
		// The library has a rule, too.
		if err == nil || !strings.Contains(err.Error(), "refusing token-server redirect") {
			refused(t, err, fault.Forbidden, "leads to where Sandlot does not go")
		}
	}
}

// What a registry leads to is fetched without its credentials.
func TestRedirectToBlobs(t *testing.T) {
	r, elsewhere := newRegistry(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")}))
	ref := r.push(t, "app:1", image)
	elsewhere.push(t, "app:1", image)
	elsewhere.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if q.Header.Get("Authorization") != "" {
			t.Error("credentials were sent to another host")
		}
		return w
	})
	dockerConfig(t, map[string]any{"auths": map[string]any{r.host: basic("ann", "right")}})
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if _, _, ok := q.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}
		if _, ok := blobOf(q); ok {
			http.Redirect(w, q, elsewhere.URL+q.URL.Path, http.StatusTemporaryRedirect)
			return nil
		}
		return w
	})
	if _, err := newStore(t).Pull(testContext(t), ref, Options{}); err != nil {
		t.Fatal(err)
	}
	if len(elsewhere.sent) != 2 {
		t.Errorf("elsewhere sent %v", elsewhere.sent)
	}
}

func TestReferences(t *testing.T) {
	for ref, want := range map[string]string{
		"python:3.12-slim": "python:3.12-slim", "python": "python:latest", "ann/tool": "ann/tool:latest",
		"index.docker.io/library/python:3":                     "python:3",
		"localhost:5000/a/b:c":                                 "localhost:5000/a/b:c",
		"example.test/a":                                       "example.test/a:latest",
		"python@sha256:" + strings.Repeat("a", 64):             "python@sha256:" + strings.Repeat("a", 64),
		"example.test/a/b:1@sha256:" + strings.Repeat("a", 64): "example.test/a/b@sha256:" + strings.Repeat("a", 64),
	} {
		parsed, err := parseReference(ref)
		if err != nil {
			t.Error(err)
		} else if got := familiar(parsed); got != want {
			t.Errorf("%s is called %s", ref, got)
		}
	}
	for _, ref := range []string{"", "Python", "a b", "../x", "x:" + strings.Repeat("y", 600), "a@sha256:12",
		"a@sha512:" +
			strings.Repeat("a", 128), "http://example.test/a", "a\x1b[2J"} {
		_, err := parseReference(ref)
		if err == nil {
			t.Errorf("%q is a reference", ref)
			continue
		}
		refused(t, err, fault.InvalidParameters)
		if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("the error has control characters: %q", err)
		}
	}
}
