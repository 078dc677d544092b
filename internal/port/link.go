package port

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
)

// TokenParam is the query parameter with a link's token.
const TokenParam = "sandlot_token"

// PathPrefix is the prefix of the paths of exposed ports, for clients that cannot resolve their host names.
const PathPrefix = "/ports/"

// Links creates and parses the URLs of exposed ports. Each port has its own host name,
// {port}-{session}.localhost or one in the operator's domain, and a path below the server's own address.
type Links struct {
	base   string // URL of the server, such as http://localhost:8000
	scheme string // of URLs with host names
	domain string // of the host names, with the TCP port if necessary; empty: there are no host names
}

// NewLinks returns the Links of a server that listens on host and port, with http or https as its scheme. domain is
// the setting ports_domain: empty, a name, or a URL without a path.
func NewLinks(scheme, host string, port int, domain string) (Links, error) {
	ip := net.ParseIP(host)
	if ip != nil && ip.IsUnspecified() {
		name, _ := os.Hostname()
		host = cmp.Or(name, "localhost")
	}
	l := Links{base: scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port)), scheme: scheme}
	switch {
	case domain == "" && auth.Loopback(host):
		l.domain = "localhost:" + strconv.Itoa(port)
	case domain != "":
		var err error
		if l.scheme, l.domain, err = ParseDomain(domain); err != nil {
			return Links{}, err
		}
		if !strings.Contains(domain, "://") {
			l.scheme = scheme
		}
		if !strings.Contains(domain, "://") && !strings.Contains(l.domain, ":") {
			l.domain = net.JoinHostPort(l.domain, strconv.Itoa(port))
		}
	}
	return l, nil
}

var domainPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ParseDomain parses the operator's domain: a host name with an optional port, or a URL without a path.
// The default scheme is http.
func ParseDomain(domain string) (scheme, host string, err error) {
	text := strings.ToLower(domain)
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" ||
		u.Fragment != "" ||
		!domainPattern.MatchString(u.Hostname()) || len(u.Hostname()) > 200 || net.ParseIP(u.Hostname()) != nil {
		return "", "", fmt.Errorf("must be a domain, such as ports.example.com or https://ports.example.com")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return "", "", fmt.Errorf("must have a port from 1 to 65535, if any")
		}
	}
	return u.Scheme, u.Host, nil
}

// URL returns the URL of an exposed port, with its host name if there are host names. A token is added
// unless it is empty.
func (l Links) URL(session string, port int, token secret.Value) string {
	if l.domain == "" {
		return l.PathURL(session, port, token)
	}
	return fmt.Sprintf("%s://%d-%s.%s/", l.scheme, port, session, l.domain) + tokenQuery(token)
}

// PathURL returns the URL of an exposed port with a path below the server's own address.
func (l Links) PathURL(session string, port int, token secret.Value) string {
	return fmt.Sprintf("%s%s%s/%d/", l.base, PathPrefix, session, port) + tokenQuery(token)
}

func tokenQuery(token secret.Value) string {
	if token == "" {
		return ""
	}
	return "?" + TokenParam + "=" + token.Reveal()
}

var (
	sessionIDPattern = regexp.MustCompile(`^[a-z2-7]{26}$`)
	portNamePattern  = regexp.MustCompile(`^[0-9]+-`)
)

// IsPortHost reports whether host has the form of an exposed port's host name. Requests for such a host, or
// from its pages, must not reach the server's own API, even if there is no such port.
func (l Links) IsPortHost(host string) bool {
	_, ok := l.label(host)
	return ok
}

// ParseHost returns the session and the port of a port's host name.
func (l Links) ParseHost(host string) (session string, port int, ok bool) {
	label, _ := l.label(host)
	number, session, _ := strings.Cut(label, "-")
	return parsePort(session, number)
}

// label returns the part of a host name before the domain, and whether it looks like a port's.
func (l Links) label(host string) (string, bool) {
	name := strings.TrimSuffix(strings.ToLower(hostname(host)), ".")
	label, ok := strings.CutSuffix(name, ".localhost")
	if !ok && l.domain != "" {
		label, ok = strings.CutSuffix(name, "."+hostname(l.domain))
	}
	return label, ok && portNamePattern.MatchString(label)
}

func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return host
}

// parsePort checks the form of a session's id and of a port number.
func parsePort(session, number string) (string, int, bool) {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != number || !sessionIDPattern.MatchString(session) {
		return "", 0, false
	}
	return session, n, true
}

// ParsePath returns the session and the port of an escaped path, and the rest of the path, for the program
// in the sandbox. The rest begins with a slash, or is empty.
func ParsePath(path string) (session string, port int, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, PathPrefix)
	if !ok {
		return "", 0, "", false
	}
	session, path, _ = strings.Cut(path, "/")
	number, rest, slash := strings.Cut(path, "/")
	if slash {
		rest = "/" + rest
	}
	session, port, ok = parsePort(session, number)
	return session, port, rest, ok
}
