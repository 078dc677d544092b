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

	"sandlot/internal/egress"
	"sandlot/internal/pkgregistry"
)

// Network is what sandboxes may reach.
type Network struct {
	Policy egress.Policy // the operator's; Registries are found at start
	// Templates have a mode of their own, or rules beside the operator's.
	Templates map[string]egress.Policy
	// Registries is "auto", "none", or URLs by their package manager.
	Registries map[string]string
	// Hosts are names with their addresses, before any name server.
	Hosts  map[string]netip.Addr
	Limits egress.Limits
}

// networkRows are the settings of the network.
var networkRows = []setting{
	{"network.mode", "allowlist", nil,
		"what a sandbox may reach: none; allowlist (network.allow and the package registries); public (any public " +
			"address); open (the machine's own network)",
		access{setMode, func(c *Config) string { return string(c.Network.Policy.Mode) }}},
	{"network.allow", "", nil,
		"hosts that may be reached, such as api.example.com:443 or *.example.com, separated by commas",
		access{setAllow, func(c *Config) string { return join(c.Network.Policy.Allow) }}},
	{"network.allow_private", "", nil,
		"private hosts that may be reached, with their address range: mirror.corp=10.0.0.0/8, separated by commas",
		access{setPrivate, privateText}},
	{"network.registries", "auto", nil,
		"package registries that may be reached: auto (this machine's own settings), none, or npm=URL,pypi=URL,go=URL",
		access{setRegistries, registriesText}},
	{"network.hosts", "", nil,
		"names that sandboxes find at an address: mirror.corp=10.1.2.3, separated by commas; they need a rule like " +
			"any other",
		access{setHosts, hostsText}},
	{"network.max_connections", "256", nil,
		"connections of a sandbox at once",
		number(func(c *Config) *int { return &c.Network.Limits.Connections }, 1, 4096)},
	{"network.connection_rate", "200", nil,
		"new connections of a sandbox in a second, and look-ups",
		number(func(c *Config) *int { return &c.Network.Limits.Rate }, 1, 100000)},
	{"network.max_mb", "0", nil,
		"MB that a session may send and receive together; 0: no limit",
		access{setBytes, func(c *Config) string { return fmt.Sprint(c.Network.Limits.Bytes >> 20) }}},
	{"network.idle_timeout", "10m", nil,
		"how long nothing may move on a connection",
		duration(func(c *Config) *time.Duration { return &c.Network.Limits.Idle }, time.Second, 7*day)},
}

func join[T fmt.Stringer](list []T) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

func setMode(c *Config, v string) (err error) {
	c.Network.Policy.Mode, err = egress.ParseMode(v)
	return err
}

func setAllow(c *Config, v string) (err error) {
	c.Network.Policy.Allow, err = rules(words(v))
	return err
}

func words(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
}

func rules(texts []string) ([]egress.Rule, error) {
	var list []egress.Rule
	for _, t := range texts {
		r, err := egress.ParseRule(t)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

func setPrivate(c *Config, v string) error {
	c.Network.Policy.Private = nil
	for _, w := range words(v) {
		host, cidr, ok := strings.Cut(w, "=")
		if !ok {
			return fmt.Errorf("%q must be a host and an address range: mirror.corp=10.0.0.0/8", w)
		}
		r, err := egress.ParseRule(host)
		if err != nil {
			return err
		}
		net, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("%q must be an address range, such as 10.0.0.0/8", cidr)
		}
		c.Network.Policy.Private = append(c.Network.Policy.Private, egress.Private{Host: r, Net: net.Masked()})
	}
	return nil
}

func privateText(c *Config) string {
	var all []string
	for _, p := range c.Network.Policy.Private {
		all = append(all, p.Host.String()+"="+p.Net.String())
	}
	return strings.Join(all, ",")
}

func setHosts(c *Config, v string) error {
	c.Network.Hosts = map[string]netip.Addr{}
	for _, w := range words(v) {
		name, address, _ := strings.Cut(w, "=")
		a, err := netip.ParseAddr(address)
		if err != nil || name == "" {
			return fmt.Errorf("%q must be a name and an address: mirror.corp=10.1.2.3", w)
		}
		if _, err := egress.ParseRule(name); err != nil {
			return err
		}
		c.Network.Hosts[strings.ToLower(name)] = a
	}
	return nil
}

func hostsText(c *Config) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Network.Hosts)) {
		all = append(all, name+"="+c.Network.Hosts[name].String())
	}
	return strings.Join(all, ",")
}

func setRegistries(c *Config, v string) error {
	c.Network.Registries = nil
	if v == "auto" {
		return nil
	}
	found := map[string]string{}
	last := ""
	for _, w := range words(v) {
		name, address, ok := strings.Cut(w, "=")
		switch {
		case v == "none":
		case ok && slices.Contains(pkgregistry.Keys, name):
			found[name], last = address, name
		case last == "go": // a list of its own: go=URL,direct
			found[last] += "," + w
		default:
			return fmt.Errorf("%q must be auto, none, or one or more of npm=URL, pypi=URL, go=URL", w)
		}
	}
	c.Network.Registries = found
	return pkgregistry.Check(found)
}

func registriesText(c *Config) string {
	if c.Network.Registries == nil {
		return "auto"
	}
	if len(c.Network.Registries) == 0 {
		return "none"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Network.Registries)) {
		all = append(all, name+"="+c.Network.Registries[name])
	}
	return strings.Join(all, ",")
}

func setBytes(c *Config, v string) error {
	var mb int
	set := number(func(*Config) *int { return &mb }, 0, 1<<40).set
	err := set(c, v)
	c.Network.Limits.Bytes = int64(mb) << 20
	return err
}

// network brings the section into the form of the table.
func network(into map[string]*string, n *yaml.Node) error {
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
			text, err = pairs(value)
			if name == "registries" && text == "" {
				text = "none"
			}
		default:
			if err := flatten(into, key, value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		into[key] = &text
	}
	return nil
}

func privateSection(n *yaml.Node) (string, error) {
	var list []struct{ Host, CIDR string }
	for _, e := range n.Content {
		if err := only(e, "host", "cidr"); err != nil {
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

// pairs is the text form of a section of names with values.
func pairs(n *yaml.Node) (string, error) {
	var m map[string]string
	if err := n.Decode(&m); err != nil {
		return "", errors.New("must be names with values")
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, name+"="+m[name])
	}
	return strings.Join(all, ","), nil
}

// templateNetwork is a template's own mode and rules.
type templateNetwork struct {
	Mode  string   `yaml:"mode"`
	Allow []string `yaml:"allow"`
}

func (t templateNetwork) policy() (p egress.Policy, err error) {
	if t.Mode != "" {
		if p.Mode, err = egress.ParseMode(t.Mode); err != nil {
			return p, err
		}
		if p.Mode == egress.Open {
			return p, errors.New("the mode open is for all templates: network.mode")
		}
	}
	p.Allow, err = rules(t.Allow)
	return p, err
}
