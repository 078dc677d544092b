package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/store/storetest"
)

// onEachStore runs a test with a server on SQLite, and with one on PostgreSQL.
func onEachStore(t *testing.T, test func(t *testing.T, setting string)) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, "SANDLOT_STORE=") })
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, "SANDLOT_STORE="+storetest.Start(t).Database(t))
	})
}

// backup makes a backup of the running server's database.
func (s *server) backup() []byte {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "backup")
	if _, errs, code := s.cli("backup", file); code != 0 {
		s.t.Fatal(errs)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// sendBackup sends a backup as the bearer of a token.
func (s *server) sendBackup(token string, backup []byte) (status int, answer string) {
	s.t.Helper()
	header := []string{}
	if token != "" {
		header = credentials(token)
	}
	status, _, answer = s.request("PUT", "/v1/database", bytes.NewReader(backup), header...)
	return status, answer
}

// goingOn is a client that calls again and again.
type goingOn struct {
	s             *server
	token         string
	good, refused atomic.Int64
	stop          chan struct{}
	done          sync.WaitGroup
}

func (s *server) keepCalling(token string) *goingOn {
	g := &goingOn{s: s, token: token, stop: make(chan struct{})}
	g.done.Go(g.run)
	s.t.Cleanup(g.end)
	return g
}

// run calls until end. A call has its answer, or the connection is lost, or the server says that it cannot.
func (g *goingOn) run() {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-g.stop:
			return
		default:
		}
		r, _ := http.NewRequest("GET", g.s.URL+"/v1/sessions", nil)
		r.Header.Set("Authorization", "Bearer "+g.token)
		resp, err := client.Do(r)
		switch {
		case err != nil:
			g.refused.Add(1)
			time.Sleep(20 * time.Millisecond)
			continue
		case resp.StatusCode == 200:
			g.good.Add(1)
		case resp.StatusCode == 503:
			g.refused.Add(1)
		default:
			g.s.t.Errorf("a call during the restore: %d", resp.StatusCode)
		}
		resp.Body.Close()
		time.Sleep(10 * time.Millisecond) // others want the processor, too
	}
}

func (g *goingOn) end() {
	select {
	case <-g.stop:
	default:
		close(g.stop)
	}
	g.done.Wait()
}

var beforeFile = regexp.MustCompile(`content is in (\S+\.db)\.`)

// TestRestoreWhileRunning: a backup is restored under a running server and a running client: tokens, sessions, secrets
// and servers are those of the backup. The process and the sandboxes that both know go on, other sandboxes are ended,
// and no workspace is removed. What was there before can be restored again.
func TestRestoreWhileRunning(t *testing.T) { onEachStore(t, testRestoreWhileRunning) }

func testRestoreWhileRunning(t *testing.T, setting string) {
	s := start(t, setting)
	ann, operator := s.token("ann"), s.token("boss", "--role", "operator")
	c := s.connect(newer, ann, nil)
	home := c.code("home", "x = 1").session()
	if out, code := s.cliAs(ann, "hunter2", "secret", "set", "KEPT"); code != 0 {
		t.Fatal(out)
	}
	s.put(ann, "odd.py")
	tool := c.odd("odd", "plain", nil).exposed(t, "say")
	file := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, s.backup(), 0o600); err != nil {
		t.Fatal(err)
	}

	later := c.code("new", "open('/workspace/file', 'w').write('later')").session()
	bob := s.token("bob")
	if out, code := s.cliAs(ann, "later", "secret", "set", "LATER"); code != 0 {
		t.Fatal(out)
	}
	c.code(home, "x = 2")
	if n := len(s.folders()); n != 2 {
		t.Fatalf("%d sandboxes", n)
	}
	calls := s.keepCalling(ann)
	until(t, "a client calls", func() bool { return calls.good.Load() > 3 })
	out, errs, code := s.cli("restore", file)
	if code != 0 {
		t.Fatalf("%s%s\n%s", out, errs, s.log)
	}
	good := calls.good.Load()
	until(t, "the client goes on", func() bool { return calls.good.Load() > good+3 })
	calls.end()
	t.Logf("%d calls were answered, %d were not", calls.good.Load(), calls.refused.Load())

	transport.CloseIdleConnections()
	c = s.connect(newer, ann, nil)
	c.want(home, "x", "2") // the sandbox is the same
	if list, _ := s.cliAs(ann, "", "secret", "list"); !strings.Contains(list, "KEPT") ||
		strings.Contains(list, "LATER") || strings.Contains(list, "cannot be read") {
		t.Errorf("secrets: %s", list)
	}
	if got := c.call(tool, args{"text": "hi"}); !strings.Contains(got.Text, "hi") {
		t.Errorf("the server says %q", got.All)
	}
	if _, err := c.try(t.Context(), "execute_code", args{"code": "1", "session_id": later}); err == nil ||
		!strings.Contains(err.Error(), "Session not found") {
		t.Errorf("a session that is not in the backup: %v", err)
	}
	status, _, _ := s.request("GET", "/v1/sessions", nil, credentials(bob)...)
	if status != 401 {
		t.Errorf("a token that is not in the backup: %d", status)
	}
	until(t, "the sandbox of the later session has ended", func() bool { return len(s.folders()) == 1 })

	before := beforeFile.FindStringSubmatch(out)
	if before == nil {
		t.Fatalf("it does not say where what was there before is: %s", out)
	}
	if st, err := os.Stat(before[1]); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	s.stop() // later servers do not remove the workspace either
	transport.CloseIdleConnections()
	s.launch()
	if kept, _ := filepath.Glob(filepath.Join(s.State, "workspaces", "*", "file")); len(kept) != 1 {
		t.Errorf("files of the later session: %q", kept)
	}
	// With what was there before it is back: an operator on another machine restores it.
	if out, code := s.cliAs(operator, "", "--server", s.URL, "restore", before[1]); code != 0 {
		t.Fatalf("%s\n%s", out, s.log)
	}
	transport.CloseIdleConnections()
	c = s.connect(newer, ann, nil)
	if r := c.code(later, "open('/workspace/file').read()"); !strings.Contains(r.All, "'later'") {
		t.Errorf("the file of the session that is back: %s", r.All)
	}
	if status, _, _ := s.request("GET", "/v1/sessions", nil, credentials(bob)...); status != 200 {
		t.Errorf("a token that is back: %d", status)
	}
	s.restored(operator, "done")
}

// restored checks how the last restore has ended; empty: there was none.
func (s *server) restored(token, state string) {
	s.t.Helper()
	_, _, text := s.request("GET", "/v1/database", nil, credentials(token)...)
	var got struct{ Restore *struct{ State string } }
	if err := json.Unmarshal([]byte(text), &got); err != nil || state == "" != (got.Restore == nil) ||
		got.Restore != nil && got.Restore.State != state {
		s.t.Errorf("the last restore is %s, want %q", text, state)
	}
}

// TestRestoreRefused: who is no operator restores nothing, and a file that is no good backup changes nothing. The
// sandboxes, the process and its memory are as they were.
func TestRestoreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=false")
	ann, operator := s.token("ann"), s.token("boss", "--role", "operator")
	narrow := s.token("narrow", "--role", "operator", "--scope", "database.read")
	c := s.connect(older, ann, nil)
	home := c.want("home", "import os; x = os.getpid(); os.path.exists('/.sandlot/agent')", "True").session()
	good := s.backup()
	mallory := s.token("mallory") // would be gone after a restore
	for what, token := range map[string]string{"a user": ann, "another": mallory, "a scope without it": narrow,
		"no token": "", "no known token": "slt_" + strings.Repeat("a", 40)} {
		if status, answer := s.sendBackup(token, good); status != 403 && status != 401 {
			t.Errorf("%s: %d %s", what, status, answer)
		}
		if token != narrow && token != "" {
			if status, _, text := s.request("GET", "/v1/database", nil, credentials(token)...); status != 403 &&
				status != 401 {
				t.Errorf("%s reads: %d %s", what, status, text)
			}
		}
	}
	foreign := bytes.Clone(good)
	copy(foreign[68:], "\x00\x00\x00\x07") // the application id
	newer := bytes.Clone(good)
	copy(newer[60:], "\x00\x00\x03\xe7") // the version
	flipped := bytes.Clone(good)
	for i := 4096; i < len(flipped); i += 512 {
		flipped[i] ^= 0xff
	}
	for what, test := range map[string]struct {
		file []byte
		want string
	}{
		"nothing": {nil, "not a backup"}, "text": {bytes.Repeat([]byte("no database "), 10000), "no SQLite file"},
		"a half": {good[:len(good)/2], "damaged"}, "all but a byte": {good[:len(good)-1], "damaged"},
		"of another program": {foreign, "not a backup"}, "of a newer Sandlot": {newer, "newer Sandlot"},
		"damaged pages": {flipped, ""}, "a header": {good[:100], "damaged"},
	} {
		status, answer := s.sendBackup(operator, test.file)
		if status != 400 || !strings.Contains(answer, test.want) || !strings.Contains(answer, "nothing was changed") {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
	r, _ := http.NewRequest("PUT", s.URL+"/v1/database", struct{ *bytes.Reader }{bytes.NewReader(good)})
	r.ContentLength = -1
	r.Header.Set("Authorization", "Bearer "+operator)
	if resp, err := transport.RoundTrip(r); err != nil || resp.StatusCode != http.StatusLengthRequired {
		t.Errorf("without a length: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	s.restored(operator, "")
	c.want(home, "x == os.getpid()", "True") // the MCP session is in the server's memory alone
	if status, _, _ := s.request("GET", "/v1/sessions", nil, credentials(mallory)...); status != 200 {
		t.Errorf("something was restored: %d", status)
	}
	if left, _ := filepath.Glob(filepath.Join(s.State, "restore", "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestRestoreKilled: a server that is killed at any moment of a restore has the old or the new content whole when the
// next one starts, and the new one if it had said that it is going to restore it.
func TestRestoreKilled(t *testing.T) { onEachStore(t, testRestoreKilled) }

func testRestoreKilled(t *testing.T, setting string) {
	const rounds, tokens = 8, 10
	s := start(t, setting)
	users := func() (names string) {
		t.Helper()
		out, errs, code := s.cli("token", "list", "--json")
		var all []struct{ User string }
		if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) != tokens {
			t.Fatalf("%d tokens, %v, %s", len(all), err, errs)
		}
		for _, token := range all {
			if names != "" && token.User != names {
				t.Fatalf("a mixture: %s", out)
			}
			names = token.User
		}
		return names
	}
	fill := func(user string) (token string, backup []byte) {
		for range tokens {
			token = s.token(user, "--role", "operator")
		}
		return token, s.backup()
	}
	empty := s.backup()
	operators, backups := map[string]string{}, map[string][]byte{}
	operators["a"], backups["a"] = fill("a")
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, empty, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := s.cli("restore", file); code != 0 {
		t.Fatal(errs)
	}
	transport.CloseIdleConnections()
	operators["b"], backups["b"] = fill("b")
	there := users()
	outcomes := map[string]int{}
	for round := range rounds {
		other := map[string]string{"a": "b", "b": "a"}[there]
		delay := time.Duration(rand.IntN(1+rand.IntN(400))) * time.Millisecond // mostly early
		var accepted atomic.Bool
		var sent sync.WaitGroup
		sent.Go(func() {
			r, _ := http.NewRequest("PUT", s.URL+"/v1/database", bytes.NewReader(backups[other]))
			r.Header.Set("Authorization", "Bearer "+operators[there])
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
			if err != nil {
				return // it was killed before
			}
			resp.Body.Close()
			accepted.Store(resp.StatusCode == http.StatusAccepted)
			if resp.StatusCode != http.StatusAccepted {
				t.Errorf("refused: %d", resp.StatusCode)
			}
		})
		time.Sleep(delay)
		s.kill()
		sent.Wait()
		transport.CloseIdleConnections()
		s.launch()
		now := users()
		if now != there && now != other || accepted.Load() && now != other {
			t.Errorf("round %d, killed after %s: it has %s, accepted: %t", round, delay, now, accepted.Load())
		}
		outcomes[fmt.Sprintf("accepted %t, new %t", accepted.Load(), now == other)]++
		if left, _ := filepath.Glob(filepath.Join(s.State, "restore", "incoming-*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		there = now
	}
	t.Log(outcomes)
}
