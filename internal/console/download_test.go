package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"sandlot/internal/secret"
)

// A signed address loads one file, in the browser that signed it, for a short time, and while the log-in lasts.
func TestSignedDownloads(t *testing.T) {
	l, now := newLogins(t)
	ann, bob := l.begin("ann"), l.begin("bob")
	const file = "/v1/sessions/home/files/workspace/a b?c\n.bin"
	soon := now.Add(time.Minute).Unix()
	type request struct {
		method, path, cookie, signature, site string
		until                                 int64
	}
	loads := func(q request) bool {
		r := httptest.NewRequest(q.method, home+"/", nil)
		r.URL.Path = q.path
		r.URL.RawQuery = url.Values{UntilParameter: {fmt.Sprint(q.until)}, SignatureParameter: {q.signature}}.Encode()
		r.AddCookie(&http.Cookie{Name: PlainCookie, Value: q.cookie})
		if q.site != "" {
			r.Header.Set("Sec-Fetch-Site", q.site)
		}
		x, _, err := l.Of(r, home)
		return x != nil && err == nil
	}
	right := request{"GET", file, ann.cookie, Sign(secret.Value(ann.key), file, soon), "same-origin", soon}
	if !loads(right) {
		t.Fatal("a signed address loads nothing")
	}
	unmarked := right
	if unmarked.site = ""; !loads(unmarked) {
		t.Error("a browser that marks nothing loads nothing")
	}
	signed := func(key, path string, until int64) string { return Sign(secret.Value(key), path, until) }
	for name, change := range map[string]func(q *request){
		"another method":              func(q *request) { q.method = "DELETE" },
		"another file":                func(q *request) { q.path = "/v1/sessions/home/files/workspace/secret" },
		"another session":             func(q *request) { q.path = "/v1/sessions/other/files/workspace/a b?c\n.bin" },
		"without the cookie":          func(q *request) { q.cookie = "" },
		"another browser":             func(q *request) { q.cookie = bob.cookie },
		"another browser's signature": func(q *request) { q.signature = signed(bob.key, file, soon) },
		"no signature":                func(q *request) { q.signature = "" },
		"a later time":                func(q *request) { q.until++ },
		"a time far ahead": func(q *request) {
			q.until = now.Add(time.Hour).Unix()
			q.signature = signed(ann.key, file, q.until)
		},
		"a time that is over": func(q *request) {
			q.until = now.Add(-time.Second).Unix()
			q.signature = signed(ann.key, file, q.until)
		},
		"a page of another site":    func(q *request) { q.site = "cross-site" },
		"a page of the site":        func(q *request) { q.site = "same-site" },
		"an address that was typed": func(q *request) { q.site = "none" },
		"what is not a file": func(q *request) {
			q.path = "/v1/sessions/home/terminals"
			q.signature = signed(ann.key, q.path, soon)
		},
		"another route": func(q *request) {
			q.path = "/v1/events"
			q.signature = signed(ann.key, q.path, soon)
		},
	} {
		q := right
		if change(&q); loads(q) {
			t.Errorf("%s: it loads the file", name)
		}
	}
	x, _, _ := l.Of(loaded(file, ann, soon), home)
	l.End(x)
	if loads(right) {
		t.Error("it loads the file after the log-out")
	}
}

func loaded(file string, h halves, until int64) *http.Request {
	r := httptest.NewRequest(http.MethodGet, home+"/", nil)
	r.URL.Path = file
	r.URL.RawQuery = fmt.Sprintf("%s=%d&%s=%s", UntilParameter, until, SignatureParameter, Sign(secret.Value(h.key), file, until))
	r.AddCookie(&http.Cookie{Name: PlainCookie, Value: h.cookie})
	return r
}
