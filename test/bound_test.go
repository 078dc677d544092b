package test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// keyed is an HTTPS server of the test, bound.test, which wants a key, and for Git user and password.
type keyed struct {
	*web
	mu   sync.Mutex
	seen []string // the credentials of each request
}

// Values of bound secrets.
const (
	boundKey      = "hunter2-of-the-bound-secret"
	boundPassword = "hunter2-of-git"
)

func startKeyed(t *testing.T) *keyed {
	t.Helper()
	k := &keyed{web: &web{}}
	cert, ca := certificate(t)
	k.CA = ca
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-Api-Key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		body, _ := io.ReadAll(r.Body)
		k.mu.Lock()
		k.seen = append(k.seen, fmt.Sprintf("%s %s|%s|%s", r.Proto, r.URL, key, body))
		k.mu.Unlock()
		w.Header().Set("Echo", key)
		if key != boundKey {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprintf(w, "hello over %s", r.Proto)
	})
	git := pushServer(t)
	mux.HandleFunc("/git/", func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "pusher" || password != boundPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		git.ServeHTTP(w, r)
	})
	l := listen(t)
	k.TLSPort = l.Addr().(*net.TCPAddr).Port
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	go server.ServeTLS(l, "", "")
	t.Cleanup(func() { server.Close() })
	return k
}

// pushServer serves the empty repository /git/repo.git, into which one may push.
func pushServer(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c",
		"git init -q --bare -b main repo.git && git -C repo.git config http.receivepack true")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git: %v\n%s", err, out)
	}
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	return &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Root: "/git",
		Stderr: io.Discard, Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}}
}

// take returns the credentials of the requests since the last call.
func (k *keyed) take() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := strings.Join(k.seen, "\n")
	k.seen = nil
	return s
}

const withoutVariables = "curl, without variables"

// boundPrograms are commands that fetch /hello with the key in their environment, each in its own way.
var boundPrograms = map[string]string{
	"curl":      `curl -sS -m 20 -H "Authorization: Bearer $BANK_KEY" https://bound.test:PORT/hello`,
	"curl, 1.1": `curl -sS -m 20 --http1.1 -H "X-Api-Key: $BANK_KEY" https://bound.test:PORT/hello`,
	withoutVariables: `KEY=$BANK_KEY; env -i PATH="$PATH" curl -sS -m 20 -H "X-Api-Key: $KEY" ` +
		`https://bound.test:PORT/hello`,
	"CONNECT": `curl -sS -m 20 -x http://127.0.0.1:3128 -H "X-Api-Key: $BANK_KEY" https://bound.test:PORT/hello`,
	"python": `python3 -c 'import os, urllib.request as u; print(u.urlopen(u.Request("https://bound.test:PORT/hello", ` +
		`headers={"X-Api-Key": os.environ["BANK_KEY"]})).read().decode())'`,
	"requests, where there is one": `if python3 -c "import requests" 2>/dev/null; then python3 -c 'import os, requests; ` +
		`print(requests.get("https://bound.test:PORT/hello", headers={"X-Api-Key": os.environ["BANK_KEY"]}).text)'; else ` +
		`curl -sS -m 20 -H "X-Api-Key: $BANK_KEY" https://bound.test:PORT/hello; fi`,
	"node": `node -e 'fetch("https://bound.test:PORT/hello", {headers: {"x-api-key": process.env.BANK_KEY}})` +
		`.then(r => r.text()).then(console.log)'`,
	"a JDK with files of its own, where there is one": `cat > /tmp/Fetch.java <<'END'
import java.net.*; import java.net.http.*;
class Fetch { public static void main(String[] a) throws Exception {
	System.out.println(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("https://bound.test:PORT/hello"))
		.header("X-Api-Key", System.getenv("BANK_KEY")).build(), HttpResponse.BodyHandlers.ofString()).body()); } }
END
java=$(ls /usr/lib/jvm/temurin*/bin/java 2>/dev/null | head -1); if [ -n "$java" ]; then $java /tmp/Fetch.java; else
	curl -sS -m 20 -H "X-Api-Key: $BANK_KEY" https://bound.test:PORT/hello; fi`,
	"a shell in the background": `(sleep 0.1; curl -sS -m 20 -H "X-Api-Key: $BANK_KEY" https://bound.test:PORT/hello ` +
		`> /tmp/out) & wait; cat /tmp/out`,
}

// boundCells are the same for interpreters.
var boundCells = map[string]string{
	"python": `import os, urllib.request as u
print(u.urlopen(u.Request("https://bound.test:PORT/hello",
			headers={"X-Api-Key": os.environ["BANK_KEY"]})).read().decode())`,
	"javascript": `console.log(await (await fetch("https://bound.test:PORT/hello",
	{headers: {"x-api-key": process.env.BANK_KEY}})).text())`,
	"bash": `curl -sS -m 20 -H "X-Api-Key: $BANK_KEY" https://bound.test:PORT/hello`,
}

const gitPush = `cd $(mktemp -d) && git init -q && echo text > file && git add . && git commit -qm first &&
	git push -q https://bound.test:PORT/git/repo.git HEAD:main 2>&1 &&
	git clone -q https://bound.test:PORT/git/repo.git copy && cat copy/file && git -C copy push 2>&1`

// boundUser is a user whose programs have placeholders.
type boundUser struct {
	t     *testing.T
	s     *server
	k     *keyed
	c     *client
	token string
}

func (u *boundUser) port(text string) string {
	return strings.ReplaceAll(text, "PORT", strconv.Itoa(u.k.TLSPort))
}

func (u *boundUser) set(value string, arguments ...string) {
	u.t.Helper()
	if out, code := u.s.cliAs(u.token, value+"\n", append([]string{"secret", "set"}, arguments...)...); code != 0 ||
		strings.Contains(out, "hunter2") {
		u.t.Fatalf("secret set %v: %d %s", arguments, code, out)
	}
}

func (u *boundUser) run(command string) string {
	u.t.Helper()
	return u.c.call("execute_command", args{"command": u.port(command), "session_id": "home"}).Text
}

func (u *boundUser) cell(language, code string) string {
	u.t.Helper()
	return u.c.call("execute_code", args{"code": u.port(code), "language": language, "session_id": "home"}).Text
}

func startBound(t *testing.T, settings ...string) *boundUser {
	t.Helper()
	k := startKeyed(t)
	s := start(t, append(append(k.settings("bound.test", "free.web.test"), "SANDLOT_LOG_LEVEL=DEBUG"), settings...)...)
	return &boundUser{t: t, s: s, k: k, token: s.token("ann")}
}

// TestBoundSecret: programs of a sandbox that has booted before there was a secret send its placeholder, and the host,
// which the secret is bound to, gets the value. No other host does, and nothing in the sandbox has it.
func TestBoundSecret(t *testing.T) {
	t.Parallel()
	u := startBound(t)
	u.c = u.s.connect(older, u.token, nil)
	if got := u.cell("python", "x = 7") + u.cell("bash", "x=7") + u.run("echo up"); !strings.Contains(got, "up") {
		t.Fatal(got)
	}
	u.set(boundKey, "bank_key", "--host", u.port("bound.test:PORT"))
	u.set("pusher:"+boundPassword, "git_login", "--basic", "--host", u.port("bound.test:PORT"))
	list, _ := u.s.cliAs(u.token, "", "secret", "list")
	if !strings.Contains(list, u.port("bound to bound.test:PORT, as the variable BANK_KEY")) ||
		!strings.Contains(list, u.port("bound to bound.test:PORT as user and password, as the variable GIT_LOGIN")) {
		t.Errorf("the list is %s", list)
	}
	if out, code := u.s.cliAs(u.token, "x", "secret", "set", "x", "--basic"); code != 2 || !strings.Contains(out,
		"--host") {
		t.Errorf("without a host: %d %s", code, out)
	}
	u.everyProgram()
	if got := u.cell("python", "print(x)") + u.cell("bash", "echo $x"); strings.Count(got, "7") < 2 {
		t.Errorf("interpreters have lost their variables: %s", got)
	}
	u.elsewhere()
	u.duringCell()
	u.holdsNothing()

	// A crash changes nothing for what runs.
	u.s.kill()
	transport.CloseIdleConnections()
	u.s.launch()
	u.c = u.s.connect(older, u.token, nil)
	for language, code := range boundCells {
		if got := u.cell(language, code); !strings.Contains(got, "hello over HTTP/") {
			t.Errorf("%s, after a crash: %s", language, got)
		}
	}
	u.others()

	// Another value, and none, hold at once.
	u.set("another-value", "bank_key")
	u.k.take()
	u.cell("python", boundCells["python"])
	if got := u.k.take(); !strings.Contains(got, "|another-value|") {
		t.Errorf("with another value the host got %q", got)
	}
	if out, code := u.s.cliAs(u.token, "", "secret", "remove", "bank_key"); code != 0 {
		t.Error(out)
	}
	if got := u.run(`echo "<$BANK_KEY>"`); !strings.Contains(got, "<>") {
		t.Errorf("a secret that was removed has a placeholder: %s", got)
	}
	u.s.holds(boundKey)
	u.s.holds(boundPassword)
}

// TestBoundSecretInCopies: sandboxes that are copies of one that has booted, and new sessions, have them too.
func TestBoundSecretInCopies(t *testing.T) {
	t.Parallel()
	u := startBound(t, "SANDLOT_SNAPSHOTS=true")
	if daemonOf(t) == nil {
		u.s.awaitImage()
	}
	u.set(boundKey, "bank_key", "--host", u.port("bound.test:PORT"))
	u.set("pusher:"+boundPassword, "git_login", "--basic", "--host", u.port("bound.test:PORT"))
	u.c = u.s.connect(newer, u.token, nil)
	u.everyProgram()
	var cas []string
	for range 2 {
		out, _ := u.s.cliAs(u.token, "", "exec", "--", "sh", "-c", u.port(boundPrograms["curl"])+
			"; echo; tail -12 $SSL_CERT_FILE | base64 -w0")
		if !strings.Contains(out, "hello over HTTP/") {
			t.Errorf("a new session: %s", out)
		}
		lines := strings.Fields(out)
		cas = append(cas, lines[len(lines)-1])
	}
	if cas[0] == cas[1] || len(cas[0]) < 200 {
		t.Errorf("two sessions have one CA: %q", cas)
	}
}

// everyProgram fetches with programs of every kind.
func (u *boundUser) everyProgram() {
	u.t.Helper()
	check := func(what, got string) {
		u.t.Helper()
		seen := u.k.take()
		if !strings.Contains(got, "hello over HTTP/") || strings.Contains(got, "hunter2") ||
			!strings.Contains(seen, "|"+boundKey+"|") {
			u.t.Errorf("%s: %s; the host got %q", what, got, seen)
		}
	}
	for what, command := range boundPrograms {
		if what == withoutVariables && daemonOf(u.t) != nil {
			continue // there the system's own files of certificates cannot be changed
		}
		check(what, u.run(command))
	}
	for language, code := range boundCells {
		check(language, u.cell(language, code))
	}
	if got := u.run(gitPush); !strings.Contains(got, "text") || !strings.Contains(got, "Everything up-to-date") {
		u.t.Errorf("git: %s", got)
	}
	u.s.put(u.token, "keyed.py")
	if out, code := u.s.cliAs(u.token, "", "mcp", "add", "keyed", "--", "python3", "/workspace/keyed.py"); code != 0 {
		u.t.Fatal(out)
	}
	for name := range u.s.connect(older, u.token, nil).toolNames() {
		if strings.HasSuffix(name, "_fetch") {
			check("an MCP server", u.s.connect(older, u.token, nil).call(name,
				args{"url": u.port("https://bound.test:PORT/hello")}).Text)
			return
		}
	}
	u.t.Error("the MCP server has no tool")
}

// duringCell stores a secret while a cell runs: the cell goes on, and the next one has the placeholder.
func (u *boundUser) duringCell() {
	u.t.Helper()
	slept := make(chan string, 1)
	go func() {
		slept <- u.cell("python", "import time; open('/tmp/began', 'w').close(); time.sleep(2); print('slept', x)")
	}()
	u.run("while [ ! -e /tmp/began ]; do sleep 0.05; done")
	u.set("late-hunter2-value", "late_key", "--host", "late.test")
	if got := u.run("echo $LATE_KEY"); !strings.Contains(got, "sandlot_") {
		u.t.Errorf("a command has %s", got)
	}
	if got := <-slept; !strings.Contains(got, "slept 7") {
		u.t.Errorf("the cell that ran: %s", got)
	}
	for range 3 {
		got := u.cell("python", "import os; print(x, os.environ['LATE_KEY'])")
		if !strings.Contains(got, "7 sandlot_") {
			u.t.Errorf("the next cell: %s", got)
		}
	}
}

// elsewhere sends the placeholder where it is worth nothing.
func (u *boundUser) elsewhere() {
	u.t.Helper()
	for what, command := range map[string]string{
		"another host": `curl -sS -m 20 -H "Authorization: Bearer $BANK_KEY" https://free.web.test:PORT/hello`,
		"an address": `curl -sS -m 20 -k --connect-to "bound.test:PORT:$(getent ahostsv4 free.web.test | head -1 | ` +
			`cut -d" " -f1):PORT" -H "X-Api-Key: $BANK_KEY" https://free.web.test:PORT/hello`,
		"the body and the query": `curl -sS -m 20 -d "$BANK_KEY" "https://bound.test:PORT/hello?q=$BANK_KEY"`,
		"a cookie":               `curl -sS -m 20 -b "k=$BANK_KEY" https://bound.test:PORT/hello`,
		"a Host": `curl -sS -m 20 -H "Host: free.web.test" -H "X-Api-Key: $BANK_KEY" ` +
			`https://bound.test:PORT/hello; curl -sS -m 20 https://free.web.test:PORT/hello`,
	} {
		out := u.run(command)
		if got := u.k.take(); strings.Contains(got+out, "hunter2") || got == "" {
			u.t.Errorf("%s: %s; the host got %q", what, out, got)
		}
	}
}

// holdsNothing looks for the values in the sandbox.
func (u *boundUser) holdsNothing() {
	u.t.Helper()
	const text = `value=$(echo %s | base64 -d); for d in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
	tr '\0' '\n' < $d 2>/dev/null; done > /tmp/all; grep -c BANK_KEY=sandlot_ /tmp/all; grep -F "$value" /tmp/all &&
			echo FOUND
grep -rlsF "$value" /etc /tmp /var /run /root /home /workspace && echo FOUND; echo looked`
	for _, value := range []string{boundKey, boundPassword} {
		out := u.run(fmt.Sprintf(text, base64.StdEncoding.EncodeToString([]byte(value))))
		if !strings.Contains(out, "looked") || strings.Contains(out, "FOUND") || strings.HasPrefix(out, "0") {
			u.t.Errorf("in the sandbox: %s", out)
		}
	}
}

// others: a placeholder is worth nothing in another user's sandbox, even where that user has a secret for the host.
func (u *boundUser) others() {
	u.t.Helper()
	mark := ""
	for _, word := range strings.Fields(u.run("echo $BANK_KEY")) {
		if strings.HasPrefix(word, "sandlot_") {
			mark = word
		}
	}
	if mark == "" {
		u.t.Fatal("there is no placeholder")
	}
	bob := &boundUser{t: u.t, s: u.s, k: u.k, token: u.s.token("bob")}
	bob.set("bobs-own-value", "bank_key", "--host", u.port("bound.test:PORT"))
	bob.c = u.s.connect(newer, bob.token, nil)
	u.k.take()
	out := bob.run(boundPrograms["curl"] + "; " + strings.ReplaceAll(boundPrograms["curl"], "$BANK_KEY", mark))
	if got := u.k.take(); !strings.Contains(got, "|bobs-own-value|") || !strings.Contains(got, "|"+mark+"|") ||
		strings.Contains(got+out, boundKey) {
		u.t.Errorf("another user's sandbox: %s; the host got %q", out, got)
	}
}
