package clientconfig

import (
	"encoding/json"
	"slices"
	"testing"
)

// form is what a client accepts as an entry: keys and the kinds of their values. Those that begin with * are required.
type form map[string]string

// accepted are the entries that clients accept whose programs the tests cannot run, as their own schemas, or the sources
// that read their settings, have it: for a program, and for a URL. Each of them refuses an entry that has a key of another
// kind, and Crush and Roo Code one with a key that they do not know.
var accepted = map[string][2]form{
	"crush": {{"*type": "stdio", "*command": "text", "args": "texts", "env": "map", "timeout": "number"},
		{"*type": "http", "*url": "text", "headers": "map", "timeout": "number"}},
	"zed": {{"*command": "text", "*args": "texts", "env": "map", "timeout": "number"},
		{"*url": "text", "headers": "map", "timeout": "number"}},
	"goose": {{"*type": "stdio", "*name": "text", "*description": "text", "*cmd": "text", "*args": "texts", "env_keys": "texts",
		"*enabled": "true", "timeout": "number"},
		{"*type": "streamable_http", "*name": "text", "*description": "text", "*uri": "text", "headers": "map",
			"env_keys": "texts", "*enabled": "true", "timeout": "number"}},
	"roo": {{"type": "stdio", "*command": "text", "args": "texts", "env": "map", "timeout": "number"},
		{"*type": "streamable-http", "*url": "text", "headers": "map", "timeout": "number"}},
}

// is reports whether a value is of a kind.
func (form) is(v any, kind string) bool {
	switch kind {
	case "text":
		s, ok := v.(string)
		return ok && s != ""
	case "number": // of seconds: Roo Code takes up to an hour
		n, ok := v.(float64)
		return ok && n >= 1 && n <= 3600
	case "true":
		return v == true
	case "texts":
		all, ok := v.([]any)
		return ok && !slices.ContainsFunc(all, func(e any) bool { _, ok := e.(string); return !ok })
	case "map":
		all, ok := v.(map[string]any)
		for _, e := range all {
			if _, isText := e.(string); !isText {
				return false
			}
		}
		return ok
	}
	return v == kind
}

// TestEntriesAreAccepted: what is written for these clients is what they read.
func TestEntriesAreAccepted(t *testing.T) {
	variable := server
	variable.TokenEnv = "TOK"
	for id, forms := range accepted {
		c := mustFind(t, id)
		for what, s := range map[string]Server{"a program": {Name: "sandlot", Program: "/p", Args: []string{"stdio"}},
			"a URL": server, "a URL and a token": with("slt_x"), "a URL and a variable": variable} {
			if err := c.Check(&s); err != nil {
				if id != "zed" || s.TokenEnv == "" { // it has no variables
					t.Errorf("%s, %s: %v", id, what, err)
				}
				continue
			}
			form := forms[1]
			if s.URL == "" {
				form = forms[0]
			}
			b, err := json.Marshal(c.entry(s))
			var got map[string]any
			if err == nil {
				err = json.Unmarshal(b, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
			for key, kind := range form {
				name := key
				if key[0] == '*' {
					name = key[1:]
				}
				v, given := got[name]
				if given && !form.is(v, kind) || !given && name != key {
					t.Errorf("%s, %s: %s is %v in %s", id, what, name, v, b)
				}
				delete(got, name)
			}
			if len(got) > 0 {
				t.Errorf("%s, %s: it does not know %v", id, what, got)
			}
		}
	}
}
