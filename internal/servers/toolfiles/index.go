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
		Off    bool        `json:"off,omitempty"` // it has no module
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

// indexed returns the server as the index has it.
func (s *served) indexed() json.RawMessage {
	made := indexServer{Module: s.module, Name: s.Name, Title: line(s.Title, maxLine),
		State: oneLine(s.State, maxState), Off: s.Off, Tools: []indexTool{}}
	for _, t := range s.tools {
		made.Tools = append(made.Tools, t.indexed())
	}
	text, _ := json.Marshal(made) // it has texts alone
	return text
}

func (t *described) indexed() indexTool {
	it := indexTool{Name: t.name, Remote: t.Remote, Client: t.Tool.Name, Line: line(t.Description, maxBrief),
		Held: line(t.Held, maxLine), Open: t.open}
	if it.Remote == it.Name {
		it.Remote = ""
	}
	types := t.types(false)
	for _, a := range t.arguments {
		ia := indexArgument{Name: a.name, Type: types.kind(a.schema), Required: a.required}
		switch ia.Type {
		case "string":
			ia.Type = ""
		case "":
			ia.Type = "any"
		case "array":
			ia.Items = types.kind(types.items(a.schema))
		}
		if a.python != a.name {
			ia.Python = a.python
		}
		it.Args = append(it.Args, ia)
	}
	return it
}

// kind returns the type that values of a schema have; "": several, or any. null does not count.
func (t *types) kind(schema any) string {
	m := t.object(schema)
	if k, ok := m["type"].(string); ok {
		return k
	}
	var kinds []any
	kinds, _ = m["type"].([]any)
	for _, key := range []string{"anyOf", "oneOf"} {
		parts, _ := m[key].([]any)
		if len(parts) > maxMembers {
			return ""
		}
		for _, part := range parts {
			kinds = append(kinds, t.object(part)["type"])
		}
	}
	if values, ok := m["enum"].([]any); ok {
		if !t.does(len(values)) {
			return ""
		}
		for _, v := range values {
			if _, isText := v.(string); isText {
				kinds = append(kinds, "string")
			} else if v != nil {
				return ""
			}
		}
	}
	if !t.does(len(kinds)) {
		return ""
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
func (t *types) items(schema any) any {
	m := t.object(schema)
	for _, key := range []string{"anyOf", "oneOf"} {
		parts, _ := m[key].([]any)
		for _, part := range parts[:min(len(parts), maxMembers)] {
			if found := t.object(part)["items"]; found != nil {
				return found
			}
		}
	}
	return m["items"]
}
