package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// loadText loads a settings file with that text.
func loadText(t *testing.T, text string, env map[string]string) (*Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{File: file, Env: env})
}

func TestOIDC(t *testing.T) {
	c, err := loadText(t, `
public_url: https://sandlot.example.com/
oidc:
  - issuer: https://a.example.com
  - issuer: https://b.example.com
    audience: [one, two]
    algorithms: ES384
    username_claim: email
    required_claims: {groups: agents}
    scopes: [openid, profile]
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := c.Server.OIDC[0], c.Server.OIDC[1]
	if !slices.Equal(a.Audience, words{"https://sandlot.example.com/mcp", "https://sandlot.example.com",
		"https://sandlot.example.com/"}) || !slices.Equal(a.Algorithms, words{"RS256", "ES256", "EdDSA"}) ||
		a.UsernameClaim != "preferred_username" {
		t.Errorf("%+v", a)
	}
	if !slices.Equal(b.Audience, words{"one", "two"}) || !slices.Equal(b.Algorithms, words{"ES384"}) ||
		b.UsernameClaim != "email" || b.RequiredClaims["groups"] != "agents" || len(b.Scopes) != 2 {
		t.Errorf("%+v", b)
	}
	rows := c.Rows()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Key == "oidc.https://b.example.com" })
	if i < 0 || !strings.Contains(rows[i].Value, "groups=agents") {
		t.Errorf("%+v", rows)
	}
	without, err := loadText(t, "public_url: https://sandlot.example.com\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if now, later := c.Changed(without); len(now) != 0 || !slices.Contains(later, "oidc") {
		t.Errorf("changed: %v, %v", now, later)
	}
	for text, want := range map[string]string{
		"oidc: {issuer: https://a}": "must be a list",
		"oidc: x":                   "must be a list",
		"oidc: [{issuer: https://a, audiences: x}]":           `did you mean "audience"`,
		"oidc: [{issuer: https://a}, {issuer: https://a}]":    "twice",
		"oidc: [{issuer: https://a}]":                         "set public_url, or audience",
		`oidc: [{issuer: https://a, scopes: ["a b"]}]`:        "not a scope",
		`oidc: [{issuer: https://a, scopes: ['a"']}]`:         "not a scope",
		"tls: {cert_file: /a}":                                "set both",
		"tls: {cert_file: /a, key_file: /b, domains: [a.bc]}": "one of them",
		"tls: {domains: ['*.example.com']}":                   "no certificate for all names",
		"tls: {domains: [localhost]}":                         "must be a domain",
		"tls: {domains: [10.0.0.1]}":                          "must be a domain",
		"tls: {domains: [a.example.com], acme_directory: ''}": "acme_directory",
		"trusted_proxies: [10.0.0.0/33]":                      "must be an address",
		"trusted_proxies: [proxy.example.com]":                "must be an address",
	} {
		if _, err := loadText(t, text, nil); !fault.Is(err, fault.Configuration) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTLSAndProxies(t *testing.T) {
	c, err := loadText(t, "trusted_proxies: [10.1.2.3/8, 192.0.2.7, '2001:db8::1']\n"+
		"tls: {domains: [Sandlot.Example.com, b.example.com]}\n",
		map[string]string{"SANDLOT_PORT": "443"})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.Rows(), func(r Row) bool { return r.Key == "trusted_proxies" })
	if got := c.Rows()[i].Value; got != "10.0.0.0/8,192.0.2.7/32,2001:db8::1/128" {
		t.Errorf("%s", got)
	}
	if got := c.Server.LocalURL("0.0.0.0"); got != "https://sandlot.example.com" {
		t.Errorf("%s", got)
	}
	s := Default().Server
	if got := s.LocalURL("::1"); got != "http://[::1]:8000" {
		t.Errorf("%s", got)
	}
	s.TLS.CertFile = "x"
	if got := s.LocalURL("localhost"); got != "https://localhost:8000" {
		t.Errorf("%s", got)
	}
}
