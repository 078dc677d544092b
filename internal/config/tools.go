package config

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// ToolViews has the settings of what clients are shown of third-party servers.
type ToolViews struct {
	Mode  string // all, search, code or auto
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

// toolRows returns the settings of what clients are shown of third-party servers.
func (c *Config) toolRows() []setting {
	t := &c.Tools
	return []setting{
		{"tools", "auto", nil,
			"which third-party tools clients are shown: all, search (tools find and call them), code (a tool finds, " +
				"code calls them), or auto: all up to tools_limit, then search",
			oneOf(&t.Mode, "all", "search", "code", "auto")},
		{"tools_limit", "8000", nil,
			"with tools: auto, how many tokens third-party definitions may have to be shown, at 4 bytes a token",
			number(&t.Limit, 0, 1<<30)},
	}
}

// parseToolModes reads the section tools_for.
func (c *Config) parseToolModes(n *yaml.Node) error {
	if err := decodeSection(n, &c.Tools.For); err != nil {
		return fmt.Errorf("must have users, services, and principals with a mode for each: %w", err)
	}
	return nil
}

// decodeSection reads a section whose keys are the fields of a struct.
func decodeSection(n *yaml.Node, into any) error {
	text, err := yaml.Marshal(n)
	if err != nil || n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}
