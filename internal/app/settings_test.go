package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/config"
	"sandlot/internal/fault"
)

// load reads settings from a file with that text, with variables.
func load(t *testing.T, text string, env map[string]string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(config.Source{File: file, Env: env, Flags: map[string]string{"state_dir": t.TempDir()}})
}

func TestPortsDomain(t *testing.T) {
	for _, good := range []string{"ports.example.com", "ports.example.com:8443", "https://ports.example.com"} {
		if c, err := load(t, "ports_domain: "+good, nil); err != nil || c.Server.PortsDomain != good {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"*.example.com", "https://example.com/path", "10.0.0.1", "a b"} {
		if _, err := load(t, "", map[string]string{"SANDLOT_PORTS_DOMAIN": bad}); err == nil ||
			!strings.Contains(err.Error(), "SANDLOT_PORTS_DOMAIN") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// What is wrong with a network rule names the setting.
func TestBadRules(t *testing.T) {
	const template = "templates: {t: {rootfs: /usr, languages: [{name: x, command: [x]}], network: {allow: " +
		"['http://a']}}}"
	for text, want := range map[string][]string{
		"network: {allow: ['https://a.example/']}":                    {"network.allow", "a.example"},
		"network: {allow: ['*']}":                                     {"network.allow"},
		"network: {allow_private: [{host: 'a b', cidr: 10.0.0.0/8}]}": {"network.allow_private"},
		"network: {hosts: {'a b': 10.1.2.3}}":                         {"network.hosts"},
		"network: {allow_private: [{host: 'http://mirror.corp', cidr: '10.0.0.0/8'}]}": {"network.allow_private",
			"mirror.corp"},
		template: {"templates: t: network", "http://a"},
	} {
		_, err := load(t, text, nil)
		if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "sandlot.yaml") {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", text, err, w)
			}
		}
	}
}

// An invalid rule of the settings file is an error even if a variable overrides it: it would be in
// effect as soon as the variable is gone.
func TestBadRulesUnderVariables(t *testing.T) {
	for text, variable := range map[string]string{
		"network: {allow: ['http://a']}":                                "SANDLOT_NETWORK_ALLOW=b.example",
		"network: {allow_private: [{host: 'http:', cidr: 10.0.0.0/8}]}": "SANDLOT_NETWORK_ALLOW_PRIVATE=b.x=10.0.0.0/8",
		"network: {hosts: {'http://a': 10.1.2.3}}":                      "SANDLOT_NETWORK_HOSTS=b.corp=10.1.2.3",
	} {
		key, _, _ := strings.Cut(strings.TrimPrefix(text, "network: {"), ":")
		name, value, _ := strings.Cut(variable, "=")
		_, err := load(t, text, map[string]string{name: value})
		if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "sandlot.yaml: network."+key+": ") {
			t.Errorf("%s with %s: %v", text, variable, err)
		}
		valid := map[string]string{"network.allow": "c.example", "network.allow_private": "c.corp=10.0.0.0/8",
			"network.hosts": "c.corp=10.1.2.3"}["network."+key]
		if _, err := load(t, "network: {"+key+": '"+valid+"'}", map[string]string{name: value}); err != nil {
			t.Errorf("a valid file with %s: %v", variable, err)
		}
	}
}

// The rules of the settings are those of the sessions.
func TestPolicies(t *testing.T) {
	const own = "network: {mode: none, allow: [c.example]}"
	c, err := load(t, "network: {mode: public, allow: [A.example:443], "+
		"allow_private: [{host: b.corp, cidr: 10.0.0.0/8}]}\n"+
		"templates: {t: {rootfs: /usr, languages: [{name: x, command: [x]}], "+own+"}}", nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := policies(c)
	o, of := all.Operator, all.Templates["t"]
	if err != nil || o.Mode != "public" || len(o.Allow) != 1 || o.Allow[0].String() != "a.example:443" ||
		len(o.Private) != 1 || o.Private[0].Host.String() != "b.corp" || o.Private[0].Net.String() != "10.0.0.0/8" {
		t.Errorf("%+v, %v", o, err)
	}
	if of.Mode != "none" || len(of.Allow) != 1 || of.Allow[0].String() != "c.example" {
		t.Errorf("%+v", of)
	}
}
