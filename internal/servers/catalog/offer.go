package catalog

import (
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// Server is a server whose definitions are in a View.
type Server interface {
	comparable
	ConnectionID() string
}

// View has all definitions that one principal's servers offer, with their servers. The keys of its maps
// are the names and URIs that clients use. After the calls of Add, a View does not change: the next
// version is another View.
type View[O Server] struct {
	Tools      map[string]entry[O]
	List       []tool.Tool
	Prompts    map[string]entry[O]
	resources  map[string]entry[O]
	ByTemplate map[string]entry[O]

	PromptList, ResourceList, TemplateList []tool.Item
}

// entry is one definition and its server.
type entry[O Server] struct {
	Server O
	Definition
}

// NewView returns an empty View.
func NewView[O Server]() *View[O] {
	return &View[O]{Tools: map[string]entry[O]{}, Prompts: map[string]entry[O]{}, resources: map[string]entry[O]{},
		ByTemplate: map[string]entry[O]{}}
}

// Add adds the definitions of a server, except for names that are in the View already, and, with
// spec.TrustHold, tools that are held back.
func (v *View[O]) Add(o O, c Catalog, trust spec.Trust) {
	for _, d := range c.Tools {
		if _, taken := v.Tools[d.Exposed]; taken || d.HeldBecause != "" && trust == spec.TrustHold {
			continue
		}
		v.Tools[d.Exposed] = entry[O]{o, d}
		v.List = append(v.List, tool.Tool{Name: d.Exposed, Raw: d.Raw})
	}
	add := func(offered map[string]entry[O], list *[]tool.Item, definitions []Definition) {
		for _, d := range definitions {
			if _, taken := offered[d.Exposed]; !taken {
				offered[d.Exposed] = entry[O]{o, d}
				*list = append(*list, tool.Item{Key: d.Exposed, Raw: d.Raw})
			}
		}
	}
	add(v.Prompts, &v.PromptList, c.Prompts)
	add(v.resources, &v.ResourceList, c.Resources)
	add(v.ByTemplate, &v.TemplateList, c.Templates)
}

// Resource returns the server that has a resource, and the server's URI of the resource.
// Results may link to resources that no server lists: such a resource belongs to the
// server for which hasResources returns true, if there is exactly one.
func (v *View[O]) Resource(uri string, hasResources func(O) bool) (found O, remote string) {
	if e, ok := v.resources[uri]; ok {
		return e.Server, e.Remote
	}
	if id, remote, ok := SplitExposedURI(uri); ok {
		for _, o := range v.servers() {
			if isConnectionID(id, o.ConnectionID()) {
				return o, remote
			}
		}
	}
	for _, i := range v.TemplateList {
		if matchesTemplate(i.Key, uri) {
			return v.ByTemplate[i.Key].Server, uri
		}
	}
	var none O
	for _, o := range v.servers() {
		if !hasResources(o) {
			continue
		}
		if found != none {
			return none, ""
		}
		found = o
	}
	return found, uri
}

// servers returns the servers that offer anything, each once.
func (v *View[O]) servers() []O {
	var all []O
	seen := map[O]bool{}
	add := func(o O) {
		if !seen[o] {
			seen[o] = true
			all = append(all, o)
		}
	}
	for _, t := range v.List {
		add(v.Tools[t.Name].Server)
	}
	for _, i := range v.ResourceList {
		add(v.resources[i.Key].Server)
	}
	for _, i := range v.TemplateList {
		add(v.ByTemplate[i.Key].Server)
	}
	return all
}
