package test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Secrets with characters that encodings change. hidden has one for each way in which Sandlot gets one.
var hidden = map[string]string{
	"a stored secret":                `hunter2-stored+/="<&>é`,
	"another value of it":            `hunter2-again+/="<&>é`,
	"a secret that was removed":      `hunter2-removed+/="<&>`,
	"a bound secret":                 `hunter2-bound+/="<&>`,
	"a header of a connection":       `hunter2-header+/="<&>`,
	"a variable of a connection":     `hunter2-variable+/="<&>`,
	"a header in the settings":       `hunter2-settings+/="&`,
	"a variable in the settings":     `hunter2-operator+/="&`,
	"standard input of a command":    `hunter2-stdin+/="<&>`,
	"a variable of a command":        `hunter2-command+/="<&>`,
	"a variable of a session":        `hunter2-session+/="<&>`,
	"an argument of an unknown tool": `hunter2-argument+/="<&>`,
}

// writings returns the ways in which a value may be written.
func writings(value string) map[string]string {
	quoted, _ := json.Marshal(value)
	all := map[string]string{"as it is": value, "JSON": strings.Trim(string(quoted), `"`),
		"quoted": strings.Trim(strconv.Quote(value), `"`), "in a query": url.QueryEscape(value),
		"in a path": url.PathEscape(value), "hex": hex.EncodeToString([]byte(value)),
		"HEX": strings.ToUpper(hex.EncodeToString([]byte(value)))}
	for shift := range 3 {
		for name, e := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding,
			"base64url": base64.RawURLEncoding} {
			text := e.EncodeToString([]byte(strings.Repeat("x", shift) + value))
			first := (shift*8 + 5) / 6 // the characters before it have bits of what stands before the value
			all[fmt.Sprint(name, shift)] = text[first : len(text)-1]
		}
	}
	return all
}

// nowhere fails the test when a text has one of the values, however it is written.
func nowhere(t *testing.T, where, text string, values map[string]string) {
	t.Helper()
	for what, value := range values {
		for how, w := range writings(value) {
			if i := strings.Index(text, w); i >= 0 {
				t.Errorf("%s has %s (%s): …%.300q", where, what, how, text[max(0, i-200):])
			}
		}
	}
}

// secretive is a user of a server with all kinds of secrets.
type secretive struct {
	t      *testing.T
	s      *server
	token  string
	remote string // the address of an MCP server that wants a header
	failed atomic.Bool
	seen   atomic.Int32 // requests to it that had their header
}

// startRemote starts an MCP server that wants a header, and fails when it is told to.
func (u *secretive) startRemote() {
	l := listen(u.t)
	inner := mcp.NewServer(&mcp.Implementation{Name: "remote", Version: "1"}, nil)
	inner.AddTool(&mcp.Tool{Name: "look", InputSchema: map[string]any{"type": "object"}}, nothing("seen"))
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return inner }, nil)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Key") {
		case hidden["a header of a connection"], hidden["a header in the settings"]:
			u.seen.Add(1)
		default:
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if u.failed.Load() {
			http.Error(w, "it failed", http.StatusInternalServerError)
			return
		}
		handler.ServeHTTP(w, r)
	})}
	go web.Serve(l)
	u.t.Cleanup(func() { web.Close() })
	u.remote = l.Addr().String()
}

func (u *secretive) cli(stdin string, arguments ...string) string {
	u.t.Helper()
	out, code := u.s.cliAs(u.token, stdin, arguments...)
	if code != 0 {
		u.t.Fatalf("%v: %d %s", arguments, code, out)
	}
	nowhere(u.t, fmt.Sprint(arguments), out, hidden)
	return out
}

// furnish stores the secrets, and connects the servers that get them.
func (u *secretive) furnish() {
	u.s.put(u.token, "odd.py")
	u.cli(hidden["a stored secret"], "secret", "set", "KEY")
	u.cli(hidden["a secret that was removed"], "secret", "set", "GONE")
	u.cli("", "secret", "remove", "GONE")
	u.cli(hidden["a bound secret"], "secret", "set", "BOUND", "--host", "bound.test")
	u.cli("", "mcp", "add", "odd", "--env", "ODD_KEY=${secret:KEY}", "--env", "ODD_PLAIN="+
		hidden["a variable of a connection"], "--", "python3", "/workspace/odd.py", "plain", "odd")
	u.cli("", "mcp", "add", "remote", "--url", "http://"+u.remote+"/mcp", "--header", "X-Key="+
		hidden["a header of a connection"])
}

// valuesAgain gives connections the values that are not stored.
func (u *secretive) valuesAgain() {
	u.cli("", "mcp", "restart", "odd", "--env", "ODD_PLAIN="+hidden["a variable of a connection"])
	u.cli("", "mcp", "restart", "remote", "--header", "X-Key="+hidden["a header of a connection"])
}

// use uses the secrets, in ways that succeed and in ways that fail, in both eras.
func (u *secretive) use(stored string) {
	u.t.Helper()
	bearer := []string{"Authorization", "Bearer " + u.token}
	for _, era := range []string{older, newer} {
		c := u.s.connect(era, u.token, nil)
		got := c.call("execute_command", args{"command": `cat; printf %s "$A|$B|$C"`, "session_id": "home",
			"stdin": hidden["standard input of a command"], "env": map[string]string{"A": "${secret:KEY}",
				"B": hidden["a variable of a command"], "C": "${secret:BOUND}"}})
		if !strings.Contains(got.Text, stored) || !strings.Contains(got.Text, "sandlot_") ||
			strings.Contains(got.Text, hidden["a bound secret"]) {
			u.t.Errorf("%s: the command printed %s", era, got.All)
		}
		for name := range c.toolNames() {
			if strings.HasSuffix(name, "_env") && !strings.Contains(name, "operators") {
				if got := c.call(name, nil).Text; !strings.Contains(got, "hunter2") {
					u.t.Errorf("%s: %s does not have its secret: %s", era, name, got)
				}
			}
			if strings.HasSuffix(name, "_die") || strings.HasSuffix(name, "_look") {
				_, _ = c.try(u.t.Context(), name, nil)
			}
		}
		u.failed.Store(true)
		for name := range c.toolNames() {
			if strings.HasSuffix(name, "_look") {
				_, _ = c.try(u.t.Context(), name, nil)
			}
		}
		u.failed.Store(false)
		for _, env := range []string{"${secret:NONE}", "${secret:}", hidden["a variable of a command"] +
			"${secret:NONE}"} {
			_, _ = c.try(u.t.Context(), "execute_command", args{"command": "true", "env": map[string]string{"A": env}})
		}
		_, _ = c.try(u.t.Context(), "execute_command", args{"command": "exit 3", "cwd": "/none",
			"env": map[string]string{"A": "${secret:KEY}"}})
		_, _ = c.try(u.t.Context(), "nosuch", args{"text": hidden["an argument of an unknown tool"]})
		_, _ = c.try(u.t.Context(), "get_sessions", args{hidden["an argument of an unknown tool"]: 1})
		c.call("execute_command", args{"command": "sleep 300", "background": true, "session_id": "home",
			"env": map[string]string{"A": "${secret:KEY}"}})
	}
	u.useSession(stored)
	_, _ = u.s.cliAs(u.token, "", "exec", "--session", "home", "--env", "A=${secret:KEY}", "--", "sh", "-c", "exit 7")
	u.s.post("/v1/tools/execute_command", `{"command": "`+hidden["an argument of an unknown tool"], bearer...)
	u.s.request("GET", "/v1/connections", nil, bearer...)
	u.s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+hidden["an argument of an unknown tool"])
	u.cli("", "mcp", "list")
	u.cli("", "secret", "list", "--json")
}

// useSession uses the secrets in the variables of a session, in ways that succeed and in ways that fail.
func (u *secretive) useSession(stored string) {
	u.t.Helper()
	c := u.s.connect(newer, u.token, nil)
	env := map[string]string{"A": "${secret:KEY}", "B": hidden["a variable of a session"]}
	got := c.call("execute_code", args{"code": "import os; print(os.environ['A'] + os.environ['B'])",
		"session_id": "new", "env": env})
	if !strings.Contains(got.Text, stored) || !strings.Contains(got.Text, hidden["a variable of a session"]) {
		u.t.Errorf("the cell printed %s", got.All)
	}
	got = c.call("execute_command", args{"command": `printf %s "$A|$B"`, "session_id": got.session()})
	if !strings.Contains(got.Text, stored) || !strings.Contains(got.Text, hidden["a variable of a session"]) {
		u.t.Errorf("the command printed %s", got.All)
	}
	env["C"] = "${secret:NONE}"
	for _, session := range []string{"new", "home", "none"} {
		_, _ = c.try(u.t.Context(), "execute_code", args{"code": "1", "session_id": session, "env": env})
	}
	env["not a name"] = hidden["a variable of a session"]
	_, _ = c.try(u.t.Context(), "execute_code", args{"code": "1", "session_id": "new", "env": env})
	_, _ = u.s.cliAs(u.token, "", "sessions", "new", "--env", "A="+hidden["a variable of a session"]+"${secret:}")
	for _, list := range []string{"sessions", "ps"} {
		u.cli("", list, "--json")
	}
	nowhere(u.t, "get_sessions", c.call("get_sessions", args{}).All, hidden)
}

// written searches all that the server wrote for the values.
func (u *secretive) written(files ...string) {
	u.t.Helper()
	s, values := u.s, map[string]string{"ann's token": u.token}
	for what, v := range hidden {
		values[what] = v
	}
	_ = filepath.WalkDir(s.State, func(f string, e fs.DirEntry, err error) error {
		switch {
		case err != nil: // it went meanwhile
			return nil
		case e.IsDir() && e.Name() == "workspaces":
			return fs.SkipDir
		case e.Type().IsRegular():
			files = append(files, f)
		}
		return nil
	})
	database := false
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil { // a mounted namespace cannot be read
			nowhere(u.t, f, string(b), values)
			database = database || strings.HasSuffix(f, "sandlot.db")
		}
	}
	if log := s.log.String(); !database || !strings.Contains(log, "level=DEBUG") {
		u.t.Errorf("there is no database, or no log:\n%.1000s", log)
	} else {
		nowhere(u.t, "the log", log, values)
	}
}

// TestSecretsAreNowhere: whatever happens to a server with secrets of all kinds, of which all are used, in ways that
// succeed and that fail: nothing that it writes has one, in any of the usual encodings.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	u := &secretive{t: t}
	u.startRemote()
	dir := t.TempDir()
	odd, err := filepath.Abs("servers/odd.py")
	if err != nil {
		t.Fatal(err)
	}
	config, exported, backup := filepath.Join(dir, "sandlot.yaml"), filepath.Join(dir, "events.jsonl"), filepath.Join(
		dir, "backup")
	rewrite(t, config, fmt.Sprintf(`network: {allow_private: [{host: "127.0.0.1:%s", cidr: 127.0.0.0/8}]}
mcp:
  operators: {command: python3, args: [%q, plain, operators], where: host, user: "0", env: {ODD_KEY: "${OPERATOR_VALUE}"}}
  theirs: {url: "http://%s/mcp", headers: {X-Key: "${OPERATOR_HEADER}"}}
  broken: {command: "${OPERATOR_VALUE}", where: host, user: "0", env: {ODD_KEY: "${OPERATOR_VALUE}"}}
`, strings.Split(u.remote, ":")[1], odd, u.remote))
	u.s = prepare(t)
	u.s.log.whole = true
	// What a sandbox has in its memory is in the image of one that sleeps (docs/security.md), so none does here.
	u.s.begin([]string{"SANDLOT_CONFIG=" + config, "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_EVENTS_FILE=" + exported,
		"SANDLOT_ON_STOP=keep",
		"OPERATOR_VALUE=" + hidden["a variable in the settings"], "OPERATOR_HEADER=" +
			hidden["a header in the settings"]})
	s := u.s
	u.token = s.token("ann")
	u.furnish()
	u.use(hidden["a stored secret"])
	if u.seen.Load() == 0 {
		t.Error("the remote server got no header: this test proves nothing")
	}
	u.written(exported)

	s.stop()
	s.launch()
	u.cli(hidden["another value of it"], "secret", "set", "KEY")
	u.valuesAgain()
	u.use(hidden["another value of it"])
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	u.valuesAgain()
	u.use(hidden["another value of it"])
	if err := s.cmd.Process.Signal(syscall.SIGQUIT); err != nil { // it prints what its goroutines do, and ends
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	if !strings.Contains(s.log.String(), "goroutine ") {
		t.Error("it did not say what its goroutines do")
	}
	transport.CloseIdleConnections()
	s.launch()

	metrics, _, _ := s.cli("events", "--json", "--since", "1h")
	nowhere(t, "the events", metrics, hidden)
	_, _, metrics = s.request("GET", "/metrics", nil, "Authorization", "Bearer "+s.token("prom", "--role", "metrics"))
	nowhere(t, "the metrics", metrics, hidden)
	settings, _, _ := s.cli("config")
	nowhere(t, "the settings", settings, hidden)
	if out, errs, code := s.cli("backup", backup); code != 0 {
		t.Fatal(out, errs)
	}
	u.written(exported, backup)
	s.stop()
	u.written(exported, backup)
	s.launch()
}
