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

	"sandlot/internal/secret"
)

// Param is the query parameter of a link that carries its token.
const Param = "sandlot_token"

// Prefix begins the paths by which ports are reached where names do not work.
const Prefix = "/ports/"

// Links says by which addresses exposed ports are reached: each has a host name
// of its own, {port}-{session}.localhost or one in the operator's domain, and a
// path on the server's own address.
type Links struct {
	base   string // of the server: http://localhost:8000
	scheme string // of names
	domain string // what names end in, with a port if it needs one; empty: names do not work
}

// NewLinks returns the links of a server that listens on host and port. The
// domain is the setting: empty, a name, or a URL without a path.
func NewLinks(host string, port int, domain string) (Links, error) {
	ip := net.ParseIP(host)
	local := strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
	if ip != nil && ip.IsUnspecified() {
		name, _ := os.Hostname()
		host = cmp.Or(name, "localhost")
	}
	l := Links{base: "http://" + net.JoinHostPort(host, strconv.Itoa(port)), scheme: "http"}
	switch {
	case domain == "" && local:
		l.domain = "localhost:" + strconv.Itoa(port)
	case domain != "":
		var err error
		if l.scheme, l.domain, err = ParseDomain(domain); err != nil {
			return Links{}, err
		}
		if !strings.Contains(domain, "://") && !strings.Contains(l.domain, ":") {
			l.domain = net.JoinHostPort(l.domain, strconv.Itoa(port))
		}
	}
	return l, nil
}

var domainName = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ParseDomain reads the operator's domain: a name, perhaps with a port, or a URL
// of one without a path. Without a scheme it is http.
func ParseDomain(domain string) (scheme, host string, err error) {
	text := strings.ToLower(domain)
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" ||
		u.Fragment != "" ||
		!domainName.MatchString(u.Hostname()) || len(u.Hostname()) > 200 || net.ParseIP(u.Hostname()) != nil {
		return "", "", fmt.Errorf("must be a domain, such as ports.example.com or https://ports.example.com")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return "", "", fmt.Errorf("must have a port from 1 to 65535, if any")
		}
	}
	return u.Scheme, u.Host, nil
}

// URL is the best address of an exposed port, Path the one that needs no name.
// A token is added unless it is empty.
func (l Links) URL(session string, port int, token secret.Value) string {
	if l.domain == "" {
		return l.Path(session, port, token)
	}
	return fmt.Sprintf("%s://%d-%s.%s/", l.scheme, port, session, l.domain) + query(token)
}

// Path is the address by a path on the server's own address.
func (l Links) Path(session string, port int, token secret.Value) string {
	return fmt.Sprintf("%s%s%s/%d/", l.base, Prefix, session, port) + query(token)
}

func query(token secret.Value) string {
	if token == "" {
		return ""
	}
	return "?" + Param + "=" + token.Reveal()
}

var (
	sessionID = regexp.MustCompile(`^[a-z2-7]{26}$`)
	likeName  = regexp.MustCompile(`^[0-9]+-`)
)

// Claims says whether a request for that host, or from a page of it, has nothing
// to do with the server itself: the name looks like a port's.
func (l Links) Claims(host string) bool {
	_, ok := l.label(host)
	return ok
}

// Named returns the session and the port that a host name means.
func (l Links) Named(host string) (session string, port int, ok bool) {
	label, _ := l.label(host)
	number, session, _ := strings.Cut(label, "-")
	return parse(session, number)
}

// label returns the labels of a host name before the domain.
func (l Links) label(host string) (string, bool) {
	name := strings.TrimSuffix(strings.ToLower(hostname(host)), ".")
	label, ok := strings.CutSuffix(name, ".localhost")
	if !ok && l.domain != "" {
		label, ok = strings.CutSuffix(name, "."+hostname(l.domain))
	}
	return label, ok && likeName.MatchString(label)
}

func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return host
}

func parse(session, number string) (string, int, bool) {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != number || !sessionID.MatchString(session) {
		return "", 0, false
	}
	return session, n, true
}

// ByPath returns the session and the port that an escaped path means, and what
// is left of the path for the server inside, which begins with a slash, or is
// empty.
func ByPath(path string) (session string, port int, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, Prefix)
	if !ok {
		return "", 0, "", false
	}
	session, path, _ = strings.Cut(path, "/")
	number, rest, slash := strings.Cut(path, "/")
	if slash {
		rest = "/" + rest
	}
	session, port, ok = parse(session, number)
	return session, port, rest, ok
}
