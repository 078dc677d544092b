package catalog

import (
	"encoding/json"

	"sandlot/internal/servers/spec"
)

// Offered is what one server offers to code in a sandbox.
type Offered struct {
	Name, Instructions, State string
	Tools                     []Definition // with those that are held back
}

// ToolsOf returns the tools of a catalog as code may call them: HeldBecause is empty where nothing is held back.
func ToolsOf(c Catalog, trust spec.Trust) []Definition {
	all := make([]Definition, len(c.Tools))
	for i, d := range c.Tools {
		if all[i] = d; trust != spec.TrustHold {
			all[i].HeldBecause = ""
		}
	}
	return all
}

// Description returns the description of a tool, as clients have it.
func (d Definition) Description() string {
	var r struct{ Description string }
	_ = json.Unmarshal(d.Raw, &r) // Raw is sanitized
	return r.Description
}

// Text is what a tool's definition says, as clients have it.
type Text struct {
	Title, Description        string
	InputSchema, OutputSchema json.RawMessage // OutputSchema may be nil
}

// Text returns what a tool's definition says.
func (d Definition) Text() (t Text) {
	_ = json.Unmarshal(d.Raw, &t) // Raw is sanitized
	return t
}
