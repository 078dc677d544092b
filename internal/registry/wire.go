package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// The JSON of the registry API v0.1, as far as Sandlot reads it. A member of another type makes its part of an entry
// unreadable, and not the list that it is in.

// page is an answer of GET /v0.1/servers.
type page struct {
	Servers  elements `json:"servers"` // nil: it is no page
	Metadata struct {
		NextCursor string `json:"nextCursor"`
	} `json:"metadata"`
	size int // bytes of the answer
}

// elements is a list of which no more is kept than what a page has by right.
type elements []json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (e *elements) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("servers is not a list")
	}
	*e = elements{}
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if *e = append(*e, raw); len(*e) > maxElements {
			return fmt.Errorf("it has over %d elements", maxElements)
		}
	}
	return nil
}

// envelope is one element of a page, and the answer of GET /v0.1/servers/{name}/versions/{version}. A file server.json
// is the server alone.
type envelope struct {
	Server json.RawMessage            `json:"server"`
	Meta   map[string]json.RawMessage `json:"_meta"`
}

// officialMeta is what the registry itself says about an entry.
type officialMeta struct {
	Status        string `json:"status"`
	StatusMessage string `json:"statusMessage"`
	PublishedAt   string `json:"publishedAt"`
	UpdatedAt     string `json:"updatedAt"`
	IsLatest      *bool  `json:"isLatest"`
}

const officialKey = "io.modelcontextprotocol.registry/official"

// document is a server.json.
type document struct {
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Version     string `json:"version"`
	WebsiteURL  string `json:"websiteUrl"`
	Repository  struct {
		URL string `json:"url"`
	} `json:"repository"`
	Packages []json.RawMessage `json:"packages"`
	Remotes  []json.RawMessage `json:"remotes"`
}

// wirePackage is an element of packages.
type wirePackage struct {
	RegistryType    string         `json:"registryType"`
	RegistryBaseURL string         `json:"registryBaseUrl"`
	Identifier      string         `json:"identifier"`
	Version         string         `json:"version"`
	FileSHA256      string         `json:"fileSha256"`
	Transport       wireTransport  `json:"transport"`
	Runtime         []wireArgument `json:"runtimeArguments"`
	Arguments       []wireArgument `json:"packageArguments"`
	Environment     []wireKeyValue `json:"environmentVariables"`
}

// wireTransport is an element of remotes, and the transport of a package.
type wireTransport struct {
	Type      string               `json:"type"`
	URL       string               `json:"url"`
	Headers   []wireKeyValue       `json:"headers"`
	Variables map[string]wireInput `json:"variables"`
}

// wireInput is a value that the user gives, or that is fixed.
type wireInput struct {
	Description string               `json:"description"`
	IsRequired  bool                 `json:"isRequired"`
	Format      string               `json:"format"`
	Value       string               `json:"value"`
	IsSecret    bool                 `json:"isSecret"`
	Default     string               `json:"default"`
	Placeholder string               `json:"placeholder"`
	Choices     []string             `json:"choices"`
	Variables   map[string]wireInput `json:"variables"`
}

type wireKeyValue struct {
	Name string `json:"name"`
	wireInput
}

type wireArgument struct {
	Type       string `json:"type"` // positional or named
	Name       string `json:"name"` // of a named one, with its dashes
	ValueHint  string `json:"valueHint"`
	IsRepeated bool   `json:"isRepeated"`
	wireInput
}

// Bounds of what is read from a registry.
const (
	maxAnswer    = 8 << 20 // bytes of one answer
	maxElements  = 1000    // of one page
	maxDocument  = 256 << 10
	maxDepth     = 24 // levels of JSON
	maxParts     = 20 // packages, and remotes, of one entry
	maxInputs    = 50 // values that one way of running a server may ask for, and variables that it may have
	maxArguments = 200
)

var errTooDeep = errors.New("its JSON is nested too deeply")

// decode reads JSON that a third party wrote.
func decode(data []byte, into any) error {
	depth, inText := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return errTooDeep
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("it is not what the registry API has there: %.200v", err)
	}
	return nil
}
