// Package schematest has the published schemas of MCP's revisions, for tests: what leaves Sandlot has to be valid by
// them. The files are the folder schema of MCP's specification, compressed; LICENSE is theirs.
package schematest

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

//go:embed *.json.gz
var files embed.FS

// Revisions are the revisions whose schemas there are, the oldest first.
var Revisions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"}

var (
	mu       sync.Mutex
	resolved = map[[2]string]*jsonschema.Resolved{}
)

// Validate returns an error if a value is not valid by the definition of that name of a revision, such as
// "ListToolsResult".
func Validate(revision, definition string, raw json.RawMessage) error {
	schema, err := find(revision, definition)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	if err := schema.Validate(v); err != nil {
		return fmt.Errorf("%s of %s: %w", definition, revision, err)
	}
	return nil
}

// find returns the schema of a definition.
func find(revision, definition string) (*jsonschema.Resolved, error) {
	mu.Lock()
	defer mu.Unlock()
	key := [2]string{revision, definition}
	if s := resolved[key]; s != nil {
		return s, nil
	}
	packed, err := files.ReadFile(revision + ".json.gz")
	if err != nil {
		return nil, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(unpacked)
	if err != nil {
		return nil, err
	}
	var all struct {
		Definitions, Defs json.RawMessage
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(b, &top); err != nil {
		return nil, err
	}
	all.Definitions, all.Defs = top["definitions"], top["$defs"]
	if all.Defs == nil { // drafts differ in the name
		all.Defs = json.RawMessage(strings.ReplaceAll(string(all.Definitions), "#/definitions/", "#/$defs/"))
	}
	root, err := json.Marshal(map[string]any{"$ref": "#/$defs/" + definition, "$defs": all.Defs})
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(root, &schema); err != nil {
		return nil, err
	}
	s, err := schema.Resolve(nil)
	if err == nil {
		resolved[key] = s
	}
	return s, err
}
