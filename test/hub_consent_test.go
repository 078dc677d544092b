//lint:file-ignore SA1019 clients of the older era have sampling and logging

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// user is somebody who is asked.
type user struct {
	mu     sync.Mutex
	action string
	says   any
	think  time.Duration
	asked  []string
}

func (u *user) answers(action string, says any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.action, u.says, u.asked = action, says, nil
}

func (u *user) questions() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked
}

func (u *user) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult,
		error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.asked = append(u.asked, r.Params.Message)
		time.Sleep(u.think)
		res := &mcp.ElicitResult{Action: u.action}
		if u.says != nil {
			res.Content = map[string]any{"decision": u.says}
		}
		return res, nil
	}}
}

// code is the error_code of a fault.
func code(err error) string {
	var e *jsonrpc.Error
	var d struct {
		Code string `json:"error_code"`
	}
	if errors.As(err, &e) {
		_ = json.Unmarshal(e.Data, &d) // none is ""
	}
	return d.Code
}

// TestConsent: with mcp_consent: ask nothing is installed, started or connected
// before its user has agreed to exactly that, in both eras.
func TestConsent(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_MCP_CONSENT=ask")
	token := s.token("ann")
	s.put(token, "odd.py")
	for _, era := range []string{older, newer} {
		t.Run(era, func(t *testing.T) {
			u := &user{}
			c := s.connect(era, token, u.options())
			name := "odd " + era
			runs := func() string {
				return strings.TrimSpace(c.shell("home",
					"ps ax -o args | grep '[o]dd.py'; ls /workspace/external-mcp 2>/dev/null; true").Text)
			}
			for what, no := range map[string][2]any{"deny": {"accept", "deny"}, "decline": {"decline", nil},
				"cancel": {"cancel", nil}, "no decision": {"accept", nil}, "another answer": {"accept", "sure"}} {
				if what == "another answer" && era == newer {
					continue // this client does not send it
				}
				u.answers(no[0].(string), no[1])
				r := c.odd(name, "plain", args{"env": args{"ODD_KEY": "secret value"}})
				if !r.IsError || r.Fields["success"] != false || r.Fields["declined"] != true ||
					!strings.Contains(r.Text, "nothing was installed, started or changed") {
					t.Errorf("%s: %v\n%s", what, r.Fields, r.All)
				}
				if q := u.questions(); len(q) != 1 || !strings.Contains(q[0], "python3 /workspace/odd.py plain 'odd "+
					era+"'") || !strings.Contains(q[0], "ODD_KEY") || strings.Contains(q[0], "secret value") {
					t.Errorf("%s: asked %q", what, q)
				}
				if c.state(name) != nil || strings.Contains(runs(), "odd.py") {
					t.Fatalf("%s: what was refused is there: %v\n%s", what, c.state(name), runs())
				}
			}
			u.answers("decline", nil)
			r := c.call("auto_install_and_connect_mcp",
				args{"name": "mem", "install": args{"type": "npm", "spec": "some-package"}})
			if q := u.questions(); !r.IsError || r.Fields["declined"] != true || len(q) != 1 ||
				!strings.Contains(q[0], "npm install --prefix /workspace/external-mcp/mem") {
				t.Errorf("installing: asked %q, %s", q, r.All)
			}
			if got := runs(); got != "" {
				t.Errorf("what was refused left %q", got)
			}

			u.answers("accept", "allow")
			u.think = 3 * time.Second // longer than any call's step
			r = c.odd(name, "plain", args{"env": args{"ODD_KEY": "secret value"}})
			u.think = 0
			if r.IsError || r.Fields["success"] != true || r.Fields["toolCount"] != 12.0 || len(u.questions()) != 1 {
				t.Fatalf("allowed: %v, asked %q", r.Fields, u.questions())
			}
			if got := c.call(r.exposed(t, "env"), nil); !strings.Contains(got.Text, "secret value") {
				t.Errorf("its environment: %q", got.All)
			}
			u.answers("decline", nil) // whoever is asked now says no
			if r := c.odd(name, "plain", args{"env": args{"ODD_KEY": "other"}}); r.IsError || len(u.questions()) > 0 {
				t.Errorf("the same again: asked %q, %s", u.questions(), r.All)
			}
			if r := c.call("restart_external_mcp", args{"name": name, "env": args{"ODD_KEY": "third"}}); r.IsError ||
				len(u.questions()) > 0 {
				t.Errorf("a restart: asked %q, %s", u.questions(), r.All)
			}
			if r := c.call("restart_external_mcp", args{"name": name, "env": args{"ODD_MORE": "x"}}); !r.IsError ||
				len(u.questions()) != 1 || !strings.Contains(u.questions()[0], "ODD_MORE") {
				t.Errorf("a restart with a further variable: asked %q, %s", u.questions(), r.All)
			}
			u.answers("decline", nil)
			if r := c.odd(name, "banner", args{"env": args{"ODD_KEY": "x"}}); !r.IsError || len(u.questions()) != 1 ||
				!strings.Contains(u.questions()[0], "Instead of: ") {
				t.Errorf("other arguments: asked %q, %s", u.questions(), r.All)
			}
			if got := c.call(r.exposed(t, "env"), nil); !strings.Contains(got.Text, "third") ||
				strings.Contains(got.Text, "ODD_MORE") {
				t.Errorf("what was there: %q", got.All)
			}
			c.call("disconnect_external_mcp", args{"name": name, "delete": true})
			if r := c.odd(name, "plain", nil); !r.IsError {
				t.Errorf("one that was removed: %s", r.All)
			}
		})
	}
	t.Run("who cannot be asked", func(t *testing.T) {
		connect := args{"name": "x", "command": "python3", "args": []string{"/workspace/odd.py"}}
		for _, era := range []string{older, newer} {
			_, err := s.connect(era, token, nil).try(t.Context(), "connect_external_mcp", connect)
			if code(err) != "FORBIDDEN" || !strings.Contains(err.Error(), "cannot ask") {
				t.Errorf("%s: %v", era, err)
			}
		}
		auth := []string{"Authorization", "Bearer " + token}
		if r := s.bare("connect_external_mcp", connect, auth...); r.Error == nil ||
			r.Error.Data["error_code"] != "FORBIDDEN" || !strings.Contains(asJSON(r.Error.Data),
			"sandlot mcp add x -- python3 /workspace/odd.py") {
			t.Errorf("a bare call: %+v", r)
		}
		if status, _, body := s.post("/v1/tools/connect_external_mcp", asJSON(connect), auth...); status != 403 ||
			!strings.Contains(body, "FORBIDDEN") {
			t.Errorf("over HTTP: %d %s", status, body)
		}
		if row := s.connect(older, token, nil).state("x"); row != nil {
			t.Errorf("it is there: %v", row)
		}
	})
	t.Run("the local user is told", func(t *testing.T) {
		if out, errs, code := s.cli("mcp", "add", "own", "--", "python3", "/workspace/none.py"); code == 0 ||
			strings.Contains(errs, "consent") || !strings.Contains(errs, "did not start") {
			t.Errorf("%d %s%s", code, out, errs)
		}
	})
}

// TestConsentOnTerminal: on the command line it is the one at the terminal who
// is asked.
func TestConsentOnTerminal(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_MCP_CONSENT=ask")
	token := s.token("ann")
	s.put(token, "odd.py")
	// with runs a command as ann; what is typed, if anything, is typed at a
	// terminal when that asks.
	with := func(typed string, more ...string) (string, string, int) {
		argv := append([]string{s.program, "--server", s.URL, "mcp"}, more...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = append(s.env, "SANDLOT_TOKEN="+token)
		var out, errs bytes.Buffer
		if typed == "" {
			cmd.Stdout, cmd.Stderr = &out, &errs
			_ = cmd.Run() // the code says it
			return out.String(), errs.String(), cmd.ProcessState.ExitCode()
		}
		terminal, err := pty.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer terminal.Close()
		for b := make([]byte, 4096); err == nil; {
			var n int
			n, err = terminal.Read(b) // an error is its end
			if out.Write(b[:n]); bytes.Contains(out.Bytes(), []byte("[y/N]")) && typed != "" {
				fmt.Fprintln(terminal, typed)
				typed = ""
			}
		}
		_ = cmd.Wait()
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	add := []string{"add", "odd", "--env", "ODD_KEY=secret value", "--", "python3", "/workspace/odd.py"}
	listed := func() bool { out, _, _ := with("", "list"); return strings.Contains(out, "odd") }
	if out, errs, code := with("", add...); code != 1 || !strings.Contains(errs, "Runs: python3 /workspace/odd.py") ||
		!strings.Contains(errs, "--yes") || !strings.Contains(out, "nothing was installed") || listed() {
		t.Errorf("nobody to ask: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("n", add...); code != 1 || !strings.Contains(out, "Do you consent?") ||
		!strings.Contains(out, "nothing was installed") || listed() {
		t.Errorf("no: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("y", add...); code != 0 || !strings.Contains(out, "Variables: ODD_KEY") ||
		strings.Contains(out, "secret value") || !strings.Contains(out, "odd is connected") || !listed() {
		t.Errorf("yes: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("", add...); code != 0 || strings.Contains(errs, "Runs:") {
		t.Errorf("the same again: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("", append([]string{"add", "second", "--yes", "--json"}, add[2:]...)...); code != 0 ||
		!strings.Contains(errs, "Runs: python3 /workspace/odd.py") || !json.Valid([]byte(out)) {
		t.Errorf("--yes: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("", "add", "bad", "--yes", "--", "python3", "/workspace/odd.py", "exit"); code != 1 ||
		!strings.Contains(errs, "exit code 7") || !strings.Contains(errs, "- Check its command") ||
		!strings.Contains(errs, "cannot find my configuration") {
		t.Errorf("one that does not start: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("", "restart", "odd", "--env", "ODD_MORE=x"); code != 1 ||
		!strings.Contains(errs, "ODD_MORE") {
		t.Errorf("a further variable: %d\n%s\n%s", code, out, errs)
	}
	if out, errs, code := with("", "restart", "odd", "--env", "ODD_MORE=x", "--yes"); code != 0 {
		t.Errorf("a further variable, with --yes: %d\n%s\n%s", code, out, errs)
	}
}

// TestConsentDenied: with mcp_consent: deny the operator's servers are all that
// there are.
func TestConsentDenied(t *testing.T) {
	t.Parallel()
	// the local user's would be starting when the test ends
	s := startConfigured(t, "mcp_consent: deny\nmcp:\n  theirs: {command: python3, args: [/workspace/odd.py, plain, "+
		"theirs], principals: [ann]}\n")
	token := s.token("ann")
	s.put(token, "odd.py")
	u := &user{action: "accept", says: "allow"}
	for who, token := range map[string]string{"ann": token, "the local user": ""} {
		if token == "" {
			if out, errs, code := s.cli("mcp", "add", "x", "--yes", "--", "python3", "/workspace/odd.py"); code != 1 ||
				!strings.Contains(errs, "forbidden by the operator") {
				t.Errorf("%s: %d %s%s", who, code, out, errs)
			}
			continue
		}
		for _, era := range []string{older, newer} {
			c := s.connect(era, token, u.options())
			for name, a := range map[string]args{"connect_external_mcp": {"name": "x", "command": "python3",
				"args": []string{"/workspace/odd.py"}}, "auto_install_and_connect_mcp": {"name": "x",
				"install": args{"type": "npm", "spec": "a"}}} {
				if _, err := c.try(t.Context(), name, a); code(err) != "FORBIDDEN" ||
					!strings.Contains(err.Error(), "forbidden by the operator") {
					t.Errorf("%s of %s: %v", name, who, err)
				}
			}
			if got := c.call("ext_theirs_say", args{"text": "x"}); got.Text != "theirs: x" {
				t.Errorf("the operator's: %q", got.All)
			}
			if got := c.call("sandbox_shell_exec", args{"command": "echo free"}); got.Text != "free" {
				t.Errorf("the shell: %q", got.All)
			}
		}
	}
	if len(u.questions()) > 0 {
		t.Errorf("asked %q", u.questions())
	}
}

// TestConsentIsFollowed: a change of mcp_consent holds while the server runs.
func TestConsentIsFollowed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	rewrite(t, file, "mcp_consent: deny\n")
	s := start(t, "SANDLOT_CONFIG="+file)
	token := s.token("ann")
	s.put(token, "odd.py")
	u := &user{action: "accept", says: "allow"}
	c := s.connect(older, token, u.options())
	connect := func(name string) error {
		_, err := c.try(t.Context(), "connect_external_mcp",
			args{"name": name, "command": "python3", "args": []string{"/workspace/odd.py", "plain", name}})
		return err
	}
	if err := connect("one"); code(err) != "FORBIDDEN" {
		t.Errorf("denied: %v", err)
	}
	rewrite(t, file, "mcp_consent: ask\n")
	until(t, "the user is asked", func() bool { return connect("one") == nil })
	if n := len(u.questions()); n != 1 {
		t.Errorf("asked %d times: %q", n, u.questions())
	}
	if !strings.Contains(s.log.String(), "changed=mcp_consent") {
		t.Errorf("the log does not say so\n%s", s.log)
	}
	rewrite(t, file, "mcp_consent: deny\n")
	n := 0
	until(t, "it is denied again", func() bool { n++; return code(connect(fmt.Sprintf("more-%d", n))) == "FORBIDDEN" })
}

// TestClientHeadersStay: what a client sends to Sandlot beside its request goes
// to no server.
func TestClientHeadersStay(t *testing.T) {
	t.Parallel()
	l := listen(t)
	inner := mcp.NewServer(&mcp.Implementation{Name: "curious", Version: "1"}, nil)
	inner.AddTool(&mcp.Tool{Name: "look", InputSchema: map[string]any{"type": "object"}}, nothing("seen"))
	var mu sync.Mutex
	var seen []http.Header
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return inner }, nil)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Clone())
		mu.Unlock()
		handler.ServeHTTP(w, r)
	})}
	go web.Serve(l)
	t.Cleanup(func() { web.Close() })
	s := startConfigured(t, fmt.Sprintf("network:\n  allow_private: [{host: \"127.0.0.1:%s\", cidr: "+
		"127.0.0.0/8}]\nmcp:\n  theirs: {url: \"http://%s/mcp\", headers: {X-Operator: \"of the operator\"}}\n",
		strings.Split(l.Addr().String(), ":")[1], l.Addr()))
	token := s.token("ann")
	own := map[string]string{"Cookie": "session=crumbs", "Proxy-Authorization": "Basic cHJveHk6c2VjcmV0",
		"X-Api-Key": "key-of-the-client", "Sandlot-Note": "somebody",
		"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7", "Referer": "https://client.example/page",
		"User-Agent": "client-of-ann", "X-Operator": "of ann"}
	for _, era := range []string{older, newer} {
		c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		session, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp",
			HTTPClient: &http.Client{Transport: adding{bearer{token, transport}, own}}},
			&mcp.ClientSessionOptions{ProtocolVersion: era})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close() })
		cl := &client{t, session}
		r := cl.call("connect_external_mcp", args{"name": "mine", "url": "http://" + l.Addr().String() + "/mcp",
			"headers": args{"X-Mine": "of the user"}})
		for _, name := range []string{r.exposed(t, "look"), "ext_theirs_look"} {
			if got := cl.call(name, nil); got.Text != "seen" {
				t.Fatalf("%s says %q", name, got.All)
			}
		}
	}
	auth := []string{"Authorization", "Bearer " + token}
	for k, v := range own {
		auth = append(auth, k, v)
	}
	if status, _, body := s.post("/v1/tools/ext_theirs_look", "{}", auth...); status != 200 {
		t.Fatalf("over HTTP: %d %s", status, body)
	}
	if r := s.bare("ext_theirs_look", args{}, auth...); r.Error != nil {
		t.Fatalf("a bare call: %+v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	declared := map[string]bool{}
	for _, h := range seen {
		declared[h.Get("X-Mine")], declared[h.Get("X-Operator")] = true, true
		text := fmt.Sprint(h)
		for _, secret := range []string{token, "crumbs", "cHJveHk", "key-of-the-client", "somebody", "192.0.2.7",
			"client.example", "client-of-ann", "of ann"} {
			if strings.Contains(text, secret) {
				t.Errorf("it was sent %q: %v", secret, h)
			}
		}
		for _, name := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
			if h.Get(name) != "" {
				t.Errorf("it was sent %s: %v", name, h)
			}
		}
	}
	if !declared["of the user"] || !declared["of the operator"] {
		t.Errorf("what was declared for it did not come: %v", declared)
	}
}

// adding adds headers to each request.
type adding struct {
	next http.RoundTripper
	own  map[string]string
}

func (a adding) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for k, v := range a.own {
		r.Header.Set(k, v)
	}
	return a.next.RoundTrip(r)
}

// TestLoginOfConfigured: where a configured server's log-in leads is reached if
// it is public or listed, whoever the server itself is.
func TestLoginOfConfigured(t *testing.T) {
	t.Parallel()
	led := make(chan string, 100)
	away := listen(t)
	place := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		led <- r.URL.Path
		w.WriteHeader(http.StatusNotFound)
	})}
	go place.Serve(away)
	t.Cleanup(func() { place.Close() })
	l := listen(t)
	came := make(chan string, 100)
	bank := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came <- r.URL.Path
		w.Header().Set("WWW-Authenticate",
			fmt.Sprintf(`Bearer resource_metadata="http://%s/.well-known/oauth-protected-resource/mcp"`, away.Addr()))
		w.WriteHeader(http.StatusUnauthorized)
	})}
	go bank.Serve(l)
	t.Cleanup(func() { bank.Close() })
	section := fmt.Sprintf("mcp:\n  bank: {url: \"http://%s/mcp\"}\n", l.Addr())
	for name, tt := range map[string]struct {
		network string
		want    bool
	}{
		"not listed": {"", false},
		"listed": {fmt.Sprintf("network:\n  allow_private: [{host: \"127.0.0.1:%s\", cidr: 127.0.0.0/8}]\n",
			strings.Split(away.Addr().String(), ":")[1]), true},
	} {
		t.Run(name, func(t *testing.T) {
			for len(led) > 0 {
				<-led
			}
			for len(came) > 0 {
				<-came
			}
			s := startConfigured(t, tt.network+section)
			c := s.connect(older, "", nil)
			_, err := c.try(t.Context(), "restart_external_mcp", args{"name": "bank"})
			if err == nil || len(came) == 0 {
				t.Fatalf("%v; %d requests to the server itself", err, len(came))
			}
			if (len(led) > 0) != tt.want {
				t.Errorf("%d requests to where it leads; %v", len(led), err)
			}
		})
	}
}
