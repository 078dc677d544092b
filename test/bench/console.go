package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// consoleBench is a server with a browser on the same machine.
type consoleBench struct {
	*server
	browser context.Context
	home    string

	paint, ready, echo  samples
	closed, open, flood samples // calls of another client
	before, with        int64   // bytes of the server's process
}

// console measures the web console in a real browser, and what it costs others.
func console(b *bench) (section, error) {
	program, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		return section{}, fmt.Errorf("%w; run `make tools`", err)
	}
	dir, err := tempDir()
	if err != nil {
		return section{}, err
	}
	defer os.RemoveAll(dir)
	all, cancel := chromedp.NewExecAllocator(b.ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(filepath.Join(dir, "profile")))...)
	defer cancel()
	browser, end := chromedp.NewContext(all)
	defer end()
	if err := chromedp.Do(browser); err != nil {
		return section{}, err
	}
	c := &consoleBench{browser: browser}
	err = b.with(func(s *server) error {
		c.server = s
		return c.run()
	}, "SANDLOT_POOL_SIZE=0")
	if err != nil {
		return section{}, err
	}
	return c.section(), nil
}

func (c *consoleBench) run() error {
	mine := c.bare("")
	defer mine.close()
	r, err := mine.call(c.ctx, "execute_command", args{"command": "true", "session_id": "home"})
	if err != nil {
		return err
	}
	if c.home = r.session; c.home == "" {
		return errors.New("the home session has no id")
	}
	for i := range pick(c.bench, 31, 3) {
		if err := c.firstPage(i > 0); err != nil {
			return err
		}
	}
	if c.before, err = proportional(c.cmd.Process.Pid); err != nil {
		return err
	}
	if err := c.types(); err != nil {
		return err
	}
	return c.beside()
}

// tab opens a screen in a browser of its own, without anything cached. Close it by end.
func (c *consoleBench) tab(screen, until string) (tab context.Context, end func(), err error) {
	tab, end = chromedp.NewContext(c.browser, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(tab, chromedp.Navigate(c.url+"/console/#/"+screen)); err != nil {
		end()
		return nil, nil, err
	}
	if err := seen(tab, until); err != nil {
		end()
		return nil, nil, err
	}
	return tab, end, nil
}

// seen waits until an expression is true in a page.
func seen(tab context.Context, expression string) error {
	ctx, cancel := context.WithTimeout(tab, time.Minute)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`new Promise(done => {
		const look = () => (`+expression+`) ? done(true) : setTimeout(look, 5);
		look();
	})`, chromedp.EvalAwaitPromise))
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", expression, err)
	}
	return nil
}

const nowIsThere = `document.body?.innerText.includes("No question waits for an answer.")`

// firstPage measures the first page. The first one does not count.
func (c *consoleBench) firstPage(counts bool) error {
	began := time.Now()
	tab, end, err := c.tab("", nowIsThere)
	if err != nil {
		return err
	}
	took := time.Since(began)
	defer end()
	ms, err := chromedp.Run(tab, chromedp.Evaluate[float64](`new Promise(done => {
		const look = () => {
			const e = performance.getEntriesByName("first-contentful-paint")[0];
			e ? done(e.startTime) : setTimeout(look, 5);
		};
		look();
	})`, chromedp.EvalAwaitPromise))
	if err != nil || !counts {
		return err
	}
	c.paint = append(c.paint, time.Duration(ms*float64(time.Millisecond)))
	c.ready = append(c.ready, took)
	return nil
}

const terminalIsThere = `document.querySelector("[data-terminal]") && document.querySelector(".xterm-rows")?.innerText.trim()`

// types measures the time from a key to its echo on the screen, and the server's memory with an open terminal.
func (c *consoleBench) types() error {
	tab, end, err := c.tab("sessions/"+c.home+"/terminal", terminalIsThere)
	if err != nil {
		return err
	}
	defer end()
	const watch = `(() => {
		const rows = document.querySelector(".xterm-rows");
		let pressed = 0;
		window.echoes = [];
		addEventListener("keydown", () => (pressed = performance.now()), true);
		new MutationObserver(() => {
			if (pressed) window.echoes.push(performance.now() - pressed);
			pressed = 0;
		}).observe(rows, {childList: true, characterData: true, subtree: true});
		return true;
	})()`
	if _, err := chromedp.Run(tab, chromedp.Evaluate[bool](watch)); err != nil {
		return err
	}
	for i := range pick(c.bench, 200, 10) {
		if err := press(tab, i%2 == 0); err != nil {
			return err
		}
		if err := seen(tab, fmt.Sprintf("window.echoes.length > %d", i)); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // until all of this echo is drawn
	}
	all, err := chromedp.Run(tab, chromedp.Evaluate[[]float64]("window.echoes"))
	if err != nil {
		return err
	}
	for _, ms := range all {
		c.echo = append(c.echo, time.Duration(ms*float64(time.Millisecond)))
	}
	c.with, err = proportional(c.cmd.Process.Pid)
	return err
}

// press presses a letter, or the key that removes it.
func press(tab context.Context, letter bool) error {
	key := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Text: "x", Key: "x",
		WindowsVirtualKeyCode: 'X'}
	if !letter {
		key.Text, key.Key, key.Code, key.WindowsVirtualKeyCode = "", "Backspace", "Backspace", 8
	}
	return chromedp.Do(tab, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, key)
		if err == nil {
			key.Type, key.Text = input.DispatchKeyEventTypeKeyUp, ""
			_, err = cdp.Call(ctx, t, input.DispatchKeyEvent, key)
		}
		return chromedp.Void{}, err
	})
}

// beside measures another client's calls without a console, with one that is open, and with one whose terminal prints for
// all that it can.
func (c *consoleBench) beside() error {
	other, err := c.connect(older, "")
	if err != nil {
		return err
	}
	defer other.close()
	id, err := open(c.ctx, other)
	if err != nil {
		return err
	}
	calls := func(into *samples) error {
		for range pick(c.bench, 200, 10) {
			if err := into.take(func() error { return onePlusOne(c.ctx, other, id) }); err != nil {
				return err
			}
		}
		return nil
	}
	for range pick(c.bench, 3, 1) {
		if err := calls(&c.closed); err != nil {
			return err
		}
		_, end, err := c.tab("", nowIsThere)
		if err != nil {
			return err
		}
		err = calls(&c.open)
		end()
		if err != nil {
			return err
		}
		if err := c.flooded(calls); err != nil {
			return err
		}
	}
	return nil
}

// flooded makes calls while a terminal prints.
func (c *consoleBench) flooded(calls func(*samples) error) error {
	tab, end, err := c.tab("sessions/"+c.home+"/terminal", terminalIsThere)
	if err != nil {
		return err
	}
	defer end()
	typed := func(text string) error {
		return chromedp.Do(tab, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
			_, err := cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: text})
			if err == nil {
				enter := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Text: "\r", Key: "Enter",
					Code: "Enter", WindowsVirtualKeyCode: 13}
				_, err = cdp.Call(ctx, t, input.DispatchKeyEvent, enter)
			}
			return chromedp.Void{}, err
		})
	}
	if err := typed("timeout 60 yes flooded"); err != nil {
		return err
	}
	if err := seen(tab, `document.querySelector(".xterm-rows").innerText.includes("flooded\nflooded")`); err != nil {
		return err
	}
	err = calls(&c.flood)
	r, stop := c.cli("exec", "--session", c.home, "--", "sh", "-c", "kill $(pidof yes) || true")
	if stop != nil {
		stop = fmt.Errorf("%w: %s", stop, strings.TrimSpace(r))
	}
	return errors.Join(err, stop)
}

// section is what was measured. In the budget: 100 ms to the first paint, and 30 ms from a key to its echo.
func (c *consoleBench) section() section {
	page := timings("on the same machine")
	page.add("first paint of the first page", c.paint, c.paint.against(goal{50, 100 * time.Millisecond}))
	page.add("the first page with all that it shows, in a new browser profile", c.ready)
	page.add("from a key to its echo in a terminal", c.echo, c.echo.against(goal{50, 30 * time.Millisecond}))
	others := timings("a warm call of another client")
	others.add("without a console", c.closed)
	others.add("with one that is open", c.open, c.open.against(goal{99, c.closed.p(99) + 5*time.Millisecond})+
		" (5 ms more than without)")
	others.add("with one whose terminal prints without an end", c.flood)
	memory := table{Head: []string{"the server's process", "memory"}}
	memory.row("before the first terminal", fmt.Sprintf("%.1f MB", float64(c.before)/1e6))
	memory.row("with a console that shows a terminal", fmt.Sprintf("%.1f MB", float64(c.with)/1e6))
	return section{title: "The web console",
		method: "Chromium's headless shell beside the server, over the loopback, without TLS and without a log-in. First " +
			"paint is the browser's `first-contentful-paint` with nothing in its caches. From a key to its echo: from the " +
			"page's `keydown` until the rows of the terminal change, in a shell of the home. Memory is `Pss`. Another client " +
			"calls `1+1` in a session of its own, one call after the other.",
		tables: []table{page, others, memory}}
}
