package test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"sandlot/internal/servers/serverstest"
)

// asksForHosts answers a question about a host with one click: the program that has asked waits, and goes on. Two
// programs of one command need one answer.
func (c *consoleUse) asksForHosts(web *web) {
	x := c.page
	c.screen(x, "activity") // the question leads to it from any screen
	x.see(`document.querySelector(".filters")`)
	evaluate[bool](x, `(window.asked = 0, new MutationObserver(() => {
		if (!window.asked && document.querySelector("nav .badge")) window.asked = Date.now();
	}).observe(document.body, {childList: true, subtree: true}), true)`)
	const command = `cd /tmp; rm -rf copy; date +%s%3N; git clone -q http://web.test:PORT/git/repo.git copy && ls copy && ` +
		`curl -sS -m 60 http://web.test:PORT/hello`
	done := c.runs(web.script(command))
	x.see("window.asked > 0")
	x.see(`document.querySelector(".waits a")?.innerText.includes("home asks: network.reach: web.test")`)
	x.click("Now1 waiting")
	x.shows(web.script("network.reach: web.test:PORT"))
	x.shows("home")
	c.picture(x, "host")
	if n := evaluate[int](x, `document.querySelectorAll("[data-question]").length`); n != 1 {
		c.t.Errorf("%d questions are shown, of which one waits", n)
	}
	if hits := web.Hits.Load(); hits > 0 {
		c.t.Errorf("%d requests before the answer", hits)
	}
	x.answers("web.test", "Once")
	clicked := time.Now()
	got := <-done
	var began int64
	if _, err := fmt.Sscan(got, &began); err != nil || !strings.Contains(got, "file\nhello from") {
		c.t.Fatalf("after one click the command printed %q", got)
	}
	c.t.Logf("flow 1: the question about a host is on the screen %d ms after the command began, and the agent has its answer "+
		"%d ms after the click", evaluate[int64](x, "window.asked")-began, time.Since(clicked).Milliseconds())
	// A no counts too: the program is refused at once, and the timeline says why.
	x.mouse(input.DispatchMouseEventTypeMouseMoved, [2]float64{1, 1})
	x.see(`!document.querySelector("[data-question]")`)
	done = c.runs(web.script("curl -sS -m 60 http://no.test:PORT/hello"))
	x.shows(web.script("network.reach: no.test:PORT"))
	x.answers("no.test", "No")
	if got := <-done; strings.Contains(got, "hello from") {
		c.t.Errorf("after a no: %q", got)
	}
	c.screen(x, "sessions/"+c.home+"/network")
	x.see(`document.querySelector("[data-cause=answered_no]")`)
}

// answers clicks on a button of the question that has a text, as often as a person has to: a click on what has just moved
// answers nothing.
func (x *tab) answers(text, button string) {
	x.t.Helper()
	question := `[...document.querySelectorAll("[data-question]:not(.ended)")].find(e => e.innerText.includes(` + quoted(text) + `))`
	place := `(e => { if (!e) return [0, 0]; e.scrollIntoView({block: "nearest"}); const r = e.getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2]; })([...(` + question + `?.querySelectorAll("button:not(:disabled)") ?? [])].find(e =>
		e.textContent.trim() === ` + quoted(button) + `))`
	x.see(question)
	for end := time.Now().Add(time.Minute); evaluate[bool](x, "!!"+question); time.Sleep(300 * time.Millisecond) {
		if at := evaluate[[2]float64](x, place); at != [2]float64{} {
			x.mouse(input.DispatchMouseEventTypeMouseMoved, at)
			x.clickAt(at)
		}
		if time.Now().After(end) {
			x.t.Fatalf("the question about %q is not answered:\n%s", text, x.text())
		}
	}
}

// runs has the agent run a command, and returns what it prints, also if it is refused.
func (c *consoleUse) runs(command string) chan string {
	done := make(chan string, 1)
	go func() {
		r, err := c.agent.try(context.Background(), "execute_command", args{"command": command, "session_id": c.home})
		if err != nil {
			done <- err.Error()
			return
		}
		done <- r.All
	}()
	return done
}

// TestConsoleFlows: by the keyboard alone, an agent's machine opens as a shell, and a server of the registry is added,
// logged in and tried. Then forks, snapshots, answers for always, terminals, an upload and a link for another browser.
func TestConsoleFlows(t *testing.T) {
	t.Parallel()
	bank := serverstest.NewProtected(t, 3600)
	at, err := url.Parse(bank.URL)
	if err != nil {
		t.Fatal(err)
	}
	entries := &registryUse{}
	entries.entries.Store(&map[string]string{"com.example/bank": fmt.Sprintf(`{"server": {"name": "com.example/bank",
		"title": "Bank", "description": "Tells what is left", "version": "1.0.0", "remotes": [{"type": "streamable-http",
		"url": %q}]}}`, bank.URL)})
	registry := httptest.NewServer(http.HandlerFunc(entries.ServeHTTP))
	t.Cleanup(registry.Close)
	s := prepare(t)
	s.settings(fmt.Sprintf("mcp_registries: [\"test=%s\"]\nnetwork:\n  allow_private: [{host: \"%s\", cidr: 127.0.0.0/8}]\n"+
		"policy:\n  rules:\n    - ask * shell.execute *ask-me*\n",
		registry.URL, at.Host))
	s.begin([]string{"SANDLOT_SNAPSHOTS=true"})
	c := &consoleUse{t: t, server: s, browsers: newBrowsers(t)}
	c.ann = s.token("ann")
	c.agent = s.connect(older, c.ann, nil)
	c.home = c.agent.shell("home", "echo made-by-the-agent > /workspace/note.txt").session()
	c.window = c.browsers()
	c.page = s.logIn(c.window, c.ann)
	c.opensTheMachine()
	c.addsAServer()
	c.forksALiveSession()
	c.answersAlways()
	c.opensTerminals()
	c.replacesAFile()
	c.goesBack()
	c.logsAnotherIn()
}

// tabTo presses the tab key until something of that name has the focus.
func (x *tab) tabTo(name string) {
	x.t.Helper()
	x.see(named("button, a, textarea", name))
	for range 80 {
		if evaluate[bool](x, `(e => (e?.getAttribute("aria-label") ?? e?.textContent ?? "").trim() === `+quoted(name)+
			`)(document.activeElement)`) {
			return
		}
		x.keys("\t")
	}
	x.t.Fatalf("no tab key leads to %q; the page shows\n%s", name, x.text())
}

// opensTheMachine opens the agent's session as a shell, sees its files and what it did, and gets out of the terminal.
func (c *consoleUse) opensTheMachine() {
	x := c.page
	began := time.Now()
	x.keys("gn")
	x.see(`document.querySelector(".card[data-row]")`)
	x.keys("j")
	x.see(`document.activeElement?.matches(".card[data-row]")`)
	x.keys("\r")
	x.see(`document.querySelector("[data-terminal]") && document.activeElement?.closest(".shell")`)
	x.types("cat note.txt; echo shell-$((6*7))\r")
	x.see(`document.querySelector(".xterm-rows").innerText.includes("shell-42")`)
	x.see(`document.querySelector(".xterm-rows").innerText.includes("made-by-the-agent")`)
	c.t.Logf("flow 2: the agent's machine is a shell, and a command has run, %d ms after the first key", time.Since(began).Milliseconds())
	// Out of the terminal, and to the other parts.
	x.keys("\x1b")
	x.keys("\t")
	x.see(`!document.activeElement?.closest(".shell")`)
	for _, part := range []struct{ name, shows string }{{"Timeline", "shell.execute"}, {"Results", "made-by-the-agent"},
		{"Files", "New folder"}} {
		x.tabTo(part.name)
		x.keys("\r")
		x.shows(part.shows)
	}
	x.see(`[...document.querySelectorAll("table [data-row]")].some(e => e.textContent.includes("note.txt"))`)
	for range 10 {
		x.keys("j")
		if evaluate[bool](x, `document.activeElement.textContent.includes("note.txt")`) {
			break
		}
	}
	x.keys("\r")
	x.see(`document.querySelector(".editor")?.value === "made-by-the-agent\n"`)
	x.tabTo("Content of note.txt")
	x.keys("\t") // a tab for the text
	x.see(`document.querySelector(".editor").value.includes("\t")`)
	x.keys("\x1b")
	x.keys("\t")
	x.tabTo("Save")
	x.keys("\r")
	x.shows("Saved")
	x.tabTo("Close")
	x.keys("\r")
	x.see(`!document.querySelector("dialog[open]") && document.activeElement?.textContent.includes("note.txt")`) // the focus is back
	// The palette leads into the terminal again.
	x.do(chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	x.see(`document.querySelector("[role=combobox]")`)
	x.keys("terminal of home")
	x.see(`document.querySelectorAll("[role=option]").length === 1`)
	x.keys("\r")
	x.see(`document.querySelector(".xterm-rows")?.innerText.includes("shell-42") && document.activeElement?.closest(".shell")`)
	x.keys("\x1b")
	x.keys("\t")
	x.see(`!document.activeElement?.closest(".shell")`)
}

// addsAServer adds a server of the registry, logs in there, whose steps are shown, and tries its tool.
func (c *consoleUse) addsAServer() {
	x := c.page
	began := time.Now()
	x.keys("gs")
	x.shows("Add a server")
	x.tabTo("Add from the registry")
	x.keys("\r")
	x.see(`document.activeElement?.id === "registry-words"`)
	x.keys("left")
	x.keys("\r")
	x.shows("1 found")
	for range 10 {
		if evaluate[bool](x, `document.activeElement?.matches(".card.entry")`) {
			break
		}
		x.keys("\t")
	}
	x.keys("\r")
	x.shows("It is reached at:")
	x.tabTo("Show the call")
	x.keys("\r")
	x.tabTo("Add it")
	x.keys("\r")
	x.shows("needs a log-in")
	c.picture(x, "login-needed")
	x.tabTo("Log in at bank")
	opened := chromedp.WaitNewTarget(x.ctx, func(info *target.Info) bool { return strings.Contains(info.URL, "/oauth/start/") })
	x.keys("\r")
	other := x.attach(opened)
	other.shows("Go on only if you are ann")
	c.picture(other, "login-begins")
	other.keys("\t")
	other.see(`document.activeElement?.textContent.startsWith("Go on to log in at")`)
	other.keys("\r")
	other.shows("Sandlot finishes the log-in now")
	c.picture(other, "login-finished")
	x.shows("connected")
	x.see(named("button", "Try balance")) // nobody has reloaded the page
	x.tabTo("Try balance")
	x.keys("\r")
	x.see(`document.querySelector("dialog[open]")`)
	x.tabTo("Call it")
	x.keys("\r")
	x.see(`document.querySelector("[data-result]")?.innerText.includes("42 are left")`)
	c.t.Logf("flow 3: a server of the registry is found, added, logged in and tried in %d ms", time.Since(began).Milliseconds())
	x.tabTo("Close")
	x.keys("\r")
	x.see(`document.activeElement?.getAttribute("aria-label") === "Try balance"`)
}

// attach returns the tab that a page has opened.
func (x *tab) attach(opened <-chan target.ID) *tab {
	x.t.Helper()
	select {
	case id := <-opened:
		ctx, end := chromedp.NewContext(x.ctx, chromedp.WithTargetID(id))
		x.t.Cleanup(end)
		other := &tab{t: x.t, ctx: ctx}
		if err := chromedp.Do(ctx); err != nil {
			x.t.Fatal(err)
		}
		return other
	case <-time.After(time.Minute):
		x.t.Fatal("no tab was opened")
		return nil
	}
}

// forksALiveSession forks a session whose interpreter and processes run: they go on in both, apart from each other.
func (c *consoleUse) forksALiveSession() {
	x := c.page
	c.agent.code("home", "n = 41; import subprocess; p = subprocess.Popen(['sleep', '3000'])")
	c.screen(x, "sessions/"+c.home+"/history")
	x.click("Fork")
	x.see(`location.hash.includes("/sessions/") && !location.hash.includes(` + quoted(c.home) + `)`)
	made := evaluate[string](x, `location.hash.split("/")[2]`)
	c.agent.want(made, "n += 1; print(n, p.poll())", "42 None")
	c.agent.want(c.home, "print(n, p.poll())", "41 None")
	x.see(`document.querySelector("[data-terminal]")`)
	x.types("cat note.txt; echo copy-$((6*7))\r")
	x.see(`document.querySelector(".xterm-rows").innerText.includes("copy-42")`)
	c.screen(x, "sessions/"+made+"/history")
	x.shows("Its parent is home")
	c.screen(x, "sessions/"+c.home+"/history")
	x.shows("Copies of it:")
	c.picture(x, "family")
}

// movesLargeFiles uploads and downloads a file of 1 GB: neither the server nor the page has it in memory.
func (c *consoleUse) movesLargeFiles() {
	x := c.page
	const size = 1 << 30
	folder := c.t.TempDir()
	given := filepath.Join(folder, "large.bin")
	sum := writeRandom(c.t, given, size)
	down := filepath.Join(folder, "down")
	x.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		context := chromedp.FromContext(ctx)
		_, err := cdp.Call(ctx, context.Browser, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
			Behavior: browser.SetDownloadBehaviorBehaviorAllow, BrowserContextID: context.BrowserContextID, DownloadPath: down})
		return chromedp.Void{}, err
	})
	c.screen(x, "sessions/"+c.home+"/files")
	x.see(named("button", "Upload"))
	ofServer := func() int64 { return memory(c.t, c.cmd.Process.Pid) }
	ofBrowser := func() int64 { return memoryOfTree(chromedp.FromContext(x.ctx).Browser.Process().Pid) }
	server, page := ofServer(), ofBrowser()
	most, stop := watch(ofServer)
	mostOfBrowser, stopBrowser := watch(ofBrowser)
	began := time.Now()
	x.do(chromedp.SetUploadFiles(chromedp.CSS("input[type=file]"), []string{given}))
	x.shows("Uploading large.bin")
	until(c.t, "the file is there", func() bool {
		return evaluate[bool](x, `document.querySelector("main").innerText.includes("large.bin\t1.1 GB") &&
			!document.querySelector("main").innerText.includes("Uploading")`)
	})
	up := time.Since(began)
	if got := c.agent.shell("home", "sha256sum /workspace/large.bin").Text; !strings.HasPrefix(got, sum) {
		c.t.Errorf("the file that was uploaded is %q, want %s", got, sum)
	}
	began = time.Now()
	x.click("Download large.bin")
	got := filepath.Join(down, "large.bin")
	until(c.t, "the file has come", func() bool {
		info, err := os.Stat(got)
		return err == nil && info.Size() == size
	})
	c.t.Logf("1 GB: up in %s, down in %s; the server had %d MiB, and at most %d; the browser had %d, and at most %d", up,
		time.Since(began), server>>20, most()>>20, page>>20, mostOfBrowser()>>20)
	stop()
	stopBrowser()
	if hash := sumOf(c.t, got); hash != sum {
		c.t.Errorf("the file that was downloaded is %s, want %s", hash, sum)
	}
	if m := most(); m > server+128<<20 {
		c.t.Errorf("the server had %d MiB, and before %d", m>>20, server>>20)
	}
	if m := mostOfBrowser(); m > page+300<<20 {
		c.t.Errorf("the browser had %d MiB, and before %d", m>>20, page>>20)
	}
	// It cannot be read as text whole.
	x.click("large.bin")
	x.shows("It is not text")
	x.click("Close")
	x.click("Delete large.bin")
	x.click("Delete")
	x.see(`!document.querySelector("main").innerText.includes("large.bin")`)
}

// memoryOfTree returns how many bytes of its own a process has, with those that it has begun.
func memoryOfTree(root int) (sum int64) {
	in := map[string]bool{fmt.Sprint(root): true}
	all, _ := filepath.Glob("/proc/[0-9]*/status") // in the order of names
	for again := true; again; {
		again = false
		for _, file := range all {
			pid := strings.Split(file, "/")[2]
			text, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			if _, parent, _ := strings.Cut(string(text), "PPid:"); !in[pid] && in[strings.Fields(parent + " x")[0]] {
				in[pid], again = true, true
			}
		}
	}
	for pid := range in {
		text, _ := os.ReadFile("/proc/" + pid + "/status")
		for _, kind := range []string{"RssAnon:", "RssShmem:"} {
			var kilobytes int64
			_, rest, _ := strings.Cut(string(text), kind)
			fmt.Sscan(rest, &kilobytes)
			sum += kilobytes << 10
		}
	}
	return sum
}

// watch returns the most that there has been of something since.
func watch(of func() int64) (most func() int64, stop func()) {
	now := make(chan int64)
	end, ended := make(chan struct{}), make(chan struct{})
	var highest int64
	go func() {
		defer close(ended)
		for {
			highest = max(highest, of())
			select {
			case now <- highest:
			case <-end:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
	return func() int64 {
			select {
			case m := <-now:
				return m
			case <-ended:
				return highest
			}
		}, func() {
			close(end)
			<-ended
		}
}

// writeRandom writes a file of random bytes, and returns its SHA-256.
func writeRandom(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, sum), rand.Reader, size); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// answersAlways answers for always, which stands on the screen Access, counts, and is taken back there.
func (c *consoleUse) answersAlways() {
	x := c.page
	const command = "echo ask-me-always"
	run := func() chan string { return c.runs(command) }
	c.screen(x, "")
	done := run()
	x.shows(command)
	x.answers(command, "Always")
	if got := <-done; !strings.Contains(got, "ask-me-always\n") {
		c.t.Errorf("after a yes for always: %q", got)
	}
	if got := <-run(); !strings.Contains(got, "ask-me-always\n") {
		c.t.Errorf("the yes does not count always: %q", got)
	}
	c.screen(x, "access")
	x.click("Withdraw shell.execute " + command)
	x.see(`!document.querySelector("[data-answer]")`)
	c.screen(x, "")
	done = run()
	x.answers(command, "No")
	if got := <-done; strings.Contains(got, "ask-me-always\n") {
		c.t.Errorf("after a no: %q", got)
	}
	c.screen(x, "activity")
	const outcome = `[...document.querySelectorAll(".timeline li")].find(e => e.innerText.includes("consent.ask") && e.querySelector(".state.%s"))`
	x.see(fmt.Sprintf(outcome, "good"))
	x.see(fmt.Sprintf(outcome, "calm"))
	if evaluate[bool](x, "!!"+fmt.Sprintf(outcome, "bad")) {
		c.t.Error("an answer is shown as a failure")
	}
}

// opensTerminals opens a second terminal, and closes it. What a program prints gives the page no title.
func (c *consoleUse) opensTerminals() {
	x := c.page
	c.screen(x, "sessions/"+c.home+"/terminal")
	x.see(`document.querySelector("[data-terminal]")`)
	first := evaluate[string](x, `document.querySelector("[data-terminal]").dataset.terminal`)
	x.click("New terminal")
	x.see(`document.querySelector("[data-terminal]")?.dataset.terminal !== ` + quoted(first) +
		` && document.activeElement?.closest("[data-terminal]") && document.querySelector(".xterm-rows").innerText.trim() !== ""`)
	x.types(`printf '\033]0;hit\007ok-%s\n' $((6*7))` + "\r")
	x.see(`document.querySelector(".xterm-rows").innerText.includes("ok-42")`)
	if title := evaluate[string](x, "document.title"); strings.Contains(title, "hit") {
		c.t.Errorf("a program has called the page %q", title)
	}
	x.click("Close this one")
	x.see(`document.querySelector("[data-terminal]")?.dataset.terminal === ` + quoted(first))
}

// replacesAFile uploads a file whose name is taken, which is replaced after a question alone.
func (c *consoleUse) replacesAFile() {
	x := c.page
	x.expect("412")
	c.agent.shell("home", "echo old > /workspace/taken.txt")
	given := filepath.Join(c.t.TempDir(), "taken.txt")
	if err := os.WriteFile(given, []byte("new\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.screen(x, "sessions/"+c.home+"/files")
	x.shows("taken.txt")
	x.do(chromedp.SetUploadFiles(chromedp.CSS("input[type=file]"), []string{given}))
	x.shows("Replace taken.txt?")
	if got := c.agent.shell("home", "cat /workspace/taken.txt").Text; !strings.HasPrefix(got, "old") {
		c.t.Errorf("before the answer the file has %q", got)
	}
	x.click("Replace it")
	until(c.t, "the file is replaced", func() bool {
		return strings.HasPrefix(c.agent.shell("home", "cat /workspace/taken.txt").Text, "new")
	})
}

// goesBack goes back to a snapshot: variables and files are as they were then.
func (c *consoleUse) goesBack() {
	x := c.page
	c.agent.code("home", "state = 'then'; open('/workspace/state.txt', 'w').write('then')")
	c.screen(x, "sessions/"+c.home+"/history")
	x.fill("#snapshot", "then")
	x.click("Take a snapshot")
	x.see(named("button", "Go back"))
	c.agent.code("home", "state = 'now'; open('/workspace/state.txt', 'w').write('now')")
	x.click("Go back")
	x.shows("Go back to then?")
	x.see(`(() => { const all = [...document.querySelectorAll("dialog[open] button.danger")]; all.at(-1).click(); return true; })()`)
	until(c.t, "the session is as it was", func() bool {
		r, err := c.agent.try(c.t.Context(), "execute_code", args{"code": "print(state, open('/workspace/state.txt').read())",
			"session_id": "home"})
		return err == nil && strings.Contains(r.Text, "then then")
	})
	x.see(`document.querySelector("[data-terminal]")`) // the page has gone to the session
	c.screen(x, "sessions/"+c.home+"/history")
	x.see(`document.querySelector("dialog[open]") || (` + named("button", "Remove") + `?.click(), false)`)
	x.see(`(` + named("button.danger", "Remove") + `)?.click() === undefined && !document.querySelector("dialog[open]")`)
	x.shows("No snapshot of this session.")
}

// logsAnotherIn makes a link on the screen Connect, by which another browser is the same user.
func (c *consoleUse) logsAnotherIn() {
	x := c.page
	c.screen(x, "connect")
	x.click("Make a link")
	x.see(`[...document.querySelectorAll(".command pre")].at(-1)?.innerText.includes("#code=")`)
	link := evaluate[string](x, `[...document.querySelectorAll(".command pre")].at(-1).innerText`)
	other := c.browsers().tab()
	other.open(strings.TrimSpace(link))
	other.see(`document.querySelector(".who")?.textContent.includes("ann")`)
}
