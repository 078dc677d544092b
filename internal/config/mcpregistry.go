package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"sandlot/internal/fault"
)

// officialRegistry is the URL of the official MCP registry, which the settings call official.
const officialRegistry = "https://registry.modelcontextprotocol.io"

// MCPRegistry is an MCP registry: its URL, or the path of a copy on this machine.
type MCPRegistry struct{ Name, URL, Path string }

var registryName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// text returns the registry as the settings have it.
func (r MCPRegistry) text() string {
	if r.Name == "official" && r.URL == officialRegistry {
		return r.Name
	}
	return r.Name + "=" + r.URL + r.Path
}

func (m *MCP) setRegistries(v string) error {
	m.Registries = nil
	names := map[string]bool{}
	for _, word := range strings.Split(v, ",") {
		word = strings.TrimSpace(word)
		if word == "" || word == "none" {
			continue
		}
		r, err := parseRegistry(word)
		if err != nil {
			return err
		}
		if names[r.Name] {
			return fmt.Errorf("two registries have the name %s", r.Name)
		}
		names[r.Name] = true
		m.Registries = append(m.Registries, r)
	}
	return nil
}

func parseRegistry(word string) (MCPRegistry, error) {
	name, at, named := strings.Cut(word, "=")
	if !named && name == "official" {
		at = officialRegistry
	}
	if !registryName.MatchString(name) || at == "" {
		return MCPRegistry{}, fmt.Errorf("%q must be official, NAME=https://… or NAME=/path", fault.Clip(word))
	}
	if !strings.Contains(at, "://") {
		if !filepath.IsAbs(at) {
			return MCPRegistry{}, fmt.Errorf("%q: the path of a copy must be absolute", fault.Clip(word))
		}
		return MCPRegistry{Name: name, Path: filepath.Clean(at)}, nil
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return MCPRegistry{}, fmt.Errorf("%q: the URL must begin with https:// or http://, name a host, and hold no "+
			"password, query or fragment", fault.Clip(word))
	}
	for i := range len(u.Host) {
		if u.Host[i] >= 0x80 {
			return MCPRegistry{}, fmt.Errorf("%q: write the host's name in ASCII, with xn--", fault.Clip(word))
		}
	}
	return MCPRegistry{Name: name, URL: strings.TrimSuffix(at, "/")}, nil
}
