package test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	bigendian "encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// authority is a CA of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, file: filepath.Join(t.TempDir(), "ca.pem")}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.put(a.file, "CERTIFICATE", der)
	return a
}

func (a *authority) put(file, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// issue writes a certificate for loopback, with a name, and its key.
func (a *authority) issue(certFile, keyFile, name string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost", name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.put(certFile, "CERTIFICATE", der)
	a.put(keyFile, "PRIVATE KEY", text)
}

// clients is the configuration of clients that trust the authority.
func (a *authority) clients() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool}
}

// served is the name in the certificate that a server serves.
func (s *server) served() string {
	s.t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), s.tls)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	names := c.ConnectionState().PeerCertificates[0].DNSNames
	return names[len(names)-1]
}

// stdioAnswer is the answer to an initialize by `sandlot stdio`.
func (s *server) stdioAnswer() string {
	s.t.Helper()
	cmd := exec.Command(s.program, "stdio")
	cmd.Env = s.env
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprintln(in, hello)
	line, _ := bufio.NewReader(out).ReadString('\n')
	in.Close()
	if err := cmd.Wait(); err != nil {
		s.t.Errorf("sandlot stdio ends with %v", err)
	}
	return line
}

// TestTLS: a server with a certificate in files. Clients of all kinds reach it, and it takes a new certificate
// without a restart, and none that is broken.
func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.issue(certFile, keyFile, "one.example")
	s := prepare(t)
	s.tls = a.clients()
	s.begin([]string{"SANDLOT_TLS_CERT_FILE=" + certFile, "SANDLOT_TLS_KEY_FILE=" + keyFile,
		"SSL_CERT_FILE=" + a.file})
	if !strings.Contains(s.log.String(), "is at "+s.URL+"/mcp") {
		t.Errorf("the server says %s", s.log)
	}
	token := s.token("ann")
	c := s.connect(newer, token, nil)
	session := c.want("", "print(6*7)", "42").session()
	s.connect(older, token, nil).want(session, "print(6*7)", "42")
	env := s.env
	s.env = append(env, "SANDLOT_SERVER="+s.URL, "SANDLOT_TOKEN="+token)
	if out, errs, code := s.cliIn("a line\n", "exec", "--session", session, "--", "cat"); code != 0 ||
		out != "a line\n" {
		t.Errorf("sandlot exec: %d %q %s", code, out, errs)
	}
	if line := s.stdioAnswer(); !strings.Contains(line, "serverInfo") {
		t.Errorf("sandlot stdio: %s", line)
	}
	s.env = append(env, "SANDLOT_SERVER="+s.URL, "SANDLOT_TOKEN="+token, "SSL_CERT_FILE=/dev/null",
		"SSL_CERT_DIR=/nowhere")
	if out, errs, code := s.cli("exec", "--session", "home", "--", "pwd"); code == 0 ||
		!strings.Contains(errs, "certificate") {
		t.Errorf("with an authority that is not trusted: %d %s %s", code, out, errs)
	}
	s.env = append(env, fmt.Sprintf("SANDLOT_PORT=%s", s.URL[strings.LastIndex(s.URL, ":")+1:]),
		"SANDLOT_HOST=127.0.0.1")
	if out, errs, code := s.cli("install", "cursor", "--dry-run"); code != 0 || !strings.Contains(out, s.URL+"/mcp") {
		t.Errorf("sandlot install: %d %s %s", code, out, errs)
	}
	if out, errs, code := s.cli("doctor"); code != 0 || !strings.Contains(out, "one.example, 127.0.0.1, until ") {
		t.Errorf("sandlot doctor: %d %s %s", code, out, errs)
	}
	s.env = env
	if _, _, text := s.request("GET", "/install/cursor", nil, "Authorization", "Bearer "+token); !strings.Contains(text,
		s.URL+"/mcp") {
		t.Errorf("GET /install: %s", text)
	}
	r, err := http.Get(strings.Replace(s.URL, "https", "http", 1) + "/healthz")
	if err != nil || r.StatusCode != 400 {
		t.Errorf("plain HTTP: %v, %v", r, err)
	} else {
		r.Body.Close()
	}
	serves := func(want string) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for s.served() != want && time.Now().Before(deadline) {
			time.Sleep(200 * time.Millisecond)
		}
		if got := s.served(); got != want {
			t.Errorf("the server has the certificate of %s, not %s", got, want)
		}
	}
	serves("one.example")
	a.issue(certFile, keyFile, "two.example")
	serves("two.example")
	if err := os.WriteFile(certFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		serves("two.example")
		if strings.Contains(s.log.String(), "the previous one stays") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if log := s.log.String(); !strings.Contains(log, "the previous one stays") {
		t.Errorf("the log: %s", log)
	}
	a.issue(certFile, keyFile, "three.example")
	serves("three.example")
	c.want(session, "print(6*7)", "42")
}

// serveDNS answers over TCP, for all names, that they are on loopback, until the test ends.
func serveDNS(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-over })
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			answerDNS(c)
			c.Close()
		}
	}()
	return l.Addr().String()
}

// answerDNS answers one question.
func answerDNS(c net.Conn) {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return
	}
	text := make([]byte, bigendian.BigEndian.Uint16(length[:]))
	var m dnsmessage.Message
	if _, err := io.ReadFull(c, text); err != nil || m.Unpack(text) != nil || len(m.Questions) == 0 {
		return
	}
	q := m.Questions[0]
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
			Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
	}
	if text, err := m.Pack(); err == nil {
		c.Write(append(bigendian.BigEndian.AppendUint16(nil, uint16(len(text))), text...))
	}
}

// startPebble starts an ACME server that finds the domains of its clients at a port of loopback. It returns its
// directory, and the root of its certificates.
func startPebble(t *testing.T, a *authority, port int) (directory string, root *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile, config := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"),
		filepath.Join(dir, "config.json")
	a.issue(certFile, keyFile, "pebble.example")
	acme, management := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	text, err := json.Marshal(map[string]any{"pebble": map[string]any{"listenAddress": acme,
		"managementListenAddress": management, "certificate": certFile, "privateKey": keyFile, "httpPort": freePort(t),
		"tlsPort": port, "retryAfter": map[string]int{"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa"}})
	if err == nil {
		err = os.WriteFile(config, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Transport{TLSClientConfig: a.clients(), DisableKeepAlives: true}
	startProgram(t, "https://"+acme+"/dir", web, []string{"PEBBLE_VA_NOSLEEP=1"}, "pebble", "-config", config,
		"-dnsserver", serveDNS(t))
	r, err := (&http.Client{Transport: web}).Get("https://" + management + "/roots/0")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	pemText, err := io.ReadAll(r.Body)
	root = x509.NewCertPool()
	if err != nil || !root.AppendCertsFromPEM(pemText) {
		t.Fatalf("%v, %s", err, pemText)
	}
	return "https://" + acme + "/dir", root
}

// TestACME: a server gets its certificate by itself, from a real ACME server, at the port of all its traffic, and
// has it after a restart. For other names it gets none.
func TestACME(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := prepare(t)
	s.port = freePort(t)
	directory, root := startPebble(t, a, s.port)
	s.tls = &tls.Config{RootCAs: root, ServerName: "sandlot.test"}
	s.begin([]string{"SANDLOT_TLS_DOMAINS=sandlot.test,other.test",
		"SANDLOT_TLS_EMAIL=ops@sandlot.test",
		"SANDLOT_TLS_ACME_DIRECTORY=" + directory, "SSL_CERT_FILE=" + a.file})
	if want := fmt.Sprintf("is at https://sandlot.test:%d/mcp", s.port); !strings.Contains(s.log.String(), want) {
		t.Errorf("the server does not say that it %s: %s", want, s.log)
	}
	s.connect(newer, s.token("ann"), nil).want("", "print(6*7)", "42")
	serial := func(name string) (*big.Int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d := tls.Dialer{Config: &tls.Config{RootCAs: root, ServerName: name, InsecureSkipVerify: name == ""}}
		c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(s.URL, "https://"))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber, nil
	}
	first, err := serial("sandlot.test")
	if err != nil {
		t.Fatal(err)
	}
	if nameless, err := serial(""); err != nil || nameless.Cmp(first) != 0 {
		t.Errorf("without a name: %v, %v", nameless, err)
	}
	if second, err := serial("other.test"); err != nil || second.Cmp(first) == 0 {
		t.Errorf("the second domain: %v, %v", second, err)
	}
	for _, name := range []string{"evil.test", "x.sandlot.test", "localhost"} {
		if n, err := serial(name); err == nil {
			t.Errorf("%s has the certificate %v", name, n)
		}
	}
	files, err := os.ReadDir(filepath.Join(s.State, "acme"))
	if err != nil || len(files) < 3 {
		t.Errorf("%d files are stored, %v", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
	s.restart()
	if again, err := serial("sandlot.test"); err != nil || again.Cmp(first) != 0 {
		t.Errorf("after a restart: %v, %v", again, err)
	}
}
