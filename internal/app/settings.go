package app

import (
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/port"
	"sandlot/internal/sandbox"
	"sandlot/internal/session"
)

// Load returns the effective settings, as config.Load does, after it has also checked the values that
// other packages parse.
func Load(source config.Source) (*config.Config, error) {
	c, _, err := loadAll(source)
	return c, err
}

// loadAll is Load, and returns what sandboxes may reach too.
func loadAll(source config.Source) (c *config.Config, allowed session.Policies, err error) {
	if c, err = config.Load(source); err == nil {
		allowed, err = policies(c)
	}
	if err == nil {
		_, err = links(c)
	}
	return c, allowed, err
}

// policies returns the network policies of the settings, without the package registries.
func policies(c *config.Config) (session.Policies, error) {
	operator, err := policy(c.Network.Rules)
	if err != nil {
		return session.Policies{}, c.InvalidSetting("network.allow", err)
	}
	for _, p := range c.Network.Private {
		host, err := egress.ParseRule(p.Host)
		if err != nil {
			return session.Policies{}, c.InvalidSetting("network.allow_private", err)
		}
		operator.Private = append(operator.Private, egress.Private{Host: host, Net: p.Net})
	}
	for name := range c.Network.Hosts {
		if _, err := egress.ParseRule(name); err != nil {
			return session.Policies{}, c.InvalidSetting("network.hosts", err)
		}
	}
	all := session.Policies{Operator: operator, Templates: map[string]egress.Policy{}}
	for _, t := range c.Templates {
		if all.Templates[t.Name], err = policy(t.Network); err != nil {
			return session.Policies{}, fault.Wrap(fault.Configuration, err, "%s: templates: %s: network: %v", c.File,
				t.Name, err)
		}
	}
	return all, nil
}

func policy(r config.Rules) (egress.Policy, error) {
	p := egress.Policy{Mode: egress.Mode(r.Mode)}
	for _, text := range r.Allow {
		rule, err := egress.ParseRule(text)
		if err != nil {
			return p, err
		}
		p.Allow = append(p.Allow, rule)
	}
	return p, nil
}

// links returns the links of exposed ports.
func links(c *config.Config) (port.Links, error) {
	l, err := port.NewLinks(c.Server.Host, c.Server.Port, c.Server.PortsDomain)
	if err != nil {
		err = c.InvalidSetting("ports_domain", err)
	}
	return l, err
}

// flavors returns the flavors of the settings, and the default one.
func flavors(c *config.Config) (all []image.Flavor, defaultFlavor image.Flavor) {
	for _, f := range c.Flavors {
		all = append(all, image.Flavor(f))
		if f.Name == c.Sessions.DefaultFlavor {
			defaultFlavor = image.Flavor(f)
		}
	}
	return all, defaultFlavor
}

// mounts returns the mounts of the shared folders.
func mounts(c *config.Config) (all []sandbox.Mount) {
	for _, v := range c.Volumes {
		all = append(all, sandbox.Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	return all
}
