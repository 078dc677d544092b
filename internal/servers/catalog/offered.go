package catalog

import (
	"encoding/json"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// Offered is what one server offers to code in a sandbox.
type Offered struct {
	Name, Instructions, State string       // State is disabled if it is disconnected: then there are no tools
	Tools                     []Definition // with those that are held back
}

// ToolsOf returns the tools of a catalog as code may call them: HeldBecause is empty where nothing is held back. Of a
// tool that is held back there is its name alone, since nobody has approved what its definition says.
func ToolsOf(c Catalog, trust spec.Trust) []Definition {
	all := make([]Definition, len(c.Tools))
	for i, d := range c.Tools {
		switch all[i] = d; {
		case trust != spec.TrustHold:
			all[i].HeldBecause = ""
		case d.HeldBecause != "":
			all[i] = Definition{Remote: d.Remote, Exposed: d.Exposed, HeldBecause: d.HeldBecause,
				Raw: json.RawMessage(`{"name":` + string(rawjson.Quote(d.Exposed)) + `,"inputSchema":{"type":"object"}}`)}
		}
	}
	return all
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

// ToolNamed returns the tool with the server's own name.
func (c *Catalog) ToolNamed(remote string) (Definition, bool) {
	for _, d := range c.Tools {
		if d.Remote == remote {
			return d, true
		}
	}
	return Definition{}, false
}

// NoTool returns the fault for a tool that a server does not have.
func (c *Catalog) NoTool(server, remote string) error {
	var names []string
	for _, d := range c.Tools {
		names = append(names, d.Remote)
	}
	clipped := spec.ClipName(remote)
	return fault.New(fault.NotFound, "the MCP server %q has no tool %q%s", server, clipped,
		fault.DidYouMean(remote, names)).With("tool", clipped).With("tools", names[:min(len(names), 100)])
}
