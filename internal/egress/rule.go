package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Rule matches hosts and a port. The zero value matches nothing. Its text form, also in
// JSON, is such as "api.example.com:443".
type Rule struct {
	name   string       // "example.com", or ".example.com" for all names below it
	prefix netip.Prefix // or addresses
	port   uint16       // 0: any
}

const ruleForms = `a host name (api.example.com), names below one (*.example.com), an address (203.0.113.7, [2001:db8::1]) or a range (203.0.113.0/24), each with a port (:443) or without`

// ParseRule reads a rule, and is the inverse of Rule.String.
func ParseRule(s string) (Rule, error) {
	r, err := parseRule(s)
	if err != nil {
		return Rule{}, fmt.Errorf("%q is not a network rule: %w; a rule is %s", printable(s), err, ruleForms)
	}
	return r, nil
}

func parseRule(s string) (Rule, error) {
	if strings.Contains(s, "://") {
		return Rule{}, errors.New("it is a URL")
	}
	host, port, err := splitPort(s)
	if err != nil {
		return Rule{}, err
	}
	if strings.ContainsAny(host, ":/") {
		p, err := parsePrefix(host)
		return Rule{prefix: p, port: port}, err
	}
	base, wildcard := strings.CutPrefix(host, "*.")
	name, addr, err := parseHost(base)
	switch {
	case err != nil:
		return Rule{}, err
	case wildcard && name == "":
		return Rule{}, errors.New("an address has nothing below it")
	case wildcard:
		return Rule{name: "." + name, port: port}, nil
	case name != "":
		return Rule{name: name, port: port}, nil
	}
	return Rule{prefix: netip.PrefixFrom(addr, addr.BitLen()), port: port}, nil
}

// splitPort splits s into host and port; the port is 0 if there is none. An IPv6 address
// with a port must be in brackets; without one it may be.
func splitPort(s string) (host string, port uint16, err error) {
	text, hasPort := "", false
	if in, ok := strings.CutPrefix(s, "["); ok {
		if host, text, ok = strings.Cut(in, "]"); !ok {
			return "", 0, errors.New("a bracket is not closed")
		}
		if !strings.Contains(host, ":") {
			return "", 0, errors.New("only an IPv6 address is in brackets")
		}
		if text == "" {
			return host, 0, nil
		}
		if text, hasPort = strings.CutPrefix(text, ":"); !hasPort {
			return "", 0, errors.New("only a port may follow the bracket")
		}
	} else if host, text, hasPort = strings.Cut(s, ":"); !hasPort || strings.Contains(text, ":") {
		return s, 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return "", 0, errors.New("a port is a number from 1 to 65535")
	}
	return host, uint16(n), nil
}

// parsePrefix parses an IPv6 address, or a range of addresses.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := parseAddr(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, errors.New("what has a / is a range of addresses")
	case p.Addr().Is4In6():
		return p, errors.New("an IPv4 range is written as IPv4")
	case p != p.Masked():
		return p, fmt.Errorf("the range begins at %s", p.Masked())
	}
	return p, nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return a, errors.New("it is neither a name nor an address")
	case a.Zone() != "":
		return a, errors.New("an address with a zone cannot be used here")
	}
	return a.Unmap(), nil
}

func (r Rule) String() string {
	host := r.name
	switch {
	case host == "" && !r.prefix.IsValid():
		return ""
	case host == "" && r.prefix.IsSingleIP():
		host = r.prefix.Addr().String()
	case host == "":
		host = r.prefix.String()
	case host[0] == '.':
		host = "*" + host
	}
	if r.port == 0 {
		return host
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(r.port))
}

// MarshalText and UnmarshalText make a rule its text.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r *Rule) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRule(string(b))
	return err
}

// matches reports whether the rule matches a target: its name if it has one, else its address.
// Port 0 of the target stands for any port.
func (r Rule) matches(t Target) bool {
	switch {
	case r.port != 0 && t.Port != 0 && r.port != t.Port:
		return false
	case t.Name == "":
		return r.prefix.IsValid() && r.prefix.Contains(t.Addr)
	case r.name == "":
		return false
	case r.name[0] == '.':
		return strings.HasSuffix(t.Name, r.name) && len(t.Name) > len(r.name)
	}
	return t.Name == r.name
}

// parseHost parses a host name, which it returns in lower case without a final dot, or an
// address. It refuses other texts that some resolvers take for an address (127.1,
// 0x7f000001, 017700000001).
func parseHost(s string) (name string, a netip.Addr, err error) {
	if strings.ContainsAny(s, ":%") {
		a, err = parseAddr(s)
		return "", a, err
	}
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return "", a, errors.New("a name has 1 to 253 characters")
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if err := checkLabel(l); err != nil {
			return "", a, err
		}
	}
	if isNumeric(labels[len(labels)-1]) {
		if a, err = netip.ParseAddr(s); err != nil {
			return "", a, errors.New("it is a number, but not an address as addresses are written")
		}
		return "", a, nil
	}
	return strings.ToLower(s), a, nil
}

func checkLabel(l string) error {
	if l == "" || len(l) > 63 {
		return errors.New("each part of a name has 1 to 63 characters")
	}
	for i := range len(l) {
		if !isNameByte(l[i]) {
			return errors.New("a name has letters, digits, hyphens and underscores")
		}
	}
	if l[0] == '-' || l[len(l)-1] == '-' {
		return errors.New("no part of a name begins or ends with a hyphen")
	}
	return nil
}

func isNameByte(c byte) bool {
	return c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// isNumeric reports whether some resolvers take a name for an address because of its last label,
// by the rule of the URL standard (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func isNumeric(label string) bool {
	hex := len(label) >= 2 && label[0] == '0' && label[1]|0x20 == 'x'
	if hex {
		label = label[2:]
	}
	for i := range len(label) {
		c := label[i]
		if (c < '0' || c > '9') && (!hex || c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	return true
}

// printable makes text from a sandbox safe to log and to show: it shortens the text, and
// replaces all but the characters of hosts and rules.
func printable(s string) string {
	s = s[:min(len(s), 100)]
	return strings.Map(func(c rune) rune {
		if c < 0x80 && isNameByte(byte(c)) || strings.ContainsRune(".:*/[]%", c) {
			return c
		}
		return '?'
	}, s)
}
