package api

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// browser is one that does not follow redirects by itself.
type browser struct {
	t *testing.T
	*http.Client
}

func newBrowser(t *testing.T) browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return browser{t, &http.Client{Jar: jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// see opens an address, and fails the test unless the status is that.
func (b browser) see(address string, status int) (http.Header, string) {
	b.t.Helper()
	resp, err := b.Get(address)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		b.t.Fatalf("%s: %s, want %d; %v\n%s", address, resp.Status, status, err, body)
	}
	return resp.Header, string(body)
}

var goOn = regexp.MustCompile(`href="(\?go=[^"]+)"`)

// open opens the link of a log-in, and returns where its page leads to.
func (b browser) open(link string) (page, next string) {
	b.t.Helper()
	_, page = b.see(link, 200)
	all := goOn.FindAllStringSubmatch(page, -1)
	if len(all) != 1 || strings.Count(page, "href=") != 1 {
		b.t.Fatalf("the page has not one link:\n%s", page)
	}
	return page, link + html.UnescapeString(all[0][1])
}

// follow opens an address that leads elsewhere.
func (b browser) follow(address string) string {
	b.t.Helper()
	h, _ := b.see(address, 302)
	if h.Get("Cache-Control") != "no-store" || h.Get("Referrer-Policy") != "no-referrer" {
		b.t.Errorf("%s: %v", address, h)
	}
	return h.Get("Location")
}

// agree opens the page of an authorization server, which leads back.
func (b browser) agree(address string) string {
	b.t.Helper()
	h, _ := b.see(address, 302)
	return h.Get("Location")
}

// withLogins serves an edge at which users log in, behind the path prefix.
func (e *edge) withLogins(prefix string) (base string) {
	s := httptest.NewServer(http.StripPrefix(prefix, e.Handler()))
	e.t.Cleanup(s.Close)
	e.Hub.Servers = servers.New(servers.Config{Store: unkept{}, Version: "1",
		Callback: s.URL + prefix + "/oauth/callback", Dial: serverstest.Dial})
	e.t.Cleanup(e.Hub.Servers.Close)
	return s.URL + prefix
}

func (e *edge) state(p auth.Principal, name string) servers.Info {
	e.t.Helper()
	i, _, err := e.Hub.Servers.Info(p, name)
	if err != nil {
		e.t.Fatal(err)
	}
	return i
}

// link connects a principal to a bank, and returns what they are given to log in.
func (e *edge) link(p auth.Principal, name, address string) string {
	e.t.Helper()
	i, err := e.Hub.Servers.Connect(e.t.Context(), p, spec.ConnectRequest{Name: name, URL: address})
	if err != nil || i.State != state.NeedsAuth {
		e.t.Fatalf("%+v, %v", i, err)
	}
	return i.AuthURL
}

var ann = auth.User("ann", false)

// A log-in from the link to the end, in one browser.
func TestLoginInABrowser(t *testing.T) {
	for _, prefix := range []string{"", "/behind/proxy"} {
		e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
		base := e.withLogins(prefix)
		bank := serverstest.NewProtected(t, 0)
		link := e.link(ann, "my bank", bank.URL)
		// Nothing of the authorization server's is in it.
		if !regexp.MustCompile("^" + regexp.QuoteMeta(base) + `/oauth/start/[a-z2-7]{26}$`).MatchString(link) {
			t.Errorf("the link is %q", link)
		}
		anns := newBrowser(t)
		h, page := anns.see(link, 200)
		for k, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
			"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
			"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action " +
				"'none'; frame-ancestors 'none'"} {
			if h.Get(k) != want {
				t.Errorf("%s is %q", k, h.Get(k))
			}
		}
		cookie := h.Get("Set-Cookie")
		for _, want := range []string{"sandlot_login_", "; Path=" + prefix + "/oauth/;", "Max-Age=600", "HttpOnly",
			"SameSite=Lax"} {
			if !strings.Contains(cookie, want) {
				t.Errorf("the cookie %q has no %s", cookie, want)
			}
		}
		host := strings.TrimSuffix(strings.TrimPrefix(bank.URL, "http://"), "/mcp")
		for _, want := range []string{"<bdi>ann</bdi>", "<bdi>my bank</bdi>", "<bdi>" + bank.URL + "</bdi>",
			"Go on to log in at <bdi>" + host + "</bdi></a>"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page has no %s:\n%s", want, page)
			}
		}
		for _, no := range []string{"<script", "state="} {
			if strings.Contains(page, no) {
				t.Errorf("the page has %s", no)
			}
		}
		_, next := anns.open(link)
		_, again := anns.open(link) // opened twice is fine, and either page goes on
		if anns.follow(next) != anns.follow(again) {
			t.Error("the two pages lead to different places")
		}
		anns.open(link) // after it went on, too
		back := anns.agree(anns.follow(next))
		if !strings.HasPrefix(back, base+"/oauth/callback?") {
			t.Fatalf("the browser comes back to %s", back)
		}
		if _, said := anns.see(back, 200); !strings.Contains(said, "Sandlot finishes the log-in now") {
			t.Error(said)
		}
		for end := time.Now().Add(time.Minute); e.state(ann,
			"my bank").State != state.Connected; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it is %+v", e.state(ann, "my bank"))
			}
		}
		_, said := anns.see(back, 404) // a state is good once
		if !strings.Contains(said, "to get a new link") {
			t.Error(said)
		}
		anns.see(link, 404)
		if n, _, _ := bank.Counts(); n != 1 {
			t.Errorf("%d log-ins", n)
		}
		at, _ := url.Parse(back)
		if left := anns.Jar.Cookies(at); len(left) != 0 {
			t.Errorf("left are %v", left)
		}
	}
}

// Nobody comes back from a log-in, or goes on with one, but the browser in which
// it was begun.
func TestLoginIsOneBrowsers(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	base := e.withLogins("")
	bank, other := serverstest.NewProtected(t, 0), serverstest.NewProtected(t, 0)
	link, evil := e.link(ann, "bank", bank.URL), e.link(auth.User("eve", false), "bank", other.URL)
	anns, eves, bare := newBrowser(t), newBrowser(t), newBrowser(t)
	bare.Jar = nil // it keeps no cookies
	refused := func(b browser, what, address, want string) {
		t.Helper()
		if _, said := b.see(address, 403); !strings.Contains(said, want) ||
			!strings.Contains(said, "to get a new link") {
			t.Errorf("%s is told %s", what, said)
		}
	}
	_, next := anns.open(link)
	_, evilNext := eves.open(evil)

	// The page was not seen in that browser, or not for that log-in.
	refused(bare, "one without cookies", next, "did not send back the cookie")
	refused(eves, "another, with what ann's page leads to", next, "is another browser")
	eves.open(link)
	refused(eves, "the same, with a cookie of its own", next, "is another browser")
	_, proof, _ := strings.Cut(evilNext, "?")
	refused(anns, "the right one, with another's proof", link+"?"+proof, "is another browser")
	refused(anns, "the right one, with a proof made up", link+"?go=0123456789abcdef0123456789abcdef",
		"is another browser")

	// The first that goes on has it.
	_, late := eves.open(link)
	to := anns.follow(next)
	refused(eves, "a second one that opens the link", link, "in another browser")
	refused(eves, "a second one that had opened it", late, "is another browser")
	refused(bare, "a third one", link, "in another browser")

	// Nothing comes back but in that browser, whosever account it is.
	back := eves.agree(to)
	refused(bare, "one without cookies", back, "Nothing was connected")
	refused(eves, "one with other cookies", back, "Nothing was connected")
	id := link[strings.LastIndex(link, "/")+1:]
	at, _ := url.Parse(back)
	eves.Jar.SetCookies(at, []*http.Cookie{{Name: "sandlot_login_" + id, Value: strings.Repeat("a", 26),
		Path: "/oauth/"}})
	refused(eves, "one with a cookie that is made up", back, "Nothing was connected")
	// An attacker's own link, gone on with in their browser, is no use in ann's.
	mine := eves.agree(eves.follow(evilNext))
	refused(anns, "ann with eve's way back", mine, "Nothing was connected")
	for _, p := range []auth.Principal{ann, auth.User("eve", false)} {
		if i := e.state(p, "bank"); i.State != state.NeedsAuth {
			t.Errorf("%s is %s", p.Name, i.State)
		}
	}
	for _, k := range []*serverstest.Protected{bank, other} {
		if n, _, _ := k.Counts(); n != 0 {
			t.Errorf("%d log-ins", n)
		}
	}

	// An answer to a log-in that nobody went on with is nobody's.
	third := e.link(ann, "third", serverstest.NewProtected(t, 0).URL)
	anns.open(third)
	anns.see(base+"/oauth/callback?state=&code=x", 404)
	anns.see(base+"/oauth/callback?state=guess&code=x", 404)
	anns.see(base+"/oauth/callback", 404)
	anns.see(base+"/oauth/start/"+strings.Repeat("a", 26), 404)

	// After all that, ann comes back; and what she brings is taken once.
	if _, said := anns.see(back, 200); !strings.Contains(said, "Sandlot finishes the log-in now") {
		t.Error(said)
	}
	anns.see(back, 404)
	eves.see(back, 404)
	// A log-in that is refused there.
	_, again := anns.open(third)
	to = anns.follow(again)
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, said := anns.see(base+"/oauth/callback?error=access_denied&state="+u.Query().Get("state"),
		200); !strings.Contains(said, "was refused") {
		t.Error(said)
	}
}

// Names are shown as they are, and are nothing else.
func TestLoginPageEscapes(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	e.withLogins("")
	bank := serverstest.NewProtected(t, 0)
	const name, user = `</title><script>alert(1)</script>`, `<img src=x onerror="alert(2)">`
	p := auth.Principal{ID: "user:" + user, Name: user, Authenticated: true}
	e.Hub.Servers.SetConfigured([]spec.Configured{{Name: name, Kind: spec.HTTP, URL: bank.URL}})
	for end := time.Now().Add(time.Minute); e.state(p, name).AuthURL == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is %+v", e.state(p, name))
		}
	}
	page, _ := newBrowser(t).open(e.state(p, name).AuthURL)
	for _, s := range []string{name, user} {
		if strings.Contains(page, s) || !strings.Contains(page, html.EscapeString(s)) &&
			!strings.Contains(page, strings.ReplaceAll(html.EscapeString(s), "=", "&#61;")) {
			t.Errorf("%s does not show as it is:\n%s", s, page)
		}
	}
	if strings.Contains(page, "<script") || strings.Contains(page, "<img") ||
		!strings.Contains(page, "the operator&#39;s server") && !strings.Contains(page, "the operator's server") {
		t.Error(page)
	}
	if strings.Contains(page, "/mcp") { // where the operator's is, beyond its host
		t.Errorf("the page has the whole address:\n%s", page)
	}
}

// The cookie goes over TLS alone when users come by that.
func TestLoginCookieIsSecure(t *testing.T) {
	for callback, want := range map[string]bool{"https://sandlot.example/oauth/callback": true,
		"http://127.0.0.1:8000/oauth/callback": false} {
		e := newEdge(t, auth.Required, OriginCheck{})
		e.Hub.Servers = servers.New(servers.Config{Store: unkept{}, Version: "1", Callback: callback,
			Dial: serverstest.Dial})
		t.Cleanup(e.Hub.Servers.Close)
		link := e.link(ann, "bank", serverstest.NewProtected(t, 0).URL)
		u, err := url.Parse(link)
		if err != nil || link != strings.Replace(callback, "callback", "start/", 1)+u.Path[len("/oauth/start/"):] {
			t.Fatal(link, err)
		}
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, httptest.NewRequest("GET", link, nil))
		if c := w.Header().Get("Set-Cookie"); w.Code != 200 || strings.Contains(c, "; Secure") != want {
			t.Errorf("%s: %d, the cookie is %q", callback, w.Code, c)
		}
	}
}

// The page names all that get something of a log-in, and warns when that is
// another than the place to log in.
func TestLoginPageNamesAll(t *testing.T) {
	for _, c := range []struct {
		receivers []string
		warns     bool
	}{{nil, false}, {[]string{"tokens.evil.test", "clients.evil.test:8443"}, true}} {
		w := httptest.NewRecorder()
		showLogin(w, 200, "x", "", &oauth.ConsentPage{User: "ann", Server: "bank", Host: "accounts.example.com",
			Receivers: c.receivers})
		page := w.Body.String()
		if strings.Contains(page, "may take over your account") != c.warns ||
			!strings.HasSuffix(strings.TrimSpace(page), "Sandlot</p>") {
			t.Errorf("%q:\n%s", c.receivers, page)
		}
		for _, host := range c.receivers {
			if !strings.Contains(page, "<b><bdi>"+host+"</bdi></b>") {
				t.Errorf("it does not name %s:\n%s", host, page)
			}
		}
	}
}
