package config

import (
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// reloadable are the settings that a running server applies when the file changes.
var reloadable = []string{"mcp", "mcp_consent", "mcp_files", "mcp_files_env", "network.allow", "network.allow_private",
	"network.hosts", "network.mode", "network.registries", templateNetworks}

const templateNetworks = "templates.*.network"

// Changed returns the keys of the settings whose values differ from those of before: the ones that a
// running server applies, and the ones that need a restart. For flavors, mcp and templates it returns
// the key of the whole section.
func (c *Config) Changed(before *Config) (taken, waiting []string) {
	all := maps.Clone(c.texts)
	maps.Copy(all, before.texts)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch {
		case c.texts[key] == before.texts[key]:
		case slices.Contains(reloadable, key):
			taken = append(taken, key)
		default:
			waiting = append(waiting, key)
		}
	}
	return taken, waiting
}

// keepText stores the text of a section, for Changed.
func (c *Config) keepText(key string, n yaml.Node) error {
	switch key {
	case "flavors", "mcp":
		text, err := yaml.Marshal(&n)
		c.texts[key] = string(text)
		return err
	case "templates":
		var all map[string]map[string]any
		if err := n.Decode(&all); err != nil {
			return err
		}
		networks := map[string]any{}
		for name, t := range all {
			if t["network"] != nil {
				networks[name] = t["network"]
			}
			delete(t, "network")
		}
		rest, err := yaml.Marshal(all)
		if err != nil {
			return err
		}
		rules, err := yaml.Marshal(networks)
		c.texts[key], c.texts[templateNetworks] = string(rest), string(rules)
		return err
	}
	return nil
}
