package vault

import (
	"encoding/base32"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Limits for a bound secret.
const (
	maxHosts      = 16
	maxBoundBytes = 8 << 10 // of its value, which has to fit into a header
)

// Binding says where the value of a bound secret goes: into requests to Hosts alone. Programs in sandboxes have
// Placeholder in its place.
type Binding struct {
	// Hosts are "name:port", in lower case.
	Hosts []string `json:"hosts"`
	// Header is the one header in which the placeholder is replaced; empty: any that may carry a credential.
	Header string `json:"header,omitempty"`
	// Basic: the value is "user:password", for the Authorization header with the scheme Basic alone.
	Basic bool `json:"basic,omitempty"`
	// Placeholder is random, and stays the same when the value or the hosts change.
	Placeholder string `json:"placeholder"`
}

// Variable returns the name of the environment variable that has the placeholder.
func Variable(name string) string { return strings.ToUpper(name) }

// placeholderPrefix is how placeholders begin. Tools that look for credentials in texts may know it.
const placeholderPrefix = "sandlot_"

func newPlaceholder() string {
	return placeholderPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(secret.Bytes(25)))
}

// readBinding returns where a secret goes, from its record; nil: it is not bound.
func readBinding(text string) *Binding {
	if text == "" {
		return nil
	}
	b := new(Binding)
	if json.Unmarshal([]byte(text), b) != nil || b.Placeholder == "" {
		return &Binding{} // what is stored was changed: the value does not open, and nothing is replaced
	}
	return b
}

// bind returns the binding of a secret with a new value, and its text for the record; nil: it is not bound. Without to,
// a secret stays as it is stored.
func bind(name, value string, stored, to *Binding) (*Binding, string, error) {
	if to == nil && stored == nil {
		return nil, "", nil
	}
	if to == nil {
		to = stored
	}
	b := *to
	if b.Placeholder = newPlaceholder(); stored != nil && stored.Placeholder != "" {
		b.Placeholder = stored.Placeholder
	}
	if err := b.check(name, value); err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(b)
	return &b, string(text), err
}

// reservedVariable matches variables that change how programs are run. No bound secret has their names.
var reservedVariable = regexp.MustCompile(
	`^(PATH|HOME|USER|SHELL|PWD|TERM|LANG|IFS|ENV|TZ|TMPDIR|BASH.*|LC_.*|LD_.*|PYTHON[A-Z]*|SSL_CERT_.*|.*_PROXY|` +
		`GIT_(CONFIG|SSL|DIR|WORK|INDEX|OBJECT|EXEC|ASKPASS|SSH|EDITOR|PAGER|TRACE|TERMINAL|AUTHOR|COMMITTER).*|` +
		`NODE_(OPTIONS|PATH|EXTRA|ENV|DEBUG|TLS).*|JAVA_(HOME|OPTS|TOOL).*|JDK_.*|SANDLOT_.*)$`)

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")

func (b *Binding) check(name, value string) error {
	if reservedVariable.MatchString(Variable(name)) {
		return fault.Argument("name",
			"a bound secret is a variable of programs, and %s is one that they need: give it "+
				"another name", Variable(name))
	}
	switch {
	case len(b.Hosts) == 0:
		return fault.Argument("host", "a bound secret has at least one host")
	case len(b.Hosts) > maxHosts:
		return fault.Argument("host", "a bound secret has at most %d hosts", maxHosts)
	case b.Basic && b.Header != "":
		return fault.Argument("header", "with basic the header is Authorization: give no other")
	case b.Header != "" && !headerName.MatchString(b.Header):
		return fault.Argument("header", "this is not a name of a header")
	case b.Header != "" && structural(b.Header):
		return fault.Argument("header", "the header %s is part of how HTTP works, and carries no secret", b.Header)
	case len(value) > maxBoundBytes:
		return fault.Argument("value", "the value of a bound secret has at most %d bytes", maxBoundBytes)
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }):
		return fault.Argument("value", "the value of a bound secret goes into a header: it has only printable ASCII "+
			"characters, and no line end")
	case strings.TrimSpace(value) != value:
		return fault.Argument("value", "the value of a bound secret begins and ends with no space")
	case b.Basic && !strings.Contains(value, ":"):
		return fault.Argument("value", "with basic the value is user:password")
	}
	hosts := []string{}
	for _, h := range b.Hosts {
		host, err := parseHost(h)
		if err != nil {
			return err
		}
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	b.Hosts = hosts
	return nil
}

// structural reports whether a header is about the message itself, and not about who sends it.
func structural(header string) bool {
	switch h := strings.ToLower(header); h {
	case "host", "connection", "te", "trailer", "transfer-encoding", "upgrade", "expect", "keep-alive",
		"proxy-connection":
		return true
	default:
		return strings.HasPrefix(h, "content-") || strings.HasPrefix(h, "sec-websocket-")
	}
}

var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)

// parseHost parses HOST or HOST:PORT, and returns it with its port, by default 443.
func parseHost(s string) (string, error) {
	name, port, hasPort := strings.Cut(strings.ToLower(s), ":")
	name = strings.TrimSuffix(name, ".")
	if !hasPort {
		port = "443"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	_, addrErr := netip.ParseAddr(name)
	if err != nil || n == 0 || len(name) > 253 || addrErr == nil || !hostName.MatchString(name) {
		return "", fault.Argument("host", "a host is one name, such as api.example.com, and may have a port, as in "+
			"git.example.com:8443; an address, a URL or a pattern is not a host")
	}
	return name + ":" + strconv.FormatUint(n, 10), nil
}
