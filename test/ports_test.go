package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// link is an exposed port as a browser meets it: the names in localhost may not
// be known here, so the host is set by hand.
type link struct {
	s                *server
	session          string
	url, path, token string
	host             string
}

func (s *server) expose(c *client, a args) *link {
	s.t.Helper()
	if a["wait"] == nil { // most tests wait for an answer of their program
		a["wait"] = 0
	}
	r := c.call("expose_port", a)
	l := &link{s: s, session: r.session()}
	full, _ := r.Fields["url"].(string)
	u, err := url.Parse(full)
	if err != nil || !strings.Contains(r.All, full) {
		s.t.Fatalf("%v: %q %v", err, r.All, r.Fields)
	}
	l.url, l.host, l.token = full, u.Host, u.Query().Get("sandlot_token")
	if want := fmt.Sprintf("%v-%s.localhost:%s", a["port"], l.session,
		s.URL[strings.LastIndexByte(s.URL, ':')+1:]); l.host != want {
		s.t.Errorf("the link's host is %s, want %s", l.host, want)
	}
	p, err := url.Parse(r.Fields["path_url"].(string))
	if err != nil {
		s.t.Fatal(err)
	}
	l.path = strings.TrimSuffix(p.Path, "/")
	return l
}

// get asks by name with these headers.
func (l *link) get(path string, header ...string) (int, http.Header, string) {
	l.s.t.Helper()
	return l.s.request("GET", path, nil, append([]string{"Host", l.host}, header...)...)
}

const tokenHeader = "Sandlot-Port-Token"

// mirror is a server of Python's standard library that shows what it was sent.
const mirror = `
import http.server, json, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        out = json.dumps({'method': self.command, 'path': self.path, 'headers': list(self.headers.items()), 'body': body.decode('latin1')}).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'text/html')
        self.send_header('Set-Cookie', 'inner=1; Domain=localhost; Path=/')
        self.send_header('Service-Worker-Allowed', '/')
        self.send_header('Content-Length', str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    do_POST = do_GET
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
`

// begin runs a program of Python in the background and waits for its port.
func begin(c *client, session, name, code string, port int) string {
	c.t.Helper()
	session = c.call("sandbox_write_file", args{"path": name, "content": code, "session_id": session}).session()
	c.call("execute_command", args{"command": fmt.Sprintf("python3 %s %d", name, port), "background": true,
		"session_id": session})
	c.want(session, fmt.Sprintf(`
import socket, time
for i in range(200):
    try:
        socket.create_connection(('127.0.0.1', %d)).close()
        break
    except OSError:
        time.sleep(0.05)
print('up' if i < 199 else 'down')`, port), "up")
	return session
}

func TestPorts(t *testing.T) {
	t.Parallel()
	s := start(t)
	alice, bob := s.token("alice"), s.token("bob")
	c, other := s.connect(older, alice, nil), s.connect(newer, bob, nil)
	id := begin(c, "new", "mirror.py", mirror, 8080)
	l := s.expose(c, args{"port": 8080, "session_id": id})

	t.Run("link", func(t *testing.T) {
		code, h, _ := l.get("/a/b?x=1&sandlot_token=" + l.token)
		cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
		if code != 303 || h.Get("Location") != "/a/b?x=1" || !strings.Contains(h.Get("Set-Cookie"), "HttpOnly") ||
			strings.Contains(h.Get("Set-Cookie"), "Domain") {
			t.Fatalf("%d %v", code, h)
		}
		code, h, text := l.get("/a/b?x=1", "Cookie", "own=2; "+cookie)
		if code != 200 || !strings.Contains(text, `"/a/b?x=1"`) || !strings.Contains(text, "own=2") ||
			h.Get("Set-Cookie") != "inner=1; Path=/" {
			t.Errorf("%d %v %s", code, h, text)
		}
		if strings.Contains(text, l.token) || strings.Contains(text, "sandlot_port") {
			t.Errorf("the token is passed in: %s", text)
		}
	})
	t.Run("programs", func(t *testing.T) {
		code, _, text := s.request("POST", "/form", strings.NewReader("a=b"), "Host", l.host, tokenHeader, l.token)
		if code != 200 || !strings.Contains(text, `"body": "a=b"`) || strings.Contains(text, l.token) {
			t.Errorf("%d %s", code, text)
		}
		code, _, text = s.request("POST", "/form?q=1&sandlot_token="+l.token, strings.NewReader("a=b"), "Host", l.host)
		if code != 200 || !strings.Contains(text, `"/form?q=1"`) || strings.Contains(text, l.token) {
			t.Errorf("%d %s", code, text)
		}
		_, _, text = l.get("/", tokenHeader, l.token, "Authorization", "Bearer "+alice)
		if strings.Contains(text, alice) {
			t.Errorf("the API's token is passed in: %s", text)
		}
	})
	t.Run("by path", func(t *testing.T) {
		code, h, text := s.request("GET", l.path+"/x", nil, tokenHeader, l.token, "Cookie",
			"console=secret; sandlot_in_inner=1")
		if code != 200 || !strings.Contains(text, `"/x"`) || strings.Contains(text, "console") ||
			!strings.Contains(text, "inner=1") {
			t.Errorf("%d %s", code, text)
		}
		csp := fmt.Sprint(h["Content-Security-Policy"])
		if !strings.Contains(csp, "sandbox") || strings.Contains(csp, "allow-same-origin") ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Service-Worker-Allowed") != "" ||
			h.Get("Set-Cookie") != "sandlot_in_inner=1; Path="+l.path+"/" {
			t.Errorf("%v", h)
		}
		if code, _, _ := s.request("GET", l.path+"/sw.js", nil, tokenHeader, l.token, "Service-Worker",
			"script"); code != 403 {
			t.Errorf("a service worker: %d", code)
		}
	})
	t.Run("private", func(t *testing.T) {
		stranger := s.expose(other, args{"port": 8080, "session_id": "new"})
		for name, header := range map[string][]string{"wrong": {tokenHeader, "slp_wrong"},
			"another user's": {tokenHeader, stranger.token}, "the API's": {tokenHeader, alice}} {
			if code, _, text := l.get("/", header...); code != 404 || strings.Contains(text, "headers") {
				t.Errorf("%s token: %d %s", name, code, text)
			}
		}
		if code, _, text := l.get("/", "Accept", "text/html"); code != 401 || !strings.Contains(text, "whole link") {
			t.Errorf("no token: %d %s", code, text)
		}
		if code, _, _ := l.get("/", "Authorization", "Bearer "+bob); code != 401 {
			t.Errorf("another user: %d", code)
		}
		for _, call := range []struct {
			tool string
			a    args
		}{{"expose_port", args{"port": 8080, "session_id": id}}, {"close_port", args{"port": 8080, "session_id": id}},
			{"get_sessions", args{"session_id": id}}} {
			if r, err := other.try(t.Context(), call.tool, call.a); err == nil && !r.IsError {
				t.Errorf("another user's %s: %q", call.tool, r.All)
			}
		}
	})
	t.Run("the page does not reach the API", func(t *testing.T) {
		origin := "http://" + l.host
		call := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
		for _, host := range []string{strings.TrimPrefix(s.URL, "http://"), "localhost:8000"} {
			for _, from := range []string{origin, "null"} {
				code, h, text := s.post("/mcp", call, "Host", host, "Origin", from, "Authorization", "Bearer "+alice)
				if code != 403 || h.Get("Access-Control-Allow-Origin") != "" || strings.Contains(text, "execute_code") {
					t.Errorf("POST from %s to %s: %d %s", from, host, code, text)
				}
				code, h, text = s.request("GET", "/mcp", nil, "Host", host, "Origin", from)
				if code != 403 || h.Get("Access-Control-Allow-Origin") != "" || strings.Contains(text, "execute_code") {
					t.Errorf("GET from %s to %s: %d %s", from, host, code, text)
				}
				code, h, _ = s.request("OPTIONS", "/mcp", nil, "Host", host, "Origin", from,
					"Access-Control-Request-Method", "POST")
				if code != 403 || h.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("preflight from %s to %s: %d", from, host, code)
				}
				code, _, _ = s.request("GET", "/mcp", nil, "Host", host, "Origin", from, "Connection", "Upgrade",
					"Upgrade", "websocket")
				if code != 403 {
					t.Errorf("WebSocket from %s to %s: %d", from, host, code)
				}
			}
		}
		// And no path of its own host leads there.
		for _, path := range []string{"/mcp", "/v1/sessions", "/metrics", l.path + "/"} {
			if code, _, text := l.get(path, "Authorization", "Bearer "+alice); code != 401 {
				t.Errorf("%s: %d %s", path, code, text)
			}
			if code, _, text := l.get(path, tokenHeader, l.token); code != 200 ||
				!strings.Contains(text, `"path": "`+path) {
				t.Errorf("%s: %d %s", path, code, text)
			}
		}
	})
	t.Run("many at once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for range 4 {
					path := fmt.Sprintf("/n/%d", i)
					if code, _, text := l.get(path, tokenHeader, l.token); code != 200 ||
						!strings.Contains(text, path) {
						t.Errorf("%s: %d %s", path, code, text)
					}
				}
			})
		}
		wg.Wait()
	})
	t.Run("list", func(t *testing.T) {
		row := c.call("get_sessions", args{"session_id": id}).Fields["sessions"].([]any)[0].(map[string]any)
		ports, _ := json.Marshal(row["ports"])
		if !strings.Contains(string(ports), `"port":8080`) || strings.Contains(string(ports), "token") {
			t.Errorf("%s", ports)
		}
	})
	t.Run("kill -9", func(t *testing.T) {
		s.kill()
		s.launch()
		if code, _, text := l.get("/again", tokenHeader, l.token); code != 200 || !strings.Contains(text, "/again") {
			t.Errorf("%d %s", code, text)
		}
	})
	t.Run("expiry", func(t *testing.T) {
		c := s.connect(older, alice, nil)
		brief := s.expose(c, args{"port": 8081, "session_id": id, "expires_in": 1})
		time.Sleep(1100 * time.Millisecond)
		if code, _, _ := brief.get("/", tokenHeader, brief.token); code != 404 {
			t.Errorf("%d", code)
		}
	})
	t.Run("close", func(t *testing.T) {
		c := s.connect(older, alice, nil)
		again := s.expose(c, args{"port": 8080, "session_id": id})
		if code, _, _ := l.get("/", tokenHeader, l.token); code != 404 {
			t.Errorf("the older link: %d", code)
		}
		if code, _, _ := again.get("/", tokenHeader, again.token); code != 200 {
			t.Errorf("the newer link: %d", code)
		}
		if r := c.call("close_port", args{"port": 8080, "session_id": id}); r.Fields["success"] != true {
			t.Errorf("%v", r.Fields)
		}
		if code, _, _ := again.get("/", tokenHeader, again.token); code != 404 {
			t.Errorf("after close_port: %d", code)
		}
		if r := c.call("close_port", args{"port": 8080, "session_id": id}); r.Fields["success"] != false || r.IsError {
			t.Errorf("%v", r.Fields)
		}
	})
	t.Run("public", func(t *testing.T) {
		c := s.connect(older, alice, nil)
		open := s.expose(c, args{"port": 8080, "session_id": id, "public": true})
		if code, _, _ := open.get("/"); code != 200 || open.token != "" {
			t.Errorf("%d, token %q", code, open.token)
		}
		c.call("stop_session", args{"session_id": id})
		if code, _, _ := open.get("/"); code != 401 {
			t.Errorf("after its session: %d", code)
		}
	})
}

// TestPortsNothingListens gives a link all the same, and wakes a stopped session.
func TestPortsNothingListens(t *testing.T) {
	t.Parallel()
	s := start(t, "MSB_SESSION_TIMEOUT=2", "MSB_CLEANUP_INTERVAL=1", "SANDLOT_HIBERNATE_ENABLED=false")
	c := s.connect(older, "", nil)
	l := s.expose(c, args{"port": 8080})
	if r := c.call("expose_port", args{"port": 8081, "wait": 0.5}); !strings.Contains(r.Text, "Nothing listens on port 8081 yet") ||
		r.Fields["listening"] != false {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	ask := func() (int, string) {
		t.Helper()
		code, _, text := l.get("/", tokenHeader, l.token, "Accept", "text/html")
		return code, text
	}
	if code, h, text := l.get("/", tokenHeader, l.token, "Accept", "text/html"); code != 502 || h.Get("Refresh") != "2" ||
		!strings.Contains(text, "Nothing listens on port 8080") {
		t.Errorf("%d %v %s", code, h, text)
	}
	c.shell("home", "echo kept > /workspace/f")
	until(t, "the session stops", func() bool { return status(c) == "stopped" })
	if code, _ := ask(); code != 502 {
		t.Errorf("%d", code)
	}
	if is := status(c); is == "stopped" {
		t.Errorf("the session is %s", is)
	}
	// What was lost is told to the next call, not to the request.
	if r := c.shell("home", "cat /workspace/f"); r.Fields["notice"] == nil || !strings.Contains(r.All, "kept") {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	begin(c, "home", "mirror.py", mirror, 8080)
	if code, text := ask(); code != 200 {
		t.Errorf("%d %s", code, text)
	}
}

// webSocket is a WebSocket server of Python's standard library that sends each
// message back, as binary.
const webSocket = `
import base64, hashlib, socketserver, struct, sys
class H(socketserver.StreamRequestHandler):
    def handle(self):
        head = {}
        line = self.rfile.readline()
        while True:
            k, _, v = self.rfile.readline().decode().strip().partition(': ')
            if not k: break
            head[k.lower()] = v
        accept = base64.b64encode(hashlib.sha1((head['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest()).decode()
        self.wfile.write(('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nX-Origin: %s\r\nX-Path: %s\r\n\r\n' % (accept, head.get('origin', ''), line.split()[1].decode())).encode())
        while True:
            b = self.rfile.read(2)
            if len(b) < 2: return
            n = b[1] & 127
            if n == 126: n = struct.unpack('>H', self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(c ^ mask[i % 4] for i, c in enumerate(self.rfile.read(n)))
            if b[0] & 15 == 8: return
            self.wfile.write(struct.pack('>BBH', 0x82, 126, n) + data)
class S(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
S(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
`

func TestPortsWebSocket(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	begin(c, "home", "ws.py", webSocket, 9000)
	l := s.expose(c, args{"port": 9000})
	open := func(target, host string, header ...string) (net.Conn, *bufio.Reader, *http.Response) {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: "+
			"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n%s\r\n", target,
			host, strings.Join(header, "\r\n"))
		from := bufio.NewReader(conn)
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, from, resp
	}
	local := strings.TrimPrefix(s.URL, "http://")
	hash := sha1.Sum([]byte("MDEyMzQ1Njc4OWFiY2RlZg==258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	for _, tt := range []struct{ target, host, header string }{
		{"/ws?sandlot_token=" + l.token, l.host, ""},
		{"/ws", l.host, tokenHeader + ": " + l.token + "\r\n"},
		{"/ws", l.host, "Origin: http://" + l.host + "\r\nCookie: sandlot_port=" + l.token + "\r\n"},
		{l.path + "/ws?sandlot_token=" + l.token, local, ""},
	} {
		conn, from, resp := open(tt.target, tt.host, tt.header)
		if resp.StatusCode != 101 ||
			resp.Header.Get("Sec-WebSocket-Accept") != base64.StdEncoding.EncodeToString(hash[:]) ||
			resp.Header.Get("X-Path") != "/ws" {
			t.Fatalf("%s: %d %v", tt.target, resp.StatusCode, resp.Header)
		}
		for _, message := range [][]byte{[]byte("hello"), bytes.Repeat([]byte{0, 255, 128, 10}, 4000)} {
			frame := append([]byte{0x82, 0x80 | 126, byte(len(message) >> 8), byte(len(message)), 1, 2, 3, 4},
				message...)
			for i := range message {
				frame[8+i] ^= byte(1 + i%4)
			}
			conn.Write(frame)
			got := make([]byte, 4+len(message))
			if _, err := io.ReadFull(from, got); err != nil || !bytes.Equal(got[4:], message) {
				t.Errorf("%s: %v, %d bytes", tt.target, err, len(got))
			}
		}
		conn.Close()
	}
	if _, _, resp := open("/ws", l.host, "Origin: http://evil.localhost\r\nCookie: sandlot_port="+l.token+
		"\r\n"); resp.StatusCode != 401 {
		t.Errorf("from another origin: %d", resp.StatusCode)
	}
	_, from, _ := open("/ws", l.host, tokenHeader+": "+l.token+"\r\n")
	if is := status(c); is != "processing" {
		t.Errorf("while it is used the session is %s", is)
	}
	c.call("close_port", args{"port": 9000})
	if _, err := from.ReadByte(); err == nil {
		t.Error("the connection goes on after close_port")
	}
	until(t, "the session is free", func() bool { return status(c) != "processing" })
}

// talk is a TCP server that reads all, and then says how much, and all of it
// backwards.
const talk = `
import socketserver, sys
class H(socketserver.StreamRequestHandler):
    def handle(self):
        data = self.rfile.read()
        self.wfile.write(b'%d\n' % len(data) + data[::-1])
class S(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
S(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
`

// forwarding is a running `sandlot forward`.
func (s *server) forwarding(flags []string, a ...string) (address string, cmd *exec.Cmd) {
	s.t.Helper()
	cmd = exec.Command(binary(s.t), append(append(flags, "forward"), a...)...)
	cmd.Env, cmd.Stderr = s.env, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(line), cmd
}

func TestPortsForward(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	begin(c, "home", "talk.py", talk, 7000)
	data := make([]byte, 9<<20)
	for i := range data {
		data[i] = byte(i * 13 >> 4)
	}
	for over, flags := range map[string][]string{"socket": {"--state-dir", s.State}, "network": {"--server", s.URL}} {
		t.Run(over, func(t *testing.T) {
			address, cmd := s.forwarding(flags, "home", "7000")
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					conn, err := net.Dial("tcp", address)
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					part := data[i<<20:]
					go func() {
						conn.Write(part)
						conn.(*net.TCPConn).CloseWrite()
					}()
					got, err := io.ReadAll(conn)
					head, rest, _ := bytes.Cut(got, []byte("\n"))
					ok := len(rest) == len(part)
					for i := 0; ok && i < len(part); i++ {
						ok = rest[i] == part[len(part)-1-i]
					}
					if !ok || err != nil || string(head) != fmt.Sprint(len(part)) {
						t.Errorf("%d of %d bytes came back, %q, %v", len(rest), len(part), head, err)
					}
				})
			}
			wg.Wait()
			cmd.Process.Signal(syscall.SIGINT)
			if err := cmd.Wait(); err != nil {
				t.Errorf("Ctrl-C: %v", err)
			}
			if _, err := net.Dial("tcp", address); err == nil {
				t.Error("it listens on")
			}
		})
	}
	t.Run("listen", func(t *testing.T) {
		want := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		address, cmd := s.forwarding([]string{"--state-dir", s.State}, "home", "7001", "--listen", want)
		if address != want {
			t.Errorf("%s, want %s", address, want)
		}
		conn, err := net.Dial("tcp", address) // nothing listens in the session
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(conn); len(b) > 0 {
			t.Errorf("%q", b)
		}
		cmd.Process.Signal(syscall.SIGINT)
		cmd.Wait()
	})
	for _, bad := range [][]string{{"home"}, {"home", "0"}, {"home", "x"}, {"home", "1", "--listen", "nonsense"}} {
		if _, _, code := s.cli(append([]string{"forward"}, bad...)...); code != 2 {
			t.Errorf("%v: exit code %d", bad, code)
		}
	}
	if _, errs, code := s.cli("forward", "nobodys", "80"); code != 1 || !strings.Contains(errs, "not found") {
		t.Errorf("%d %q", code, errs)
	}
}

func TestPortsCommand(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := begin(c, "home", "mirror.py", mirror, 8080)
	out, errs, code := s.cli("ports", "expose", "home", "8080")
	u, err := url.Parse(strings.TrimSpace(out))
	if code != 0 || err != nil || !strings.HasPrefix(u.Host, "8080-"+id) {
		t.Fatalf("%d %q %q", code, out, errs)
	}
	if code, _, _ := s.request("GET", "/", nil, "Host", u.Host, tokenHeader, u.Query().
		Get("sandlot_token")); code != 200 {
		t.Errorf("the link: %d", code)
	}
	if _, errs, code := s.cli("ports", "expose", "home", "9", "--public", "--expires", "2h"); code != 0 ||
		!strings.Contains(errs, "Nothing listens on port 9 yet") {
		t.Errorf("%d %q", code, errs)
	}
	var rows []map[string]any
	out, _, _ = s.cli("ports", "--session", "home", "--json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 2 || rows[0]["port"] != 9.0 ||
		rows[0]["public"] != true || rows[1]["session_id"] != id {
		t.Errorf("%v %s", err, out)
	}
	if out, _, code := s.cli("ports"); code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, "private") {
		t.Errorf("%d %q", code, out)
	}
	for _, want := range []int{0, 1} {
		if _, errs, code := s.cli("ports", "close", "home", "8080"); code != want {
			t.Errorf("%d %q, want %d", code, errs, want)
		}
	}
	if code, _, _ := s.request("GET", "/", nil, "Host", u.Host, tokenHeader, u.Query().
		Get("sandlot_token")); code != 404 {
		t.Errorf("the closed link: %d", code)
	}
}

// TestPortsFlood fills a session with connections that say nothing: other
// sessions do not notice, and it is free again when they end.
func TestPortsFlood(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	hang := "import socket, sys, time\ns = socket.socket()\ns.bind(('127.0.0.1', " +
		"int(sys.argv[1])))\ns.listen(1000)\nheld = []\nwhile True: held.append(s.accept())"
	id := begin(c, "new", "hang.py", hang, 8080)
	other := begin(c, "new", "mirror.py", mirror, 8080)
	l, free := s.expose(c, args{"port": 8080, "session_id": id}), s.expose(c, args{"port": 8080, "session_id": other})
	ctx, cancel := context.WithCancel(t.Context())
	codes := make(chan int, 300)
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, "GET", s.URL+"/", nil)
			r.Host = l.host
			r.Header.Set(tokenHeader, l.token)
			resp, err := http.DefaultTransport.RoundTrip(r)
			if err == nil {
				resp.Body.Close()
				codes <- resp.StatusCode
			}
		})
	}
	for range 300 - 128 {
		if code := <-codes; code != 503 {
			t.Errorf("beyond the limit: %d", code)
		}
	}
	if code, _, _ := free.get("/", tokenHeader, free.token); code != 200 {
		t.Errorf("another session: %d", code)
	}
	c.want(id, "6*7", "42")
	cancel()
	wg.Wait()
	until(t, "the session takes connections", func() bool {
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		r, _ := http.NewRequestWithContext(short, "GET", s.URL+"/", nil)
		r.Host = l.host
		r.Header.Set(tokenHeader, l.token)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		return err != nil // it waits for an answer
	})
}
