package policy

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// ownScheme begins the URIs of Sandlot's own resources, which no server's name stands before.
const ownScheme = "sandlot:"

// maxEncodings is how often a URI may be percent-encoded. One that is more often is compared with nothing.
const maxEncodings = 3

// cutServer splits SERVER/URI. The server is empty for Sandlot's own URIs.
func cutServer(text string) (server, uri string) {
	if len(text) >= len(ownScheme) && strings.EqualFold(text[:len(ownScheme)], ownScheme) {
		return "", text
	}
	if i := strings.IndexByte(text, '/'); i >= 0 {
		return text[:i+1], text[i+1:]
	}
	return "", text
}

// uriForms returns the other spellings of SERVER/URI that a server may take for the same resource: without
// percent-encoding, "." and "..", and with the scheme and the host in lower case. It returns false for a URI that
// cannot be compared.
func uriForms(text string) (forms []string, ok bool) {
	server, uri := cutServer(text)
	forms, ok = spellings(uri)
	for i := range forms {
		forms[i] = server + forms[i]
	}
	return forms, ok
}

// spellings returns the other spellings of a URI, as uriForms does.
func spellings(uri string) (forms []string, ok bool) {
	text := uri
	add := func(form string) {
		if form != text && !slices.Contains(forms, form) {
			forms = append(forms, form)
		}
	}
	for range maxEncodings + 1 {
		add(uri)
		for _, form := range cleanURI(uri) {
			add(form)
		}
		decoded := decodePercent(uri)
		if decoded == uri {
			return forms, true
		}
		if uri = decoded; strings.ContainsRune(uri, 0) || !utf8.ValidString(uri) {
			return nil, false
		}
	}
	return nil, false
}

// cleanURI returns the forms of a URI without "." and "..": with a query that stays as it is, and with one that a
// server takes for a part of the path.
func cleanURI(uri string) []string {
	uri = strings.ReplaceAll(uri, `\`, "/")
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok || scheme == "" || strings.ContainsFunc(scheme, noScheme) {
		return []string{cleanPart(uri)}
	}
	scheme = strings.ToLower(scheme)
	host := ""
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		end := strings.IndexAny(after, "/?#")
		if end < 0 {
			end = len(after)
		}
		host, rest = "//"+strings.ToLower(after[:end]), after[end:]
	}
	if scheme == "file" && (host == "" || host == "//localhost") && strings.HasPrefix(rest, "/") {
		host = "//"
	}
	before := scheme + ":" + host
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		return []string{before + cleanPart(rest[:i]) + rest[i:], before + cleanPart(rest)}
	}
	return []string{before + cleanPart(rest)}
}

func noScheme(r rune) bool {
	return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
}

// cleanPart returns a path without "." and "..", and with the slash at its end, if it has one.
func cleanPart(p string) string {
	if p == "" {
		return ""
	}
	clean := path.Clean(p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// decodePercent decodes the percent-encoding of a text. What is none stays as it is.
func decodePercent(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) && isHex(text[i+1]) && isHex(text[i+2]) {
			b.WriteByte(unhex(text[i+1])<<4 | unhex(text[i+2]))
			i += 2
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return (c | 0x20 - 'a') + 10
}

// uriPattern compares resources. A rule that asks or denies matches any spelling of the URI, and, if it ends with /*,
// the folder itself; one that allows has to match every spelling.
func uriPattern(pattern string, strict bool) func(detail) bool {
	patterns := []string{pattern}
	if forms, ok := uriForms(pattern); ok {
		for _, form := range forms {
			if !strict || wildcards(form) == wildcards(pattern) {
				patterns = append(patterns, form)
			}
		}
	}
	if !strict {
		for _, p := range patterns {
			if folder, ok := strings.CutSuffix(p, "/*"); ok {
				patterns = append(patterns, folder)
			}
		}
	}
	matches := func(text string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { return glob(p, text, "") })
	}
	return func(d detail) bool {
		if strict {
			return matches(d.text) && !slices.ContainsFunc(d.forms, func(f string) bool { return !matches(f) })
		}
		return matches(d.text) || slices.ContainsFunc(d.forms, matches)
	}
}

func wildcards(pattern string) int { return strings.Count(pattern, "*") + strings.Count(pattern, "?") }
