// Package catalog makes the definitions and results of third-party servers safe, which
// may be hostile. It bounds and sanitizes them, gives definitions exposed names that are
// unique and never change, and holds back tools that differ from what was approved. Its
// functions do no I/O.
package catalog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// Catalog is what a server offered when its lists were last read.
type Catalog struct {
	Loaded       bool         `json:"read,omitempty"`  // the lists were read at least once
	Valid        bool         `json:"valid,omitempty"` // the definitions are as this version of Sandlot makes them
	Tools        []Definition `json:"tools,omitempty"`
	Prompts      []Definition `json:"prompts,omitempty"`
	Resources    []Definition `json:"resources,omitempty"`
	Templates    []Definition `json:"templates,omitempty"`
	Instructions string       `json:"instructions,omitempty"`
	// Prefix is the prefix of its exposed names.
	Prefix string `json:"prefix,omitempty"`
	// Names are the exposed names and URIs of all that the server ever offered, by kind,
	// "/" and the server's name: an exposed name never gets another meaning.
	Names map[string]string `json:"names,omitempty"`
	// Pins are the hashes of the tools that were approved, by the server's names.
	Pins map[string]string `json:"pins,omitempty"`
	// Omissions has a sentence for each definition, or part of one, that was left out, with the cause: the first ones.
	Omissions []string `json:"odd,omitempty"`
	// LeftOut is how many definitions were left out.
	LeftOut int `json:"left_out,omitempty"`
}

// Definition is the definition of a tool, prompt, resource or resource template.
type Definition struct {
	Remote       string          `json:"remote"`           // the server's name or URI
	Exposed      string          `json:"key"`              // the exposed name or URI
	Raw          json.RawMessage `json:"raw"`              // sanitized, with the exposed name or URI
	HeaderSchema json.RawMessage `json:"schema,omitempty"` // a tool's input schema, if it has x-mcp-header
	Hash         string          `json:"hash,omitempty"`
	HeldBecause  string          `json:"held,omitempty"` // why it is held back; empty: it is not
	// Before is the definition that was approved, as Raw, of a tool whose definition has changed since.
	Before json.RawMessage `json:"before,omitempty"`
}

// maxNameLength is how long an exposed name may be: clients add prefixes of their own, and
// some accept no more than 60 characters in all.
const maxNameLength = 44

// hashSuffixLength is the length of the suffix, "_" and a hash, of a name that would be too long or
// not unique.
const hashSuffixLength = 7

// SafeName replaces the characters of a name that some clients do not accept.
func SafeName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
}

// Namer assigns the exposed names and URIs of one server.
type Namer struct {
	Prefix   string            // with its "_"; may be empty
	assigned map[string]string // Catalog.Names
	// Taken reports whether another server has the exposed name or URI; nil: none has.
	Taken func(kind, name string) bool
}

// exposedName returns the exposed name for a server's name of a tool or prompt. Tools and
// prompts may have the same name.
func (n *Namer) exposedName(kind, remote string) string {
	key := kind + "/" + remote
	if known := n.assigned[key]; known != "" {
		return known
	}
	safeName := SafeName(remote)
	sum := sha256.Sum256([]byte(remote))
	suffix := "_" + hex.EncodeToString(sum[:3])
	name := n.Prefix + safeName
	if len(name) > maxNameLength || safeName == "" {
		name = name[:min(len(name), maxNameLength-len(suffix))] + suffix
	}
	if n.isUsed(kind, name) {
		name = n.Prefix + safeName
		name = name[:min(len(name), maxNameLength-len(suffix))] + suffix
	}
	if n.isUsed(kind, name) { // a server chose its names so that their hashes collide
		sum := sha256.Sum256([]byte(n.Prefix + "/" + remote))
		name = n.Prefix[:min(len(n.Prefix), 12)] + hex.EncodeToString(sum[:12])
	}
	if n.assigned == nil {
		n.assigned = map[string]string{}
	}
	n.assigned[key] = name
	return name
}

// connectionScheme, with the id of the connection and ":", precedes a URI that another server
// has too.
const connectionScheme = "ext+"

// MayHavePrefix reports whether an exposed name may be one of a server with that prefix. Of a
// long prefix, names have only the beginning.
func MayHavePrefix(name, prefix string) bool {
	return strings.HasPrefix(name, prefix[:min(len(prefix), maxNameLength-hashSuffixLength)])
}

// SplitExposedURI splits an exposed URI that has the id of a connection into the id and the server's URI.
func SplitExposedURI(uri string) (id, remote string, ok bool) {
	rest, ok := strings.CutPrefix(uri, connectionScheme)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}

// isConnectionID reports whether id, as SplitExposedURI returns it, is the id of the connection.
func isConnectionID(id, connection string) bool { return strings.EqualFold(id, SafeName(connection)) }

// exposedURI returns the exposed form of a server's URI or URI template. Two servers may mean
// different things by the same URI: for the first server it is unchanged.
func (n *Namer) exposedURI(id, kind, remote string) string {
	key := kind + "/" + remote
	if known := n.assigned[key]; known != "" {
		return known
	}
	exposed := remote
	if n.Taken != nil && n.Taken(kind, remote) {
		exposed = connectionScheme + strings.ToLower(SafeName(id)) + ":" + remote
	}
	if n.assigned == nil {
		n.assigned = map[string]string{}
	}
	n.assigned[key] = exposed
	return exposed
}

// checkURI returns an error if a URI, or a URI template, cannot be exposed.
func checkURI(s string, template bool) error {
	lower := strings.ToLower(s)
	switch {
	case strings.HasPrefix(lower, "sandlot:"), strings.HasPrefix(lower, connectionScheme):
		return fmt.Errorf("its URI begins like Sandlot's own")
	case !template:
		return nil
	case len(s) > 512 || strings.Count(s, "{") > 16:
		return fmt.Errorf("its template is too long, or has too many variables")
	case strings.HasPrefix(s, "{"):
		return fmt.Errorf("its template begins with a variable, so that it would stand for all URIs")
	}
	return nil
}

func (n *Namer) isUsed(kind, name string) bool {
	if n.Taken != nil && n.Taken(kind, name) {
		return true
	}
	for k, v := range n.assigned {
		if v == name && strings.HasPrefix(k, kind+"/") {
			return true
		}
	}
	return false
}

// The kinds of definitions.
const (
	kindTool     = "tool"
	kindPrompt   = "prompt"
	kindResource = "resource"
	kindTemplate = "resource template"
)

// lists returns the definitions by kind.
func (c *Catalog) lists() map[string][]Definition {
	return map[string][]Definition{kindTool: c.Tools, kindPrompt: c.Prompts, kindResource: c.Resources,
		kindTemplate: c.Templates}
}

// pruneNames removes the names of definitions that are no longer offered, if there are too many names.
func (c *Catalog) pruneNames() {
	if len(c.Names) <= 4*MaxDefinitions {
		return
	}
	offered := map[string]bool{}
	for kind, list := range c.lists() {
		for _, d := range list {
			offered[kind+"/"+d.Remote] = true
		}
	}
	maps.DeleteFunc(c.Names, func(k, _ string) bool { return !offered[k] })
}

// Offer is what a server's lists contain, unchanged. A list is nil if it could not be read this time.
type Offer struct {
	Tools, Prompts, Resources, Templates []json.RawMessage
	Instructions                         string
	Omissions                            []string
}

// Reader makes a catalog from an offer.
type Reader struct {
	Settings          spec.Configured
	DescriptionPrefix string // precedes descriptions: "[external:NAME]"
	Trust             spec.Trust
	ID                string // of the connection
	Names             *Namer
	CheckHeaders      func(tool json.RawMessage) error // mcpclient.CheckTool
	Previous          Catalog                          // of the offer before
	Budget            int                              // bytes that definitions may still have
	Room              int                              // bytes that they may have together with Before
}

// Read returns the catalog of an offer.
func (r *Reader) Read(o Offer) Catalog {
	r.Names.assigned = map[string]string{}
	if r.Previous.Prefix == r.Names.Prefix {
		maps.Copy(r.Names.assigned, r.Previous.Names)
	}
	c := Catalog{Loaded: true, Valid: true, Prefix: r.Names.Prefix,
		Instructions: spec.SafeText(o.Instructions, maxDescription), Pins: map[string]string{}, Omissions: o.Omissions}
	maps.Copy(c.Pins, r.Previous.Pins)
	readTool := func(raw json.RawMessage) (Definition, error) { return r.readTool(raw, &c) }
	for _, d := range c.readAll(kindTool, o.Tools, r.Previous.Tools, readTool) {
		if r.Settings.AllowsTool(d.Remote) {
			c.Tools = append(c.Tools, d)
		}
	}
	if !r.Previous.Loaded { // whoever approved the server approved its first tools
		for i, d := range c.Tools {
			c.Pins[d.Remote], c.Tools[i].HeldBecause = d.Hash, ""
		}
	}
	c.Prompts = c.readAll(kindPrompt, o.Prompts, r.Previous.Prompts, r.definitionReader(&c, kindPrompt, "name"))
	c.Resources = c.readAll(kindResource, o.Resources, r.Previous.Resources,
		r.definitionReader(&c, kindResource, "uri"))
	c.Templates = c.readAll(kindTemplate, o.Templates, r.Previous.Templates,
		r.definitionReader(&c, kindTemplate, "uriTemplate"))
	c.Names = r.Names.assigned
	c.pruneNames()
	if o.Tools != nil {
		r.addBefore(&c)
	}
	return c
}

// Renew makes the definitions of a stored catalog valid: earlier versions of Sandlot accepted some that are not.
func (c *Catalog) Renew() {
	if c.Valid || !c.Loaded {
		return
	}
	c.Valid = true
	for kind, list := range map[string]*[]Definition{kindTool: &c.Tools, kindPrompt: &c.Prompts,
		kindResource: &c.Resources, kindTemplate: &c.Templates} {
		kept := (*list)[:0:0]
		for _, d := range *list {
			named := json.RawMessage(`{"name":` + string(rawjson.Quote(d.Remote)) + `}`)
			var t rawjson.Object
			err := json.Unmarshal(d.Raw, &t)
			if err == nil && kind == kindResource && !isURI(d.Remote) {
				err = errNoURI
			}
			if err == nil {
				err = c.clean(kind, t, named, "")
			}
			if err != nil {
				c.noteOmission(kind, named, err)
				continue
			}
			d.Raw = encoded(t)
			kept = append(kept, d)
		}
		*list = kept
	}
}

// clean makes the members of a definition safe and valid, except for its name or URI. Raw has the name for notes of
// what was left out.
func (c *Catalog) clean(kind string, t rawjson.Object, raw json.RawMessage, descriptionPrefix string) error {
	var lost []string
	if kind == kindTool {
		in, keywords, err := objectSchema(t["inputSchema"])
		if err != nil {
			return err
		}
		t["inputSchema"] = in
		for _, k := range keywords {
			lost = append(lost, "inputSchema: "+k)
		}
		keywords, err = cleanOutputSchema(t)
		if err != nil {
			c.note("outputSchema of tool %q is left out: %v", nameOf(raw), err)
		}
		for _, k := range keywords {
			lost = append(lost, "outputSchema: "+k)
		}
	}
	c.noteLost(kind, raw, append(lost, cleanMembers(kind, t, descriptionPrefix)...))
	return nil
}

func (c *Catalog) noteOmission(kind string, raw json.RawMessage, err error) {
	c.LeftOut++
	c.note("%s %q is left out: %v", kind, nameOf(raw), err)
}

// noteLost notes which members of a definition were left out.
func (c *Catalog) noteLost(kind string, raw json.RawMessage, lost []string) {
	if len(lost) > 0 {
		c.note("of %s %q is left out, as clients could not read it: %s", kind, nameOf(raw),
			spec.SafeText(strings.Join(lost, ", "), maxTitle))
	}
}

// maxOmissions is how many sentences Catalog.Omissions has.
const maxOmissions = 20

func (c *Catalog) note(format string, args ...any) {
	if len(c.Omissions) < maxOmissions {
		c.Omissions = append(c.Omissions, fmt.Sprintf(format, args...))
	}
}

// nameOf returns the name or URI in a definition, for a message.
func nameOf(raw json.RawMessage) string {
	var d rawjson.Object
	_ = json.Unmarshal(raw, &d)
	return spec.ClipName(cmp.Or(rawjson.Text(d["name"]), rawjson.Text(d["uri"]), rawjson.Text(d["uriTemplate"])))
}

// spend takes n bytes from the budget. It returns an error if they exceed it.
func (r *Reader) spend(n int) error {
	if n > r.Budget {
		return fmt.Errorf("there is no room for more: the definitions of one server may have %d MiB, and those of all "+
			"of one user's servers %d MiB", MaxCatalog>>20, MaxCatalogs>>20)
	}
	r.Budget -= n
	return nil
}

func (r *Reader) readTool(raw json.RawMessage, c *Catalog) (Definition, error) {
	if err := r.spend(len(raw)); err != nil {
		return Definition{}, err
	}
	if len(raw) > maxDefinition {
		return Definition{}, fmt.Errorf("its definition has %d bytes, and %d are taken", len(raw), maxDefinition)
	}
	var t rawjson.Object
	err := json.Unmarshal(raw, &t)
	if err != nil || t == nil {
		return Definition{}, errors.New("its definition is not an object")
	}
	if err := c.clean(kindTool, t, raw, r.DescriptionPrefix); err != nil {
		return Definition{}, err
	}
	d := Definition{Remote: rawjson.Text(t["name"]), Hash: hashDefinition(raw)}
	if bytes.Contains(t["inputSchema"], []byte("x-mcp-header")) {
		d.HeaderSchema = t["inputSchema"]
	}
	if d.Remote == "" || len(d.Remote) > 256 {
		return d, fmt.Errorf("its name has %d bytes", len(d.Remote))
	}
	if r.CheckHeaders != nil {
		if err := r.CheckHeaders(raw); err != nil {
			return d, err
		}
	}
	d.Exposed = r.Names.exposedName(kindTool, d.Remote)
	t["name"] = rawjson.Quote(d.Exposed)
	pin, known := c.Pins[d.Remote]
	switch {
	case known && pin == d.Hash || !r.Previous.Loaded:
	case known:
		d.HeldBecause = "its definition has changed since it was approved"
	default:
		d.HeldBecause = "it is new since the server was approved"
	}
	if d.HeldBecause != "" && r.Trust == spec.TrustWarn {
		t["description"] = rawjson.Quote(fmt.Sprintf("[Sandlot: %s] %s", d.HeldBecause, rawjson.Text(t["description"])))
	}
	d.Raw, err = json.Marshal(t)
	return d, err
}

// addBefore adds to tools that are held back what was approved of them, as long as there is room for it when all
// definitions have theirs.
func (r *Reader) addBefore(c *Catalog) {
	room := min(r.Budget, r.Room-c.Size())
	previous := map[string]Definition{}
	for _, d := range r.Previous.Tools {
		previous[d.Remote] = d
	}
	for i := range c.Tools {
		d := &c.Tools[i]
		pin, known := c.Pins[d.Remote]
		if d.HeldBecause == "" || !known {
			continue
		}
		was := previous[d.Remote]
		before := was.Before
		if was.Hash == pin {
			before = was.Raw
		}
		if len(before) <= room {
			room -= len(before)
			d.Before = before
		}
	}
}

// readAll reads definitions. It leaves out, and notes, invalid and duplicate ones. If the list could not be read,
// it returns the previous ones.
func (c *Catalog) readAll(kind string, all []json.RawMessage, previous []Definition,
	read func(json.RawMessage) (Definition, error)) []Definition {
	if all == nil {
		return previous
	}
	var out []Definition
	seen := map[string]bool{}
	for _, raw := range all {
		d, err := read(raw)
		if err == nil && seen[d.Remote] {
			err = fmt.Errorf("it is there twice")
		}
		if err != nil {
			c.noteOmission(kind, raw, err)
			continue
		}
		seen[d.Remote] = true
		out = append(out, d)
	}
	return out
}

// definitionReader returns a function that reads prompts, resources or templates; key is the member
// with their name or URI.
func (r *Reader) definitionReader(c *Catalog, kind, key string) func(json.RawMessage) (Definition, error) {
	return func(raw json.RawMessage) (Definition, error) { return r.readDefinition(c, raw, kind, key) }
}

// errNoURI is the reason to leave out a resource: some clients refuse a whole list for one.
var errNoURI = errors.New("its URI is none that all clients can read: it needs a scheme, as in file:///x")

// readDefinition reads a prompt, resource or template, and makes it safe.
func (r *Reader) readDefinition(c *Catalog, raw json.RawMessage, kind, key string) (Definition, error) {
	if err := r.spend(len(raw)); err != nil {
		return Definition{}, err
	}
	var t rawjson.Object
	if len(raw) > maxDefinition || rawjson.NestedDeeper(raw, maxDepth) || json.Unmarshal(raw, &t) != nil || t == nil {
		return Definition{}, fmt.Errorf("its definition is not an object, too large or nested too deep")
	}
	d := Definition{Remote: rawjson.Text(t[key])}
	if d.Remote == "" || len(d.Remote) > 4096 || spec.HasControl(d.Remote) {
		return d, fmt.Errorf("its %s is missing, too long or has control characters", key)
	}
	descriptionPrefix := ""
	if kind == kindPrompt {
		d.Exposed = r.Names.exposedName(kindPrompt, d.Remote)
		descriptionPrefix = r.DescriptionPrefix
	} else {
		if err := checkURI(d.Remote, kind != kindResource); err != nil {
			return d, err
		}
		if kind == kindResource && !isURI(d.Remote) {
			return d, errNoURI
		}
		d.Exposed = r.Names.exposedURI(r.ID, kind, d.Remote)
		if !rawjson.IsString(t["name"]) {
			t["name"] = t[key]
		}
	}
	if err := c.clean(kind, t, raw, descriptionPrefix); err != nil {
		return d, err
	}
	t[key] = rawjson.Quote(d.Exposed)
	var err error
	d.Raw, err = json.Marshal(t)
	return d, err
}

// Approve pins the current tools: all, or, with seen, those whose hash is still the one in seen.
func (c *Catalog) Approve(seen map[string]string) {
	pins := map[string]string{}
	for i, d := range c.Tools {
		if seen == nil || seen[d.Remote] == d.Hash {
			pins[d.Remote], c.Tools[i].HeldBecause, c.Tools[i].Before = d.Hash, "", nil
		} else if old, ok := c.Pins[d.Remote]; ok {
			pins[d.Remote] = old
		}
	}
	c.Pins = pins
}

// WhyOmitted returns why a tool was left out of the catalog; is selects it by the server's name.
func (c Catalog) WhyOmitted(selects func(remote string) bool) (why string, ok bool) {
	for _, omission := range c.Omissions {
		rest, tool := strings.CutPrefix(omission, "tool ")
		if !tool {
			continue
		}
		name, err := strconv.QuotedPrefix(rest)
		if err != nil {
			continue
		}
		if remote, err := strconv.Unquote(name); err == nil && selects(remote) {
			return omission, true
		}
	}
	return "", false
}

// matchesTemplate reports whether a URI may be an expansion of a template (RFC 6570): it has the
// literals of the template, in their order.
func matchesTemplate(template, uri string) bool {
	before, rest, variable := strings.Cut(template, "{")
	if !variable {
		return template == uri
	}
	if !strings.HasPrefix(uri, before) {
		return false
	}
	uri = uri[len(before):]
	for {
		_, after, closed := strings.Cut(rest, "}")
		if !closed {
			return false
		}
		literal, next, more := strings.Cut(after, "{")
		if !more {
			return strings.HasSuffix(uri, literal)
		}
		i := strings.Index(uri, literal)
		if i < 0 {
			return false
		}
		uri, rest = uri[i+len(literal):], next
	}
}

// Size returns the size of all definitions, in bytes, with what was approved of those that have changed.
func (c *Catalog) Size() (n int) {
	for _, list := range c.lists() {
		for _, d := range list {
			n += len(d.Raw) + len(d.HeaderSchema) + len(d.Before)
		}
	}
	return n
}

// BeforeSize returns the size of what was approved of tools that have changed, in bytes.
func (c *Catalog) BeforeSize() (n int) {
	for _, d := range c.Tools {
		n += len(d.Before)
	}
	return n
}
