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

// carrying are the headers in which APIs take credentials, in small letters. A value goes into another one only if its
// user names that: servers, and programs between, log other headers, send them on, or store them and give them back, as
// the metadata of an object (X-Amz-Meta-Token). So this is a list of names, and no parts of names count.
var carrying = []string{"authorization", "api-key", "apikey", "x-api-key", "x-apikey", "x-api-token", "x-access-token",
	"x-auth-key", "x-auth-token", "private-token", "job-token", "deploy-token", "circle-token",
	"cf-access-client-secret", "dd-api-key", "dd-application-key", "ocp-apim-subscription-key", "x-algolia-api-key",
	"x-figma-token", "x-functions-key", "x-github-token", "x-goog-api-key", "x-n8n-api-key", "x-nuget-apikey",
	"x-postmark-account-token", "x-postmark-server-token", "x-rapidapi-key", "x-redmine-api-key",
	"x-shopify-access-token", "x-subscription-token", "x-vault-token", "xi-api-key"}

// goesInto reports whether a secret may be put into a header. Name is in canonical form.
func goesInto(s *vault.BoundSecret, name string) bool {
	switch {
	case s.Basic:
		return name == "Authorization"
	case s.Header != "":
		return name == http.CanonicalHeaderKey(s.Header)
	}
	// Many servers take _ and - for the same.
	return slices.Contains(carrying, strings.ReplaceAll(strings.ToLower(name), "_", "-"))
}

// replace puts the values of secrets into the headers of a request, in place of their placeholders. It returns what has
// to be hidden in the headers of the response: what the request sends, and all of these secrets, since the host can
// have one of an earlier request.
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
	for n := range secrets {
		sent = known(&secrets[n], sent)
	}
	return sent
}

// substitution is a text that a host may have in place of another one.
type substitution struct{ value, placeholder string }

// minHidden is the length from which a value is hidden in a response: of a shorter one other texts may consist, too.
const minHidden = 8

// add returns a list with one more substitution, unless its value is too short.
func add(list []substitution, value, placeholder string) []substitution {
	if len(value) < minHidden {
		return list
	}
	return append(list, substitution{value, placeholder})
}

// known adds what a host knows of a secret that it has got.
func known(s *vault.BoundSecret, list []substitution) []substitution {
	value := s.Value.Reveal()
	if s.Basic {
		_, password, _ := strings.Cut(value, ":")
		list = add(list, base64.StdEncoding.EncodeToString([]byte(value)), s.Placeholder)
		list = add(list, password, s.Placeholder)
	}
	return add(list, value, s.Placeholder)
}

func replaceIn(v string, s *vault.BoundSecret, limit int, sent []substitution) (string, int, []substitution) {
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
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(real))
		return scheme + " " + encoded, 1, add(sent, encoded, text)
	}
	if s.Basic || !strings.Contains(v, s.Placeholder) {
		return v, 0, sent
	}
	n := min(strings.Count(v, s.Placeholder), limit)
	return strings.Replace(v, s.Placeholder, value, n), n, sent
}

func decode(text string) (string, bool) {
	text = strings.TrimRight(text, "=")
	b, err := base64.RawStdEncoding.DecodeString(text)
	return string(b), err == nil
}

// hide replaces values in a response's headers. It removes headers with it in their names.
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
