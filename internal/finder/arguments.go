package finder

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// argument is an argument of a tool or a prompt.
type argument struct {
	name     string
	kind     string // of its value; empty: any, or not known
	required bool
}

// String returns the argument as a signature has it.
func (a argument) String() string {
	text := spec.SafeText(strings.Join(strings.Fields(a.name), " "), 60)
	if !a.required {
		text += "?"
	}
	if a.kind != "" {
		text += ": " + a.kind
	}
	return text
}

// definition is what counts of a definition of MCP.
type definition struct {
	Name, Title, Description string
	InputSchema              struct {
		Properties rawjson.Object
		Required   []string
	}
	Arguments []struct { // of a prompt
		Name     string
		Required bool
	}
}

// read returns what counts of a definition. A part of another type than it has in MCP is left out.
func read(raw json.RawMessage) (d definition) {
	_ = json.Unmarshal(raw, &d)
	return d
}

// maxListed is how many arguments of a definition are looked at.
const maxListed = 2 * maxArguments

// arguments returns the first arguments of a tool or a prompt, the required ones before others, and, with kinds, what
// the values of a tool's are.
func (d definition) arguments(kinds bool) (all []argument) {
	for _, a := range d.Arguments {
		all = append(all, argument{name: a.Name, required: a.Required})
	}
	slices.SortStableFunc(all, requiredFirst)
	properties, listed := d.InputSchema.Properties, map[string]bool{}
	add := func(names []string, required bool) {
		for _, name := range names {
			property, ok := properties[name]
			if len(all) > maxListed {
				return
			}
			if ok && !listed[name] {
				listed[name] = true
				all = append(all, argument{name, kindOf(property, kinds), required})
			}
		}
	}
	add(d.InputSchema.Required, true)
	if len(all) <= maxListed {
		add(slices.Sorted(maps.Keys(properties)), false)
	}
	return all
}

// kindOf returns what the value of a property is, by the simple part of its schema.
func kindOf(property json.RawMessage, wanted bool) string {
	var s struct {
		Type  json.RawMessage
		Enum  []json.RawMessage
		Items struct{ Type json.RawMessage }
	}
	if !wanted || json.Unmarshal(property, &s) != nil {
		return ""
	}
	if n := len(s.Enum); n > 0 && n <= 6 {
		var all []string
		for _, v := range s.Enum {
			all = append(all, clipBytes(string(v), 40))
		}
		return strings.Join(all, " | ")
	}
	kind := rawjson.Text(s.Type)
	if of := rawjson.Text(s.Items.Type); kind == "array" && of != "" {
		kind += " of " + clipBytes(of, 20)
	}
	return clipBytes(kind, 40)
}

func requiredFirst(a, b argument) int {
	switch {
	case a.required == b.required:
		return 0
	case a.required:
		return -1
	}
	return 1
}

// maxArguments is how many arguments a signature names.
const maxArguments = 16

// signature returns how something is called: its name, and the names of its arguments.
func signature(name string, all []argument) string {
	var list []string
	for i, a := range all {
		if i == maxArguments {
			list = append(list, "…")
			break
		}
		list = append(list, a.String())
	}
	return name + "(" + strings.Join(list, ", ") + ")"
}
