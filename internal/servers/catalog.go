package servers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sandlot/internal/servers/spec"
)

// Catalog is what a server offered the last time that it was asked.
type Catalog struct {
	Read         bool         `json:"read,omitempty"`     // it was asked
	Enclosed     bool         `json:"enclosed,omitempty"` // its schemas refer to nothing but themselves
	Tools        []Definition `json:"tools,omitempty"`
	Prompts      []Definition `json:"prompts,omitempty"`
	Resources    []Definition `json:"resources,omitempty"`
	Templates    []Definition `json:"templates,omitempty"`
	Instructions string       `json:"instructions,omitempty"`
	// Prefix is what its exposed names begin with.
	Prefix string `json:"prefix,omitempty"`
	// Names are the exposed names of all tools and prompts that it ever
	// offered, by its own names: a name never means another thing later.
	Names map[string]string `json:"names,omitempty"`
	// Pins are the hashes of the tools that were approved, by its own names.
	Pins map[string]string `json:"pins,omitempty"`
	// Odd says what was left out, and why.
	Odd []string `json:"odd,omitempty"`
}

// Definition is one thing that a server offers.
type Definition struct {
	Remote string          `json:"remote"`           // its own name or URI
	Key    string          `json:"key"`              // the exposed one
	Raw    json.RawMessage `json:"raw"`              // made safe, with the exposed one
	Schema json.RawMessage `json:"schema,omitempty"` // a tool's input schema, where headers are made of arguments
	Hash   string          `json:"hash,omitempty"`
	Held   string          `json:"held,omitempty"` // why it is held back
}

// nameLength is how long an exposed name may be: clients put names of their own
// before it, and some take no more than 60 characters then.
const nameLength = 44

// hashed is how much of that is a hash, in a name that would be longer.
const hashed = 7

// plainName is a server's own name with the prefix, in letters that all clients
// take.
func plainName(prefix, remote string) string {
	return prefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, remote)
}

// namer gives exposed names of one server.
type namer struct {
	prefix string // with its "_"; may be empty
	known  map[string]string
	// taken says whether somebody else has that name, or URI.
	taken func(kind, name string) bool
}

// name returns the exposed name of a server's own one; kind keeps tools and
// prompts apart.
func (n *namer) name(kind, remote string) string {
	key := kind + "/" + remote
	if known := n.known[key]; known != "" {
		return known
	}
	safe := plainName("", remote)
	sum := sha256.Sum256([]byte(remote))
	tail := "_" + hex.EncodeToString(sum[:3])
	name := n.prefix + safe
	if len(name) > nameLength || safe == "" {
		name = name[:min(len(name), nameLength-len(tail))] + tail
	}
	if n.used(kind, name) {
		name = n.prefix + safe
		name = name[:min(len(name), nameLength-len(tail))] + tail
	}
	if n.used(kind, name) { // somebody made it so
		sum := sha256.Sum256([]byte(n.prefix + "/" + remote))
		name = n.prefix[:min(len(n.prefix), 12)] + hex.EncodeToString(sum[:12])
	}
	if n.known == nil {
		n.known = map[string]string{}
	}
	n.known[key] = name
	return name
}

// ownScheme stands before a URI that another server has too, with the id of
// the connection.
const ownScheme = "ext+"

// uri returns the exposed form of a server's own URI or template. Two servers may
// mean different things by the same one: the first keeps it.
func (n *namer) uri(id, kind, remote string) string {
	key := kind + "/" + remote
	if known := n.known[key]; known != "" {
		return known
	}
	exposed := remote
	if n.taken != nil && n.taken(kind, remote) {
		exposed = ownScheme + strings.ToLower(safeID(id)) + ":" + remote
	}
	if n.known == nil {
		n.known = map[string]string{}
	}
	n.known[key] = exposed
	return exposed
}

// fitURI says why a URI, or a template of some, is not taken.
func fitURI(s string, template bool) error {
	lower := strings.ToLower(s)
	switch {
	case strings.HasPrefix(lower, "sandlot:"), strings.HasPrefix(lower, ownScheme):
		return fmt.Errorf("its URI begins as those of Sandlot do")
	case !template:
		return nil
	case len(s) > 512 || strings.Count(s, "{") > 16:
		return fmt.Errorf("its template is too long, or has too many variables")
	case strings.HasPrefix(s, "{"):
		return fmt.Errorf("its template begins with a variable, so that it would stand for all URIs")
	}
	return nil
}

func (n *namer) used(kind, name string) bool {
	if n.taken != nil && n.taken(kind, name) {
		return true
	}
	for k, v := range n.known {
		if v == name && strings.HasPrefix(k, kind+"/") {
			return true
		}
	}
	return false
}

// forget drops names when there are too many of things that are no longer offered.
func (c *Catalog) forget() {
	if len(c.Names) <= 4*maxDefinitions {
		return
	}
	live := map[string]bool{}
	for _, d := range c.Tools {
		live["tool/"+d.Remote] = true
	}
	for _, d := range c.Prompts {
		live["prompt/"+d.Remote] = true
	}
	for _, d := range c.Resources {
		live["resource/"+d.Remote] = true
	}
	for _, d := range c.Templates {
		live["resource template/"+d.Remote] = true
	}
	for k := range c.Names {
		if !live[k] {
			delete(c.Names, k)
		}
	}
}

// offered is what a server said that it offers, as it came.
type offered struct {
	tools, prompts, resources, templates []json.RawMessage
	// keep says which lists could not be read this time.
	keep         struct{ tools, prompts, resources, templates bool }
	instructions string
	odd          []string
}

// reading makes a catalog of what a server offers.
type reading struct {
	settings spec.Configured
	mark     string // stands before descriptions
	trust    spec.Trust
	id       string // of the connection
	names    *namer
	valid    func(tool json.RawMessage) error // of headers
	old      Catalog
	left     int // bytes
}

func (r *reading) catalog(o offered) Catalog {
	r.names.known = map[string]string{}
	if r.old.Prefix == r.names.prefix {
		for k, v := range r.old.Names {
			r.names.known[k] = v
		}
	}
	c := Catalog{Read: true, Enclosed: true, Prefix: r.names.prefix, Instructions: spec.Text(o.instructions, maxDescription), Pins: map[string]string{}, Odd: o.odd}
	for k, v := range r.old.Pins {
		c.Pins[k] = v
	}
	seen := map[string]bool{}
	for _, raw := range o.tools {
		d, err := r.tool(raw, &c)
		if err == nil && seen[d.Remote] {
			err = fmt.Errorf("it is there twice")
		}
		if err != nil {
			c.note("tool", raw, err)
			continue
		}
		seen[d.Remote] = true
		if r.settings.Allows(d.Remote) {
			c.Tools = append(c.Tools, d)
		}
	}
	if !r.old.Read { // all of them were approved with the server
		for i, d := range c.Tools {
			c.Pins[d.Remote], c.Tools[i].Held = d.Hash, ""
		}
	}
	c.Prompts = r.others(o.prompts, "prompt", "name", &c)
	c.Resources = r.others(o.resources, "resource", "uri", &c)
	c.Templates = r.others(o.templates, "resource template", "uriTemplate", &c)
	if o.keep.tools {
		c.Tools, c.Pins = r.old.Tools, r.old.Pins
	}
	if o.keep.prompts {
		c.Prompts = r.old.Prompts
	}
	if o.keep.resources {
		c.Resources = r.old.Resources
	}
	if o.keep.templates {
		c.Templates = r.old.Templates
	}
	c.Names = r.names.known
	c.forget()
	return c
}

// enclose leaves out what an earlier version of Sandlot let in.
func (c *Catalog) enclose() {
	if c.Enclosed || !c.Read {
		return
	}
	c.Enclosed = true
	c.Tools = slices.DeleteFunc(c.Tools, func(d Definition) bool {
		var t object
		err := json.Unmarshal(d.Raw, &t)
		for _, k := range []string{"inputSchema", "outputSchema"} {
			if raw, ok := t[k]; ok && err == nil {
				_, err = readSchema(raw)
			}
		}
		if err != nil {
			c.note("tool", json.RawMessage(`{"name":`+string(quoted(d.Remote))+`}`), err)
		}
		return err != nil
	})
}

func (c *Catalog) note(what string, raw json.RawMessage, err error) {
	if len(c.Odd) >= 20 {
		return
	}
	var d object
	_ = json.Unmarshal(raw, &d)
	name := asText(d["name"]) + asText(d["uri"])
	c.Odd = append(c.Odd, fmt.Sprintf("%s %q is left out: %v", what, spec.Clip(name), err))
}

// spend says whether there is room for so many bytes.
func (r *reading) spend(n int) error {
	if r.left -= n; r.left < 0 {
		return fmt.Errorf("there is no room for more: the definitions of one server may have %d MiB, and those of all of one user's servers %d MiB", maxCatalog>>20, maxCatalogs>>20)
	}
	return nil
}

func (r *reading) tool(raw json.RawMessage, c *Catalog) (Definition, error) {
	if err := r.spend(len(raw)); err != nil {
		return Definition{}, err
	}
	t, err := safeTool(raw, r.mark)
	if err != nil {
		return Definition{}, err
	}
	if err := safeOutput(t); err != nil {
		c.note("outputSchema of tool", raw, err)
	}
	d := Definition{Remote: asText(t["name"]), Hash: hash(raw)}
	if bytes.Contains(t["inputSchema"], []byte("x-mcp-header")) {
		d.Schema = t["inputSchema"]
	}
	if d.Remote == "" || len(d.Remote) > 256 {
		return d, fmt.Errorf("its name has %d bytes", len(d.Remote))
	}
	if r.valid != nil {
		if err := r.valid(raw); err != nil {
			return d, err
		}
	}
	d.Key = r.names.name("tool", d.Remote)
	t["name"] = quoted(d.Key)
	switch pin, known := c.Pins[d.Remote]; {
	case known && pin == d.Hash || !r.old.Read:
	case known:
		d.Held = "its definition has changed since it was approved"
	default:
		d.Held = "it is new since the server was approved"
	}
	if d.Held != "" && r.trust == spec.Warn {
		t["description"] = quoted(fmt.Sprintf("[Sandlot: %s] %s", d.Held, asText(t["description"])))
	}
	d.Raw, err = json.Marshal(t)
	return d, err
}

// others makes prompts, resources and templates safe.
func (r *reading) others(all []json.RawMessage, what, key string, c *Catalog) []Definition {
	var out []Definition
	seen := map[string]bool{}
	for _, raw := range all {
		d, err := r.other(raw, what, key)
		if err == nil && seen[d.Remote] {
			err = fmt.Errorf("it is there twice")
		}
		if err != nil {
			c.note(what, raw, err)
			continue
		}
		seen[d.Remote] = true
		out = append(out, d)
	}
	return out
}

func (r *reading) other(raw json.RawMessage, what, key string) (Definition, error) {
	if err := r.spend(len(raw)); err != nil {
		return Definition{}, err
	}
	var t object
	if len(raw) > maxDefinition || deep(raw) || json.Unmarshal(raw, &t) != nil || t == nil {
		return Definition{}, fmt.Errorf("its definition is no object, too large or nested too deep")
	}
	d := Definition{Remote: asText(t[key])}
	if d.Remote == "" || len(d.Remote) > 4096 || spec.HasControl(d.Remote) {
		return d, fmt.Errorf("its %s is missing, too long or has control characters", key)
	}
	mark := ""
	if what == "prompt" {
		d.Key = r.names.name("prompt", d.Remote)
		mark = r.mark
	} else {
		if err := fitURI(d.Remote, what != "resource"); err != nil {
			return d, err
		}
		d.Key = r.names.uri(r.id, what, d.Remote)
		if !isString(t["name"]) {
			t["name"] = t[key]
		}
	}
	describe(t, mark)
	t[key] = quoted(d.Key)
	var err error
	d.Raw, err = json.Marshal(t)
	return d, err
}

// approve takes the tools as they are now: all, or those that are what was seen.
func (c *Catalog) approve(seen map[string]string) {
	pins := map[string]string{}
	for i, d := range c.Tools {
		if seen == nil || seen[d.Remote] == d.Hash {
			pins[d.Remote], c.Tools[i].Held = d.Hash, ""
		} else if old, ok := c.Pins[d.Remote]; ok {
			pins[d.Remote] = old
		}
	}
	c.Pins = pins
}
