package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// write writes a new pair of a certificate and its key, and returns the certificate.
func write(t *testing.T, certFile, keyFile, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, NotAfter: time.Now().Add(1000 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if file == "" {
			continue
		}
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// A changed pair is used after a second; while it is broken, the one before is.
func TestFilesThatChange(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := New(Config{CertFile: certFile, KeyFile: keyFile, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), certFile) {
			t.Errorf("without files: %v", err)
		}
		first := write(t, certFile, keyFile, "first.example")
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		serves := func(want *x509.Certificate) {
			t.Helper()
			time.Sleep(checkInterval)
			c, err := s.TLS().GetCertificate(&tls.ClientHelloInfo{})
			if err != nil || !c.Leaf.Equal(want) {
				t.Fatalf("%v, %v", c, err)
			}
		}
		serves(first)
		if log.Len() > 0 {
			t.Errorf("the log says %s", &log)
		}
		second := write(t, certFile, "", "second.example") // its key is not there yet
		serves(first)
		serves(first)
		if n := strings.Count(log.String(), "previous one stays"); n != 1 {
			t.Errorf("said %d times: %s", n, &log)
		}
		_ = second
		third := write(t, certFile, keyFile, "third.example")
		serves(third)
		if !strings.Contains(log.String(), "third.example") {
			t.Errorf("the log says %s", &log)
		}
		if err := os.WriteFile(keyFile, []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		serves(third)
		if err := os.Remove(certFile); err != nil {
			t.Fatal(err)
		}
		serves(third)
		other := filepath.Join(dir, "other.pem")
		fourth := write(t, other, keyFile, "fourth.example")
		if err := os.Rename(other, certFile); err != nil {
			t.Fatal(err)
		}
		serves(fourth)
		if end, list, err := s.Expires(); err != nil || !end.Equal(fourth.NotAfter) || len(list) != 1 ||
			list[0] != "fourth.example" {
			t.Errorf("%v %v %v", end, list, err)
		}
	})
}

func TestNoTLS(t *testing.T) {
	if s := New(Config{}); s != nil || s.Check() != nil {
		t.Errorf("%+v", s)
	}
}

// Old versions of TLS are refused, and nothing but HTTP/1.1 is offered.
func TestVersions(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, keyFile, "localhost")
	s := New(Config{CertFile: certFile, KeyFile: keyFile, Log: slog.New(slog.DiscardHandler)})
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true,
		tls.VersionTLS13: true} {
		a, b := net.Pipe()
		over := make(chan error, 1)
		go func() { over <- tls.Server(b, s.TLS()).Handshake() }()
		c := tls.Client(a, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version,
			NextProtos: []string{"h2", "http/1.1"}})
		err := c.Handshake()
		if (err == nil) != want || want && c.ConnectionState().NegotiatedProtocol != "http/1.1" {
			t.Errorf("%s: %v, %s", tls.VersionName(version), err, c.ConnectionState().NegotiatedProtocol)
		}
		a.Close()
		if err := <-over; (err == nil) != want {
			t.Errorf("%s: the server: %v", tls.VersionName(version), err)
		}
		b.Close()
	}
}
