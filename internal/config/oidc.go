package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/fault"
)

// OIDC has the settings of an OIDC issuer whose users may use the server.
type OIDC struct {
	Issuer     string `yaml:"issuer"`
	Audience   words  `yaml:"audience"`   // the tokens' audiences; empty: the public URL, and MCP's below it
	Algorithms words  `yaml:"algorithms"` // of signatures
	// UsernameClaim is the claim with the name that people see; it decides nothing.
	UsernameClaim string `yaml:"username_claim"`
	// RequiredClaims has claims with the text that each has, or has in its list.
	RequiredClaims map[string]string `yaml:"required_claims"`
	Scopes         words             `yaml:"scopes"` // that clients ask of the issuer
	// ClientID is this server as a client of the issuer, for log-ins at the web console; empty: there are none.
	ClientID string `yaml:"client_id"`
	// ClientSecretFile is the path of a file with the client's secret; empty: it has none.
	ClientSecretFile string `yaml:"client_secret_file"`
	ClientScopes     words  `yaml:"client_scopes"` // that the server asks for beside openid
}

// words is a list of words, or one word, of the settings file.
type words []string

// UnmarshalYAML implements yaml.Unmarshaler.
func (w *words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*w = words{n.Value}
		return nil
	}
	return n.Decode((*[]string)(w))
}

// parseOIDC reads the section oidc. What the URL of an issuer and an algorithm may be is checked where they are used.
func (c *Config) parseOIDC(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		return errors.New("must be a list of issuers, each with issuer and, if needed, audience")
	}
	for _, one := range n.Content {
		err := checkKeys(one, "issuer", "audience", "algorithms", "username_claim", "required_claims", "scopes",
			"client_id", "client_secret_file", "client_scopes")
		if err != nil {
			return err
		}
		i := OIDC{Algorithms: words{"RS256", "ES256", "EdDSA"}, UsernameClaim: "preferred_username",
			ClientScopes: words{"profile"}}
		if err := one.Decode(&i); err != nil {
			return err
		}
		if slices.ContainsFunc(c.Server.OIDC, func(o OIDC) bool { return o.Issuer == i.Issuer }) {
			return fmt.Errorf("the issuer %q is there twice", i.Issuer)
		}
		for _, s := range slices.Concat(i.Scopes, i.ClientScopes) {
			unsafe := func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || r > '~' }
			if s == "" || strings.ContainsFunc(s, unsafe) {
				return fmt.Errorf("%s: scopes: %q is not a scope", i.Issuer, s)
			}
		}
		if i.ClientID == "" && i.ClientSecretFile != "" {
			return fmt.Errorf("%s: client_secret_file: it needs client_id", i.Issuer)
		}
		c.Server.OIDC = append(c.Server.OIDC, i)
	}
	return nil
}

// finishOIDC sets the audiences that the file leaves out.
func (c *Config) finishOIDC() error {
	for i := range c.Server.OIDC {
		o := &c.Server.OIDC[i]
		if len(o.Audience) > 0 {
			continue
		}
		if c.Server.PublicURL == "" {
			return fault.New(fault.Configuration,
				"%s: oidc: %s: the audience of the issuer's tokens is not known: "+
					"set public_url, or audience of the issuer", c.File, o.Issuer)
		}
		o.Audience = words{c.Server.PublicURL + "/mcp", c.Server.PublicURL, c.Server.PublicURL + "/"}
	}
	return nil
}

// oidcRows returns a row for each issuer.
func (c *Config) oidcRows() []Row {
	var rows []Row
	for _, o := range c.Server.OIDC {
		value := "audience " + strings.Join(o.Audience, ", ") + "; " + strings.Join(o.Algorithms, ", ")
		for _, name := range slices.Sorted(maps.Keys(o.RequiredClaims)) {
			value += fmt.Sprintf("; %s=%s", name, o.RequiredClaims[name])
		}
		if o.ClientID != "" {
			value += "; log-in at the console as " + o.ClientID
		}
		rows = append(rows, Row{Key: "oidc." + o.Issuer, Value: value, From: "file " + c.File,
			Help: "an OIDC issuer whose users may use the server"})
	}
	return rows
}

// networks is a setting with networks and addresses.
func networks(target *[]netip.Prefix) accessor {
	return accessor{func(v string) error {
		*target = nil
		for _, text := range splitWords(v) {
			n, err := netip.ParsePrefix(text)
			if a, errAddr := netip.ParseAddr(text); err != nil && errAddr == nil {
				n, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err != nil || n.Addr().Is4In6() || n.Addr().Zone() != "" {
				return fmt.Errorf("%q must be an address, or a network such as 10.0.0.0/8", text)
			}
			*target = append(*target, n.Masked())
		}
		return nil
	}, func() string {
		var all []string
		for _, n := range *target {
			all = append(all, n.String())
		}
		return strings.Join(all, ",")
	}}
}
