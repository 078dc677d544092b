package pkgregistry

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// address is a URL that is safe to show to a sandbox.
type address struct {
	url      string
	host     Host
	stripped bool // it had a user, a password, a query or a fragment
}

// The errors do not repeat the text, which may hold a credential.
var (
	errURL      = errors.New("it is not a URL with http:// or https://")
	errHost     = errors.New("its host is not a valid name or address")
	errLoopback = errors.New("it is this machine's loopback, which is another one in a sandbox; give an address that " +
		"others can reach")
	errPath = errors.New("its path has a character that does not belong there")
)

// A path in one of these characters needs no quoting in any of the files that
// are made of it.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._~%+@:=-]*$`)

// clean takes an address apart, and gives back what of it is no secret.
func clean(raw string) (address, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.Host == "" {
		return address{}, errURL
	}
	h, err := host(u.Host, map[string]int{"http": 80, "https": 443}[u.Scheme])
	if err != nil {
		return address{}, err
	}
	if !plainPath.MatchString(u.EscapedPath()) {
		return address{}, errPath
	}
	a := address{host: h, stripped: u.User != nil || u.RawQuery != "" || u.Fragment != ""}
	plain := url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: u.Path, RawPath: u.RawPath}
	a.url = plain.String()
	return a, nil
}

// host reads a host with or without a port.
func host(text string, port int) (Host, error) {
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
	if err := valid(name); err != nil {
		return Host{}, err
	}
	return Host{name, port}, nil
}

var hostName = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// A last label in digits is what some programs read as an IPv4 address in one
// of its odd forms.
var numeric = regexp.MustCompile(`(^|\.)(0x[0-9a-f]*|[0-9]+)$`)

func valid(name string) error {
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
	if len(name) > 253 || !hostName.MatchString(name) || numeric.MatchString(name) {
		return errHost
	}
	return nil
}
