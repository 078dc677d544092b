package bound

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"io"
	"math/big"
	"strconv"
	"sync"
	"time"

	"sandlot/internal/vault"
)

// Secrets has the bound secrets of principals.
type Secrets interface {
	Bound(ctx context.Context, owner string) ([]vault.BoundSecret, error)
	// Derive returns bytes that the server's key and the label determine.
	Derive(label string, n int) ([]byte, error)
}

// authority is the CA of one session. Its key is in no file: it is made again from the server's key and the session's
// id, the same each time, so a sandbox that outlives the server still trusts it. It signs certificates for the
// connections of its own session alone.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by host
}

// The times between which the certificate of an authority is valid are fixed, so that it is always the same.
var (
	authorityBegins = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	authorityEnds   = time.Date(2049, 12, 31, 0, 0, 0, 0, time.UTC)
)

func newAuthority(secrets Secrets, name string) (*authority, error) {
	key, err := deriveKey(secrets, "certificate authority\x00"+name)
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public)
	template := &x509.Certificate{SerialNumber: new(big.Int).SetBytes(id[:15]),
		Subject:   pkix.Name{CommonName: "Sandlot, for this session's bound secrets " + hex.EncodeToString(id[:4])},
		NotBefore: authorityBegins, NotAfter: authorityEnds, IsCA: true, BasicConstraintsValid: true,
		MaxPathLenZero: true,
		KeyUsage:       x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: id[:20]}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, deterministic{key})
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{key: key, cert: cert, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		leaves: map[string]*tls.Certificate{}}, nil
}

// deriveKey returns the key that belongs to a label.
func deriveKey(secrets Secrets, label string) (*ecdsa.PrivateKey, error) {
	for n := 0; ; n++ {
		b, err := secrets.Derive(label+"\x00"+strconv.Itoa(n), 32)
		if err != nil {
			return nil, err
		}
		// One of 2^32 derived numbers is too large for a key.
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), b); err == nil || n == 8 {
			return key, err
		}
	}
}

// deterministic signs without randomness (RFC 6979), so that a certificate is the same each time it is made.
type deterministic struct{ key *ecdsa.PrivateKey }

func (d deterministic) Public() crypto.PublicKey { return d.key.Public() }

func (d deterministic) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return d.key.Sign(nil, digest, opts)
}

const (
	leafValidity = 7 * 24 * time.Hour
	leafRenewal  = 24 * time.Hour // how long before its end a certificate is made again
	maxLeaves    = 256
)

// leaf returns a certificate for a host.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if c := a.leaves[host]; c != nil && now.Add(leafRenewal).Before(c.Leaf.NotAfter) {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial := make([]byte, 15)
	rand.Read(serial)
	template := &x509.Certificate{SerialNumber: new(big.Int).SetBytes(serial),
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafValidity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if len(host) <= 64 {
		template.Subject.CommonName = host
	}
	template.DNSNames = []string{host}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: parsed}
	a.leaves[host] = c
	return c, nil
}
