package catalog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision/schematest"
	"sandlot/internal/servers/spec"
)

// validDefinitions are valid definitions, by their kinds.
var validDefinitions = map[string]string{
	kindTool: `{"name":"t","title":"T","description":"d","inputSchema":{"type":"object","$schema":"http://json-schema.org/draft-07/schema#",
		"properties":{"a":{"type":"string","enum":["x"],"minLength":1,"pattern":"^x","default":"x"},"b":{"type":["array","null"],"items":{"$ref":"#/$defs/N"}},
			"c":{"anyOf":[{"type":"null"},{"type":"object","required":["d"],"properties":{"d":{}}}]}},"required":["a"],
		"additionalProperties":false,"$defs":{"N":{"type":"number","minimum":0,"exclusiveMaximum":9}}},
		"outputSchema":{"type":"object","properties":{"n":{"type":"integer","multipleOf":2},"l":{"type":"array","items":{"type":"string","format":"uri"},"uniqueItems":true}},
			"required":["n"],"patternProperties":{"^x":{"type":"string"}},"not":{"required":["z"]}},
		"annotations":{"title":"A","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false},
		"execution":{"taskSupport":"optional"},"icons":[{"src":"https://a.example/i","mimeType":"image/png","sizes":["48x48"],"theme":"light"}],
		"_meta":{"a/b":1}}`,
	kindPrompt: `{"name":"p","title":"P","description":"d","arguments":[{"name":"a","title":"A","description":"d","required":true}],
		"icons":[{"src":"data:,"}],"_meta":{"a":1}}`,
	kindResource: `{"uri":"mem://r","name":"r","title":"R","description":"d","mimeType":"a/b","size":12,
		"annotations":{"audience":["user","assistant"],"priority":0.5,"lastModified":"2026-01-01T00:00:00Z"},"icons":[],"_meta":{}}`,
	kindTemplate: `{"uriTemplate":"mem://{a}","name":"r","title":"R","description":"d","mimeType":"a/b",
		"annotations":{"audience":["user"],"priority":1},"icons":[{"src":"data:,"}],"_meta":{}}`,
}

// published are the names of the kinds in MCP's schemas.
var published = map[string]string{kindTool: "Tool", kindPrompt: "Prompt", kindResource: "Resource",
	kindTemplate: "ResourceTemplate"}

// readOne returns the catalog of a server that offers one definition, and another one that is valid.
func readOne(kind string, raw json.RawMessage) Catalog {
	list := []json.RawMessage{raw, json.RawMessage(strings.NewReplacer(`"name":"t"`, `"name":"fine"`, `"name":"p"`, `"name":"fine"`,
		"mem://r", "mem://fine", "mem://{a}", "mem://fine/{a}").Replace(validDefinitions[kind]))}
	var o Offer
	switch kind {
	case kindTool:
		o.Tools = list
	case kindPrompt:
		o.Prompts = list
	case kindResource:
		o.Resources = list
	case kindTemplate:
		o.Templates = list
	}
	r := &Reader{DescriptionPrefix: "[external:x]", Trust: spec.TrustWarn, ID: "aaaaaa", Names: &Namer{Prefix: "ext_x_"},
		Budget: MaxCatalog}
	return r.Read(o)
}

// checkDefinition fails the test if what clients get of a server's definition is not valid in some revision, or if the
// server's other one is missing.
func checkDefinition(t *testing.T, kind string, raw json.RawMessage) {
	t.Helper()
	c := readOne(kind, raw)
	list := c.lists()[kind]
	if len(list) == 0 || len(list) == 1 && c.LeftOut == 0 {
		t.Errorf("of %s\nand a valid one comes %d, and %d are left out", raw, len(list), c.LeftOut)
	}
	for _, d := range list {
		checkValid(t, kind, raw, d.Raw)
	}
}

// checkValid checks one definition that clients get.
func checkValid(t *testing.T, kind string, raw, safe json.RawMessage) {
	t.Helper()
	output := rawjson.Shared(safe, "outputSchema")["outputSchema"]
	for _, version := range schematest.Revisions {
		shown := safe
		if version < "2026-07-28" && output != nil && rawjson.ShortText(rawjson.Shared(output, "type")["type"]) != "object" {
			shown, _ = rawjson.Without(safe, "outputSchema") // the gateway does so
		}
		if err := schematest.Validate(version, published[kind], shown); err != nil {
			t.Errorf("of %s\ncomes %s\n%v", raw, shown, err)
		}
	}
	if output != nil { // clients compile it
		var schema jsonschema.Schema
		if err := json.Unmarshal(output, &schema); err != nil {
			t.Errorf("of %s\ncomes the outputSchema %s: %v", raw, output, err)
		} else if _, err := schema.Resolve(nil); err != nil {
			t.Errorf("of %s\ncomes the outputSchema %s, which cannot be compiled: %v", raw, output, err)
		}
	}
}

// TestListsStayValid: whatever one member of a definition is, clients of each revision can read the list.
func TestListsStayValid(t *testing.T) {
	for kind, valid := range validDefinitions {
		for _, raw := range schematest.Mutations(valid) {
			if checkDefinition(t, kind, raw); t.Failed() {
				return
			}
		}
	}
}

func FuzzDefinitions(f *testing.F) {
	for kind, valid := range validDefinitions {
		f.Add(kind, []byte(valid))
	}
	f.Fuzz(func(t *testing.T, kind string, raw []byte) {
		if published[kind] != "" && json.Valid(raw) {
			checkDefinition(t, kind, raw)
		}
	})
}

// TestOddDefinitions: what is repaired means the same, and what cannot be is left out and said.
func TestOddDefinitions(t *testing.T) {
	tool := func(members string) string { return `{"name":"t",` + members + `}` }
	for _, tt := range []struct{ kind, raw, want, said string }{
		{kindTool, tool(`"inputSchema":{"type":"object","properties":null,"required":null}`), `"inputSchema":{"type":"object"}`, ""},
		{kindTool, tool(`"inputSchema":{"type":"object","properties":[],"required":{}}`), `"inputSchema":{"type":"object"}`, ""},
		{kindTool, tool(`"inputSchema":{"properties":{"a":{}}}`), `"inputSchema":{"properties":{"a":{}},"type":"object"}`, ""},
		{kindTool, tool(`"inputSchema":[]`), `"inputSchema":{"type":"object"}`, ""},
		{kindTool, tool(`"inputSchema":{"type":["object","null"]}`), `"inputSchema":{"type":"object"}`, ""},
		{kindTool, tool(`"inputSchema":{"properties":{"a":"string","b":true,"c":false,"d":null,"e":["string","null"]}}`),
			`"properties":{"a":{"type":"string"},"b":{},"c":{"not":{}},"d":{},"e":{"type":["string","null"]}}`, ""},
		{kindTool, tool(`"inputSchema":{"properties":{"a":{"type":"string","required":true,"enum":null,"description":null}}}`),
			`"properties":{"a":{"type":"string"}},"required":["a"]`, ""},
		{kindTool, tool(`"inputSchema":{"properties":{"a":{"minimum":0,"exclusiveMinimum":true,"maxLength":"5"}}}`),
			`"a":{"exclusiveMinimum":0,"maxLength":5}`, ""},
		{kindTool, tool(`"inputSchema":{"properties":{"a":{"const":null,"default":null,"enum":[null,1]}}}`),
			`"a":{"const":null,"default":null,"enum":[null,1]}`, ""},
		{kindTool, tool(`"inputSchema":{"properties":{"a":{"pattern":"(?!a)b\\p{L}"},"b":{"$ref":"#/none"}}}`), `"a":{"pattern":"(?!a)b\\p{L}"},"b":{"$ref":"#/none"}`, ""},
		{kindTool, tool(`"inputSchema":{"type":"array"}`), "", `tool "t" is left out: its schema is of type array, not object`},
		{kindTool, tool(`"inputSchema":5`), "", `tool "t" is left out: its schema is not an object`},
		{kindTool, tool(`"outputSchema":{"type":"object","properties":{"a":{"$ref":"#/$defs/none","minLength":{}}}}`),
			`"outputSchema":{"properties":{"a":{}},"type":"object"}`, `outputSchema: $ref`},
		{kindTool, tool(`"outputSchema":{"type":"object","properties":{"a":{"pattern":"\\_("}}}`),
			`"outputSchema":{"properties":{"a":{}},"type":"object"}`, `outputSchema: pattern`},
		{kindTool, tool(`"annotations":{"readOnlyHint":null,"title":null}`), `{"description":"[external:x]","inputSchema":{"type":"object"},"name":"ext_x_t"}`, ""},
		{kindTool, tool(`"annotations":{"readOnlyHint":"true","idempotentHint":7}`), `"annotations":{"readOnlyHint":true}`, ""},
		{kindTool, tool(`"annotations":"none"`), "", "annotations"},
		{kindTool, tool(`"icons":[{"src":null},{"src":"https://a.example/i","sizes":"48x48 any"}]`), `"icons":[{"sizes":["48x48","any"],"src":"https://a.example/i"}]`, ""},
		{kindPrompt, `{"name":"p","arguments":null}`, `{"description":"[external:x]","name":"ext_x_p"}`, ""},
		{kindPrompt, `{"name":"p","arguments":["a",{"name":"b","required":"true","description":null},null,{}]}`,
			`"arguments":[{"name":"a"},{"name":"b","required":true}]`, ""},
		{kindPrompt, `{"name":"p","arguments":{"a":{"required":true}}}`, `{"description":"[external:x]","name":"ext_x_p"}`, "arguments"},
		{kindResource, `{"uri":"mem://o","name":"o","size":"12","mimeType":null}`, `{"name":"o","size":12,"uri":"mem://o"}`, ""},
		{kindResource, `{"uri":"mem://o","name":null,"size":1.5}`, `{"name":"mem://o","uri":"mem://o"}`, "size"},
		{kindResource, `{"uri":"mem://o","name":"o","annotations":{"priority":7,"audience":"user","lastModified":"today"}}`,
			`"annotations":{"audience":["user"]}`, ""},
		{kindResource, `{"uri":"notes/1","name":"o"}`, "", `resource "o" is left out: its URI`},
	} {
		c := readOne(tt.kind, json.RawMessage(tt.raw))
		got := ""
		for _, d := range c.lists()[tt.kind] {
			got += string(d.Raw) + "\n"
		}
		said := strings.Join(c.Omissions, "\n")
		if !strings.Contains(got, tt.want) || !strings.Contains(said, tt.said) || tt.said == "" && said != "" {
			t.Errorf("%s\ngives %swant  %s\nsays  %q, want %q", tt.raw, got, tt.want, said, tt.said)
		}
	}
}

// TestStoredCatalogsAreRenewed: what an earlier version of Sandlot has stored is repaired, too.
func TestStoredCatalogsAreRenewed(t *testing.T) {
	c := Catalog{Loaded: true, Tools: []Definition{
		{Remote: "odd", Exposed: "ext_x_odd", Raw: json.RawMessage(`{"name":"ext_x_odd","inputSchema":{"type":"object","properties":null}}`)},
		{Remote: "far", Exposed: "ext_x_far", Raw: json.RawMessage(`{"name":"ext_x_far","inputSchema":{"type":"object","$ref":"http://x"}}`)}},
		Prompts:   []Definition{{Remote: "p", Exposed: "ext_x_p", Raw: json.RawMessage(`{"name":"ext_x_p","arguments":null}`)}},
		Resources: []Definition{{Remote: "mem://r", Exposed: "mem://r", Raw: json.RawMessage(`{"uri":"mem://r","name":"r","size":"1"}`)}}}
	c.Renew()
	if len(c.Tools) != 1 || len(c.Omissions) != 1 || !c.Valid {
		t.Errorf("%+v", c)
	}
	for kind, list := range c.lists() {
		for _, d := range list {
			checkValid(t, kind, d.Raw, d.Raw)
		}
	}
}

// TestImagesWithoutData: an image comes alone, unless the tool has promised data.
func TestImagesWithoutData(t *testing.T) {
	const image = `{"data":"QUFB","mimeType":"image/png","type":"image"}`
	plain, promised := json.RawMessage(`{"name":"t"}`), json.RawMessage(`{"name":"t","outputSchema":{"type":"object"}}`)
	for _, tt := range []struct {
		definition   json.RawMessage
		result, want string
	}{
		{plain, `{"content":[` + image + `],"structuredContent":{"a":1}}`, `{"content":[` + image + `,{"text":"{\"a\":1}","type":"text"}]}`},
		{plain, `{"content":[{"type":"text","text":"t"},` + image + `],"structuredContent":{"a":1}}`, `{"content":[{"type":"text","text":"t"},` + image + `]}`},
		{plain, `{"content":[{"type":"text","text":"t"}],"structuredContent":{"a":1}}`, `{"content":[{"type":"text","text":"t"}],"structuredContent":{"a":1}}`},
		{promised, `{"content":[` + image + `],"structuredContent":{"a":1}}`, `{"content":[` + image + `],"structuredContent":{"a":1}}`},
	} {
		if got := string(WithoutData(tt.definition, json.RawMessage(tt.result))); got != tt.want {
			t.Errorf("%s: %s", tt.result, got)
		}
	}
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]bool{"file:///x y": true, "mem://a": true, "urn:x": true, "data:,": true, "https://a.example": true,
		"https://[::1]:80/x": true, "demo://static/%zz": true, "notes/1": false, "": false, ":x": false, "1a:b": false, "http://": false,
		"http:x": false, "http://a:99999/": false, "http://a b/": false, "x:": false, "a\nb:c": false} {
		if isURI(uri) != want {
			t.Errorf("%q: %v", uri, !want)
		}
	}
}

func TestPatterns(t *testing.T) {
	for pattern, want := range map[string]bool{"": true, "^[a-z_]+$": true, `^\d{4}-\d{2}$`: true, `(a|b)*?c{2,}`: true, `[^\]\-]`: true,
		`(?:x)(?=y)`: true, `\_`: false, `\p{L}`: false, `(?i)x`: false, `(?<=a)b`: false, `[`: false, `(`: false, `)`: false, `a{`: false,
		`{1}`: false, `a{2,1}`: false, `*`: false, `a**`: false, `[z-a]`: false, `]`: false, `\`: false, `(?P<x>a)`: false, `a-b`: true} {
		if isPattern(pattern) != want {
			t.Errorf("%q: %v", pattern, !want)
		}
	}
}
