package app

import (
	"slices"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/quota"
	"sandlot/internal/sandbox"
	"sandlot/internal/session"
	"sandlot/internal/template"
	"sandlot/internal/toolview"
)

// Load returns the effective settings, as config.Load does, after it has also checked the values that
// other packages parse.
func Load(source config.Source) (*config.Config, error) {
	c, err := config.Load(source)
	if err == nil {
		_, err = parse(c)
	}
	return c, err
}

// parsed are the values of the settings that other packages parse.
type parsed struct {
	policies session.Policies // without the package registries
	links    port.Links
	rules    *policy.Rules
	quotas   quota.Settings
	views    toolview.Settings
}

func parse(c *config.Config) (p parsed, err error) {
	if err = checkReplicas(c); err != nil {
		return p, err
	}
	if p.policies, err = policies(c); err != nil {
		return p, err
	}
	if p.links, err = links(c); err != nil {
		return p, err
	}
	if _, err = issuers(c); err != nil {
		return p, err
	}
	if p.rules, err = compileRules(c); err != nil {
		return p, err
	}
	if p.quotas, err = quotas(c); err != nil {
		return p, err
	}
	p.views, err = views(c)
	return p, err
}

// policies returns the network policies of the settings, without the package registries. It also
// checks what the settings file has where a variable or a flag overrides it.
func policies(c *config.Config) (session.Policies, error) {
	operator, err := operatorPolicy(c.Network, c.InvalidSetting)
	if err != nil {
		return session.Policies{}, err
	}
	if _, err := operatorPolicy(c.FileNetwork, c.InvalidInFile); err != nil {
		return session.Policies{}, err
	}
	all := session.Policies{Operator: operator, Templates: map[string]egress.Policy{}}
	for _, t := range slices.Concat(template.ReadyMade(), c.Templates) { // one of the settings replaces a ready-made one
		if all.Templates[t.Name], err = networkPolicy(t.Network); err != nil {
			return session.Policies{}, fault.Wrap(fault.Configuration, err, "%s: templates: %s: network: %v", c.File,
				t.Name, err)
		}
	}
	return all, nil
}

// operatorPolicy returns the policy of the section network. For an invalid value, it returns the
// error that invalid makes of the setting's key and the cause.
func operatorPolicy(n config.Network, invalid func(key string, err error) error) (egress.Policy, error) {
	p, err := networkPolicy(n.Rules)
	if err != nil {
		return p, invalid("network.allow", err)
	}
	for _, private := range n.Private {
		host, err := egress.ParseRule(private.Host)
		if err != nil {
			return p, invalid("network.allow_private", err)
		}
		p.Private = append(p.Private, egress.Private{Host: host, Net: private.Net})
	}
	for name := range n.Hosts {
		if _, err := egress.ParseRule(name); err != nil {
			return p, invalid("network.hosts", err)
		}
	}
	return p, nil
}

func networkPolicy(r config.Rules) (egress.Policy, error) {
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
	l, err := port.NewLinks(c.Server.Scheme(), c.Server.Host, c.Server.Port, c.Server.PortsDomain)
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
