package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/test/tasks"
)

// web is a server of the test on loopback, for HTTP and HTTPS, whose names are
// web.test and others below test.
type web struct {
	Port, TLSPort int
	CA            string // file with all that a program should trust
	Hits          atomic.Int64
}

// big256 is how many bytes /big sends.
const big256 = 256 << 20

func startWeb(t *testing.T) *web {
	t.Helper()
	w := &web{}
	cert, ca := certificate(t)
	w.CA = ca
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(rw http.ResponseWriter, r *http.Request) {
		w.Hits.Add(1)
		fmt.Fprintf(rw, "hello from %s", r.Host)
	})
	mux.HandleFunc("/redirect", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	mux.HandleFunc("/echo", func(rw http.ResponseWriter, r *http.Request) { io.Copy(rw, r.Body) })
	mux.HandleFunc("/big", func(rw http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 1<<20)
		for range big256 >> 20 {
			if _, err := rw.Write(piece); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/slow", func(rw http.ResponseWriter, r *http.Request) {
		for i := 0; r.Context().Err() == nil; i++ {
			fmt.Fprintf(rw, "%d\n", i)
			rw.(http.Flusher).Flush()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
	})
	mux.Handle("/git/", gitServer(t))
	plain, secure := listen(t), listen(t)
	w.Port, w.TLSPort = plain.Addr().(*net.TCPAddr).Port, secure.Addr().(*net.TCPAddr).Port
	quiet := log.New(io.Discard, "", 0)
	server := &http.Server{Handler: mux, ErrorLog: quiet}
	tlsServer := &http.Server{Handler: mux, ErrorLog: quiet,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	go server.Serve(plain)
	go tlsServer.ServeTLS(secure, "", "")
	t.Cleanup(func() { server.Close(); tlsServer.Close() })
	return w
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// certificate makes a certificate for *.test, and a file with its issuer and
// what this machine trusts.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "web.test"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"web.test", "*.test", "*.web.test"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	trusted, _ := os.ReadFile(os.Getenv("SSL_CERT_FILE"))
	dir, err := os.MkdirTemp("", "sandlot-ca-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755) // for servers of other users
	file := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(file, append(trusted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})...),
		0o644); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, caDER}, PrivateKey: key}, file
}

// gitServer serves /git/repo.git, and test/servers/repo as /git/greeter.git.
func gitServer(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	greeter, err := filepath.Abs("servers/repo")
	if err != nil {
		t.Fatal(err)
	}
	script := `set -e
publish() { git init -q -b main; git add .; git -c user.name=t -c user.email=t@web.test commit -qm first; git clone -q --bare . ../$1.git; git -C ../$1.git update-server-info; }
mkdir w; cd w; echo content > file; publish repo; cd ..; cp -r "$1" g; cd g; publish greeter`
	cmd := exec.Command("sh", "-c", script, "sh", greeter)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git: %v\n%s", err, out)
	}
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	return &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Root: "/git",
		Stderr: io.Discard,
		Env:    []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}}
}

// settings are those with which a sandbox may reach the web under these names.
func (w *web) settings(names ...string) []string {
	var hosts, private []string
	for _, n := range names {
		hosts = append(hosts, n+"=127.0.0.1")
		private = append(private, n+"=127.0.0.0/8")
	}
	return []string{"SANDLOT_NETWORK_HOSTS=" + strings.Join(append(hosts, "other.test=127.0.0.1"), ","),
		"SANDLOT_NETWORK_ALLOW_PRIVATE=" + strings.Join(private, ","), "SSL_CERT_FILE=" + w.CA}
}

// script fills in a program's ports.
func (w *web) script(text string) string {
	return strings.NewReplacer("PORT_TLS", strconv.Itoa(w.TLSPort), "PORT", strconv.Itoa(w.Port)).Replace(text)
}

// ways are programs of many kinds that fetch /hello, without any setting.
var ways = map[string]string{
	"curl":           `curl -sS -m 20 http://web.test:PORT/hello`,
	"curl, https":    `curl -sS -m 20 https://web.test:PORT_TLS/hello`,
	"python":         `python3 -c 'import urllib.request as u; print(u.urlopen("https://web.test:PORT_TLS/hello").read().decode())'`,
	"node":           `node -e 'fetch("https://web.test:PORT_TLS/hello").then(r => r.text()).then(console.log)'`,
	"git":            `cd $(mktemp -d) && git clone -q https://web.test:PORT_TLS/git/repo.git && cat repo/file | grep -q content && echo hello from web.test`,
	"the HTTP proxy": `curl -sS -m 20 -x http://127.0.0.1:3128 http://web.test:PORT/hello`,
	"CONNECT":        `curl -sS -m 20 -x http://127.0.0.1:3128 https://web.test:PORT_TLS/hello`,
	"SOCKS5":         `curl -sS -m 20 -x socks5h://127.0.0.1:3128 https://web.test:PORT_TLS/hello`,
	"an address":     `/workspace/dial $(getent ahostsv4 web.test | head -1 | cut -d" " -f1):PORT`,
	"a static program with a name server of its own": `/workspace/dial web.test:PORT 8.8.8.8:53`,
}

// static builds a program that dials by itself, and puts it into a session.
func static(t *testing.T, s *server, session string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "dial")
	build := exec.Command("go", "build", "-o", out, "./hostile/dial")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if _, errs, code := s.cliIn(string(text), "cp", "-", session+":dial"); code != 0 {
		t.Fatal(errs)
	}
	if _, errs, code := s.cli("exec", "--session", session, "--", "chmod", "755", "dial"); code != 0 {
		t.Fatal(errs)
	}
}

// TestNetwork reaches a server with every kind of program.
func TestNetwork(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	t.Run("root", func(t *testing.T) { w.everyWay(t, start(t, w.settings("web.test")...)) })
	if daemonOf(t) != nil {
		return // no preboot image, and no server without root
	}
	t.Run("from a preboot image", func(t *testing.T) {
		s := start(t, append(w.settings("web.test"), "SANDLOT_SNAPSHOTS=true")...)
		s.awaitImage()
		w.everyWay(t, s)
		if _, _, text := s.request("GET", "/metrics", nil); !strings.Contains(text,
			"sandlot_sandboxes_started_total{from=\"snapshot\"} 1\n") {
			t.Error("the home was not started from the preboot image")
		}
	})
	t.Run("unprivileged", func(t *testing.T) { w.everyWay(t, startUnprivileged(t, w.settings("web.test")...)) })
}

func (w *web) everyWay(t *testing.T, s *server) {
	c := s.connect(older, "", nil)
	static(t, s, "home")
	for name, command := range ways {
		t.Run(name, func(t *testing.T) {
			if r := c.shell("home", w.script(command)); !strings.HasPrefix(r.Text, "hello from web.test") {
				t.Errorf("%q", r.All)
			}
		})
	}
	t.Run("both ways, and half closed", func(t *testing.T) {
		r := c.code("home", w.script(`import socket, hashlib, os, threading
s = socket.create_connection(("web.test", PORT))
body = os.urandom(20 << 20)
s.sendall(b"POST /echo HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body))
threading.Thread(target=lambda: (s.sendall(body), s.shutdown(socket.SHUT_WR))).start()
got = b"".join(iter(lambda: s.recv(1 << 20), b""))
print(got.split(b"\r\n\r\n", 1)[1] == body)`))
		if r.Text != "True" {
			t.Errorf("%q", r.All)
		}
	})
	t.Run("nothing else", func(t *testing.T) {
		r := c.code("home", `import errno, socket, time
def tried(what, f):
  t = time.time()
  try: r = f()
  except OSError as e: r = type(e).__name__
  print(what, r, time.time() - t < 3)
def udp():
  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect(("192.0.2.1", 443)); s.send(b"x"); return s.recv(1)
tried("udp", udp)
tried("ipv6", lambda: socket.create_connection(("2001:db8::1", 80), 5))
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
def packet(): # gVisor refuses the right, and a container the family
  try: return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
  except OSError as e: return e.errno in (errno.EPERM, errno.EAFNOSUPPORT) and "refused"
tried("packet", packet)
print("aaaa", [a for a in socket.getaddrinfo("web.test", 80) if a[0] == socket.AF_INET6])`)
		for _, want := range []string{"udp ConnectionRefusedError True", "ipv6 OSError True",
			"raw PermissionError True", "packet refused True", "aaaa []"} {
			if !strings.Contains(r.Text, want) {
				t.Errorf("no %q in %q", want, r.All)
			}
		}
	})
}

// TestNetworkRefused: what is refused, and what the user is told.
func TestNetworkRefused(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, w.settings("web.test")...)
	c := s.connect(newer, "", nil)
	for _, tt := range []struct{ name, command, says, told string }{
		{"a name", "curl -sS -m 5 http://elsewhere.test:PORT/hello",
			"sandlot network allow elsewhere.test:PORT --session", "elsewhere.test:PORT"},
		{"a name that is private", "curl -sS -m 5 http://other.test:PORT/hello", "Failed to connect",
			"other.test:PORT"},
		{"an address", "curl -sS -m 5 http://192.0.2.7:81/", "curl:", "192.0.2.7:81"},
		{"metadata", "curl -sS -m 5 http://169.254.169.254/latest", "curl:", "169.254.169.254:80"},
		{"metadata, by redirect", "curl -sS -L -m 5 'http://web.test:PORT/redirect?to=http://169.254.169.254/'",
			"curl:", "169.254.169.254:80"},
		{"the machine itself, by redirect",
			"curl -sS -L -m 5 -x http://127.0.0.1:3128 'http://web.test:PORT/redirect?to=http://127.0.0.1:PORT/hello'",
			"127.0.0.1 was refused", "127.0.0.1:PORT"},
		{"by the proxy", "curl -sS -m 5 -o /dev/stderr -w '%{http_code}' -x http://127.0.0.1:3128 " +
			"http://elsewhere.test/", "403", "elsewhere.test:80"},
		// curl's own reading
		{"an odd form", "curl -sS -m 5 -x http://127.0.0.1:3128 http://2130706433:PORT/hello", "refused", "127.0.0.1"},
		{"IPv4 in IPv6", "curl -sS -m 5 -x http://127.0.0.1:3128 'http://[::ffff:127.0.0.1]:PORT/hello'", "refused",
			"127.0.0.1"},
		{"localhost", "curl -sS -m 5 -x http://127.0.0.1:3128 http://localhost:PORT/hello", "refused",
			"localhost:PORT"},
		{"another TLS name", "curl -sS -m 5 --connect-to elsewhere.test:443:web.test:PORT_TLS " +
			"https://elsewhere.test/hello", "curl:", "elsewhere.test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			hits := w.Hits.Load()
			r := c.shell("home", w.script(tt.command))
			if !strings.Contains(r.All, w.script(tt.says)) ||
				!strings.Contains(r.All, "Network access refused: "+w.script(tt.told)) {
				t.Errorf("%q", r.All)
			}
			if list, _ := r.Fields["network_refused"].([]any); len(list) == 0 {
				t.Errorf("fields %v", r.Fields)
			}
			if w.Hits.Load() != hits {
				t.Error("it was reached")
			}
			if again := c.shell("home", "true"); strings.Contains(again.All, "refused") {
				t.Errorf("told again: %q", again.All)
			}
		})
	}
}

// TestNetworkChanges: a change holds at once, for running sandboxes and open
// connections, and after a crash of the server.
func TestNetworkChanges(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	write := func(mode string) {
		t.Helper()
		text := fmt.Sprintf("network:\n  mode: %s\n  hosts: {web.test: 127.0.0.1, two.test: 127.0.0.1}\n  "+
			"allow_private: [{host: web.test, cidr: 127.0.0.0/8}]\n", mode)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("allowlist")
	s := start(t, "SANDLOT_CONFIG="+file)
	c := s.connect(older, "", nil)
	get := w.script("curl -sS -m 5 http://web.test:PORT/hello")
	reaches := func(want bool, command string) {
		t.Helper()
		var r *result
		for range 60 { // the file is looked at every second
			if r = c.shell("home", command); strings.HasPrefix(r.Text, "hello") == want {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("reached: %v: %q", !want, r.All)
	}
	reaches(true, get)
	running := c.call("execute_command", args{"command": w.script("curl -sSN http://web.test:PORT/slow; echo ended $?"),
		"session_id": "home", "background": true})
	if r := c.call("read_process", args{"process_id": running.Fields["process_id"],
		"wait": 20}); !strings.HasPrefix(r.Text, "0") {
		t.Fatalf("%q", r.All)
	}
	write("none")
	reaches(false, get)
	var r *result
	for range 300 {
		if r = c.call("read_process", args{"process_id": running.Fields["process_id"]}); strings.Contains(r.All,
			"ended") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !strings.Contains(r.All, "ended 56") && !strings.Contains(r.All, "ended 18") {
		t.Errorf("the open connection: %q", tail(r.All, 300))
	}
	write("nonsense") // changes nothing
	time.Sleep(1500 * time.Millisecond)
	reaches(false, get)
	write("allowlist")
	reaches(true, get)

	two := w.script("curl -sS -m 5 http://two.test:PORT/hello")
	reaches(false, two)
	if out, errs, code := s.cli("network", "mode", "none", "--session", "home"); code != 0 ||
		!strings.Contains(out, "none") {
		t.Fatalf("%q %q", out, errs)
	}
	reaches(false, get)
	s.kill()
	s.launch()
	c = s.connect(older, "", nil)
	reaches(false, get)
	if out, errs, code := s.cli("network", "reset", "--session", "home"); code != 0 {
		t.Fatalf("%q %q", out, errs)
	}
	reaches(true, get)
	if out, errs, code := s.cli("network", "--json"); code != 0 || !strings.Contains(out, `"allowlist"`) {
		t.Errorf("%q %q", out, errs)
	}
	if _, errs, code := s.cli("network", "allow", "http://x/", "--session", "home"); code != 2 || errs == "" {
		t.Errorf("a bad rule: %d %q", code, errs)
	}
	if _, errs, code := s.cli("network", "mode", "none", "--session", "nosuch"); code != 1 ||
		!strings.Contains(errs, "not found") {
		t.Errorf("an unknown session: %d %q", code, errs)
	}
}

// TestNetworkServerKilled: a download ends with an error, the sandbox lives, and
// the next attempt works.
func TestNetworkServerKilled(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, w.settings("web.test")...)
	c := s.connect(older, "", nil)
	c.code("home", "kept = 42")
	p := c.call("execute_command",
		args{"command": w.script("curl -sSN http://web.test:PORT/slow > /tmp/slow; echo ended $?"),
			"session_id": "home", "background": true})
	began := false
	for range 600 {
		if began = c.shell("home", "cat /tmp/slow 2>/dev/null | wc -c").Text != "0"; began {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if !began {
		t.Fatal("the download does not begin")
	}
	s.kill()
	s.launch()
	c = s.connect(older, "", nil)
	c.want("home", "kept", "42")
	var r *result
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if r = c.call("read_process", args{"process_id": p.Fields["process_id"]}); strings.Contains(r.Text, "ended") {
			break
		}
	}
	if !strings.Contains(r.Text, "ended 56") && !strings.Contains(r.Text, "ended 18") {
		t.Errorf("the download: %q", r.All)
	}
	if r := c.shell("home", w.script("curl -sS http://web.test:PORT/big | wc -c")); r.Text != strconv.Itoa(big256) {
		t.Errorf("the next attempt: %q", r.All)
	}
}

// TestNetworkLimit: the bytes of a session are used up for good, whatever becomes
// of its sandbox and of the server, until the operator says so; and its programs
// and its user learn of it.
func TestNetworkLimit(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, append(w.settings("web.test"), "SANDLOT_NETWORK_MAX_MB=1")...)
	c := s.connect(older, "", nil)
	home := c.code("home", "1").session()
	get := w.script("curl -sS -m 5 http://web.test:PORT/hello; echo; curl -sS -m 5 -x http://127.0.0.1:3128 " +
		"http://web.test:PORT/hello; true")
	const reason = "this session has used all 1 MB of network that it may use"
	if r := c.shell("home", get); strings.Count(r.All, "hello from web.test") != 2 {
		t.Fatalf("at first: %q", r.All)
	}
	refused := func(when string) {
		t.Helper()
		r := c.shell("home", get)
		if strings.Contains(r.All, "hello from") || !strings.Contains(r.All, "curl: (") ||
			!strings.Contains(r.All, "web.test was refused: "+reason) ||
			!strings.Contains(r.All, "Network access refused: web.test:"+strconv.Itoa(w.Port)+": "+reason) ||
			!strings.Contains(r.All, `session_id "new"`) || !strings.Contains(r.All,
			"sandlot network recount --session "+home) {
			t.Errorf("%s: %q", when, r.All)
		}
	}
	if r := c.shell("home", w.script("curl -sS http://web.test:PORT/big | wc -c")); !strings.Contains(r.All, reason) ||
		strings.Contains(r.Text, strconv.Itoa(big256)) {
		t.Errorf("the download: %q", r.All)
	}
	refused("after the download")
	if r := c.shell("new", get); strings.Count(r.All, "hello from web.test") != 2 {
		t.Errorf("a new session: %q", r.All)
	}
	c.call("stop_session", args{"session_id": "home"})
	refused("in another sandbox")
	time.Sleep(2500 * time.Millisecond) // it is stored every two seconds
	s.kill()
	s.launch()
	c = s.connect(older, "", nil)
	refused("after a crash of the server")
	c.call("stop_session", args{"session_id": "home"})
	refused("in another sandbox, after a crash of the server")
	row := c.call("get_sessions", args{"session_id": home}).Fields["sessions"].([]any)[0].(map[string]any)
	moved, limits := row["network"].(map[string]any), row["limits"].(map[string]any)
	if got := moved["received_mb"].(float64); got < 0.9 || limits["network_mb"] != 1.0 {
		t.Errorf("get_sessions: %v, %v", moved, limits)
	}
	if out, errs, code := s.cli("network", "--session", "home"); code != 0 ||
		!strings.Contains(out, "of 1048576 bytes used") {
		t.Errorf("%q %q", out, errs)
	}
	if out, errs, code := s.cli("network", "recount", "--session", "home"); code != 0 ||
		!strings.Contains(out, "limit       0 of 1048576 bytes used") {
		t.Errorf("%q %q", out, errs)
	}
	var r *result
	for range 60 { // programs may hold what they heard of a name for a moment
		if r = c.shell("home", get); strings.Count(r.All, "hello from web.test") == 2 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if strings.Count(r.All, "hello from web.test") != 2 {
		t.Errorf("counted anew: %q", r.All)
	}
}

// TestNetworkUsers: what one user may reach, and did, is not another's.
func TestNetworkUsers(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, w.settings("web.test")...)
	ann, bob := s.connect(older, s.token("ann"), nil), s.connect(older, s.token("bob"), nil)
	a := ann.code("home", "1").session()
	bob.code("home", "1")
	get := w.script("curl -sS -m 5 http://web.test:PORT/hello")
	if _, errs, code := s.cli("network", "mode", "none", "--session", a); code != 0 {
		t.Fatal(errs)
	}
	if r := ann.shell("home", get); strings.HasPrefix(r.Text, "hello") {
		t.Errorf("ann: %q", r.All)
	}
	if r := bob.shell("home", get); !strings.HasPrefix(r.Text, "hello") || strings.Contains(r.All, "refused") {
		t.Errorf("bob: %q", r.All)
	}
	token := "Bearer " + s.token("bob")
	if code, _, body := s.request("GET", "/v1/sessions/"+a+"/network", nil, "Authorization", token); code != 404 {
		t.Errorf("bob sees ann's network: %d %q", code, body)
	}
	if code, _, body := s.request("PATCH", "/v1/sessions/"+a+"/network", strings.NewReader(`{"mode":"public"}`),
		"Authorization", "Bearer "+s.token("ann")); code < 400 {
		t.Errorf("ann changes her own network: %d %q", code, body)
	}
	// An operator's token does over the network what the owner does by the socket.
	operator := s.token("eve", "--role", "operator")
	remote := func(token string, command ...string) (string, string, int) {
		env := append([]string{}, s.env...)
		s.env = append(s.env[:len(s.env):len(s.env)], "SANDLOT_TOKEN="+token)
		defer func() { s.env = env }()
		return s.cli(append([]string{"--server", s.URL}, command...)...)
	}
	if out, errs, code := remote(operator, "network", "reset", "--session", a); code != 0 ||
		!strings.Contains(out, a) || !strings.Contains(out, "mode        allowlist") {
		t.Errorf("an operator: %s %s", out, errs)
	}
	for name, token := range map[string]string{"ann": strings.TrimPrefix(token, "Bearer "),
		"one called operator": s.token("operator")} {
		if out, errs, code := remote(token, "network", "mode", "none", "--session", "home"); code == 0 ||
			!strings.Contains(errs, "needs the role operator") {
			t.Errorf("%s: %s %s", name, out, errs)
		}
		if _, errs, code := remote(token, "sessions", "stop", "--all"); code == 0 ||
			!strings.Contains(errs, "needs the role operator") {
			t.Errorf("%s stops everybody's: %s", name, errs)
		}
	}
	if _, errs, code := remote(operator, "sessions", "stop", "--all"); code != 0 {
		t.Error(errs)
	}
	if list, _, _ := s.cli("token", "list"); !strings.Contains(list, "roles operator") {
		t.Errorf("the list: %s", list)
	}
	if code, _, body := s.request("GET", "/metrics", nil, "Authorization", "Bearer "+
		s.token("eye", "--metrics")); code != 200 ||
		!strings.Contains(body, `sandlot_network_connections_total{verdict="refused"}`) {
		t.Errorf("%d %q", code, body)
	}
}

// TestNetworkAttacks is root in a sandbox who wants out. It is proven first that
// it is one, and all that could be reached is the test's own server.
func TestNetworkAttacks(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, w.settings("web.test")...)
	mallory, victim := s.token("mallory"), s.token("victim")
	c := s.connect(older, mallory, nil)
	id := c.code("new", "1").session()
	proven(t, c, id)
	defer bystander(t, s, victim)()
	attack := func(name, code, want string) {
		t.Run(name, func(t *testing.T) {
			r := c.call("execute_code", args{"code": w.script(code), "session_id": id, "timeout": 100})
			if !strings.Contains(r.All, want) {
				t.Errorf("%q", tail(r.All, 1500))
			}
		})
	}
	attack("takes away the rules and addresses", `import subprocess
for c in ["ip addr flush dev lo", "ip link set lo down", "iptables -t nat -F", "iptables-legacy -t nat -F", "ip route add default dev lo", "mount -t proc proc /mnt", "unshare -n true"]:
  print(c, subprocess.run(c, shell=True, capture_output=True).returncode != 0)
print("could:", [l for l in open("/proc/self/status") if l.startswith("Cap") and int(l.split()[1], 16) & ~0x404fb])`, "could: []")
	attack("speaks to the agent's socket", `import socket, os, time
refused = 0
for i in range(60):
  s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect("/run/sandlot/agent.sock")
  s.sendall((b"SANDLOTN" if i % 2 else b"SANDLOT1") + os.urandom(32) + b"\0\0\0\x20" + os.urandom(32))
  try: refused += s.recv(1) != b"\x06"
  except OSError: refused += 1
  s.close()
print("refused", refused)`, "refused 60")
	attack("holds connections to the socket open", `import socket
held = []
for i in range(200):
  s = socket.socket(socket.AF_UNIX); s.setblocking(False)
  try: s.connect("/run/sandlot/agent.sock")
  except BlockingIOError: pass
  held.append(s)
import urllib.request
for s in held: s.close()
import time; time.sleep(6)
print(urllib.request.urlopen("http://web.test:PORT/hello").read())`, "hello from web.test")
	attack("looks up very many names", `import socket, threading
def query(n): return b"\0\1\1\0\0\1\0\0\0\0\0\0" + bytes([len(n)]) + n + b"\4leak\4test\0\0\1\0\1"
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.setblocking(False)
for i in range(5000):
  try: u.sendto(query(b"u%d" % i), ("127.0.0.1", 53))
  except BlockingIOError: pass
t = socket.create_connection(("198.51.100.53", 53)) # any name server is this one
answers = [0]
def read():
  while data := t.recv(1 << 16): answers[0] += len(data)
r = threading.Thread(target=read); r.start()
for k in range(3):
  t.sendall(b"".join(len(query(b"%d" % i)).to_bytes(2) + query(b"%d" % i) for i in range(k * 1000, k * 1000 + 1000)))
t.shutdown(socket.SHUT_WR); r.join()
print("answered", answers[0] > 90000)`, "answered True")
	attack("opens very many connections", `import socket, time
held, a = [], None
while a is None:
  try: a = socket.gethostbyname("web.test")
  except OSError: time.sleep(0.1)
for i in range(10000):
  s = socket.socket(); s.setblocking(False); s.connect_ex((a, PORT)); held.append(s)
  if len(held) == 2000:
    for h in held: h.close()
    held = []
print("tried", i + 1)`, "tried 10000")
	attack("asks for what it may not reach in other words", `import socket
def connect(host):
  s = socket.create_connection(("127.0.0.1", 3128)); s.settimeout(10)
  s.sendall(b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n" % host); return s.recv(100).split(b" ")[1]
hosts = [b"127.0.0.1:PORT", b"[::1]:PORT", b"[::ffff:7f00:1]:PORT", b"0x7f000001:PORT", b"017700000001:PORT", b"127.1:PORT", b"2130706433:PORT", b"localhost:PORT",
  b"LOCALHOST.:PORT", b"a.localhost:PORT", b"0:PORT", b"0.0.0.0:PORT", b"[::]:PORT", b"other.test:PORT", b"web.test.:1", b"web.test%00.evil:PORT", b"[fe80::1%25eth0]:PORT", b"169.254.169.254:80",
  b"[64:ff9b::7f00:1]:PORT", b"[2002:7f00:1::]:PORT", b"%s:PORT" % (b"a." * 130)]
print("passed", [h for h in hosts if connect(h) == b"200" and h != b"web.test.:1"])`, "passed []")
	attack("writes nonsense to the proxy and the name server", `import socket, os
for i in range(120):
  s = socket.create_connection(("127.0.0.1", 3128 if i % 2 else 53)); s.settimeout(0.05)
  try: s.sendall([b"\x05", b"\xff" * 300, b"GET http://[ HTTP/1.1\r\n\r\n", b"CONNECT \0 HTTP/1.1\r\n\r\n", os.urandom(500), b"\x05\xff" + b"\0" * 600][i % 6]); s.recv(10)
  except OSError: pass
  s.close()
import time, urllib.request
for i in range(20):
  try: print(urllib.request.urlopen("http://web.test:PORT/hello").read()); break
  except OSError as e: print(e); time.sleep(0.5) # a busy machine`, "hello from web.test")
	if w.Hits.Load() > 10 {
		t.Errorf("%d requests got through", w.Hits.Load())
	}
	c.want(id, "6*7", "42")
}

// registries are settings with which packages come from where this machine has them from.
func registries() []string {
	return append([]string{"SANDLOT_NETWORK_REGISTRIES=auto"}, tasks.Registries()...)
}

// TestPackages installs real packages from the registries of this machine's own
// settings, each in one call: the one test that needs them. Each is bounded.
func TestPackages(t *testing.T) {
	t.Parallel()
	const one = `mkdir -p /workspace/js && cd /workspace/js && npm install --no-audit --no-fund --loglevel=error semver && node -e 'console.log(require("semver").inc("1.2.3", "minor"))' | grep -qx 1.3.0 && echo '&lt;works'`
	testPackages(t, start(t, registries()...), one)
}

// TestPackagesUnprivileged is the same with the server of a user who is not root, and with many packages of npm. As root
// TestThirdParty installs these.
func TestPackagesUnprivileged(t *testing.T) {
	t.Parallel()
	const many = `mkdir -p /workspace/js && cd /workspace/js && npm install --no-audit --no-fund --loglevel=error @modelcontextprotocol/server-everything && echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}' | timeout 60 node node_modules/@modelcontextprotocol/server-everything/dist/index.js stdio | grep -q serverInfo && echo '&lt;works'`
	testPackages(t, startUnprivileged(t, registries()...), many)
}

// testPackages runs commands that install packages; npm is one of them.
func testPackages(t *testing.T, s *server, npm string) {
	c := s.connect(older, "", nil)
	for name, command := range map[string]string{
		"pip, with an extension in C": `pip install -q --target /workspace/py markupsafe && PYTHONPATH=/workspace/py python3 -c 'import markupsafe._speedups, markupsafe; print(markupsafe.escape("<works>"))'`,
		"npm":                         npm,
		"go":                          `mkdir -p /workspace/go && cd /workspace/go && go mod init example.test/m 2>/dev/null; printf 'package m\nimport _ "github.com/google/uuid"\n' > m.go && GOFLAGS=-mod=mod go mod download github.com/google/uuid@v1.6.0 && ls /root/go/pkg/mod/github.com/google && echo '&lt;works'`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			r, err := c.try(ctx, "execute_command", args{"command": command, "session_id": "home", "timeout": 290})
			if err != nil || !strings.Contains(r.Text, "&lt;works") {
				t.Fatalf("%v %q", err, tail(r.All, 1500))
			}
		})
	}
}

// TestNetworkOpen: the operator's explicit choice, which needs tokens.
func TestNetworkOpen(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, "SANDLOT_NETWORK_MODE=open", "SANDLOT_AUTH=required")
	c := s.connect(older, s.token("ann"), nil)
	if r := c.shell("home", w.script("curl -sS -m 5 http://127.0.0.1:PORT/hello; grep Cap /proc/self/status | grep "+
		"-v -e 0000000000000000 -e 00000000000404fb")); r.Text != w.script("hello from 127.0.0.1:PORT") {
		t.Errorf("%q", r.All)
	}
	if out, _, code := s.cli("doctor"); code != 0 || !strings.Contains(out, "WARNING: open") {
		t.Errorf("doctor: %d %q", code, out)
	}
	// A sandbox keeps nothing of it when the next server wants another mode.
	s.kill()
	s.env = append(s.env, "SANDLOT_NETWORK_MODE=none")
	s.launch()
	c = s.connect(older, s.token("ann"), nil)
	if r := c.shell("home", w.script("curl -sS -m 5 http://127.0.0.1:PORT/hello")); strings.Contains(r.Text, "hello") {
		t.Errorf("after the mode has changed: %q", r.All)
	}
	other := &server{t: t, program: binary(t), State: t.TempDir(),
		env: []string{"PATH=" + os.Getenv("PATH"), "SANDLOT_NETWORK_MODE=open", "SANDLOT_NETWORK_REGISTRIES=none"}}
	if _, errs, code := other.cli("serve", "--port", strconv.Itoa(freePort(t))); code != 1 ||
		!strings.Contains(errs, "auth: required") {
		t.Errorf("without tokens: %d %q", code, errs)
	}
}
