package clientconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"
	yamllib "go.yaml.in/yaml/v3"
)

// Installed is how a client reaches a server by the entry in its file: it starts a program, or connects to a URL. Values
// have the client's references to variables.
type Installed struct {
	Program string
	Args    []string
	Env     map[string]string
	URL     string
	Headers map[string]string
	// TokenEnv is the variable with the token for the URL, where the client has a key for it.
	TokenEnv string
}

// Installed returns the entry of a server in the text of a client's file.
func (c Client) Installed(text []byte, name string) (i Installed, err error) {
	found, ok := c.find(text, name)
	e, isMap := found.(map[string]any)
	if !ok || !isMap {
		return i, fmt.Errorf("%s has no server %q in its settings; add it with `sandlot install %s`", c.Title, name, c.ID)
	}
	if inner, ok := e["transport"].(map[string]any); ok {
		e = inner
	}
	word := func(keys ...string) (found string) {
		for _, k := range keys {
			t, _ := e[k].(string)
			found = cmp.Or(found, t)
		}
		return found
	}
	texts := func(v any) (all map[string]string) {
		m, _ := v.(map[string]any)
		for k, v := range m {
			if all == nil {
				all = map[string]string{}
			}
			all[k] = fmt.Sprint(v)
		}
		return all
	}
	list := func(v any) (all []string) {
		items, _ := v.([]any)
		for _, item := range items {
			all = append(all, fmt.Sprint(item))
		}
		return all
	}
	i = Installed{Program: word("command", "cmd"), Args: list(e["args"]), URL: word("url", "serverUrl", "httpUrl", "uri"),
		TokenEnv: word("bearer_token_env_var")}
	if words := list(e["command"]); len(words) > 0 {
		i.Program, i.Args = words[0], words[1:]
	}
	for _, k := range []string{"env", "environment", "envs"} {
		if m := texts(e[k]); m != nil {
			i.Env = m
		}
	}
	options, _ := e["requestOptions"].(map[string]any)
	for _, v := range []any{e["headers"], e["http_headers"], options["headers"]} {
		if m := texts(v); m != nil {
			i.Headers = m
		}
	}
	if i.Program == "" && i.URL == "" {
		return i, fmt.Errorf("the server %q of %s has neither a program nor a URL; add it with `sandlot install %s`", name,
			c.Title, c.ID)
	}
	return i, nil
}

// Expand replaces the client's references to variables in a value.
func (c Client) Expand(value string, getenv func(string) string) string {
	before, after, ok := strings.Cut(c.variableFormat, "%s")
	if !ok || before == "" {
		return value
	}
	var out strings.Builder
	for {
		i := strings.Index(value, before)
		if i < 0 {
			return out.String() + value
		}
		rest := value[i+len(before):]
		end := len(rest)
		for n, r := range rest {
			if r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
				end = n
				break
			}
		}
		if end == 0 || !strings.HasPrefix(rest[end:], after) {
			out.WriteString(value[:i+len(before)])
			value = rest
			continue
		}
		out.WriteString(value[:i] + getenv(rest[:end]))
		value = rest[end+len(after):]
	}
}

// Has reports whether the text of a client's file has a server of that name.
func (c Client) Has(text []byte, server string) bool {
	_, ok := c.find(text, server)
	return ok
}

// find returns the value of a server in the text of a client's file.
func (c Client) find(text []byte, name string) (any, bool) {
	text = bytes.TrimPrefix(text, bom)
	top := map[string]any{}
	switch c.syntax {
	case toml:
		all, err := readTOML(text)
		if err != nil {
			return nil, false
		}
		top = all
	case yamlMap, yamlList:
		if yamllib.Unmarshal(text, &top) != nil {
			return nil, false
		}
	default:
		plain, err := hujson.Standardize(bytes.Clone(text))
		if err != nil || json.Unmarshal(plain, &top) != nil {
			return nil, false
		}
	}
	if items, ok := top[c.sectionKey()].([]any); ok && c.syntax == yamlList {
		for _, item := range items {
			if m, _ := item.(map[string]any); m["name"] == name {
				return m, true
			}
		}
	}
	servers, _ := top[c.sectionKey()].(map[string]any)
	found, ok := servers[name]
	return found, ok
}
