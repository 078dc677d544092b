package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/pkgregistry"
)

// Network has the settings of sandboxes' network access.
type Network struct {
	Rules
	// Registries has the URLs of package registries by package manager; nil: auto, empty: none.
	Registries map[string]string
	// Hosts has addresses by host name. They take precedence over DNS.
	Hosts map[string]netip.Addr

	MaxConnections int           // of a sandbox, at the same time
	ConnectionRate int           // new connections of a sandbox per second
	MaxMB          int           // sent and received by a session together; 0: no limit
	Idle           time.Duration // after which a connection without traffic is closed
	Hold           time.Duration // how long a connection waits for a person's answer; 0: nobody is asked
}

// Rules are a mode and the hosts that are allowed in addition, as texts of the settings.
type Rules struct {
	Mode    string    `yaml:"mode"`  // none, allowlist, public or open
	Allow   []string  `yaml:"allow"` // network rules
	Private []Private `yaml:"-"`
}

// Private allows a host to have addresses in a private range.
type Private struct {
	Host string // a network rule
	Net  netip.Prefix
}

// networkRows returns the settings of the network.
func (c *Config) networkRows() []setting {
	n := &c.Network
	return []setting{
		{"network.mode", "allowlist", nil,
			"what a sandbox may reach: none; allowlist (network.allow and the package registries); public (any " +
				"public address); open (the machine's own network)",
			oneOf(&n.Mode, "none", "allowlist", "public", "open")},
		{"network.allow", "", nil,
			"hosts that may be reached, such as api.example.com:443 or *.example.com, separated by commas",
			list(&n.Allow, func(rule string) (string, error) { return rule, nil })},
		{"network.allow_private", "", nil,
			"private hosts that may be reached, with their address range: mirror.corp=10.0.0.0/8, separated by commas",
			accessor{n.setPrivate, n.privateText}},
		{"network.registries", "auto", nil,
			"package registries that may be reached: auto (this machine's own settings), none, or " +
				"npm=URL,pypi=URL,go=URL,apt=URL",
			accessor{n.setRegistries, n.registriesText}},
		{"network.hosts", "", nil,
			"names that sandboxes find at an address: mirror.corp=10.1.2.3, separated by commas; they need a " +
				"rule like any other",
			accessor{n.setHosts, func() string { return formatPairs(n.Hosts) }}},
		{"network.max_connections", "256", nil,
			"connections of a sandbox at once", number(&n.MaxConnections, 1, 4096)},
		{"network.connection_rate", "200", nil,
			"new connections of a sandbox in a second, and look-ups", number(&n.ConnectionRate, 1, 100000)},
		{"network.max_mb", "0", nil,
			"MB that a session may send and receive together; 0: no limit", number(&n.MaxMB, 0, 1<<40)},
		{"network.idle_timeout", "10m", nil,
			"how long nothing may move on a connection", duration(&n.Idle, time.Second, 7*day)},
		{"network.hold", "20s", nil,
			"how long a connection waits for a person who is asked about its host; 0: no question in the middle of a " +
				"call", duration(&n.Hold, 0, 30*time.Second)},
	}
}

// formatPairs returns m as text: name=value, sorted by name, separated by commas.
func formatPairs[V any](m map[string]V) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s=%v", name, m[name]))
	}
	return strings.Join(all, ",")
}

func (n *Network) setPrivate(v string) error {
	n.Private = nil
	for _, word := range splitWords(v) {
		host, cidr, ok := strings.Cut(word, "=")
		if !ok {
			return fmt.Errorf("%q must be a host and an address range: mirror.corp=10.0.0.0/8", word)
		}
		net, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("%q must be an address range, such as 10.0.0.0/8", cidr)
		}
		n.Private = append(n.Private, Private{Host: host, Net: net.Masked()})
	}
	return nil
}

func (n *Network) privateText() string {
	var all []string
	for _, p := range n.Private {
		all = append(all, p.Host+"="+p.Net.String())
	}
	return strings.Join(all, ",")
}

func (n *Network) setHosts(v string) error {
	n.Hosts = map[string]netip.Addr{}
	for _, word := range splitWords(v) {
		name, address, _ := strings.Cut(word, "=")
		a, err := netip.ParseAddr(address)
		if err != nil || name == "" {
			return fmt.Errorf("%q must be a name and an address: mirror.corp=10.1.2.3", word)
		}
		n.Hosts[strings.ToLower(name)] = a
	}
	return nil
}

func (n *Network) setRegistries(v string) error {
	n.Registries = nil
	if v == "auto" {
		return nil
	}
	registries := map[string]string{}
	lastName := ""
	for _, word := range splitWords(v) {
		name, address, ok := strings.Cut(word, "=")
		switch {
		case v == "none":
		case ok && slices.Contains(pkgregistry.Keys, name):
			registries[name], lastName = address, name
		case lastName == "go": // GOPROXY is a list itself: go=URL,direct
			registries[lastName] += "," + word
		default:
			return fmt.Errorf("%q must be auto, none, or one or more of npm=URL, pypi=URL, go=URL, apt=URL", word)
		}
	}
	n.Registries = registries
	return pkgregistry.Check(registries)
}

func (n *Network) registriesText() string {
	if n.Registries == nil {
		return "auto"
	}
	if len(n.Registries) == 0 {
		return "none"
	}
	return formatPairs(n.Registries)
}

// flattenNetwork adds the values of the section network to values, by their keys in the table of settings.
func flattenNetwork(values map[string]*string, n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return errors.New("must be a section with mode, allow, allow_private, registries …")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, n.Content[i+1]
		key := "network." + name
		var text string
		var err error
		switch {
		case name == "allow_private" && value.Kind == yaml.SequenceNode:
			text, err = privateSection(value)
		case (name == "registries" || name == "hosts") && value.Kind == yaml.MappingNode:
			text, err = pairsSection(value)
			if name == "registries" && text == "" {
				text = "none"
			}
		default:
			if err := flatten(values, key, value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		values[key] = &text
	}
	return nil
}

func privateSection(n *yaml.Node) (string, error) {
	var list []struct{ Host, CIDR string }
	for _, e := range n.Content {
		if err := checkKeys(e, "host", "cidr"); err != nil {
			return "", err
		}
	}
	if err := n.Decode(&list); err != nil {
		return "", errors.New("must be a list of sections with host and cidr")
	}
	var all []string
	for _, p := range list {
		all = append(all, p.Host+"="+p.CIDR)
	}
	return strings.Join(all, ","), nil
}

func pairsSection(n *yaml.Node) (string, error) {
	var m map[string]string
	if err := n.Decode(&m); err != nil {
		return "", errors.New("must be names with values")
	}
	return formatPairs(m), nil
}
