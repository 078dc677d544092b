package app

import (
	"strings"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/port"
	"sandlot/internal/sandbox"
	"sandlot/internal/session"
)

// Load returns the effective settings, as config.Load does, when those who use them
// take what they say.
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

// policies returns what sandboxes may reach, without the package registries.
func policies(c *config.Config) (session.Policies, error) {
	operator, err := policy(c.Network.Rules)
	if err != nil {
		return session.Policies{}, c.Wrong("network.allow", err)
	}
	for _, p := range c.Network.Private {
		host, err := egress.ParseRule(p.Host)
		if err != nil {
			return session.Policies{}, c.Wrong("network.allow_private", err)
		}
		operator.Private = append(operator.Private, egress.Private{Host: host, Net: p.Net})
	}
	for name := range c.Network.Hosts {
		if _, err := egress.ParseRule(name); err != nil {
			return session.Policies{}, c.Wrong("network.hosts", err)
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

// links returns the addresses of exposed ports.
func links(c *config.Config) (port.Links, error) {
	l, err := port.NewLinks(c.Server.Host, c.Server.Port, c.Server.PortsDomain)
	if err != nil {
		err = c.Wrong("ports_domain", err)
	}
	return l, err
}

// Templates returns what sessions can be made of: the machine's own programs,
// and the operator's root file systems.
func Templates(c *config.Config) ([]*image.Template, error) {
	host, err := image.Host()
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the template host cannot be made of this machine: %v", err)
	}
	all := []*image.Template{host}
	for _, t := range c.Templates {
		own := &image.Template{Name: t.Name, Rootfs: t.Rootfs, Env: t.Env, Warm: t.Warm, Provides: t.Provides}
		for _, l := range t.Languages {
			own.Languages = append(own.Languages, image.Language(l))
		}
		all = append(all, own)
	}
	names := []string{}
	for _, t := range all {
		if t.Serves(c.Sessions.DefaultTemplate) {
			return all, nil
		}
		names = append(names, append([]string{t.Name}, t.Provides...)...)
	}
	return nil, fault.New(fault.Configuration, "default_template=%q: must be one of %s", c.Sessions.DefaultTemplate,
		strings.Join(names, ", "))
}

// flavors returns how large sessions can be, and how large they are by default.
func flavors(c *config.Config) (all []image.Flavor, usual image.Flavor) {
	for _, f := range c.Flavors {
		all = append(all, image.Flavor(f))
		if f.Name == c.Sessions.DefaultFlavor {
			usual = image.Flavor(f)
		}
	}
	return all, usual
}

// mounts returns the folders that sandboxes share.
func mounts(c *config.Config) (all []sandbox.Mount) {
	for _, v := range c.Volumes {
		all = append(all, sandbox.Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	return all
}
