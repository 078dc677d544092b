package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// held is a request that lasts, by some token.
type held struct {
	what string
	conn net.Conn
	from *bufio.Reader
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
		fmt.Fprintf(c, "%s\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n%s", head, token, body)
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
	if err := wire.WriteMessage(&sleeps, &agentv1.Command{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	const wait = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_command","arguments":{"command":"sleep 300","session_id":"home"}}}`
	upgraded("exec", "/v1/sessions/home/exec", "sandlot-exec", sleeps.String())
	upgraded("stdio", "/v1/stdio", "sandlot-mcp", hello+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"+wait+"\n")
	upgraded("port", "/v1/sessions/home/ports/8000", "sandlot-dial", "")
	code, header, text := s.request("POST", "/mcp", strings.NewReader(hello), "Authorization", "Bearer "+token, "Content-Type", "application/json", "Accept", "application/json, text/event-stream")
	session := "\r\nMcp-Session-Id: " + header.Get("Mcp-Session-Id")
	if code != 200 || header.Get("Mcp-Session-Id") == "" {
		t.Fatalf("initialize: %d %s", code, text)
	}
	open("events", "GET /mcp HTTP/1.1\r\nAccept: text/event-stream"+session, "")
	post := func(what, more, body string) {
		t.Helper()
		open(what, "POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream"+more+fmt.Sprintf("\r\nContent-Length: %d", len(body)), body)
	}
	post("a call of the older era", session, wait)
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	post("a call of the newer era", "\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: execute_command", strings.Replace(wait, `"params":{`, `"params":{`+meta+",", 1))
	post("subscriptions/listen", "\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen",
		`{"jsonrpc":"2.0","id":8,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},`+meta+`}}`)
	body := `{"command":"sleep 300","session_id":"home"}`
	open("a call over HTTP", fmt.Sprintf("POST /v1/tools/execute_command HTTP/1.1\r\nContent-Length: %d", len(body)), body)
	open("a body", "POST /v1/tools/execute_command HTTP/1.1\r\nContent-Length: 100", "{")
	return all
}

// TestARevokedTokenHoldsNothing opens all that a token can hold with two tokens of
// one user, and revokes one: what it holds ends within five seconds, and nothing of
// the other's. So does what a token holds that expires.
func TestARevokedTokenHoldsNothing(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required", "SANDLOT_POOL_SIZE=0")
	revoked := s.token("ann")
	list, _, _ := s.cli("token", "list")
	id, _, _ := strings.Cut(list, " ")
	stays := s.token("ann")
	if code, _, text := s.request("POST", "/v1/tools/execute_command", strings.NewReader(`{"command":"python3 -m http.server --bind 127.0.0.1 8000","background":true}`), "Authorization", "Bearer "+stays); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	time.Sleep(time.Second) // until it listens
	own, others := s.lasting(t, revoked), s.lasting(t, stays)
	short := s.lasting(t, s.token("ann", "--expires", "8s"))
	time.Sleep(time.Second)
	if _, errs, code := s.cli("token", "revoke", id); code != 0 {
		t.Fatal(errs)
	}
	ends := func(all []held, within time.Duration) {
		t.Helper()
		deadline := time.Now().Add(within)
		for _, h := range all {
			h.conn.SetReadDeadline(deadline)
			if _, err := io.Copy(io.Discard, h.from); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("%s goes on", h.what)
			}
		}
	}
	ends(own, 5*time.Second)
	ends(short, 12*time.Second)
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
