package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Summary is an entry in a list. All texts are a third party's, made safe to show.
type Summary struct {
	Registry    string `json:"registry"`
	Name        string `json:"name"` // namespace/name
	Title       string `json:"title,omitempty"`
	Description string `json:"description"`
	Version     string `json:"version"`
	// Publisher is the namespace that the registry has checked: a domain, or a user of GitHub.
	Publisher string   `json:"publisher"`
	Status    string   `json:"status"` // active, deprecated or deleted
	Kinds     []string `json:"kinds"`  // npm, pypi, oci …, streamable-http, sse
}

// Entry is one version of a server in a registry.
type Entry struct {
	Summary
	StatusMessage string `json:"status_message,omitempty"`
	Repository    string `json:"repository,omitempty"`
	Website       string `json:"website,omitempty"`
	Published     string `json:"published,omitempty"`
	// Note says that the registry did not answer, and since when this is known.
	Note string `json:"note,omitempty"`
	// Digest is that of what the publisher wrote.
	Digest string `json:"digest"`
	// Ways are how the server can be run or reached, those that Sandlot supports first.
	Ways []Way `json:"ways"`
	// SuggestedName is the name that it gets here if the user gives no other.
	SuggestedName string `json:"suggested_name"`
}

// Way is one package or one address of an entry.
type Way struct {
	ID         string `json:"id"`   // within the entry, such as package-1
	Kind       string `json:"kind"` // as in Summary.Kinds
	Identifier string `json:"identifier,omitempty"`
	Version    string `json:"version,omitempty"`
	SHA256     string `json:"sha256,omitempty"` // of the package's file
	URL        string `json:"url,omitempty"`    // may have {variables}
	Supported  bool   `json:"supported"`
	// Why says why it is not supported.
	Why string `json:"why,omitempty"`
	// Notes say what of the entry is not used.
	Notes []string `json:"notes,omitempty"`
	// Inputs are the values that the user gives.
	Inputs []Input `json:"inputs"`
	// Fixed are the arguments, variables and headers that the entry sets itself.
	Fixed []Fixed `json:"fixed,omitempty"`

	transport string
	arguments []part
	env       []part
	headers   []part
}

// Fixed is an argument, variable or header that the entry sets.
type Fixed struct {
	Place string `json:"place"`           // env, header or argument
	Name  string `json:"name,omitempty"`  // empty: a positional argument
	Value string `json:"value,omitempty"` // may have {inputs}; empty: the name alone
}

// Input is a value that the user gives.
type Input struct {
	Key         string   `json:"key"`   // within the way
	Label       string   `json:"label"` // the name of the variable, header or argument
	Place       string   `json:"place"` // env, header, argument or url
	Description string   `json:"description,omitempty"`
	Required    bool     `json:"required"`
	Secret      bool     `json:"secret"`
	Format      string   `json:"format"` // string, number, boolean or filepath
	Default     string   `json:"default,omitempty"`
	Placeholder string   `json:"placeholder,omitempty"`
	Choices     []string `json:"choices,omitempty"`
	Repeated    bool     `json:"repeated,omitempty"` // the value has one argument on each line
	// SecretName is a name under which a secret value can be stored.
	SecretName string `json:"secret_name,omitempty"`
}

// part is one variable, header or argument: a text with {key} in place of each input.
type part struct {
	name     string // of an argument: with its dashes; empty: positional
	template string
	inputs   map[string]string // the keys of inputs, by their names in the template
	flag     bool              // a named argument without a value, by a boolean input
	fixed    bool              // the entry fixes the value
}

var (
	// entryName is the form of names that the official registry takes.
	entryName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9.-]{0,126}/[a-zA-Z0-9][a-zA-Z0-9._-]{0,126}$`)
	versionText = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_!-]{0,99}$`)
	npmName     = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*$`)
	pypiName    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	// npmFile matches what npm takes for the path of a file.
	npmFile = regexp.MustCompile(`\.(tgz|tar|tar\.gz)$`)
	// npmVersion and pypiVersion exclude ranges and tags: what is installed is what was shown. npm takes 1.2 for a range.
	npmVersion  = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	pypiVersion = regexp.MustCompile(`^v?[0-9]+(\.[0-9]+)*([.+!_-]?[0-9A-Za-z]+([.+_-][0-9A-Za-z]+)*)?$`)
	sha256Text  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// text makes a third party's text of one line safe to show.
func text(s string, most int) string {
	return strings.Join(strings.Fields(fault.Printable(spec.SafeText(s, most), most)), " ")
}

// webAddress returns a URL to show, or empty if it is none of the web.
func webAddress(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || len(s) > 300 ||
		text(s, 300) != s {
		return ""
	}
	return s
}

// opened is what was read of an envelope.
type opened struct {
	document
	meta officialMeta
	note string // see Entry.Note
	raw  json.RawMessage
}

// open reads an element of a list, an answer about one version, or a server.json.
func open(raw []byte) (o opened, err error) {
	if len(raw) > maxDocument {
		return o, fmt.Errorf("it has over %d bytes", maxDocument)
	}
	var e envelope
	if err := decode(raw, &e); err != nil {
		return o, err
	}
	if len(e.Server) == 0 {
		e.Server = raw
	}
	if err := decode(e.Server, &o.document); err != nil {
		return o, err
	}
	if m := e.Meta[officialKey]; len(m) > 0 {
		_ = decode(m, &o.meta) // an entry without it is one, too
	}
	o.raw = e.Server
	switch {
	case !entryName.MatchString(o.Name):
		return o, errors.New("its name is not a namespace and a name, such as io.github.someone/weather")
	case !versionText.MatchString(o.Version):
		return o, errors.New("its version is not the text of a version")
	}
	return o, nil
}

// digest returns that of the document, in whatever form a registry writes it.
func (o opened) digest() string {
	var v any
	if json.Unmarshal(o.raw, &v) != nil {
		return digest(string(o.raw))
	}
	b, err := json.Marshal(v)
	if err != nil {
		return digest(string(o.raw))
	}
	return digest(string(b))
}

// summary returns what a list has of an entry.
func (o opened) summary(registry string) Summary {
	publisher, _, _ := strings.Cut(o.Name, "/")
	s := Summary{Registry: registry, Name: o.Name, Title: text(o.Title, 120), Description: text(o.Description, 400),
		Version: o.Version, Publisher: publisher, Status: "active", Kinds: []string{}}
	if o.meta.Status == "deprecated" || o.meta.Status == "deleted" {
		s.Status = o.meta.Status
	}
	seen := map[string]bool{}
	for _, raw := range append(o.Packages[:min(len(o.Packages), maxParts):min(len(o.Packages), maxParts)],
		o.Remotes[:min(len(o.Remotes), maxParts)]...) {
		var kind struct {
			RegistryType string `json:"registryType"`
			Type         string `json:"type"`
		}
		if json.Unmarshal(raw, &kind) != nil {
			continue
		}
		if k := knownKind(cmp.Or(kind.RegistryType, kind.Type)); !seen[k] {
			seen[k] = true
			s.Kinds = append(s.Kinds, k)
		}
	}
	return s
}

// knownKind returns a kind of package or address, or other: a kind is no text for its publisher's words.
func knownKind(k string) string {
	if slices.Contains([]string{"npm", "pypi", "oci", "nuget", "mcpb", "cargo", "streamable-http", "sse"}, k) {
		return k
	}
	return "other"
}

// entry returns all of an entry. allowed reports whether the settings allow a remote server at a host that is not public.
func (o opened) entry(registry string, allowed func(host string, port string) bool) Entry {
	e := Entry{Summary: o.summary(registry), StatusMessage: text(o.meta.StatusMessage, 300), Note: o.note, Digest: o.digest(),
		Repository: webAddress(o.Repository.URL), Website: webAddress(o.WebsiteURL), Ways: []Way{}}
	if at, err := time.Parse(time.RFC3339, o.meta.PublishedAt); err == nil {
		e.Published = at.UTC().Format(time.RFC3339)
	}
	_, last, _ := strings.Cut(o.Name, "/")
	e.SuggestedName = strings.Trim(last[:min(len(last), 32)], ".-_")
	var unsupported []Way
	add := func(w Way) {
		for i := range w.Inputs {
			if w.Inputs[i].Secret {
				w.Inputs[i].SecretName = secretName(registry, o.Name, w.Inputs[i].Label)
			}
		}
		if len(w.env) > maxInputs || len(w.headers) > maxInputs || len(w.arguments) > maxArguments {
			w.Why = fmt.Sprintf("it has over %d variables or headers, or over %d arguments", maxInputs, maxArguments)
		}
		if w.Supported = w.Why == ""; w.Supported {
			e.Ways = append(e.Ways, w)
		} else {
			unsupported = append(unsupported, w)
		}
	}
	for i, raw := range o.Packages[:min(len(o.Packages), maxParts)] {
		add(packageWay(fmt.Sprintf("package-%d", i+1), raw))
	}
	for i, raw := range o.Remotes[:min(len(o.Remotes), maxParts)] {
		add(remoteWay(fmt.Sprintf("remote-%d", i+1), raw, allowed))
	}
	e.Ways = append(e.Ways, unsupported...)
	return e
}

// secretName returns the name under which a secret of an entry can be stored. Whoever publishes the entry cannot choose one
// that something else has: the digest is of what the secret is for.
func secretName(registry, entry, label string) string {
	_, last, _ := strings.Cut(entry, "/")
	readable := strings.ToUpper(notInName.ReplaceAllString("MCP_"+last+"_"+label, "_"))
	return strings.TrimRight(readable[:min(len(readable), 40)], "_") + "_" +
		strings.ToUpper(digest(registry + "\n" + entry + "\n" + label)[:16])
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9]+`)
