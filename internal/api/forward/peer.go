package forward

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"
)

// NewCertificate makes the certificate of a process, and returns its fingerprint. Its key is in memory alone. It says
// nothing: the servers compare fingerprints.
func NewCertificate() (c tls.Certificate, fingerprint string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, "", err
	}
	// Clocks may differ, and a process may run for long.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0),
		NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, "", err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, fingerprintOf(der), nil
}

func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// ServerTLS returns the settings of the listener for other servers. Nobody else gets a connection.
func (f *Forwarder) ServerTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{f.Certificate},
		ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
			defer cancel()
			if len(s.PeerCertificates) == 0 || !f.Owners.Known(ctx, fingerprintOf(s.PeerCertificates[0].Raw)) {
				return errors.New("no server of this database has this certificate")
			}
			return nil
		}}
}

// clientTLS returns the settings of connections to a server.
func (f *Forwarder) clientTLS(to Peer) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{f.Certificate},
		InsecureSkipVerify: true, // the fingerprint is compared in place of names and authorities
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || fingerprintOf(s.PeerCertificates[0].Raw) != to.Fingerprint {
				return fmt.Errorf("%s has another certificate than the server that is to be there", to.Address)
			}
			return nil
		}}
}

// errHangs is the cause of the end of requests to a server that does not answer any longer.
var errHangs = errors.New("the server hangs")

// peer is one process of another server.
type peer struct {
	to        Peer
	f         *Forwarder
	transport *http.Transport
	ask       *http.Client // with a connection for each question: a connection that is open proves nothing

	mu       sync.Mutex // guards what follows
	requests map[*context.CancelCauseFunc]bool
	watching bool // watch runs
}

// peer returns that of a process.
func (f *Forwarder) peer(to Peer) *peer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[to.Fingerprint]; p != nil && p.to == to {
		return p
	}
	if len(f.peers) >= maxPeers {
		for key, p := range f.peers {
			p.transport.CloseIdleConnections()
			delete(f.peers, key)
		}
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return (&tls.Dialer{Config: f.clientTLS(to)}).DialContext(ctx, network, address)
	}
	p := &peer{to: to, f: f, requests: map[*context.CancelCauseFunc]bool{},
		transport: &http.Transport{DialTLSContext: dial, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
			ExpectContinueTimeout: dialTimeout, DisableCompression: true},
		ask: &http.Client{Transport: &http.Transport{DialTLSContext: dial, DisableKeepAlives: true},
			Timeout: f.AskInterval}}
	f.peers[to.Fingerprint] = p
	return p
}

// begin notes a request to the server, which ends when the server hangs.
func (p *peer) begin(cancel context.CancelCauseFunc) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[&cancel] = true
	if !p.watching {
		p.watching = true
		go p.watch()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.requests, &cancel)
	}
}

// watch asks the server whether it lives, as long as it has requests.
func (p *peer) watch() {
	for missed := 0; ; {
		time.Sleep(p.f.AskInterval)
		p.mu.Lock()
		p.watching = len(p.requests) > 0
		goOn := p.watching
		p.mu.Unlock()
		if !goOn {
			return
		}
		answer, err := p.ask.Get("https://" + p.to.Address + alivePath)
		if err == nil {
			answer.Body.Close()
			missed = 0
			continue
		}
		if missed++; missed < unanswered {
			continue
		}
		p.f.Log.Warn("another server does not answer any longer", "address", p.to.Address, "error", err)
		p.transport.CloseIdleConnections()
		p.mu.Lock()
		for cancel := range p.requests {
			(*cancel)(errHangs)
		}
		p.mu.Unlock()
		missed = 0
	}
}
