package clientconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tailscale/hujson"
)

// Limits for a client's file: its author, who may be the author of a cloned repository, must not be able
// to exhaust the server's memory.
const (
	maxCommented = 1 << 20 // bytes of a file with comments, which is parsed in memory as a whole
	maxSection   = 1 << 20 // bytes of the section with the servers
	maxServers   = 1000
	maxDepth     = 100 // of a file with comments
)

// Read returns the servers in the text of a client's file, by name, and the file's format. A server is a
// map of its keys; numbers and booleans in it are texts.
func Read(text []byte) (servers map[string]any, f *Format, err error) {
	top, err := readSections(text)
	if err != nil {
		return nil, nil, err
	}
	found, f := findServers(top)
	if f == nil {
		return nil, nil, errors.New("it has neither mcpServers (as Claude, Cursor and others do), " +
			"nor servers (VS Code), nor mcp (crush.json)")
	}
	servers, ok := found.(map[string]any)
	if !ok && found != nil {
		return nil, nil, errors.New("its servers are not an object of names with settings")
	}
	if len(servers) > maxServers {
		return nil, nil, fmt.Errorf("it has %d servers; a file may have at most %d", len(servers), maxServers)
	}
	return servers, f, nil
}

// findServers returns the servers in the top-level object of a file, and their format; nil: there are none.
func findServers(top map[string]any) (servers any, f *Format) {
	for _, f := range []*Format{editor, vsCode} {
		if servers, has := top[f.section]; has {
			return servers, f
		}
	}
	servers, has := top[crush.section]
	if !has {
		return nil, nil
	}
	// VS Code's settings.json has the section of its mcp.json under "mcp".
	if nested, ok := servers.(map[string]any); ok {
		inner, ok := nested[vsCode.section].(map[string]any)
		if ok && inner["command"] == nil && inner["url"] == nil {
			return inner, vsCode
		}
	}
	return servers, crush
}

// readSections returns the sections of a client's file that may have servers, as texts, lists and maps.
func readSections(text []byte) (map[string]any, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if !json.Valid(text) {
		if len(text) > maxCommented {
			return nil, fmt.Errorf("it is not JSON, or has comments and more than %d MiB", maxCommented>>20)
		}
		if tooDeep(text) {
			return nil, errors.New("it is nested too deeply")
		}
		plain, err := hujson.Standardize(text)
		if err != nil {
			return nil, fmt.Errorf("it is not JSON%s", position(err))
		}
		text = plain
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	top := map[string]any{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, errors.New("it is not JSON")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, errors.New("it is not JSON")
		}
		switch key {
		case editor.section, vsCode.section, crush.section:
			if top[key.(string)], err = readSection(value); err != nil {
				return nil, err
			}
		}
	}
	return top, nil
}

func readSection(text []byte) (any, error) {
	if len(text) > maxSection {
		return nil, fmt.Errorf("the section with its servers has %d bytes; the limit is %d", len(text), maxSection)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("it is not JSON")
	}
	return scalarsToText(v), nil
}

// tooDeep reports whether JSON with comments is nested deeper than maxDepth: hujson's parser is recursive.
func tooDeep(text []byte) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '[', '{':
			if depth++; depth > maxDepth {
				return true
			}
		case ']', '}':
			depth--
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '/':
			i += commentLength(text[i:])
		}
	}
	return false
}

// commentLength returns the length of the comment at the beginning of text, without its first byte; 0: there
// is no comment.
func commentLength(text []byte) int {
	end := ""
	switch {
	case bytes.HasPrefix(text, []byte("//")):
		end = "\n"
	case bytes.HasPrefix(text, []byte("/*")):
		end = "*/"
	default:
		return 0
	}
	if n := bytes.Index(text[2:], []byte(end)); n >= 0 {
		return n + 1 + len(end)
	}
	return len(text)
}

// scalarsToText replaces numbers and booleans by their texts.
func scalarsToText(v any) any {
	switch v := v.(type) {
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	case []any:
		for i := range v {
			v[i] = scalarsToText(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = scalarsToText(v[k])
		}
	}
	return v
}
