package cacerts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve starts a server on loopback whose certificate a signed.
func (a authority) serve(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		KeyUsage: x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		io.WriteString(w, "trusted")
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it refuses on purpose
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// lay writes the files beneath a folder, and returns the environment for it.
func lay(t *testing.T, b Bundle) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	for name, data := range b.Files() {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, v := range b.Env() {
		env = append(env, name+"="+dir+v)
	}
	return dir, env
}

const javaClient = `
import java.net.URI;
public class Client {
    public static void main(String[] args) throws Exception {
        try (var in = URI.create(args[0]).toURL().openStream()) { System.out.write(in.readAllBytes()); }
        System.out.flush();
    }
}`

// Real programs accept the server with the bundle, and refuse it without.
func TestPrograms(t *testing.T) {
	f, a := newFake(t), ca(t, "Programs' own CA")
	f.write(t, "etc/ssl/cert.pem", ca(t, "another").pem(), a.pem(), ca(t, "a third").pem())
	dir, env := lay(t, f.must(t))
	url := a.serve(t)
	java := f.write(t, "Client.java", javaClient)
	for name, args := range map[string][]string{
		"curl": {"curl", "-sS", url},
		"python": {"python3", "-c",
			"import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())", url},
		"node": {"node", "-e", "fetch(process.argv[1]).then(r => r.text()).then(console.log)", url},
		"git":  {"git", "ls-remote", url},
		"openssl's folder": {"sh", "-c",
			`SSL_CERT_FILE=/dev/null; echo | openssl s_client -CApath "$SSL_CERT_DIR" -verify_return_error -connect "${0#https://}" >/dev/null 2>&1 && echo trusted`, url},
		"python's folder": {"sh", "-c",
			`SSL_CERT_FILE=/dev/null exec python3 -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())" "$0"`, url},
		"java": {"java", "-Djavax.net.ssl.trustStore=" + dir + "/etc/ssl/certs/java/cacerts", java, url},
		"java with password": {"java", "-Djavax.net.ssl.trustStorePassword=changeit", "-Djavax.net.ssl.trustStore=" +
			dir + "/etc/ssl/certs/java/cacerts", java, url},
	} {
		t.Run(name, func(t *testing.T) {
			folder := "SSL_CERT_DIR="
			if strings.Contains(name, "folder") {
				folder += dir + "/etc/ssl/certs"
			}
			out, err := run(t, append(env, folder), args...)
			if name == "git" { // which finds a repository without references
				out += "trusted"
			}
			if err != nil || !strings.Contains(out, "trusted") {
				t.Errorf("%v: %s", err, out)
			}
			if strings.HasPrefix(name, "java") {
				return // its store is named by the command
			}
			if out, err := run(t, []string{"SSL_CERT_DIR="}, args...); err == nil {
				t.Errorf("without the bundle: %v: %s", err, out)
			}
		})
	}
}

// run starts a program with few variables beside env, and returns all it prints.
func run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C", "no_proxy=*"}, env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestKeytool(t *testing.T) {
	f := newFake(t)
	f.write(t, "etc/ssl/cert.pem", ca(t, "one").pem(), ca(t, "one").pem(), ca(t, "two").pem())
	dir, _ := lay(t, f.must(t))
	for _, password := range []string{"changeit", ""} {
		args := []string{"keytool", "-list", "-keystore", dir + "/etc/ssl/certs/java/cacerts"}
		if password != "" {
			args = append(args, "-storepass", password)
		}
		out, err := run(t, nil, args...)
		if err != nil || strings.Count(out, "trustedCertEntry") != 3 {
			t.Errorf("with password %q: %v: %s", password, err, out)
		}
	}
}

// OpenSSL itself says what names it looks for.
func TestSubjectHash(t *testing.T) {
	long := pkix.Name{Country: []string{"DE"}, Organization: []string{"  Two  Spaces\tand a tab "},
		OrganizationalUnit: []string{"a", "B"}, CommonName: "Ärger & Öl GmbH 漢字"}
	certs := []*x509.Certificate{ca(t, "Plain").cert, newAuthority(t, long).cert}
	raw := pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{Type: []int{0, 9, 2342, 19200300, 100, 1, 25},
		Value: "Example"}}}
	certs = append(certs, newAuthority(t, raw).cert)
	if b, err := Collect(); err == nil {
		certs = append(certs, b.certs[:min(20, len(b.certs))]...)
	}
	for _, c := range certs {
		p := filepath.Join(t.TempDir(), "c.pem")
		if err := os.WriteFile(p, encode([]*x509.Certificate{c}), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := run(t, nil, "openssl", "x509", "-noout", "-subject_hash", "-in", p)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		h, err := subjectHash(c.RawSubject)
		if got := fmt.Sprintf("%08x", h); err != nil || got != strings.TrimSpace(out) {
			t.Errorf("%s: hash %s, %v, want %s", c.Subject, got, err, out)
		}
	}
}

// Names of one hash are numbered.
func TestHashedNumbers(t *testing.T) {
	a, b := ca(t, "Same  Name"), ca(t, "same name")
	names := hashedNames([]*x509.Certificate{a.cert, b.cert})
	h, _ := subjectHash(a.cert.RawSubject)
	if names[fmt.Sprintf("%08x.0", h)] != a.cert || names[fmt.Sprintf("%08x.1", h)] != b.cert {
		t.Errorf("names %v", names)
	}
}

func FuzzSubjectHash(f *testing.F) {
	f.Add(ca(f, "seed").cert.RawSubject)
	f.Add(binary.BigEndian.AppendUint16(nil, 0x3000))
	f.Fuzz(func(_ *testing.T, raw []byte) { subjectHash(raw) })
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(ca(f, "seed").pem()))
	f.Fuzz(func(t *testing.T, data []byte) {
		if certs := parse(data); len(parse(encode(certs))) != len(certs) {
			t.Error("what was written is not what was read")
		}
	})
}
