package catalog

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// References that leave a schema, and those that stay in it, or are none.
var (
	leaving = map[string]string{
		"https":                      `"properties":{"a":{"$ref":"https://schemas.example/x.json"}}`,
		"http, deep":                 `"allOf":[{"anyOf":[{"not":{"if":{"$ref":"http://schemas.example/"}}}]}]`,
		"file":                       `"$ref":"file:///etc/passwd"`,
		"no scheme":                  `"items":[{"$ref":"//schemas.example/x"}]`,
		"relative":                   `"$ref":"x.json"`,
		"relative, with a fragment":  `"$ref":"x.json#/a"`,
		"another path":               `"$ref":"../x"`,
		"a query":                    `"$ref":"?x"`,
		"behind a space":             `"$ref":" #/a"`,
		"spelled with escapes":       `"\u0024ref":"https:\/\/schemas.example"`,
		"dynamic":                    `"$dynamicRef":"https://schemas.example/#x"`,
		"recursive":                  `"$recursiveRef":"https://schemas.example/#"`,
		"an urn":                     `"$ref":"urn:uuid:0"`,
		"relative to the $id":        `"$id":"https://schemas.example/","$ref":"x"`,
		"to its own $id":             `"$id":"https://schemas.example/a","$ref":"https://schemas.example/a#/b"`,
		"beneath another $id":        `"properties":{"a":{"$id":"https://schemas.example/a","items":{"$ref":"#/b"}}}`,
		"beneath an id of draft 4":   `"properties":{"a":{"id":"https://schemas.example/a","items":{"$ref":"#/b"}}}`,
		"no text":                    `"$ref":{"a":1}`,
		"in $defs":                   `"$defs":{"$ref":{"$ref":"x"}}`,
		"in an unknown keyword":      `"x-more":{"deep":[{"$ref":"x"}]}`,
		"data that is referred to":   `"default":{"$ref":"https://schemas.example"},"properties":{"a":{"$ref":"#/default"}}`,
		"data that is referred to 2": `"enum":[1,{"a":{"$ref":"x"}}],"properties":{"a":{"$ref":"#/%65num/1/a"}}`,
		"data beneath an empty name": `"$defs":{"":{"default":{"$ref":"x"}}},"properties":{"a":{"$ref":"#/$defs//default"}}`,
		"data with an anchor":        `"const":{"$anchor":"evil","$ref":"x"},"properties":{"a":{"$ref":"#evil"}}`,
		"names that are referred to": `"properties":{"default":{"$ref":"#"},"$defs":{"$ref":{"$ref":"x"}}},"items":{"$ref":"#/properties/$defs/$ref"}`,
		"a name that is no schema":   `"properties":{"$ref":"https://schemas.example"}`,
		"into another $id":           `"properties":{"a":{"$id":"https://schemas.example/a","default":{"$ref":"#/b"}},"b":{"$ref":"#/properties/a/default"}}`,
	}
	staying = map[string]string{
		"a pointer":               `"$defs":{"a/b":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/a~1b"}}`,
		"an anchor":               `"$defs":{"a":{"$anchor":"n","type":"string"}},"properties":{"a":{"$ref":"#n"}}`,
		"the root":                `"properties":{"a":{"$ref":"#"},"b":{"$dynamicRef":"#"},"c":{"$recursiveRef":"#"}}`,
		"a dynamic anchor":        `"$defs":{"a":{"$dynamicAnchor":"n"}},"properties":{"a":{"$dynamicRef":"#n"}}`,
		"an anchor of draft 6":    `"definitions":{"a":{"$id":"#n","items":{"$ref":"#n"}}},"properties":{"a":{"$ref":"#n"}}`,
		"the root's own $id":      `"$id":"https://schemas.example/x","properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{}}`,
		"an $id without use":      `"properties":{"a":{"$id":"https://schemas.example/x","type":"string"}}`,
		"a property of that name": `"properties":{"$ref":{"type":"string"},"$id":{"type":"string"},"default":{"type":"string"}}`,
		"a default":               `"default":{"$ref":"https://schemas.example"}`,
		"a default beside a $ref": `"default":{"$ref":"x"},"$defs":{"a":{}},"properties":{"a":{"$ref":"#/$defs/a"}}`,
		"an enum":                 `"properties":{"a":{"enum":[{"$ref":"https://schemas.example"}]}}`,
		"a const":                 `"const":{"$ref":"x"}`,
		"examples":                `"properties":{"a":{"examples":[{"$ref":"x"}]}}`,
		"words about it":          `"description":"$ref: https://schemas.example","required":["$ref"],"properties":{"$ref":{}}`,
		"two that go in a circle": `"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"properties":{"a":{"$ref":"#/$defs/a"}}`,
	}
)

// A tool whose arguments cannot be read without another's file is left out, and
// that of results is taken out: no client is led to where a server wants it.
func TestReferencesOutside(t *testing.T) {
	for name, words := range leaving {
		c := reread(Catalog{}, `{"name":"in","inputSchema":{"type":"object",`+words+`}}`, `{"name":"out","outputSchema":{"type":"object",`+words+`}}`)
		if len(c.Tools) != 1 || c.Tools[0].Remote != "out" || strings.Contains(string(c.Tools[0].Raw), "outputSchema") {
			t.Errorf("%s: passed on: %s", name, c.Tools)
		}
		if len(c.Omissions) != 2 || !strings.HasPrefix(c.Omissions[0], `tool "in" is left out: its schema `) || !strings.HasPrefix(c.Omissions[1], `outputSchema of tool "out" is left out: its schema `) {
			t.Errorf("%s: said: %q", name, c.Omissions)
		}
	}
	for name, words := range staying {
		c := reread(Catalog{}, `{"name":"in","inputSchema":{"type":"object",`+words+`}}`, `{"name":"out","outputSchema":{"type":"object",`+words+`}}`)
		if len(c.Tools) != 2 || len(c.Omissions) > 0 || !strings.Contains(string(c.Tools[1].Raw), "outputSchema") {
			t.Errorf("%s: left out: %q", name, c.Omissions)
		}
	}
	c := reread(Catalog{}, `{"name":"t","inputSchema":{"$schema":"https://schemas.example/dialect","$id":"https://schemas.example/t","items":{"$schema":"https://json-schema.org/draft/2020-12/schema","$ref":"#/a"}}}`)
	if raw := string(c.Tools[0].Raw); strings.Contains(raw, "schemas.example") || !strings.Contains(raw, "draft/2020-12") || !strings.Contains(raw, `"#/a"`) {
		t.Errorf("passed on: %s", raw)
	}
}

// However references lead to each other, looking at them takes little time.
func TestReferencesAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&b, `"a%d":{"$anchor":"n","items":[{"$ref":"#n"},{"$ref":"#/$defs/a%d"}]},`, i, (i*7)%3000)
	}
	raw := `{"type":"object","$defs":{` + b.String() + `"z":{}}}`
	if len(raw) > maxSchema {
		t.Fatal(len(raw))
	}
	began := time.Now()
	if _, _, err := readSchema(json.RawMessage(raw), false); err != nil || time.Since(began) > time.Minute {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
