package config

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ToolViews has the settings of what clients are shown of third-party servers.
type ToolViews struct {
	Mode  string // one of toolModes
	Limit int    // tokens of definitions beyond which auto shows them no more
	For   ToolModes
}

// ToolModes has modes for some principals; empty: that of ToolViews.
type ToolModes struct {
	Users    string `yaml:"users"`
	Services string `yaml:"services"`
	// Principals has the exceptions, by the name or the id of a principal.
	Principals map[string]string `yaml:"principals"`
}

var toolModes = []string{"all", "search", "code", "auto"}

// toolRows returns the settings of what clients are shown of third-party servers.
func (c *Config) toolRows() []setting {
	t := &c.Tools
	return []setting{
		{"tools", "auto", nil,
			"which third-party tools clients are shown: all, search (they are found and called by tools for that), " +
				"code (they are found, and called by code), or auto: all up to tools_limit, then search",
			oneOf(&t.Mode, toolModes...)},
		{"tools_limit", "8000", nil,
			"with tools: auto, how many tokens the definitions of third-party tools may have to be shown, at four bytes " +
				"a token",
			number(&t.Limit, 0, 1<<30)},
	}
}

// parseToolModes reads the section tools_for.
func (c *Config) parseToolModes(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	text, err := yaml.Marshal(n)
	if err != nil {
		return err
	}
	var m ToolModes
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil {
		return fmt.Errorf("must have users, services, and principals with a mode for each: %w", err)
	}
	all := map[string]string{"users": m.Users, "services": m.Services}
	for name, mode := range m.Principals {
		all["principals: "+name] = mode
		if mode == "" {
			return fmt.Errorf("principals: %s: must be one of %s", name, strings.Join(toolModes, ", "))
		}
	}
	for place, mode := range all {
		if mode != "" && !slices.Contains(toolModes, mode) {
			return fmt.Errorf("%s: %q must be one of %s", place, mode, strings.Join(toolModes, ", "))
		}
	}
	c.Tools.For = m
	return nil
}
