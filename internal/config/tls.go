package config

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"sandlot/internal/fault"
)

// TLS has the settings of the server's certificate. Without files and domains the server speaks plain HTTP.
type TLS struct {
	CertFile, KeyFile string
	Domains           []string // of certificates by ACME
	Email             string   // of the ACME account
	Directory         string   // the URL of the ACME server's directory
}

// Enabled reports whether the server speaks HTTPS.
func (t TLS) Enabled() bool { return t.CertFile != "" || len(t.Domains) > 0 }

// Scheme returns the scheme of the server's own URLs.
func (s Server) Scheme() string {
	if s.TLS.Enabled() {
		return "https"
	}
	return "http"
}

// LocalURL returns the URL of the server at host, without a path. With ACME the host is the first domain, since the
// certificate is for no other name.
func (s Server) LocalURL(host string) string {
	if len(s.TLS.Domains) > 0 {
		host = s.TLS.Domains[0]
	}
	address := net.JoinHostPort(host, strconv.Itoa(s.Port))
	if s.TLS.Enabled() && s.Port == 443 {
		address = strings.TrimSuffix(address, ":443")
	}
	return s.Scheme() + "://" + address
}

// finishTLS checks that the settings of TLS fit together.
func (c *Config) finishTLS() error {
	t := c.Server.TLS
	switch {
	case (t.CertFile == "") != (t.KeyFile == ""):
		return fault.New(fault.Configuration, "tls.cert_file and tls.key_file: set both, or none")
	case t.CertFile != "" && len(t.Domains) > 0:
		return fault.New(fault.Configuration, "tls.cert_file and tls.domains: set one of them")
	case len(t.Domains) > 0 && t.Directory == "":
		return fault.New(fault.Configuration, "tls.acme_directory: tls.domains needs the directory of an ACME server")
	}
	return nil
}

var domainPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]$`)
})

func readDomain(v string) (string, error) {
	v = strings.ToLower(v)
	if strings.HasPrefix(v, "*.") {
		return "", errors.New("ACME gives no certificate for all names of a domain to this server: name each, or " +
			"use tls.cert_file")
	}
	if len(v) > 253 || !domainPattern().MatchString(v) {
		return "", fmt.Errorf("%q must be a domain, such as sandlot.example.com", v)
	}
	return v, nil
}
