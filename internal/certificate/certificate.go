// Package certificate owns the TLS certificate of the server: one in files, which it reads again when they change, or
// one that it gets and renews by ACME.
package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// Config has the settings of TLS. Either both files are set, or domains.
type Config struct {
	CertFile, KeyFile string   // PEM
	Domains           []string // of which certificates are gotten by ACME
	Email             string   // of the account; may be empty
	Directory         string   // the URL of the ACME server's directory
	CacheDir          string   // for account and certificates; created when it is needed, for its owner only
	Log               *slog.Logger
}

// Source gives the certificates of one server. A nil Source: the server has no TLS.
type Source struct {
	Config
	acme *autocert.Manager // nil: files

	mu       sync.Mutex
	checked  time.Time // when the files were last looked at
	version  version   // of the files that were read last
	pair     *tls.Certificate
	reported time.Time // when the log last got an error of ACME
}

const (
	// checkInterval is the shortest time between two looks at the files.
	checkInterval = time.Second
	// reportInterval is the shortest time between two lines in the log about ACME.
	reportInterval = time.Minute
)

// New returns the source of certificates; nil if the settings have neither files nor domains. It reads nothing.
func New(c Config) *Source {
	switch {
	case len(c.Domains) > 0:
		return &Source{Config: c, acme: &autocert.Manager{Prompt: autocert.AcceptTOS,
			Cache:      autocert.DirCache(c.CacheDir),
			HostPolicy: autocert.HostWhitelist(c.Domains...), Email: c.Email,
			Client: &acme.Client{DirectoryURL: c.Directory, UserAgent: "sandlot"}}}
	case c.CertFile != "":
		return &Source{Config: c}
	}
	return nil
}

// Check reads the files, and returns an error if they cannot be used.
func (s *Source) Check() error {
	if s == nil || s.acme != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read()
}

// Expires returns the time at which the certificate in the files ends, and its names.
func (s *Source) Expires() (time.Time, []string, error) {
	if err := s.Check(); err != nil {
		return time.Time{}, nil, err
	}
	leaf := s.pair.Leaf
	return leaf.NotAfter, names(leaf), nil
}

func names(leaf *x509.Certificate) []string {
	list := append([]string{}, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		list = append(list, ip.String())
	}
	return list
}

// Listener makes a listener one of TLS. Without a source it returns the listener itself.
func (s *Source) Listener(l net.Listener) net.Listener {
	if s == nil {
		return l
	}
	return tls.NewListener(l, s.TLS())
}

// TLS returns the configuration of the server's listeners. It offers HTTP/1.1 only: an upgrade of a connection, as
// for interactive processes, does not exist in HTTP/2.
func (s *Source) TLS() *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: s.fromFiles}
	if s.acme != nil {
		c.GetCertificate, c.NextProtos = s.fromACME, append(c.NextProtos, acme.ALPNProto)
	}
	return c
}

// fromFiles returns the certificate in the files. While changed files cannot be used, it is the previous one.
func (s *Source) fromFiles(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.pair == nil || now.Sub(s.checked) >= checkInterval {
		s.checked = now
		if s.versionNow() != s.version {
			if err := s.read(); err != nil {
				s.Log.Error("the changed TLS certificate cannot be used; the previous one stays", "error", err)
			} else {
				s.Log.Info("the TLS certificate has changed", "names", strings.Join(names(s.pair.Leaf), " "), "expires",
					s.pair.Leaf.NotAfter)
			}
		}
	}
	if s.pair == nil {
		return nil, errors.New("there is no certificate")
	}
	return s.pair, nil
}

// read reads the files. The caller holds mu.
func (s *Source) read() error {
	s.version = s.versionNow() // before the files are read: what changes meanwhile is read again
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", s.CertFile, s.KeyFile, err)
	}
	s.pair = &pair
	return nil
}

// version identifies the contents of both files.
type version [2]struct {
	inode    uint64
	size     int64
	modified time.Time
}

func (s *Source) versionNow() (v version) {
	for i, path := range []string{s.CertFile, s.KeyFile} {
		if info, err := os.Stat(path); err == nil {
			v[i].size, v[i].modified = info.Size(), info.ModTime()
			v[i].inode = inode(info)
		}
	}
	return v
}

// fromACME returns a certificate that was gotten by ACME, or gets one. A client that names no host gets that of the
// first domain.
func (s *Source) fromACME(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if hello.ServerName == "" {
		named := *hello
		named.ServerName = s.Domains[0]
		hello = &named
	}
	pair, err := s.acme.GetCertificate(hello)
	if err != nil && s.acme.HostPolicy(hello.Context(), strings.ToLower(hello.ServerName)) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if now := time.Now(); now.Sub(s.reported) >= reportInterval {
			s.reported = now
			s.Log.Error("cannot get a TLS certificate by ACME", "domain", hello.ServerName, "error", err)
		}
	}
	return pair, err
}
