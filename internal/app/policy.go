package app

import (
	"log/slog"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// compileRules returns the rules of the settings, with the default ones behind them.
func compileRules(c *config.Config) (*policy.Rules, error) {
	var list []policy.Rule
	for _, text := range c.Policy.Rules {
		r, err := policy.ParseRule(text.Text, text.Place)
		if err != nil {
			return nil, fault.Wrap(fault.Configuration, err, "%s: policy: rules: %v", text.Place, err)
		}
		list = append(list, r)
	}
	// A service serves many people, who would share its servers and secrets, and none of them can be asked. Its users
	// have homes of their own, as other users do. Who sets mcp_consent has decided about servers.
	list = append(list, policy.DenyServices(policy.SecretUse, true))
	if c.Origin["mcp_consent"] == "default" {
		list = append(list, policy.DenyServices(policy.MCPInstall, false), policy.DenyServices(policy.MCPConnect, false))
	}
	return policy.Compile(list), nil
}

// RuleWarnings returns what rules of the settings are not about, though one may think so. The rules are valid.
func RuleWarnings(c *config.Config) (list []string) {
	for _, text := range c.Policy.Rules {
		if r, err := policy.ParseRule(text.Text, text.Place); err == nil && r.Warning() != "" {
			list = append(list, r.Warning())
		}
	}
	return list
}

// setRules puts rules of the settings into effect.
func (n *effective) setRules(c *config.Config, rules *policy.Rules, log *slog.Logger) {
	n.rules.Set(rules)
	for _, w := range RuleWarnings(c) {
		log.Warn("a rule is narrower than it reads", "rule", w)
	}
}

// CheckPolicy returns what the settings decide about an operation.
func CheckPolicy(c *config.Config, q policy.Question) (policy.Verdict, error) {
	rules, err := compileRules(c)
	if err != nil {
		return policy.Verdict{}, err
	}
	d := rules.Decide(q)
	v := policy.NewVerdict(q, d)
	if d.Effect == policy.Allow && d.Rule == nil {
		v = consentVerdict(c, q, v)
	}
	return v, nil
}

// consentVerdict returns v, or what the setting mcp_consent decides about an operation about which no rule decides.
func consentVerdict(c *config.Config, q policy.Question, v policy.Verdict) policy.Verdict {
	if (q.Operation == policy.MCPInstall || q.Operation == policy.MCPConnect) && c.MCP.Consent != "allow" &&
		q.Principal.ID != auth.Local.ID {
		v.Effect, v.Rule, v.Place = c.MCP.Consent, "mcp_consent: "+c.MCP.Consent, c.Origin["mcp_consent"]
	}
	return v
}
