package dockertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLS is a Docker daemon that is also reached by TCP with TLS.
type TLS struct {
	*Daemon
	Address string // tcp://…
	// Certificates is a folder with the files that a client needs, as DOCKER_CERT_PATH names it.
	Certificates string
}

// StartTLS starts a Docker daemon that is reached by TCP with TLS on a loopback address. Further arguments are
// dockerd's.
func StartTLS(t testing.TB, args ...string) *TLS {
	t.Helper()
	dir := t.TempDir()
	writeCertificates(t, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "tcp://" + l.Addr().String()
	l.Close()
	d := Start(t, append([]string{"-H", address, "--tlsverify", "--tlscacert", filepath.Join(dir, "ca.pem"),
		"--tlscert", filepath.Join(dir, "server-cert.pem"), "--tlskey", filepath.Join(dir, "server-key.pem")},
		args...)...)
	return &TLS{d, address, dir}
}

// writeCertificates writes an authority, and certificates of a server and a client, as Docker names the files.
func writeCertificates(t testing.TB, dir string) {
	t.Helper()
	authority, authorityKey := certificate(t, "authority", nil, nil)
	server, serverKey := certificate(t, "server", authority, authorityKey)
	own, ownKey := certificate(t, "client", authority, authorityKey)
	for name, c := range map[string]*x509.Certificate{"ca": authority, "server-cert": server, "cert": own} {
		writePEM(t, filepath.Join(dir, name+".pem"), "CERTIFICATE", c.Raw)
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"server-key": serverKey, "key": ownKey} {
		text, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, filepath.Join(dir, name+".pem"), "EC PRIVATE KEY", text)
	}
}

func writePEM(t testing.TB, path, kind string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificate makes a certificate that an authority has signed, or, without one, an authority.
func certificate(t testing.TB, name string, authority *x509.Certificate, authorityKey *ecdsa.PrivateKey) (
	*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if authority == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		authority, authorityKey = c, key
	}
	signed, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, authorityKey)
	parsed, parseErr := x509.ParseCertificate(signed)
	if err = errors.Join(err, parseErr); err != nil {
		t.Fatal(err)
	}
	return parsed, key
}
