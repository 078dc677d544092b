package connection

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sandlot/internal/hub"
	"sandlot/internal/servers/catalog"
)

const definition = `{"name": "t", "inputSchema": {"type": "object", "properties": {
	"text": {"type": "string"}, "maybe": {"type": ["string", "null"]}, "union": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
	"n": {"type": "integer"}, "x": {"type": "number"}, "optional": {"anyOf": [{"type": "number"}, {"type": "null"}]},
	"flag": {"type": "boolean"}, "o": {"type": "object"}, "list": {"type": "array", "items": {"type": "string"}},
	"numbers": {"type": "array", "items": {"type": "number"}}, "ref": {"$ref": "#/$defs/Point"}, "code": {"enum": ["1", "2"]},
	"level": {"enum": [1, 2]}, "free": {}, "mixed": {"type": ["string", "object"]}},
	"$defs": {"Point": {"type": "object"}}}}`

// A value on the command line has the type that the tool takes.
func TestArgumentsByType(t *testing.T) {
	var server hub.Server
	server.Tools = []hub.ServerTool{{Definition: catalog.Definition{Exposed: "ext_t", Raw: []byte(definition)}}}
	s := schemaOf(server, "ext_t")
	for word, want := range map[string]string{
		"text=5": `"5"`, "text=true": `"true"`, "text={\"a\":1}": `"{\"a\":1}"`, "text=": `""`, "text=null": `"null"`,
		"text=a=b": `"a=b"`, "text=1e3": `"1e3"`, "text=\"q\"": `"\"q\""`, "maybe=7": `"7"`, "union=7": `"7"`,
		"n=5": `5`, "n=-5": `-5`, "x=1.5": `1.5`, "x=2": `2`, "optional=2": `2`, "optional=null": `null`,
		"flag=true": `true`, "flag=False": `false`, "o={\"a\": \"5\"}": `{"a":"5"}`, "ref={\"x\": 1}": `{"x":1}`,
		"list=[\"a\"]": `["a"]`, "list=5": `["5"]`, "numbers=5": `[5]`, "numbers=[1,2]": `[1,2]`, "code=1": `"1"`,
		"level=1": `1`, "free=5": `5`, "free=abc": `"abc"`, "unknown=5": `5`, "mixed=5": `"5"`, "mixed={}": `{}`,
		"n=12345678901234567890": `12345678901234567890`, "text:={\"a\":1}": `{"a":1}`,
	} {
		ask := map[string]any{}
		key, text, _ := strings.Cut(word, "=")
		err := s.set(ask, key, text)
		got, _ := json.Marshal(ask[strings.TrimSuffix(key, ":")])
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", word, got, err, want)
		}
	}
	for word, want := range map[string]string{"n=abc": "a whole number", "n=1.5": "a whole number", "x=abc": "a number",
		"flag=yes": "true or false", "o=abc": "a JSON object", "o=[1]": "a JSON object", "ref=5": "a JSON object",
		"level=x": "a whole number", "free:=abc": "not JSON"} {
		key, text, _ := strings.Cut(word, "=")
		if err := s.set(map[string]any{}, key, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", word, err, want)
		}
	}
	ask := map[string]any{}
	for _, text := range []string{"a", "5"} {
		if err := s.set(ask, "list", text); err != nil {
			t.Error(err)
		}
	}
	if got, _ := json.Marshal(ask); !bytes.Equal(got, []byte(`{"list":["a","5"]}`)) {
		t.Errorf("a list in two words: %s", got)
	}
	// Where no schema is known, JSON counts as JSON.
	var none schema
	for text, want := range map[string]string{"5": "5", "abc": `"abc"`, `{"a":1}`: `{"a":1}`} {
		if got, err := none.argument("a", text); err != nil || string(got) != want {
			t.Errorf("without a schema, %s: %s, %v", text, got, err)
		}
	}
	// A schema that leads nowhere, or to itself, ends.
	for _, text := range []string{`{"properties":{"a":{"$ref":"#/properties/a"}}}`, `{"properties":{"a":{"$ref":"x"}}}`,
		`{"properties":5}`} {
		var odd schema
		if err := json.Unmarshal([]byte(text), &odd); err != nil {
			t.Fatal(err)
		}
		if got, err := odd.argument("a", "5"); err != nil || string(got) != "5" {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}
