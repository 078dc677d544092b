package cacerts

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"software.sslmate.com/src/go-pkcs12"
)

// authority is a CA that a test made.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, subject pkix.Name) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func ca(t testing.TB, name string) authority {
	t.Helper()
	return newAuthority(t, pkix.Name{CommonName: name})
}

func (a authority) pem() string { return string(encode([]*x509.Certificate{a.cert})) }

func (a authority) keyPEM(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// fake is a machine of a test's own.
type fake struct {
	source
	env map[string]string
}

func newFake(t *testing.T) *fake {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{env: map[string]string{}}
	f.source = source{root, func(name string) string { return f.env[name] }}
	return f
}

// write makes a file and returns its path.
func (f *fake) write(t *testing.T, name string, parts ...string) string {
	t.Helper()
	p := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(strings.Join(parts, "")), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func (f *fake) link(t *testing.T, name, target string) string {
	t.Helper()
	p := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func (f *fake) must(t *testing.T) Bundle {
	t.Helper()
	b, err := f.collect()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parse reads what Files gave.
func parse(data []byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for der := range certBlocks(data) {
		if c, err := x509.ParseCertificate(der); err == nil {
			certs = append(certs, c)
		}
	}
	return certs
}

// has checks that the bundle holds these, each once, and no other.
func has(t *testing.T, certs []*x509.Certificate, want ...authority) {
	t.Helper()
	var got, names []string
	for _, c := range certs {
		got = append(got, c.Subject.CommonName)
	}
	for _, a := range want {
		names = append(names, a.cert.Subject.CommonName)
	}
	slices.Sort(got)
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("certificates %q, want %q", got, names)
	}
}

func TestSystem(t *testing.T) {
	for _, place := range systemFiles {
		t.Run(strings.ReplaceAll(place, "/", "."), func(t *testing.T) {
			f, a, b := newFake(t), ca(t, "a"), ca(t, "b")
			f.write(t, place, "# a comment\n", a.pem(), b.pem(), a.pem())
			has(t, f.must(t).certs, a, b)
		})
	}
}

// The places are names of one list. A later one may be left over from before.
func TestFirstPlaceCounts(t *testing.T) {
	f, a, old := newFake(t), ca(t, "a"), ca(t, "old")
	f.write(t, "etc/ssl/certs/ca-certificates.crt", a.pem())
	f.write(t, "etc/ssl/cert.pem", old.pem())
	f.write(t, "etc/ssl/certs/other.pem", old.pem())
	has(t, f.must(t).certs, a)
}

func TestFolderWhereThereIsNoFile(t *testing.T) {
	f, a, b := newFake(t), ca(t, "a"), ca(t, "b")
	f.write(t, "etc/ssl/certs/a.pem", a.pem())
	f.write(t, "etc/pki/tls/certs/b.pem", b.pem())
	has(t, f.must(t).certs, a)
}

func TestVariables(t *testing.T) {
	for _, name := range fileVariables {
		t.Run(name, func(t *testing.T) {
			f, system, own := newFake(t), ca(t, "system"), ca(t, "own")
			f.write(t, "etc/ssl/certs/ca-certificates.crt", system.pem())
			f.env[name] = f.write(t, "home/own.pem", own.pem())
			b := f.must(t)
			has(t, b.certs, system, own)
			if len(b.Notes) > 0 {
				t.Errorf("notes %q", b.Notes)
			}
		})
	}
}

func TestFolderVariables(t *testing.T) {
	f, a, b, c := newFake(t), ca(t, "a"), ca(t, "b"), ca(t, "c")
	f.write(t, "one/a.pem", a.pem())
	f.write(t, "one/sub/deep.pem", ca(t, "deep").pem())
	f.write(t, "two/b.crt", b.pem())
	f.write(t, "three/c.0", c.pem())
	f.env["SSL_CERT_DIR"] = f.root + "/one::" + f.root + "/two:" + f.root + "/absent"
	f.env["REQUESTS_CA_BUNDLE"] = f.root + "/three"
	got := f.must(t)
	has(t, got.certs, a, b, c)
	if len(got.Notes) != 1 || !strings.HasPrefix(got.Notes[0], "SSL_CERT_DIR: ") {
		t.Errorf("notes %q, want one of the folder that is not there", got.Notes)
	}
}

func TestOddFiles(t *testing.T) {
	f, good, hidden := newFake(t), ca(t, "good"), ca(t, "hidden")
	f.write(t, "etc/ssl/certs/ca-certificates.crt", good.pem())
	block := func(kind string, headers map[string]string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: der}))
	}
	if err := syscall.Mkfifo(filepath.Join(f.root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"empty": f.write(t, "empty"),
		"DER":   f.write(t, "der", string(hidden.cert.Raw)),
		"a key": f.write(t, "key", hidden.keyPEM(t)),
		"headers": f.write(t, "headers", block("CERTIFICATE", map[string]string{"Proc-Type": "4,ENCRYPTED"},
			hidden.cert.Raw)),
		"garbage": f.write(t, "garbage", block("CERTIFICATE", nil, []byte("not DER"))),
		"trailing": f.write(t, "trailing",
			block("CERTIFICATE", nil, append(slices.Clone(hidden.cert.Raw), "more"...))),
		"another":     f.write(t, "another", block("CERTIFICATE REQUEST", nil, hidden.cert.Raw)),
		"cut":         f.write(t, "cut", hidden.pem()[:200]),
		"huge":        f.write(t, "huge", hidden.pem(), strings.Repeat("x", maxFile)),
		"a pipe":      filepath.Join(f.root, "pipe"),
		"a device":    "/dev/zero",
		"a loop":      f.link(t, "loop", "loop"),
		"two in loop": f.link(t, "loop1", f.link(t, "loop2", "loop1")),
		"absent":      filepath.Join(f.root, "absent"),
	} {
		t.Run(name, func(t *testing.T) {
			f.env = map[string]string{"SSL_CERT_FILE": path}
			b := f.must(t)
			has(t, b.certs, good)
			if len(b.Notes) != 1 || !strings.HasPrefix(b.Notes[0], "SSL_CERT_FILE: ") {
				t.Errorf("notes %q, want one", b.Notes)
			}
		})
	}
}

// Around a broken block the others count.
func TestMixedFile(t *testing.T) {
	f, a, b := newFake(t), ca(t, "a"), ca(t, "b")
	f.env["SSL_CERT_FILE"] = f.write(t, "mixed", "text\n", a.pem(),
		"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n", b.keyPEM(t), b.pem(), "\x00\xff")
	has(t, f.must(t).certs, a, b)
}

func TestFolderOfOddFiles(t *testing.T) {
	f, a := newFake(t), ca(t, "a")
	f.write(t, "dir/a.pem", a.pem())
	f.write(t, "dir/key.pem", a.keyPEM(t))
	f.write(t, "dir/empty")
	f.link(t, "dir/up", "..")
	f.link(t, "dir/self", "self")
	f.link(t, "dir/again", "a.pem")
	f.env["SSL_CERT_DIR"] = f.root + "/dir"
	b := f.must(t)
	has(t, b.certs, a)
	if len(b.Notes) > 0 {
		t.Errorf("notes %q", b.Notes)
	}
}

func TestBounds(t *testing.T) {
	f, a := newFake(t), ca(t, "a")
	filler := strings.Repeat("x", maxFile-len(a.pem()))
	for i := range 10 {
		f.write(t, fmt.Sprintf("dir/%02d", i), a.pem(), filler)
	}
	f.env["SSL_CERT_DIR"] = f.root + "/dir"
	if b := f.must(t); len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "the rest is left out") {
		t.Errorf("notes %q, want that not all was read", b.Notes)
	}
}

func TestManyFiles(t *testing.T) {
	f, a := newFake(t), ca(t, "a")
	f.write(t, "etc/ssl/certs/ca-certificates.crt", a.pem())
	for i := range maxFiles + 1 {
		f.write(t, fmt.Sprintf("dir/%d", i))
	}
	f.env["SSL_CERT_DIR"] = f.root + "/dir"
	if b := f.must(t); len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "only 4096") {
		t.Errorf("notes %q, want that not all was looked at", b.Notes)
	}
}

func TestNobody(t *testing.T) {
	b, err := newFake(t).collect()
	if err == nil {
		t.Error("a machine without certificates is no error")
	}
	if b.Len() != 0 || b.Files() != nil || b.Env() != nil {
		t.Errorf("%d certificates, %v, %v", b.Len(), b.Files(), b.Env())
	}
}

// No part of a private key comes out, wherever it was.
func TestNoKeys(t *testing.T) {
	f, a := newFake(t), ca(t, "a")
	f.write(t, "etc/ssl/certs/ca-certificates.crt", a.keyPEM(t), a.pem(), a.keyPEM(t))
	f.env["SSL_CERT_DIR"] = filepath.Dir(f.write(t, "private/key.pem", a.keyPEM(t)))
	f.env["PIP_CERT"] = f.write(t, "both.pem", a.pem(), "\n", a.keyPEM(t))
	secret, err := a.key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range f.must(t).Files() {
		if bytes.Contains(data, secret) || bytes.Contains(data, []byte("PRIVATE")) {
			t.Errorf("%s holds a key", name)
		}
		for rest := data; strings.HasSuffix(name, ".pem"); {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type != "CERTIFICATE" {
				t.Errorf("%s has a block %q", name, block.Type)
			}
		}
	}
}

// The bytes depend on the certificates alone: not on their order, their place,
// or the time.
func TestSameBytes(t *testing.T) {
	a, b, c := ca(t, "a"), ca(t, "b"), ca(t, "c")
	one, two := newFake(t), newFake(t)
	one.write(t, "etc/ssl/certs/ca-certificates.crt", a.pem(), b.pem())
	one.env["PIP_CERT"] = one.write(t, "c.pem", c.pem())
	two.write(t, "etc/pki/tls/certs/ca-bundle.crt", c.pem())
	two.env["SSL_CERT_FILE"] = two.write(t, "ba.pem", b.pem(), a.pem(), c.pem())
	x, y := one.must(t).Files(), two.must(t).Files()
	if len(x) != len(y) {
		t.Errorf("%d and %d files", len(x), len(y))
	}
	for name := range x {
		if !bytes.Equal(x[name], y[name]) {
			t.Errorf("%s differs", name)
		}
		if strings.HasPrefix(name, "/") || strings.Contains(name, "..") {
			t.Errorf("%s is no path beneath a root", name)
		}
	}
}

// Node brings the public list itself and needs only what the operator added.
func TestNodeExtra(t *testing.T) {
	public, added := ca(t, "public"), ca(t, "added")
	p11kit := "[p11-kit-object-v1]\nlabel: \"x\"\ntrusted: true\n" + public.pem() +
		"\n[p11-kit-object-v1]\nclass: x-certificate-extension\n"
	for _, place := range publicLists {
		t.Run(strings.ReplaceAll(place, "/", "."), func(t *testing.T) {
			f := newFake(t)
			if strings.HasSuffix(place, "p11-kit") {
				f.write(t, place, p11kit)
			} else {
				f.write(t, place+"/Public.crt", public.pem())
			}
			f.write(t, "etc/ssl/certs/ca-certificates.crt", public.pem())
			b := f.must(t)
			if v, set := b.Env()["NODE_EXTRA_CA_CERTS"]; set || b.Files()[nodePath] != nil {
				t.Errorf("NODE_EXTRA_CA_CERTS=%s, though nothing was added", v)
			}
			f.write(t, "etc/ssl/certs/ca-certificates.crt", public.pem(), added.pem())
			b = f.must(t)
			has(t, parse(b.Files()[nodePath]), added)
			if v := b.Env()["NODE_EXTRA_CA_CERTS"]; v != "/"+nodePath {
				t.Errorf("NODE_EXTRA_CA_CERTS=%s", v)
			}
		})
	}
}

// Where nothing tells what is public, Node gets all.
func TestNodeWithoutList(t *testing.T) {
	f, a, b := newFake(t), ca(t, "a"), ca(t, "b")
	f.write(t, "etc/ssl/cert.pem", a.pem(), b.pem())
	has(t, parse(f.must(t).Files()[nodePath]), a, b)
}

func TestEnvNamesFiles(t *testing.T) {
	f, a := newFake(t), ca(t, "a")
	f.write(t, "etc/ssl/cert.pem", a.pem())
	b := f.must(t)
	files := b.Files()
	for name, v := range b.Env() {
		if files[strings.TrimPrefix(v, "/")] == nil {
			t.Errorf("%s names %s, which is not there", name, v)
		}
	}
}

// Two roots of one name are two entries, and a name of any script is one.
func TestJavaStore(t *testing.T) {
	f, a, b, c := newFake(t), ca(t, "same"), ca(t, "same"),
		newAuthority(t, pkix.Name{Organization: []string{"Ünïcode 😀"}})
	f.write(t, "etc/ssl/cert.pem", a.pem(), b.pem(), c.pem())
	certs, err := pkcs12.DecodeTrustStore(f.must(t).JavaStore(), "")
	if err != nil {
		t.Fatal(err)
	}
	has(t, certs, a, b, c)
	if alias(a.cert) == alias(b.cert) || !strings.HasPrefix(alias(a.cert), "same-") {
		t.Errorf("aliases %s and %s", alias(a.cert), alias(b.cert))
	}
}

func TestJavaStores(t *testing.T) {
	f := newFake(t)
	own := f.write(t, "usr/lib/jvm/own/lib/security/cacerts", "x")
	f.link(t, "usr/lib/jvm/default", "own")
	eight := f.write(t, "opt/jdk8/jre/lib/security/cacerts", "x")
	home := f.write(t, "home/jdk/lib/security/cacerts", "x")
	f.env["JAVA_HOME"] = f.root + "/home/jdk"
	path := f.write(t, "elsewhere/lib/security/cacerts", "x")
	f.write(t, "elsewhere/bin/java", "#!/bin/sh\n")
	f.link(t, "bin/java", f.root+"/elsewhere/bin/java")
	f.env["PATH"] = "relative:" + f.root + "/absent:" + f.root + "/bin"
	aside := f.write(t, "etc/java-17/cacerts", "x")
	f.link(t, "usr/lib/jvm/aside/lib/security/cacerts", "../../../../../../etc/java-17/cacerts")
	// These lead to ours, in one step or two, or to nothing.
	f.write(t, "etc/ssl/certs/java/cacerts", "x")
	f.link(t, "usr/lib/jvm/ours/lib/security/cacerts", f.root+"/etc/ssl/certs/java/cacerts")
	f.write(t, "var/store", "x")
	f.link(t, "etc/pki/java/cacerts", f.root+"/var/store")
	f.link(t, "usr/lib/jvm/fedora/lib/security/cacerts", f.root+"/etc/pki/java/cacerts")
	f.link(t, "usr/lib/jvm/loop/lib/security/cacerts", "cacerts")
	f.link(t, "usr/lib/jvm/broken/lib/security/cacerts", "/absent")
	f.write(t, "usr/lib/jvm/folder/lib/security/cacerts/file", "x")
	want := []string{own, eight, home, path, aside}
	slices.Sort(want)
	if got := f.javaStores(); !slices.Equal(got, want) {
		t.Errorf("stores %q, want %q", got, want)
	}
}

// The real machine, whatever it has, must not break us.
func TestThisMachine(t *testing.T) {
	b, err := Collect()
	if err != nil {
		t.Skip(err)
	}
	t.Logf("%d certificates, %d not public, stores %q, notes %q", b.Len(), len(b.nonPublic), JavaStores(), b.Notes)
	for name, data := range b.Files() {
		if !strings.HasSuffix(name, "cacerts") && len(parse(data)) == 0 {
			t.Errorf("%s holds nothing", name)
		}
	}
}

func BenchmarkCollect(b *testing.B) {
	for b.Loop() {
		if _, err := Collect(); err != nil {
			b.Skip(err)
		}
	}
}

func BenchmarkFiles(b *testing.B) {
	bundle, err := Collect()
	if err != nil {
		b.Skip(err)
	}
	for b.Loop() {
		bundle.Files()
	}
}
