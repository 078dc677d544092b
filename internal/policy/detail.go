package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"sandlot/internal/fault"
	"sandlot/internal/ipv4in6"
)

// MaxDetail is the longest detail in bytes that patterns are compared with.
const MaxDetail = 8 << 10

// detailKind says what a detail is, and so when it matches a pattern.
type detailKind int

const (
	noDetail      detailKind = iota
	plainText                // compared as it is
	command                  // a line for a shell, or a program with its arguments
	filePath                 // an absolute path, or one relative to /workspace
	removedPath              // a path that is removed with everything below it
	connectTarget            // an MCP server's name, and its URL or command
	installTarget            // an MCP server's name, its package, and the command that starts it
	templateName             // a template; see TemplateDetail
	hostPort                 // host:port, with an IPv6 address in brackets
	serverTool               // SERVER/TOOL
	resourceURI              // SERVER/URI, or the URI of one of Sandlot's own resources
	portNumber
	registryEntry // REGISTRY:NAME@VERSION, without the parts that nobody named
)

// details are the operations with a detail.
var details = map[Operation]detailKind{
	ShellExecute: command,
	FileRead:     filePath, FileWrite: filePath, FileList: filePath, FileRemove: removedPath,
	NetworkReach: hostPort,

	CodeExecute: plainText,     // the language
	MCPInstall:  installTarget, // NAME TYPE:SPEC
	MCPConnect:  connectTarget, // NAME URL, or NAME COMMAND
	MCPCall:     serverTool, CodeBackground: serverTool,

	PortExpose: portNumber, PortClose: portNumber, PortDial: portNumber, PortVisit: portNumber,
	SessionCreate: templateName, TemplateBuild: plainText, // the template
	ImagePull:    plainText,                                  // the image's name, as lists have it
	PromptGet:    plainText,                                  // SERVER/NAME
	RegistryRead: registryEntry, RegistryPlan: registryEntry, // [REGISTRY:]NAME[@VERSION]
	ResourceRead: resourceURI,
	SecretSet:    plainText, SecretRemove: plainText, SecretUse: plainText, // the name
}

func (o Operation) hasDetail() bool { return details[o] != noDetail }

// detail is a detail in the form that patterns are compared with.
type detail struct {
	text string
	// opaque: the detail is too long, is no text, or cannot be parsed. Rules with a pattern that ask
	// or deny match it, and rules that allow do not.
	opaque bool
	// parts are the commands of a line for a shell, and other names of what the detail is about. Rules
	// that ask or deny match each of them, and rules that allow do not look at them.
	parts []string
	// forms are the other spellings of a URI. Rules that allow have to match all of them.
	forms []string
}

// newDetail returns the comparable form of a detail.
func newDetail(kind detailKind, text string) detail {
	if kind == noDetail {
		return detail{}
	}
	if len(text) > MaxDetail || strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
		return detail{opaque: true}
	}
	switch kind {
	case command:
		parts, ok := commandParts(text)
		return detail{text: collapse(text), parts: parts, opaque: !ok}
	case filePath, removedPath:
		return detail{text: CleanPath(text)}
	case hostPort:
		host, err := normalHost(text)
		return detail{text: host, parts: innerHosts(host), opaque: err != nil}
	case resourceURI:
		forms, ok := uriForms(text)
		return detail{text: text, forms: forms, opaque: !ok}
	case connectTarget, installTarget:
		return serverDetail(kind, text)
	case templateName:
		name, asked, also := strings.Cut(text, " ")
		if also {
			return detail{text: name, parts: []string{asked}}
		}
	}
	return detail{text: text}
}

// TemplateDetail returns the detail of a session of a template that was asked for by another name, which the template
// provides; empty: by its own. Rules that ask or deny match both names, and rules that allow the template's own.
func TemplateDetail(template, asked string) string {
	if asked == "" || asked == template {
		return template
	}
	return template + " " + asked
}

// Workspace is the folder in the sandbox to which relative paths refer.
const Workspace = "/workspace"

// CleanPath returns a path in the sandbox as the agent reads it: absolute, without "." and "..".
// Symbolic links are not resolved.
func CleanPath(p string) string {
	if !path.IsAbs(p) {
		p = Workspace + "/" + p
	}
	return path.Clean(p)
}

// normalHost returns host:port, or a host, in one form: letters in lower case, names in ASCII
// and without a final dot, addresses as Go writes them, ports as numbers. A pattern may have * and ?.
func normalHost(text string) (string, error) {
	host, port, _ := cutPort(text)
	pattern := strings.ContainsAny(host, "*?")
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.Unmap().WithZone("").String()
	} else {
		host = strings.TrimSuffix(strings.ToLower(host), ".")
		ascii, err := idna.Lookup.ToASCII(strings.TrimPrefix(host, "*."))
		switch {
		case err == nil && strings.HasPrefix(host, "*."):
			host = "*." + ascii
		case err == nil:
			host = strings.TrimSuffix(ascii, ".")
		case !isASCII(host) || host == "":
			return "", errNoHost
		}
		if !pattern && !isHostName(host) {
			return "", errNoHost
		}
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		port, err := normalPort(port)
		if err != nil {
			return "", err
		}
		host += ":" + port
	}
	return host, nil
}

// innerHosts returns the IPv4 addresses in the IPv6 address of host:port, with the port. Rules that ask or deny are about
// those, too.
func innerHosts(text string) (inner []string) {
	host, port, bracket := cutPort(text)
	a, err := netip.ParseAddr(host)
	if !bracket || err != nil {
		return nil
	}
	for _, in := range ipv4in6.Of(a) {
		if port == "" {
			inner = append(inner, in.String())
		} else {
			inner = append(inner, in.String()+":"+port)
		}
	}
	return inner
}

var (
	errNoHost = errors.New("it is not a name of a host")
	errNoPort = errors.New("a port is a number")
)

// normalPort returns a port without zeros in front. A pattern may have * and ?.
func normalPort(port string) (string, error) {
	if strings.ContainsAny(port, "*?") && !strings.ContainsFunc(port, noPort) {
		return port, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", errNoPort
	}
	return strconv.FormatUint(n, 10), nil
}

// isHostName reports whether a text in lower case may be the name of a host: labels of which none is empty. What some
// programs take for an address, and that is none as Go writes it, is no name: 127.1, 0x7f000001.
func isHostName(host string) bool {
	if len(host) > 253 || strings.ContainsFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) {
		return false
	}
	labels := strings.Split(host, ".")
	last := strings.TrimPrefix(labels[len(labels)-1], "0x")
	_, err := strconv.ParseUint("0"+last, 16, 64)
	numeric := len(last) < len(labels[len(labels)-1]) && err == nil || strings.Trim(last, "0123456789") == ""
	return !numeric && !slices.Contains(labels, "")
}

// cutPort splits host:port. The host of a text without a port may be an IPv6 address.
func cutPort(text string) (host, port string, bracket bool) {
	if in, ok := strings.CutPrefix(text, "["); ok {
		host, rest, _ := strings.Cut(in, "]")
		return host, strings.TrimPrefix(rest, ":"), true
	}
	if strings.Count(text, ":") == 1 {
		host, port, _ = strings.Cut(text, ":")
		return host, port, false
	}
	return text, "", false
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// compilePattern returns the function that reports whether a detail matches a pattern. In a
// pattern, * stands for any characters and ? for one.
func compilePattern(kind detailKind, pattern string, e Effect) (func(detail) bool, error) {
	if len(pattern) > MaxDetail || strings.ContainsRune(pattern, 0) || !utf8.ValidString(pattern) {
		return nil, fmt.Errorf("a pattern is text of at most %d bytes", MaxDetail)
	}
	if why := unmatchable(kind, pattern, e); why != "" {
		return nil, fmt.Errorf("%q never matches: %s", fault.Clip(pattern), why)
	}
	var matches func(detail) bool
	strict := e == Allow
	switch kind {
	case command:
		matches = commandPattern(collapse(pattern), strict)
	case filePath:
		matches = pathPattern(pattern, strict)
	case removedPath:
		matches = removalPattern(pattern, strict)
	case connectTarget, installTarget:
		matches = serverPattern(pattern, strict)
	case portNumber:
		if port, err := normalPort(pattern); err == nil {
			pattern = port
		}
		matches = func(d detail) bool { return glob(pattern, d.text, "") }
	case templateName:
		matches = func(d detail) bool {
			return glob(pattern, d.text, "") ||
				!strict && slices.ContainsFunc(d.parts, func(name string) bool { return glob(pattern, name, "") })
		}
	case registryEntry:
		matches = entryPattern(pattern, strict)
	case resourceURI:
		matches = uriPattern(pattern, strict)
	case hostPort:
		one, err := hostPattern(pattern, e)
		if err != nil {
			return nil, err
		}
		matches = func(d detail) bool {
			return one(d) || !strict && slices.ContainsFunc(d.parts, func(text string) bool { return one(detail{text: text}) })
		}
	default:
		matches = func(d detail) bool { return glob(pattern, d.text, "") }
	}
	return func(d detail) bool {
		if d.opaque {
			return !strict
		}
		return matches(d)
	}, nil
}

// unmatchable returns why no detail of a kind can match a pattern; empty: one may.
func unmatchable(kind detailKind, pattern string, e Effect) string {
	switch kind {
	case portNumber:
		if _, err := normalPort(pattern); err != nil {
			return err.Error()
		}
	case serverTool:
		if !strings.ContainsAny(pattern, "/*?") {
			return "it is compared with SERVER/TOOL, such as " + pattern + "/*"
		}
	case connectTarget, installTarget:
		if !strings.ContainsAny(pattern, " *?") || e == Allow && len(strings.Fields(pattern)) == 1 {
			return "it is compared with the name and what follows it, such as " + pattern + " *"
		}
		return unmatchableURL(kind, pattern)
	case filePath, removedPath:
		if p := absolutePattern(pattern); path.Clean(p) != p {
			return "paths are compared without . and .., and without / at the end"
		}
	}
	return ""
}

// noPort reports whether a character can be in no pattern for ports.
func noPort(r rune) bool { return (r < '0' || r > '9') && r != '*' && r != '?' }

// pathPattern compares paths. A rule that asks or denies, and ends with /*, is also about the
// folder itself.
func pathPattern(pattern string, strict bool) func(detail) bool {
	pattern = absolutePattern(pattern)
	folder, inFolder := strings.CutSuffix(pattern, "/*")
	return func(d detail) bool {
		return glob(pattern, d.text, "") || !strict && inFolder && glob(folder, d.text, "")
	}
}

// removalPattern is pathPattern for removing. A rule that asks or denies is also about the folders
// that contain what the pattern matches, as they are removed with everything in them.
func removalPattern(pattern string, strict bool) func(detail) bool {
	matches, pattern := pathPattern(pattern, strict), absolutePattern(pattern)
	literal := pattern
	if i := strings.IndexAny(pattern, "*?"); i >= 0 {
		literal = pattern[:i]
	}
	return func(d detail) bool {
		return matches(d) || !strict && strings.HasPrefix(literal, strings.TrimSuffix(d.text, "/")+"/")
	}
}

// absolutePattern returns a pattern for paths as an absolute one.
func absolutePattern(pattern string) string {
	if !path.IsAbs(pattern) && !strings.HasPrefix(pattern, "*") {
		pattern = Workspace + "/" + pattern
	}
	if !strings.ContainsAny(pattern, "*?") {
		pattern = path.Clean(pattern)
	}
	return pattern
}

// entryPattern compares entries of registries. A pattern without a registry is about all of them. Rules that ask or deny
// are also about an entry of which nobody said the registry or the version that they name, as it may be that one; and
// those without a version about each version.
func entryPattern(pattern string, strict bool) func(detail) bool {
	registry, entry, ofOne := strings.Cut(pattern, ":")
	if !ofOne {
		registry, entry = "*", pattern
	}
	name, _, _ := strings.Cut(entry, "@")
	return func(d detail) bool {
		in, asked, known := strings.Cut(d.text, ":")
		if !known {
			in, asked = "", d.text
		}
		if ofOne && (known && !glob(registry, in, "") || !known && strict) {
			return false
		}
		askedName, _, versioned := strings.Cut(asked, "@")
		return glob(entry, asked, "") || !strict && (glob(entry, askedName, "") || !versioned && glob(name, askedName, ""))
	}
}

// hostPattern compares hosts: a name, names below one (*.example.com), an address or a range of
// addresses, each with a port or without. A look-up of a name has no port: rules that deny some
// ports do not match it, and the others do.
func hostPattern(pattern string, e Effect) (func(detail) bool, error) {
	if p, err := netip.ParsePrefix(pattern); err == nil {
		if p.Addr().Is4In6() && p.Bits() >= 96 { // addresses of IPv4 are compared as such
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return func(d detail) bool {
			host, _, _ := cutPort(d.text)
			a, err := netip.ParseAddr(host)
			return err == nil && p.Contains(a)
		}, nil
	}
	normal, err := normalHost(pattern)
	if errors.Is(err, errNoPort) && !strings.ContainsAny(pattern, "/ ") {
		return nil, fmt.Errorf("%q never matches: a port is a number", fault.Clip(pattern))
	}
	if err != nil || strings.ContainsAny(normal, "/ ") {
		return nil, fmt.Errorf("%q is not a host: a host is a name, names below one (*.example.com), an address or a "+
			"range of addresses, with a port (:443) or without", pattern)
	}
	hostOnly, port, bracket := cutPort(normal)
	if bracket {
		hostOnly = "[" + hostOnly + "]"
	}
	return func(d detail) bool {
		if _, p, _ := cutPort(d.text); p == "" && port != "" {
			return e != Refuse && glob(hostOnly, d.text, "")
		}
		if port != "" {
			return glob(normal, d.text, "")
		}
		host, _, bracket := cutPort(d.text)
		if bracket {
			host = "[" + host + "]"
		}
		return glob(normal, host, "")
	}, nil
}

// glob reports whether text matches a pattern, in time len(pattern)·len(text) at most. The
// wildcards * and ? do not stand for the characters of except.
func glob(pattern, text, except string) bool {
	p, t, star, mark := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && pattern[p] == '?' && strings.IndexByte(except, text[t]) < 0:
			_, size := utf8.DecodeRuneInString(text[t:])
			p, t = p+1, t+size
		case p < len(pattern) && pattern[p] != '?' && pattern[p] == text[t]:
			p, t = p+1, t+1
		case star >= 0 && strings.IndexByte(except, text[mark]) < 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// ServerName returns the name of a third-party server as details have it: without the characters
// that separate the parts of a detail.
func ServerName(name string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F", " ", "%20").Replace(name)
}
