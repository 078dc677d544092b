package pkgregistry

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// address is the URL of a registry without parts that may be secret: sandboxes may see it.
type address struct {
	url      string
	host     Host
	stripped bool // a user, a password, a query or a fragment was removed
}

// The errors do not repeat the text, which may hold a credential.
var (
	errURL      = errors.New("it is not a URL with http:// or https://")
	errHost     = errors.New("its host is not a valid name or address")
	errLoopback = errors.New("it is this machine's loopback, which is another one in a sandbox; give an address that " +
		"others can reach")
	errPath = errors.New("its path has a character that does not belong there")
)

// plainPath matches paths that need no quotes in any of the config files that Files
// writes.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._~%+@:=-]*$`)

// parseAddress parses a URL, and removes what may be secret.
func parseAddress(raw string) (address, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.Host == "" {
		return address{}, errURL
	}
	h, err := parseHost(u.Host, map[string]int{"http": 80, "https": 443}[u.Scheme])
	if err != nil {
		return address{}, err
	}
	if !plainPath.MatchString(u.EscapedPath()) {
		return address{}, errPath
	}
	a := address{host: h, stripped: u.User != nil || u.RawQuery != "" || u.Fragment != ""}
	cleaned := url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: u.Path, RawPath: u.RawPath}
	a.url = cleaned.String()
	return a, nil
}

// parseHost parses a host with or without a port; port is the default.
func parseHost(text string, port int) (Host, error) {
	name, p := text, ""
	if n, after, err := net.SplitHostPort(text); err == nil {
		name, p = n, after
	} else {
		name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	}
	if p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return Host{}, errHost
		}
		port = int(n)
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if err := checkHost(name); err != nil {
		return Host{}, err
	}
	return Host{name, port}, nil
}

var hostName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)
})

// numericLabel matches names whose last label is a number: some programs read them as an IPv4
// address, such as 0x7f000001.
var numericLabel = regexp.MustCompile(`(^|\.)(0x[0-9a-f]*|[0-9]+)$`)

func checkHost(name string) error {
	if a, err := netip.ParseAddr(name); err == nil {
		switch {
		case a.Zone() != "":
			return errHost
		case a.Unmap().IsLoopback(), a.Unmap().IsUnspecified():
			return errLoopback
		}
		return nil
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return errLoopback
	}
	if len(name) > 253 || !hostName().MatchString(name) || numericLabel.MatchString(name) {
		return errHost
	}
	return nil
}
