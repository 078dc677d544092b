package config

import (
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// reloadableKeys are the settings that a running server applies when the file changes.
var reloadableKeys = []string{"mcp", "mcp_consent", "mcp_files", "mcp_files_commands", "mcp_files_env", "network.allow",
	"network.allow_private",
	"network.hold", "network.hosts", "network.mode", "network.registries", "policy", "policy.question_timeout", "quotas",
	templateNetworks, "tools", "tools_for", "tools_limit"}

const templateNetworks = "templates.*.network"

// Changed returns the keys of the settings whose values differ from before: the ones that a
// running server applies, and the ones that need a restart. For flavors, mcp, oidc, quotas, templates and
// tools_for it returns the key of the whole section.
func (c *Config) Changed(before *Config) (reloaded, needRestart []string) {
	all := maps.Clone(c.changeTexts)
	maps.Copy(all, before.changeTexts)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch {
		case c.changeTexts[key] == before.changeTexts[key]:
		case slices.Contains(reloadableKeys, key):
			reloaded = append(reloaded, key)
		default:
			needRestart = append(needRestart, key)
		}
	}
	return reloaded, needRestart
}

// storeText stores the text of a section, for Changed.
func (c *Config) storeText(key string, n yaml.Node) error {
	switch key {
	case "flavors", "mcp", "oidc", "policy", "quotas", "tools_for":
		text, err := yaml.Marshal(&n)
		c.changeTexts[key] = string(text)
		return err
	case "templates":
		var all map[string]map[string]any
		if err := n.Decode(&all); err != nil {
			return err
		}
		networks := map[string]any{}
		for name, template := range all {
			if template["network"] != nil {
				networks[name] = template["network"]
			}
			delete(template, "network")
		}
		rest, err := yaml.Marshal(all)
		if err != nil {
			return err
		}
		rules, err := yaml.Marshal(networks)
		c.changeTexts[key], c.changeTexts[templateNetworks] = string(rest), string(rules)
		return err
	}
	return nil
}
