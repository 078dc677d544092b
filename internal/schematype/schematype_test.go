package schematype

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTypes(t *testing.T) {
	for part, want := range map[string]string{
		`{"type":"string"}`:                                      "string",
		`{"type":["integer","null"]}`:                            "integer null",
		`{"enum":[1,"a",null,1.5,true,{},[]]}`:                   "array boolean integer null number object string",
		`{"const":2}`:                                            "integer",
		`{"$ref":"#/$defs/N"}`:                                   "integer",
		`{"$ref":"#/$defs/a~1b"}`:                                "boolean",
		`{"$ref":"#/$defs/Alias"}`:                               "integer",
		`{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/a~1b"}]}`: "boolean integer",
		`{"oneOf":[{"type":"integer"},{"enum":["x"]}]}`:          "integer string",
		`{"allOf":[{"minimum":1},{"type":["number","null"]}]}`:   "null number",
		`{"allOf":[{"type":"number"},{"type":"integer"}]}`:       "integer",
		`{"anyOf":[{"type":"integer"},{}]}`:                      "any",
		`{}`:                                                     "any",
		`{"$ref":"#/$defs/None"}`:                                "any",
		`{"$ref":"elsewhere"}`:                                   "any",
		`{"$ref":"#/$defs/Loop"}`:                                "any",
		`{"$ref":"#/$defs/Self"}`:                                "any",
		`{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/Self"}]}`: "any",
		`{"allOf":[{"type":"integer"},{"$ref":"#/$defs/Loop"}]}`: "integer",
	} {
		root := decode(t, `{"$defs":{"N":{"type":"integer"},"a/b":{"type":"boolean"},"Alias":{"$ref":"#/$defs/N"},
			"Loop":{"$ref":"#/$defs/Loop"},"Self":{"anyOf":[{"$ref":"#/$defs/Self"}]}},"part":`+part+`}`)
		types := New(root).Types(root["part"])
		got := strings.Join(slices.Sorted(maps.Keys(types)), " ")
		if types == nil {
			got = "any"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", part, got, want)
		}
	}
	if got := New(nil).Types(true); got != nil {
		t.Errorf("a schema that is not an object: %v", got)
	}
}

// TestEachPartOnce: a small schema whose parts name each other many times is read in no time. Without that, it takes
// 40 to the power of 30 steps.
func TestEachPartOnce(t *testing.T) {
	var defs []string
	for i := range 30 {
		next := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)
		defs = append(defs, fmt.Sprintf(`"d%d":{"anyOf":[%s]}`, i, strings.Join(slices.Repeat([]string{next}, 40), ",")))
	}
	for _, last := range []string{`{"type":"integer"}`, `{"$ref":"#/$defs/d0"}`, `{"anyOf":[{"$ref":"#/$defs/d0"}]}`} {
		root := decode(t, `{"$defs":{`+strings.Join(defs, ",")+`,"d30":`+last+`},"part":{"$ref":"#/$defs/d0"}}`)
		types := New(root).Types(root["part"])
		if want := strings.Contains(last, "integer"); types["integer"] != want {
			t.Errorf("%s: %v", last, types)
		}
	}
}

func TestAt(t *testing.T) {
	root := decode(t, `{"a":{"b/c":{"d~e":1}},"l":[{"x":2},3],"":{"":4}}`)
	for pointer, want := range map[string]string{"/a/b~1c/d~0e": "1", "/l/0/x": "2", "/l/1": "3", "//": "4", "/l": "[map[x:2] 3]",
		"/l/2": "", "/l/-1": "", "/l/x": "", "/none": "", "/a/b~1c/d~0e/f": "", "a": "", "l/1": ""} {
		got, ok := At(root, pointer)
		if ok != (want != "") || ok && fmt.Sprint(got) != want || !ok && got != nil {
			t.Errorf("%q: %v, %v; want %q", pointer, got, ok, want)
		}
	}
	if got, ok := At(root, ""); !ok || len(got.(map[string]any)) != 3 {
		t.Errorf("the whole: %v, %v", got, ok)
	}
}

func TestKind(t *testing.T) {
	for text, want := range map[string]string{`5`: "integer", ` -5 `: "integer", `1e3`: "integer", `1.5`: "number",
		`"a"`: "string", `true`: "boolean", `null`: "null", `{}`: "object", `[1]`: "array", `abc`: "", ``: "", `05`: "",
		`1e999`: "number"} {
		if got := Kind(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
