package test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// TestConsoleHeavy: the console with many tabs, events and much output, with a file of 1 GB, with a question that changes under the pointer,
// and at the end of its token.
func TestConsoleHeavy(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	s.settings("policy:\n  rules:\n    - ask * shell.execute *ask-me*\n")
	s.begin(nil)
	c := &consoleUse{t: t, server: s, browsers: newBrowsers(t, chromedp.Flag("enable-precise-memory-info", true))}
	c.ann = s.token("ann")
	c.agent = s.connect(older, c.ann, nil)
	c.home = c.agent.shell("home", "true").session()
	c.window = c.browsers()
	c.page = s.logIn(c.window, c.ann)
	c.hasSevenTabs()
	c.changesUnderThePointer()
	c.takesEvents(10_000)
	c.takesOutput(100)
	c.movesLargeFiles()
	c.endsWithItsToken()
}

// hasSevenTabs opens as many tabs as a browser has connections to a server, and one more: each is told.
func (c *consoleUse) hasSevenTabs() {
	all := []*tab{c.page}
	for range 6 {
		x := c.window.tab()
		x.watchesForFlashes()
		x.open(consoleURL(evaluate[string](c.page, "location.href"), ""))
		x.shows("Waits for you")
		all = append(all, x)
	}
	c.agent.call("execute_code", args{"code": "6*7", "session_id": "new", "name": "seen-by-all"})
	for _, x := range all {
		x.shows("seen-by-all")
	}
	for _, x := range all[1:] {
		if flashed := evaluate[string](x, "window.flashed"); flashed != "" {
			c.t.Errorf("for a moment, the page says %q", flashed)
		}
		x.open("about:blank")
	}
}

// watchesForFlashes notes what the next page says before it knows.
func (x *tab) watchesForFlashes() {
	x.t.Helper()
	const watch = `window.flashed = "";
		new MutationObserver(() => {
			const text = document.body?.innerText ?? "";
			for (const wrong of ["Nothing has happened", "No session yet", "There is no session"]) if (text.includes(wrong)) window.flashed = wrong;
		}).observe(document, {childList: true, subtree: true, characterData: true});`
	x.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
		return chromedp.Void{}, err
	})
}

// mouse moves the mouse to a place, or clicks where it is.
func (x *tab) mouse(kind input.DispatchMouseEventType, at [2]float64) {
	x.t.Helper()
	p := input.DispatchMouseEventParams{Type: kind, X: at[0], Y: at[1]}
	if kind != input.DispatchMouseEventTypeMouseMoved {
		p.Button, p.ClickCount = "left", 1
	}
	x.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, input.DispatchMouseEvent, p)
		return chromedp.Void{}, err
	})
}

func (x *tab) clickAt(at [2]float64) {
	x.t.Helper()
	x.mouse(input.DispatchMouseEventTypeMousePressed, at)
	x.mouse(input.DispatchMouseEventTypeMouseReleased, at)
}

// changesUnderThePointer has a question end while the pointer is over its button: the click reaches no other question.
func (c *consoleUse) changesUnderThePointer() {
	x := c.page
	ask := func(n int) chan string {
		done := make(chan string, 1)
		go func() {
			r, err := c.agent.try(context.Background(), "execute_command", args{"command": fmt.Sprintf("echo ask-me-%d", n)})
			if err != nil {
				done <- err.Error()
				return
			}
			done <- r.Text
		}()
		x.shows(fmt.Sprintf("echo ask-me-%d", n))
		return done
	}
	first, second := ask(1), ask(2)
	const question = `[...document.querySelectorAll("[data-question]")]`
	ids := evaluate[[]string](x, question+".map(e => e.dataset.question)")
	if len(ids) != 2 {
		c.t.Fatalf("the questions are %v", ids)
	}
	x.see(question + `.every(e => !e.querySelector("button").disabled)`)
	at := evaluate[[2]float64](x, `(() => { const r = document.querySelector("[data-question] button").getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2]; })()`)
	x.mouse(input.DispatchMouseEventTypeMouseMoved, at)
	if code, _, text := c.request("POST", "/v1/questions/"+ids[0], strings.NewReader(`{"answer": "no"}`),
		credentials(c.ann)...); code >= 300 {
		c.t.Fatalf("%d %s", code, text)
	}
	if got := <-first; strings.Contains(got, "ask-me-1\n") {
		c.t.Errorf("what was refused ran: %s", got)
	}
	x.see(`document.querySelector("[data-question].ended")`)
	stands := fmt.Sprintf(`document.elementFromPoint(%v, %v)?.closest("[data-question]")?.dataset.question`, at[0], at[1])
	time.Sleep(1500 * time.Millisecond) // longer than an ended question is shown when no pointer is over it
	if got := evaluate[string](x, stands+` ?? ""`); got != ids[0] {
		c.t.Errorf("under the pointer is now %q", got)
	}
	x.clickAt(at)
	// When the pointer leaves, the second question moves to that place: at that moment it cannot be answered.
	evaluate[bool](x, `new MutationObserver(() => {
		const left = `+question+`;
		if (left.length === 1 && window.early === undefined) window.early = [...left[0].querySelectorAll("button")].some(b => !b.disabled);
	}).observe(document.body, {childList: true, subtree: true}), true`)
	x.mouse(input.DispatchMouseEventTypeMouseMoved, [2]float64{1, 1})
	x.see(question + ".length === 1")
	if evaluate[bool](x, "window.early === true") {
		c.t.Error("a question that has moved under the pointer can be answered at once")
	}
	select {
	case got := <-second:
		c.t.Fatalf("the second question was answered: %s", got)
	default:
	}
	if _, _, text := c.request("GET", "/v1/questions", nil, credentials(c.ann)...); !strings.Contains(text, ids[1]) {
		c.t.Errorf("the second question is gone: %s", text)
	}
	// By keys alone, from another screen.
	c.screen(x, "activity")
	x.see(`document.querySelector(".filters")`)
	x.keys("w")
	x.see(`document.activeElement.matches("[data-question]")`)
	x.see(question + `.every(e => !e.querySelector("button").disabled)`)
	x.keys("\t")
	x.see(`document.activeElement.textContent.trim() === "Once"`)
	x.keys("\r")
	if got := <-second; !strings.Contains(got, "ask-me-2") {
		c.t.Errorf("the call returned %q", got)
	}
}

// heap is how many bytes the page's objects have, with those that wait to be collected.
func (x *tab) heap() int64 {
	x.t.Helper()
	return evaluate[int64](x, "performance.memory.usedJSHeapSize")
}

// takesEvents shows what happens while very much happens.
func (c *consoleUse) takesEvents(n int) {
	x := c.page
	c.screen(x, "activity")
	x.shows("shell.execute")
	before := x.heap()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for range n / 4 {
				c.request("DELETE", fmt.Sprintf("/v1/questions/none-%d", w), nil, credentials(c.ann)...)
			}
		})
	}
	all.Wait()
	c.agent.shell("home", "echo the-last-one")
	c.screen(x, "activity?text=shell.execute")
	x.see(`document.querySelector(".timeline li")`)
	c.screen(x, "activity")
	x.see(`document.querySelectorAll(".timeline li").length > 900`)
	if rows := evaluate[int](x, `document.querySelectorAll(".timeline li").length`); rows > 1000 {
		c.t.Errorf("%d events have %d rows", n, rows)
	}
	c.screen(x, "")
	x.shows("seen-by-all")
	if rows := evaluate[int](x, `document.querySelectorAll(".timeline li").length`); rows > 40 {
		c.t.Errorf("the first screen has %d rows", rows)
	}
	after := x.heap()
	c.t.Logf("%d events: the page has %d kB, and had %d kB", n, after>>10, before>>10)
	if after-before > 32<<20 {
		c.t.Errorf("with %d events the page has grown by %d bytes", n, after-before)
	}
}

// takesOutput prints megabytes into a terminal: it goes on, and the page does not grow with them.
func (c *consoleUse) takesOutput(megabytes int) {
	x := c.page
	c.screen(x, "sessions/"+c.home+"/terminal")
	x.see(`document.querySelector("[data-terminal]")`)
	x.types("echo begins-$((6*7))\r")
	x.see(`document.querySelector(".xterm-rows").innerText.includes("begins-42")`)
	before := x.heap()
	x.types(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x | fold -w 79; echo flowed-$((8*8))\r", megabytes*1_000_000))
	until(c.t, "the end of the output", func() bool {
		return evaluate[bool](x, `document.querySelector(".xterm-rows").innerText.includes("flowed-64")`)
	})
	x.types("echo goes-on-$((9*9))\r")
	x.see(`document.querySelector(".xterm-rows").innerText.includes("goes-on-81")`)
	after := x.heap()
	c.t.Logf("%d MB of output: the page has %d kB, and had %d kB", megabytes, after>>10, before>>10)
	if after-before > 64<<20 { // with what nobody has any more, until it is collected
		c.t.Errorf("with %d MB of output the page has grown by %d bytes", megabytes, after-before)
	}
}

// endsWithItsToken revokes the token by which a browser is logged in: page and terminal end.
func (c *consoleUse) endsWithItsToken() {
	token := c.token("carl")
	agent := c.connect(older, token, nil)
	home := agent.shell("home", "true").session()
	x := c.logIn(c.browsers(), token)
	x.expect("401", "WebSocket connection")
	c.screen(x, "sessions/"+home+"/terminal")
	x.see(`document.querySelector("[data-terminal]")`)
	x.types("echo lives-$((6*7))\r")
	x.see(`document.querySelector(".xterm-rows").innerText.includes("lives-42")`)
	list, _, _ := c.cli("token", "list")
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); f[2] == "carl" {
			c.cli("token", "revoke", f[0])
		}
	}
	x.shows("You are not logged in any more")
	if evaluate[bool](x, `!!document.querySelector("[data-terminal], .xterm, .who")`) {
		c.t.Error("the page shows something of its user still")
	}
	if status := evaluate[int](x, `fetch("../v1/principal", {headers: {"Sandlot-Console": localStorage.getItem(
		"sandlot-key " + location.pathname) ?? "1"}}).then(r => r.status)`); status != http.StatusUnauthorized {
		c.t.Errorf("the log-in counts still: %d", status)
	}
}

// TestConsoleUnprivileged: the console of a server without root, whose ports are on the console's own site: a page of a
// sandbox gets nothing, and nobody can log in there without TLS.
func TestConsoleUnprivileged(t *testing.T) {
	t.Parallel()
	s := startUnprivileged(t, "SANDLOT_PORTS_DOMAIN=ports.example.test")
	c := &consoleUse{t: t, server: s, browsers: newBrowsers(t, chromedp.Flag("host-resolver-rules",
		"MAP *.example.test 127.0.0.1, MAP example.test 127.0.0.1"))}
	c.ann = s.token("ann")
	c.agent = s.connect(older, c.ann, nil)
	c.home = c.agent.shell("home", "true").session()
	if out := c.agent.shell("home", "dmesg | grep -c 'Starting gVisor'").Text; out != "1" {
		t.Fatalf("this is no sandbox: %s", out)
	}
	c.window = c.browsers()
	_, number, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	c.page = c.window.tab()
	c.page.expect("401")
	c.page.open("http://console.localhost:" + number + "/console/")
	c.page.fill("#token", c.ann)
	c.page.click("Log in")
	c.page.shows("Waits for you")
	c.screen(c.page, "sessions/"+c.home+"/terminal")
	c.page.see(`document.querySelector("[data-terminal]")`)
	c.page.types("echo works-$((6*7))\r")
	c.page.see(`document.querySelector(".xterm-rows").innerText.includes("works-42")`)
	port := c.servesPage()
	here, _, _ := strings.Cut(evaluate[string](c.page, "location.href"), "/console/")
	site := "http://console.example.test:" + number
	beside := c.window.tab()
	beside.expect("") // what this site refuses is in the browser's console
	beside.open(site + "/console/")
	evaluate[bool](beside, "true")
	if got := evaluate[string](beside, `fetch("/console/login", {method: "POST", headers: {"Sandlot-Console": "1",
		"Content-Type": "application/json"}, body: `+quoted(`{"token":"`+c.ann+`"}`)+`}).then(r => String(r.status))`); got != "403" {
		t.Errorf("a log-in on the site of the ports without TLS: %s", got)
	}
	for _, base := range []string{here, site} {
		c.attacks(port, base)
	}
}
