package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

const upgrading = " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// slowest returns the 99th of 100 calls of bob's.
func slowest(t *testing.T, s *server, bob string) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 100 {
		began := time.Now()
		if code, _, text := s.request("POST", "/v1/tools/execute_code", strings.NewReader(`{"code":"6*7"}`), "Authorization", "Bearer "+bob); code != 200 || !strings.Contains(text, "42") {
			t.Fatalf("bob's call: %d %s", code, text)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[98]
}

// TestOneUserHoldsMuch takes a thousand of each thing that a client can hold, with
// one token: most are refused, the server stays small, and others' calls are as
// fast as before. Those who come without a token take nothing from those with one.
func TestOneUserHoldsMuch(t *testing.T) {
	s := start(t, "SANDLOT_AUTH=required", "SANDLOT_POOL_SIZE=0")
	ann, bob := s.token("ann"), s.token("bob")
	if code, _, text := s.request("POST", "/v1/tools/execute_command", strings.NewReader(`{"command":"python3 -m http.server --bind 127.0.0.1 8000","background":true}`), "Authorization", "Bearer "+ann); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	slowest(t, s, bob)
	before := slowest(t, s, bob)

	const each = 1000
	var refused int
	var mu sync.Mutex
	flood := func(open func(n int) net.Conn) {
		var all sync.WaitGroup
		turns := make(chan struct{}, 50)
		for n := range each {
			turns <- struct{}{}
			c := open(n)
			all.Go(func() {
				defer func() { <-turns }()
				c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // those that are held say nothing
				r, err := http.ReadResponse(bufio.NewReaderSize(c, 512), nil)
				if err == nil && r.StatusCode == http.StatusTooManyRequests {
					mu.Lock()
					refused++
					mu.Unlock()
				}
				c.SetReadDeadline(time.Time{})
			})
		}
		all.Wait()
	}
	send := func(head, body string) func(int) net.Conn {
		return func(int) net.Conn {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			_, _ = io.WriteString(c, head+"\r\nAuthorization: Bearer "+ann+"\r\n\r\n"+body) // it may be closed already
			return c
		}
	}
	var flooding bytes.Buffer // a process whose output nobody takes
	if err := wire.WriteMessage(&flooding, &agentv1.Command{Argv: []string{"head", "-c", "8000000", "/dev/zero"}}); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]func(int) net.Conn{
		"processes": send("POST /v1/sessions/home/exec"+upgrading+"sandlot-exec", flooding.String()),
		"stdio":     send("POST /v1/stdio"+upgrading+"sandlot-mcp", hello+"\n"),
		"ports":     send("POST /v1/sessions/home/ports/8000"+upgrading+"sandlot-dial", ""),
		"bodies": send("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 16000000",
			strings.Repeat(" ", 200<<10)),
		"sessions": send("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: "+fmt.Sprint(len(hello)), hello),
		"strangers": func(int) net.Conn {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		},
	}
	for _, kind := range []string{"sessions", "processes", "stdio", "ports", "bodies", "strangers"} {
		refused = 0
		flood(kinds[kind])
		t.Logf("%s: %d of %d refused, the server has %d MiB", kind, refused, each, memory(t, s.cmd.Process.Pid)>>20)
		if kind != "sessions" && kind != "strangers" && refused < each/4 {
			t.Errorf("%s: only %d of %d were refused", kind, refused, each)
		}
	}
	after := slowest(t, s, bob)
	m := memory(t, s.cmd.Process.Pid)
	t.Logf("bob's P99 was %v and is %v; the server has %d MiB", before, after, m>>20)
	if m > 300<<20 {
		t.Errorf("the server has %d MiB", m>>20)
	}
	if after > 3*before+50*time.Millisecond {
		t.Errorf("bob's P99 was %v and is %v", before, after)
	}
}
