package catalog

import (
	"encoding/json"
	"testing"
)

// TestTypedArguments: a text stands for another value only where the schema leaves no doubt.
func TestTypedArguments(t *testing.T) {
	definition := json.RawMessage(`{"inputSchema":{"type":"object","$defs":{"N":{"type":"integer"}},"properties":{
		"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"l":{"type":"array","items":{"type":"integer"}},
		"o":{"type":"object","properties":{"i":{"type":"integer"}}},"s":{"type":"string"},"any":{},"e":{"enum":[1,"1"]},
		"in":{"type":["integer","null"]},"is":{"type":["integer","string"]},"ref":{"$ref":"#/$defs/N"},
		"u":{"anyOf":[{"type":"integer"},{"type":"null"}]},"us":{"anyOf":[{"type":"integer"},{"type":"string"}]},"level":{"enum":[1,2]},
		"all":{"allOf":[{"$ref":"#/$defs/N"},{"minimum":1}]}}}}`)
	for given, want := range map[string]string{
		`{"i":"5"}`:                             `{"i":5}`,
		`{"i":" 12345678901234567890 "}`:        `{"i":12345678901234567890}`,
		`{"i":"5.5"}`:                           `{"i":"5.5"}`,
		`{"i":"five"}`:                          `{"i":"five"}`,
		`{"i":"true"}`:                          `{"i":"true"}`,
		`{"i":"05"}`:                            `{"i":"05"}`,
		`{"n":"1e3"}`:                           `{"n":1e3}`,
		`{"n":"2"}`:                             `{"n":2}`,
		`{"b":"false"}`:                         `{"b":false}`,
		`{"b":"True"}`:                          `{"b":true}`,
		`{"b":"yes"}`:                           `{"b":"yes"}`,
		`{"b":"1"}`:                             `{"b":"1"}`,
		`{"l":"[1, 2]"}`:                        `{"l":[1, 2]}`,
		`{"l":["1",2]}`:                         `{"l":[1,2]}`,
		`{"l":"1,2"}`:                           `{"l":"1,2"}`,
		`{"o":"{\"i\":1}"}`:                     `{"o":{"i":1}}`,
		`{"o":{"i":"1"}}`:                       `{"o":{"i":1}}`,
		`{"s":"5"}`:                             `{"s":"5"}`,
		`{"any":"5","e":"1","is":"5","us":"5"}`: `{"any":"5","e":"1","is":"5","us":"5"}`,
		`{"in":"5","ref":"6","u":"7"}`:          `{"in":5,"ref":6,"u":7}`,
		`{"i":5,"s":"x","unknown":"5"}`:         `{"i":5,"s":"x","unknown":"5"}`,
		`{"in":"null"}`:                         `{"in":"null"}`,
		`{"level":"2","all":"3"}`:               `{"level":2,"all":3}`,
		`[1]`:                                   `[1]`,
	} {
		got := TypedArguments(definition, json.RawMessage(given))
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || string(encoded(a)) != string(encoded(b)) {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}
