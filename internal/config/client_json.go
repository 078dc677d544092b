package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/tailscale/hujson"
)

// Bounds of what is read of a client's file: whoever writes it, as the author of a
// folder that was cloned, must not take the server's memory.
const (
	maxCommented     = 1 << 20 // bytes of a file with comments, all of which is held at once
	maxClientSection = 1 << 20 // bytes of the section with the servers
	maxClientServers = 1000
	maxClientDepth   = 100 // of a file with comments
)

// clientSections reads the sections of a client's file that may have servers, with
// texts, lists and maps in them.
func clientSections(text []byte) (map[string]any, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if !json.Valid(text) {
		if len(text) > maxCommented {
			return nil, fmt.Errorf("it is not JSON, or has comments and more than %d MiB", maxCommented>>20)
		}
		if deep(text) {
			return nil, errors.New("it is nested too deeply")
		}
		plain, err := hujson.Standardize(text)
		if err != nil {
			return nil, fmt.Errorf("it is not JSON%s", place(err))
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
		case "mcpServers", "servers", "mcp":
			if top[key.(string)], err = clientSection(value); err != nil {
				return nil, err
			}
		}
	}
	return top, nil
}

func clientSection(text []byte) (any, error) {
	if len(text) > maxClientSection {
		return nil, fmt.Errorf("its servers take %d bytes, and %d are read", len(text), maxClientSection)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("it is not JSON")
	}
	return texts(v), nil
}

// deep says whether JSON with comments is nested deeper than a parser that calls
// itself should be asked to go.
func deep(text []byte) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '[', '{':
			if depth++; depth > maxClientDepth {
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
			i += comment(text[i:])
		}
	}
	return false
}

// comment is how many bytes of a comment at the beginning of text follow its first.
func comment(text []byte) int {
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

// place says where a parser stopped, and not at what: that may be a secret.
func place(err error) string {
	if at := regexp.MustCompile(`line \d+, column \d+`).FindString(err.Error()); at != "" {
		return ": look at " + at
	}
	return ""
}

func texts(v any) any {
	switch v := v.(type) {
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	case []any:
		for i := range v {
			v[i] = texts(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = texts(v[k])
		}
	}
	return v
}
