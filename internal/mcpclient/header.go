package mcpclient

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

// Headers of the stateless protocol over HTTP repeat parts of the body, so that proxies
// can read them:
// https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http

const (
	maxSchema     = 1 << 20
	maxHeaderArgs = 64 // arguments of one tool that are repeated in headers
	maxDepth      = 32 // of properties that are searched for such arguments
)

// headerArg is an argument of a tool that is repeated in a header.
type headerArg struct {
	path   []string
	header string
}

// property has the members of a schema that decide about headers.
type property struct {
	Type       json.RawMessage            `json:"type"`
	Header     json.RawMessage            `json:"x-mcp-header"`
	Properties map[string]json.RawMessage `json:"properties"`
}

// CheckTool returns an error when a tool's definition must not be used: it is not an
// object, it has no name, or its inputSchema has over 1 MiB or marks arguments for
// headers (x-mcp-header) that HTTP does not allow.
func CheckTool(tool json.RawMessage) error {
	var t struct {
		Name        string          `json:"name"`
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if !rawjson.IsObject(tool) || json.Unmarshal(tool, &t) != nil || t.Name == "" {
		return fmt.Errorf("the definition of the tool is not an object with a name")
	}
	_, err := headerArgs(t.InputSchema)
	return err
}

// headerArgs returns the arguments that an inputSchema marks for headers.
func headerArgs(schema json.RawMessage) ([]headerArg, error) {
	if len(schema) > maxSchema {
		return nil, fmt.Errorf("the inputSchema has over %d bytes", maxSchema)
	}
	if !strings.Contains(string(schema), `-header"`) && !strings.Contains(string(schema), `\u`) {
		return nil, nil // quick way out for most schemas; escapes could hide "x-mcp-header"
	}
	var all []headerArg
	err := collectHeaderArgs(schema, nil, &all)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, m := range all {
		name := strings.ToLower(m.header)
		if seen[name] {
			return nil, fmt.Errorf("two arguments are marked for the header %q", transport.Clip(m.header, 100))
		}
		seen[name] = true
	}
	return all, nil
}

func collectHeaderArgs(schema json.RawMessage, path []string, all *[]headerArg) error {
	var p property
	if !rawjson.IsObject(schema) || len(path) > maxDepth || json.Unmarshal(schema, &p) != nil {
		return nil // an invalid schema: clients check that
	}
	if p.Header != nil && len(path) > 0 {
		name, err := headerName(p)
		if err != nil {
			return fmt.Errorf("the argument %q: %w", transport.Clip(strings.Join(path, "."), 200), err)
		}
		if *all = append(*all, headerArg{path: path, header: name}); len(*all) > maxHeaderArgs {
			return fmt.Errorf("over %d arguments are marked for headers", maxHeaderArgs)
		}
	}
	for name, sub := range p.Properties {
		if err := collectHeaderArgs(sub, append(slices.Clip(path), name), all); err != nil {
			return err
		}
	}
	return nil
}

// headerName returns the name of the header that a property is marked for.
func headerName(p property) (string, error) {
	var name string
	if json.Unmarshal(p.Header, &name) != nil || name == "" || len(name) > 128 {
		return "", fmt.Errorf("x-mcp-header is not a string of 1 to 128 characters")
	}
	if !httpguts.ValidHeaderFieldName(name) {
		return "", fmt.Errorf("x-mcp-header %q is not a name that a header can have", transport.Clip(name, 100))
	}
	switch string(p.Type) {
	case `"string"`, `"integer"`, `"boolean"`:
		return name, nil
	}
	return "", fmt.Errorf("x-mcp-header stands at a type that is not string, integer or boolean")
}

// paramHeaders returns the headers that repeat the marked arguments of a call.
func paramHeaders(schema, arguments json.RawMessage) http.Header {
	all, err := headerArgs(schema)
	if err != nil || len(all) == 0 {
		return nil
	}
	h := http.Header{}
	for _, m := range all {
		value := arguments
		for _, name := range m.path {
			var o rawjson.Object
			_ = json.Unmarshal(value, &o) // on an error, o has no members
			value = o[name]
		}
		if s, ok := headerValue(value); ok {
			h.Set("Mcp-Param-"+m.header, s)
		}
	}
	return h
}

// headerValue returns the header value for an argument. ok is false for values that are
// not repeated: all but strings, booleans and integers that a float64 can hold.
func headerValue(raw json.RawMessage) (string, bool) {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return encodeHeaderValue(v), true
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		const maxSafeInteger = 1<<53 - 1
		if v < -maxSafeInteger || v > maxSafeInteger || v != float64(int64(v)) {
			return "", false
		}
		return strconv.FormatInt(int64(v), 10), true
	}
	return "", false
}

const (
	base64Prefix = "=?base64?"
	base64Suffix = "?="
)

// encodeHeaderValue encodes a string as a header value: as base64 unless it is printable ASCII.
func encodeHeaderValue(s string) string {
	plain := strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7e }) &&
		!(strings.HasPrefix(s, base64Prefix) && strings.HasSuffix(s, base64Suffix))
	if plain {
		return s
	}
	return base64Prefix + base64.StdEncoding.EncodeToString([]byte(s)) + base64Suffix
}

// nameParam maps methods to the parameter whose value goes into the header Mcp-Name.
var nameParam = map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri",
	"tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}

// standardHeaders returns the headers Mcp-Method and Mcp-Name of a stateless message.
func standardHeaders(method string, params rawjson.Object) http.Header {
	h := http.Header{"Mcp-Method": {method}}
	if name := rawjson.Text(params[nameParam[method]]); name != "" {
		h.Set("Mcp-Name", encodeHeaderValue(name))
	}
	return h
}
