package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandlot/internal/api/openapi"
)

const schemas = "#/components/schemas/"

// cell makes text fit into a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", " ")
}

// namedType returns a link to the type to which a schema refers, or "".
func namedType(s *openapi.JSONSchema) string {
	if s == nil || s.Ref == "" {
		return ""
	}
	name := strings.TrimPrefix(s.Ref, schemas)
	return fmt.Sprintf("[%s](#%s)", name, anchor(name))
}

// typeText says in words what values match a schema.
func typeText(s *openapi.JSONSchema) string {
	if s == nil {
		return "any"
	}
	kind := s.Type
	if kind == "" {
		types := slices.DeleteFunc(slices.Clone(s.Types), func(t string) bool { return t == "null" })
		kind = strings.Join(types, " or ")
	}
	switch {
	case s.Ref != "":
		return namedType(s)
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			if v != nil {
				values = append(values, fmt.Sprintf("`%v`", v))
			}
		}
		return strings.Join(values, ", ")
	case kind == "array":
		return "list of " + typeText(s.Items)
	case kind == "object" && len(s.Properties) == 0 && s.AdditionalProperties != nil:
		return "map of " + typeText(s.AdditionalProperties)
	case kind == "":
		return "any"
	}
	return kind + bounds(s)
}

// bounds says what a schema demands of a number or of a text.
func bounds(s *openapi.JSONSchema) string {
	switch {
	case s.Pattern != "":
		return fmt.Sprintf(" like `%s`", cell(s.Pattern))
	case s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf(" from %.0f to %.0f", *s.Minimum, *s.Maximum)
	case s.MinLength != nil && s.MaxLength != nil:
		return fmt.Sprintf(" of %d to %d characters", *s.MinLength, *s.MaxLength)
	case s.Format != "":
		return " (" + s.Format + ")"
	}
	return ""
}

// fields returns the table of the fields of an object, with those of the objects in it.
func fields(s *openapi.JSONSchema) string {
	var b strings.Builder
	b.WriteString("| field | type | |\n|---|---|---|\n")
	addFields(&b, "", s)
	return b.String()
}

func addFields(b *strings.Builder, prefix string, s *openapi.JSONSchema) {
	names := slices.Clone(s.PropertyOrder)
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(s.Properties))
	}
	for _, name := range names {
		p, path := s.Properties[name], prefix+name
		optional := ""
		if !slices.Contains(s.Required, name) {
			optional = "Optional. "
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", path, typeText(p), strings.TrimSpace(optional+cell(p.Description)))
		inner := p
		for {
			if inner.Items != nil {
				inner, path = inner.Items, path+"[]"
			} else if len(inner.Properties) == 0 && inner.AdditionalProperties != nil {
				inner, path = inner.AdditionalProperties, path+".*"
			} else {
				break
			}
		}
		addFields(b, path+".", inner)
	}
}
