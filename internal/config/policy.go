package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"
)

// Policy has the settings of permissions.
type Policy struct {
	Rules           []RuleText
	QuestionTimeout time.Duration // how long a call waits for the answer to its question
}

// RuleText is one rule of the settings file.
type RuleText struct {
	Text  string
	Place string // the file's name and the line, such as sandlot.yaml:12
}

// policyRows returns the settings of permissions, except for the rules.
func (c *Config) policyRows() []setting {
	return []setting{
		{"policy.question_timeout", "2m", nil,
			"how long a call waits for the answer to a rule's question; then the answer is no",
			duration(&c.Policy.QuestionTimeout, time.Second, time.Hour)},
	}
}

// parsePolicy reads the section policy: its rules, and the other values by their keys in the table of settings.
func (c *Config) parsePolicy(values map[string]*string, n *yaml.Node, file string) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return errors.New("must be a section with rules and question_timeout")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, n.Content[i+1]
		if name == "cedar" {
			return fmt.Errorf("line %d: cedar is no longer a setting: write each policy as a line of rules. forbid "+
				"is deny, @ask is ask, and `- deny * *` as the last line refuses what no line before allows",
				n.Content[i].Line)
		}
		if name != "rules" {
			if err := flatten(values, "policy."+name, value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
			continue
		}
		if value.Kind != yaml.SequenceNode {
			return fmt.Errorf("line %d: rules must be a list of texts", value.Line)
		}
		for _, rule := range value.Content {
			if rule.Kind != yaml.ScalarNode || rule.Tag == "!!null" {
				return fmt.Errorf("line %d: a rule must be a text; put it in quotes if it contains \": \" or \" #\"",
					rule.Line)
			}
			c.Policy.Rules = append(c.Policy.Rules, RuleText{rule.Value,
				fmt.Sprintf("%s:%d", filepath.Base(file), rule.Line)})
		}
	}
	return nil
}
