package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent/command"
)

// held is a request that lasts, by some token.
type held struct {
	what string
	conn net.Conn
	from *bufio.Reader
}

// with is a header with that token, if there is one.
func with(token string, header ...string) []string {
	if token == "" {
		return header
	}
	return append(header, credentials(token)...)
}

// lasting opens all that a token can hold.
func (s *server) lasting(t *testing.T, token string) (all []held) {
	t.Helper()
	open := func(what, head, body string) held {
		t.Helper()
		c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if !strings.Contains(head, "Upgrade") {
			head += "\r\nConnection: close" // after the answer
		}
		if token != "" {
			for line := range slices.Chunk(credentials(token), 2) {
				head += "\r\n" + line[0] + ": " + line[1]
			}
		}
		fmt.Fprintf(c, "%s\r\nHost: localhost\r\n\r\n%s", head, body)
		h := held{what, c, bufio.NewReader(c)}
		all = append(all, h)
		return h
	}
	upgraded := func(what, path, protocol, body string) {
		t.Helper()
		h := open(what, "POST "+path+" HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: "+protocol, body)
		if r, err := http.ReadResponse(h.from, nil); err != nil || r.StatusCode != 101 {
			t.Fatalf("%s: %v, %v", what, r, err)
		}
	}
	var sleeps bytes.Buffer
	if err := (command.Command{Args: []string{"sleep", "1000"}}).Write(&sleeps); err != nil {
		t.Fatal(err)
	}
	const wait = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_command","arguments":{"command":"sleep 300","session_id":"home"}}}`
	upgraded("exec", "/v1/sessions/home/exec", "sandlot-exec", sleeps.String())
	upgraded("stdio", "/v1/stdio", "sandlot-mcp", hello+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+
		"\n"+wait+"\n")
	upgraded("port", "/v1/sessions/home/ports/8000", "sandlot-dial", "")
	code, header, text := s.request("POST", "/mcp", strings.NewReader(hello),
		with(token, "Content-Type", "application/json", "Accept", "application/json, text/event-stream")...)
	session := "\r\nMcp-Session-Id: " + header.Get("Mcp-Session-Id")
	if code != 200 || header.Get("Mcp-Session-Id") == "" {
		t.Fatalf("initialize: %d %s", code, text)
	}
	open("events", "GET /mcp HTTP/1.1\r\nAccept: text/event-stream"+session, "")
	post := func(what, more, body string) {
		t.Helper()
		open(what, "POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, "+
			"text/event-stream"+more+fmt.Sprintf("\r\nContent-Length: %d", len(body)), body)
	}
	post("a call of the older era", session, wait)
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	post("a call of the newer era",
		"\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: execute_command",
		strings.Replace(wait, `"params":{`, `"params":{`+meta+",", 1))
	post("subscriptions/listen", "\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen",
		`{"jsonrpc":"2.0","id":8,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},`+
			meta+`}}`)
	body := `{"command":"sleep 300","session_id":"home"}`
	open("a call over HTTP", fmt.Sprintf("POST /v1/tools/execute_command HTTP/1.1\r\nContent-Length: %d", len(body)),
		body)
	open("a body", "POST /v1/tools/execute_command HTTP/1.1\r\nContent-Length: 100", "{")
	return all
}

// ends says which of them do not end in time.
func ends(t *testing.T, all []held, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for _, h := range all {
		h.conn.SetReadDeadline(deadline)
		if _, err := io.Copy(io.Discard, h.from); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s goes on", h.what)
		}
	}
}

// TestTheFirstTokenIsMade while all is held open that can be, without one: it ends
// within five seconds. What came by the owner's socket does not.
func TestTheFirstTokenIsMade(t *testing.T) {
	t.Parallel()
	s := start(t)
	if code, _, text := s.request("POST", "/v1/tools/execute_command",
		strings.NewReader(`{"command":"python3 -m http.server --bind 127.0.0.1 8000","background":true,"session_id":"home"}`)); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	time.Sleep(time.Second) // until it listens
	owner := s.ownStdio(t)
	owner.say(t, hello)
	all := s.lasting(t, "")
	time.Sleep(time.Second)
	s.token("ann")
	ends(t, all, 5*time.Second)
	owner.say(t, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
}

// stdioClient is `sandlot stdio`.
type stdioClient struct {
	in   io.Writer
	from *bufio.Reader
}

// ownStdio runs it on the owner's socket.
func (s *server) ownStdio(t *testing.T) stdioClient {
	t.Helper()
	cmd := exec.Command(binary(t), "stdio", "--state-dir", s.State)
	cmd.Env = s.env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	return stdioClient{in, bufio.NewReader(out)}
}

// say sends a request with the id 1, and waits for its answer.
func (c stdioClient) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := c.from.ReadString('\n')
	if err != nil || !strings.Contains(answer, `"id":1`) || strings.Contains(answer, `"error"`) {
		t.Fatalf("%s: %q, %v", line, answer, err)
	}
}

// TestARevokedTokenHoldsNothing opens all that a token can hold with two tokens of
// one user, and revokes one: what it holds ends within five seconds, and nothing of
// the other's. So does what a token holds that expires.
func TestARevokedTokenHoldsNothing(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required")
	revoked := s.token("ann")
	list, _, _ := s.cli("token", "list")
	id, _, _ := strings.Cut(list, " ")
	stays := s.token("ann")
	if code, _, text := s.request("POST", "/v1/tools/execute_command",
		strings.NewReader(`{"command":"python3 -m http.server --bind 127.0.0.1 8000","background":true}`),
		"Authorization", "Bearer "+stays); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	time.Sleep(time.Second) // until it listens
	own, others := s.lasting(t, revoked), s.lasting(t, stays)
	short := s.lasting(t, s.token("ann", "--expires", "8s"))
	time.Sleep(time.Second)
	if _, errs, code := s.cli("token", "revoke", id); code != 0 {
		t.Fatal(errs)
	}
	ends(t, own, 5*time.Second)
	ends(t, short, 12*time.Second)
	for _, h := range others {
		h.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := io.Copy(io.Discard, h.from); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s of the other token ended: %v", h.what, err)
		}
	}
	if code, _, _ := s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+revoked); code != 401 {
		t.Errorf("the revoked token: %d", code)
	}
}
