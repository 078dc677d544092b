// Package definition has the texts of Sandlot's own tools, and which arguments models are told of.
package definition

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/image"
	"sandlot/internal/tool"
)

//go:embed tools.yaml
var toolsYAML string

// Definition is what tools.yaml says of a tool.
type Definition struct {
	tool.Tool `yaml:",inline"`
	// Connected is what Description says in addition to a principal who has tools of third-party servers.
	Connected string
	Arguments []tool.Prop
	Required  []string // the fields of every result
	Result    []tool.Prop
}

// Settings are what the texts say of this server.
type Settings struct {
	Languages []string
	Templates []*image.Template
	Flavors   []image.Flavor
	// Numbers are other values, by their names in tools.yaml.
	Numbers map[string]int
}

// Read reads tools.yaml, with the settings in it. It panics if the file is invalid.
func Read(s Settings) map[string]Definition {
	var templates, flavors, sizes []string
	for _, template := range s.Templates {
		templates = append(append(templates, template.Name), template.Provides...)
	}
	slices.Sort(templates)
	for _, f := range s.Flavors {
		flavors = append(flavors, f.Name)
		sizes = append(sizes, f.String())
	}
	flavorNames, _ := json.Marshal(flavors) // strings always encode
	values := []string{
		"{languages}", strings.Join(s.Languages, ", "),
		"{one template}", fmt.Sprint(len(s.Templates) == 1),
		"{templates}", strings.Join(slices.Compact(templates), ", "),
		"{flavors}", strings.Join(sizes, ", "),
		"{flavor names}", string(flavorNames),
	}
	for name, n := range s.Numbers {
		values = append(values, "{"+name+"}", fmt.Sprint(n))
	}
	var all map[string]Definition
	d := yaml.NewDecoder(strings.NewReader(strings.NewReplacer(values...).Replace(toolsYAML)))
	d.KnownFields(true)
	if err := d.Decode(&all); err != nil {
		panic(fmt.Sprintf("tools.yaml: %v", err))
	}
	return all
}
