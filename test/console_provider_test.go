package test

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc/oidctest"
)

// TestConsoleProvider: users log in at the web console at an OIDC provider, in a real browser, and are whom the provider's
// bearer tokens are for; nobody else's response logs a browser in; and the log-in ends with the provider's word.
func TestConsoleProvider(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	s.port = freePort(t)
	c := &providerUse{t: t, server: s, base: fmt.Sprintf("http://localhost:%d", s.port)}
	c.provider, c.other = c.newProvider(), c.newProvider()
	text := "public_url: " + c.base + "\noidc:\n"
	for _, p := range []*oidctest.Provider{c.provider, c.other} {
		text += fmt.Sprintf("  - issuer: %s\n    client_id: console\n", p.URL)
	}
	s.settings(text)
	s.begin([]string{"SANDLOT_LOG_LEVEL=DEBUG"})
	c.browsers = newBrowsers(t)
	c.looksRight()
	ann := c.logsIn()
	c.isNotLoggedInByOthers(ann)
	c.endsWithTheProvider()
	c.logsOut(ann)
	c.leavesNoTrace()
}

type providerUse struct {
	t *testing.T
	*server
	base            string
	provider, other *oidctest.Provider
	browsers        func() *browserUse
	window          *browserUse // of ann
}

// newProvider returns a provider with this server as a client.
func (c *providerUse) newProvider() *oidctest.Provider {
	p := oidctest.New(c.t)
	p.Refresh, p.Redirects, p.Back = true, []string{c.callback(p)}, []string{c.base + "/console/"}
	return p
}

func (c *providerUse) callback(p *oidctest.Provider) string {
	return c.base + "/console/oidc/" + auth.IssuerID(p.URL)
}

// begin opens a screen in a new tab, and goes on to the provider.
func (c *providerUse) begin(b *browserUse, screen string) *tab {
	c.t.Helper()
	x := b.tab()
	x.expect("401") // who asks is nobody yet
	x.open(c.base + "/console/" + screen)
	x.shows("With your account")
	x.click("Log in at " + strings.TrimPrefix(c.provider.URL, "http://"))
	x.see(`document.title === "Provider"`)
	return x
}

// logIn logs a user in at the provider.
func (c *providerUse) logIn(b *browserUse, user, screen string) *tab {
	c.t.Helper()
	x := c.begin(b, screen)
	x.fill("input[name=user]", user)
	x.click("Log in")
	x.see(`document.querySelector(".who")?.textContent.includes(` + quoted(user) + `)`)
	return x
}

const askWho = `fetch("/v1/principal", {headers: {"Sandlot-Console": localStorage.getItem("sandlot-key /console/")}})
	.then(r => r.json()).then(a => a.principal ?? "nobody")`

// looksRight looks at the page to log in, with its providers.
func (c *providerUse) looksRight() {
	axe, err := os.ReadFile("testdata/axe/axe.min.js")
	if err != nil {
		c.t.Fatal(err)
	}
	x := c.browsers().tab()
	x.expect("401")
	x.open(c.base + "/console/")
	x.shows("With your account")
	(&consoleScreens{t: c.t, server: c.server, folder: os.Getenv("SANDLOT_PICTURES"), axe: string(axe)}).look(x, "login-oidc")
}

// logsIn logs ann in, who comes back to the screen where she was, and bob in another browser.
func (c *providerUse) logsIn() *tab {
	c.window = c.browsers()
	x := c.logIn(c.window, "ann", "#/servers")
	x.see(`location.hash === "#/servers"`)
	if at := evaluate[string](x, "location.href + document.cookie + document.referrer"); at != c.base+"/console/#/servers" {
		c.t.Errorf("the page is at %q, and sees cookies or a referrer", at)
	}
	bearer := c.provider.Sign(map[string]any{"iss": c.provider.URL, "sub": "ann", "aud": c.base + "/mcp",
		"exp": time.Now().Add(time.Hour).Unix()})
	who := evaluate[string](x, askWho)
	if _, _, text := c.request("GET", "/v1/principal", nil, "Authorization", "Bearer "+bearer); !strings.HasSuffix(who, "/ann") ||
		!strings.Contains(text, quoted(who)) {
		c.t.Errorf("by the console %s, by a bearer token %s", who, text)
	}
	second := c.window.tab() // by the log-in of the browser, and until that ends
	second.expect("401", "WebSocket connection")
	second.open(c.base + "/console/")
	second.shows("Waits for you")
	bob := c.logIn(c.browsers(), "bob", "")
	if got := evaluate[string](bob, askWho); got == who || !strings.HasSuffix(got, "/bob") {
		c.t.Errorf("bob is %s", got)
	}
	return x
}

// isNotLoggedInByOthers opens what another browser would have been sent back to.
func (c *providerUse) isNotLoggedInByOthers(ann *tab) {
	mallory := c.begin(c.browsers(), "")
	q, err := c.provider.Visit(evaluate[string](mallory, "location.href"), "mallory")
	if err != nil {
		c.t.Fatal(err)
	}
	link := c.callback(c.provider) + "?" + q.Encode()
	x := c.window.tab()
	x.expect("401")
	x.open(link)
	x.see(`document.querySelector(".who")?.textContent.includes("ann")`)
	fresh := c.browsers().tab()
	fresh.expect("401")
	fresh.open(link)
	fresh.shows("this tab has not begun this log-in")
	begun := c.begin(c.browsers(), "") // and in one that has begun a log-in of its own
	begun.open(link)
	begun.shows("this tab has not begun this log-in")
	mixed := url.Values{"state": q["state"], "code": q["code"], "iss": {c.other.URL}}
	mallory.open(c.callback(c.other) + "?" + mixed.Encode())
	mallory.shows("of another issuer")
	if got := len(c.other.Requests("/token")); got != 0 {
		c.t.Errorf("%d codes were sent to another provider", got)
	}
	cancels := c.begin(c.browsers(), "")
	cancels.click("Cancel")
	cancels.shows("you have cancelled the log-in")
	cancels.click("Log in at " + strings.TrimPrefix(c.provider.URL, "http://"))
	cancels.see(`document.title === "Provider"`)
	if got := evaluate[string](ann, askWho); !strings.HasSuffix(got, "/ann") {
		c.t.Errorf("ann is %s", got)
	}
}

// endsWithTheProvider ends the account of somebody who is logged in: the page and what it holds open end.
func (c *providerUse) endsWithTheProvider() {
	const almostOver = -50 * time.Second // tokens count for a minute longer
	c.provider.Set(func() { c.provider.Life = almostOver })
	x := c.logIn(c.browsers(), "carol", "")
	x.expect("WebSocket connection")
	c.provider.Set(func() { c.provider.Life = time.Hour })
	until(c.t, "the provider is asked again", func() bool {
		for _, r := range c.provider.Requests("/token") {
			if r.Form.Get("grant_type") == "refresh_token" {
				return true
			}
		}
		return false
	})
	if got := evaluate[string](x, askWho); !strings.HasSuffix(got, "/carol") {
		c.t.Errorf("carol, for whom the provider vouches, is %s", got)
	}
	c.provider.Set(func() { c.provider.Life = almostOver })
	y := c.logIn(c.browsers(), "dave", "")
	y.expect("WebSocket connection")
	c.provider.Set(func() { c.provider.Ended["dave"], c.provider.Life = true, time.Hour })
	y.shows("You are not logged in any more")
}

// logsOut logs ann out: here, and at the provider.
func (c *providerUse) logsOut(x *tab) {
	x.expect("401", "WebSocket connection")
	x.click("Log out")
	until(c.t, "the provider logs her out", func() bool { return len(c.provider.Requests("/logout")) == 1 })
	x.shows("With your account")
	if got := c.provider.Requests("/logout")[0].Form; got.Get("id_token_hint") != "" || len(got) != 2 {
		c.t.Errorf("the address of the log-out has %v", got)
	}
	if got := evaluate[string](x, askWho); got != "nobody" {
		c.t.Errorf("after the log-out: %s", got)
	}
}

// leavesNoTrace looks for what nobody may see: in the log, and in what the browsers have told the provider.
func (c *providerUse) leavesNoTrace() {
	log := c.log.String()
	for _, r := range c.provider.Requests("/token") {
		for _, name := range []string{"code", "code_verifier", "refresh_token"} {
			if text := r.Form.Get(name); text != "" && strings.Contains(log, text) {
				c.t.Errorf("the log has a %s", name)
			}
		}
	}
	for _, path := range []string{"/authorize", "/logout"} {
		for _, r := range c.provider.Requests(path) {
			if strings.Contains(r.Referer, c.base) {
				c.t.Errorf("%s was told that the browser comes from %s", path, r.Referer)
			}
		}
	}
}
