package bound

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"sandlot/internal/vault"
)

// maxReplaced bounds how often values are put into one request, each with up to 8 KiB.
const maxReplaced = 16

// carrying are parts of the names of headers that carry credentials. Into other headers a value is put only if its user
// names one: servers, and programs between, log them, send them on or send them back.
var carrying = []string{"auth", "key", "token", "secret", "password", "credential"}

// withheld are parts of the names of headers that carry no credentials for the host, although their names look so.
var withheld = []string{"cookie", "idempotency", "cache", "surrogate", "partition", "forwarded", "trace",
	"request-id", "correlation-id", "authenticated", "lock-token"}

// withheldPrefixes are beginnings of further such names.
var withheldPrefixes = []string{"proxy-", "sec-", "x-proxy-", "access-control-", "content-", "if-"}

// goesInto reports whether a secret may be put into a header. Name is in canonical form.
func goesInto(s *vault.BoundSecret, name string) bool {
	switch {
	case s.Basic:
		return name == "Authorization"
	case s.Header != "":
		return name == http.CanonicalHeaderKey(s.Header)
	case name == "Authorization":
		return true
	}
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-") // many servers take one for the other
	contains := func(part string) bool { return strings.Contains(name, part) }
	if slices.ContainsFunc(withheld, contains) ||
		slices.ContainsFunc(withheldPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return false
	}
	if strings.Contains(name, "author") && !strings.Contains(name, "authoriz") { // an author, or an authority: a host
		return false
	}
	return slices.ContainsFunc(carrying, contains)
}

// replace puts the values of secrets into the headers of a request, in place of their placeholders. It returns what has
// to be hidden in the headers of the response.
func replace(header http.Header, secrets []vault.BoundSecret) (sent []substitution) {
	left := maxReplaced
	for name, values := range header {
		for i, v := range values {
			for n := range secrets {
				if s := &secrets[n]; left > 0 && goesInto(s, name) {
					var used int
					v, used, sent = replaceIn(v, s, left, sent)
					left -= used
				}
			}
			values[i] = v
		}
	}
	return sent
}

// substitution is a text that the request had in place of another one.
type substitution struct{ value, placeholder string }

// minHidden is the length from which a value is hidden in a response: of a shorter one other texts may consist, too.
const minHidden = 8

func replaceIn(v string, s *vault.BoundSecret, limit int, sent []substitution) (string, int, []substitution) {
	hide := func(value, placeholder string) {
		if len(value) >= minHidden {
			sent = append(sent, substitution{value, placeholder})
		}
	}
	value := s.Value.Reveal()
	if scheme, text, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Basic") {
		text = strings.TrimSpace(text)
		login, ok := decode(text)
		if !ok || !strings.Contains(login, s.Placeholder) {
			return v, 0, sent
		}
		real := value
		if !s.Basic {
			real = strings.Replace(login, s.Placeholder, value, 1)
		} else if _, password, _ := strings.Cut(value, ":"); true {
			hide(password, s.Placeholder)
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(real))
		hide(encoded, text)
		hide(value, s.Placeholder)
		return scheme + " " + encoded, 1, sent
	}
	if s.Basic || !strings.Contains(v, s.Placeholder) {
		return v, 0, sent
	}
	n := min(strings.Count(v, s.Placeholder), limit)
	hide(value, s.Placeholder)
	return strings.Replace(v, s.Placeholder, value, n), n, sent
}

func decode(text string) (string, bool) {
	text = strings.TrimRight(text, "=")
	b, err := base64.RawStdEncoding.DecodeString(text)
	return string(b), err == nil
}

// hide replaces in a response's headers what the request has sent. It removes headers with it in their names.
func hide(header http.Header, sent []substitution) {
	if len(sent) == 0 {
		return
	}
	for name, values := range header {
		lower := strings.ToLower(name) // HTTP does not preserve the case of names
		if slices.ContainsFunc(sent, func(s substitution) bool {
			return strings.Contains(lower, strings.ToLower(strings.TrimRight(s.value, "=")))
		}) {
			delete(header, name)
			continue
		}
		for i, v := range values {
			for _, s := range sent {
				v = strings.ReplaceAll(v, s.value, s.placeholder)
			}
			values[i] = v
		}
	}
}
