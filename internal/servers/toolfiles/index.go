package toolfiles

import "encoding/json"

// IndexFile is the file that the command mcp reads.
const IndexFile = "index.json"

// The index says what each name is for. The command mcp has the same types: it shares nothing with the host.
type (
	indexServer struct {
		Module string      `json:"module"`
		Name   string      `json:"name"`
		Title  string      `json:"title,omitempty"`
		State  string      `json:"state,omitempty"`
		Tools  []indexTool `json:"tools"`
	}
	indexTool struct {
		Name   string          `json:"name"`
		Remote string          `json:"remote,omitempty"` // if it is another name
		Client string          `json:"client"`           // as clients call it
		Line   string          `json:"line,omitempty"`
		Held   string          `json:"held,omitempty"`
		Args   []indexArgument `json:"args,omitempty"`
		Open   bool            `json:"open,omitempty"` // it takes others, too
	}
	indexArgument struct {
		Name     string `json:"n"`
		Python   string `json:"p,omitempty"` // if it is another name
		Type     string `json:"t,omitempty"` // that of its values in JSON Schema, "any"; empty: string
		Items    string `json:"i,omitempty"` // the type of an array's elements
		Required bool   `json:"r,omitempty"`
	}
)

func index(servers []*served) []byte {
	all := []indexServer{}
	for _, s := range servers {
		made := indexServer{Module: s.module, Name: s.Name, Title: line(s.Title, maxLine),
			State: line(s.State, maxLine), Tools: []indexTool{}}
		for _, t := range s.tools {
			it := indexTool{Name: t.name, Remote: t.Remote, Client: t.Tool.Name, Line: line(t.Description, maxBrief),
				Held: line(t.Held, maxLine), Open: t.open}
			for _, a := range t.arguments {
				ia := indexArgument{Name: a.name, Type: kind(t.schema, a.schema), Required: a.required}
				switch ia.Type {
				case "string":
					ia.Type = ""
				case "":
					ia.Type = "any"
				case "array":
					ia.Items = kind(t.schema, items(t.schema, a.schema))
				}
				if a.python != a.name {
					ia.Python = a.python
				}
				it.Args = append(it.Args, ia)
			}
			if it.Remote == it.Name {
				it.Remote = ""
			}
			made.Tools = append(made.Tools, it)
		}
		all = append(all, made)
	}
	text, _ := json.Marshal(all) // it has texts alone
	return text
}

// kind returns the type that values of a schema have; "": several, or any. null does not count.
func kind(root map[string]any, schema any) string {
	t := &types{root: root}
	m := t.object(schema)
	if k, ok := m["type"].(string); ok {
		return k
	}
	var kinds []any
	kinds, _ = m["type"].([]any)
	for _, key := range []string{"anyOf", "oneOf"} {
		parts, _ := m[key].([]any)
		for _, part := range parts {
			kinds = append(kinds, t.object(part)["type"])
		}
	}
	if values, ok := m["enum"].([]any); ok {
		for _, v := range values {
			if _, isText := v.(string); isText {
				kinds = append(kinds, "string")
			} else if v != nil {
				return ""
			}
		}
	}
	found := ""
	for _, k := range kinds {
		name, _ := k.(string)
		if name == "null" && k != nil {
			continue
		}
		if name == "" || found != "" && found != name {
			return ""
		}
		found = name
	}
	return found
}

// items returns the schema of an array's elements.
func items(root map[string]any, schema any) any {
	t := &types{root: root}
	m := t.object(schema)
	for _, key := range []string{"anyOf", "oneOf"} {
		parts, _ := m[key].([]any)
		for _, part := range parts {
			if found := t.object(part)["items"]; found != nil {
				return found
			}
		}
	}
	return m["items"]
}
