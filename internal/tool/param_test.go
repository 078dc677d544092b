package tool

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// sample has one parameter of each kind.
var sample = Tool{Name: "sample", Params: []Param{
	{Name: "code", Type: String, Required: true, Description: "What to run."},
	{Name: "language", Type: String, Enum: []string{"python", "node"}, Fold: true},
	{Name: "flavor", Type: String, Enum: []string{"small", "large"}},
	Param{Name: "timeout", Type: Integer}.Range(1, 300),
	Param{Name: "wait", Type: Number}.Range(0, 2.5),
	{Name: "count", Type: Integer},
	{Name: "background", Type: Boolean},
	{Name: "args", Type: Strings},
	{Name: "env", Type: Map},
}}

func TestParse(t *testing.T) {
	tests := []struct {
		name, raw string
		want      Args
	}{
		{"alone", `{"code":"1"}`, Args{"code": "1"}},
		{"empty text is given", `{"code":""}`, Args{"code": ""}},
		{"nested under params", `{"params":{"code":"1","timeout":3}}`, Args{"code": "1", "timeout": 3.0}},
		{"null counts as absent", `{"code":"1","timeout":null,"env":null}`, Args{"code": "1"}},
		{"null nested counts as absent", `{"params":{"code":"1","timeout":null}}`, Args{"code": "1"}},
		{"lower bound", `{"code":"1","timeout":1}`, Args{"code": "1", "timeout": 1.0}},
		{"upper bound", `{"code":"1","timeout":300}`, Args{"code": "1", "timeout": 300.0}},
		{"integer written as a fraction", `{"code":"1","timeout":3.0}`, Args{"code": "1", "timeout": 3.0}},
		{"number", `{"code":"1","wait":0.25}`, Args{"code": "1", "wait": 0.25}},
		{"folded enumeration", `{"code":"1","language":"PyThOn"}`, Args{"code": "1", "language": "python"}},
		{"boolean", `{"code":"1","background":false}`, Args{"code": "1", "background": false}},
		{"list", `{"code":"1","args":["a",""]}`, Args{"code": "1", "args": []string{"a", ""}}},
		{"empty list", `{"code":"1","args":[]}`, Args{"code": "1", "args": []string{}}},
		{"map", `{"code":"1","env":{"A":"b=c","E":""}}`, Args{"code": "1", "env": map[string]string{"A": "b=c", "E": ""}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sample.Parse(json.RawMessage(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Parse(%s) = %#v, want %#v", tt.raw, got, tt.want)
			}
		})
	}
}

func TestParseNothing(t *testing.T) {
	free := Tool{Name: "free", Params: []Param{{Name: "session_id", Type: String}}}
	for _, raw := range []string{"", "null", " null ", "{}", `{"params":{}}`, `{"session_id":null}`} {
		if a, err := free.Parse(json.RawMessage(raw)); err != nil || len(a) != 0 {
			t.Errorf("Parse(%q) = %v, %v, want no arguments", raw, a, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name, raw, argument string
		words               []string // that the message holds
	}{
		{"no object", `[1]`, "arguments", []string{"JSON object"}},
		{"broken", `{"code":`, "arguments", []string{"JSON object"}},
		{"missing", `{}`, "code", []string{`"code" is missing`, "What to run."}},
		{"missing by null", `{"code":null}`, "code", []string{`"code" is missing`}},
		{"unknown with a near name", `{"code":"1","timout":3}`, "timout", []string{`no argument "timout"`, `did you mean "timeout"?`}},
		{"unknown by case", `{"code":"1","Flavor":"small"}`, "Flavor", []string{`did you mean "flavor"?`}},
		{"unknown by its beginning", `{"code":"1","back":true}`, "back", []string{`did you mean "background"?`}},
		{"unknown with no near name", `{"code":"1","zzzzzz":3}`, "zzzzzz", []string{`no argument "zzzzzz"`, "allowed are: code, language"}},
		{"unknown and null", `{"code":"1","zzzzzz":null}`, "zzzzzz", []string{`no argument "zzzzzz"`}},
		{"unknown inside params", `{"params":{"code":"1","timout":3}}`, "timout", []string{`did you mean "timeout"?`}},
		{"params beside others", `{"params":{"code":"1"},"timeout":3}`, "params", []string{`no argument "params"`}},
		{"params that is no object", `{"params":"1"}`, "params", []string{`no argument "params"`}},
		{"string", `{"code":5}`, "code", []string{`"code" is 5`, "must be a string"}},
		{"enumeration", `{"code":"1","flavor":"huge"}`, "flavor", []string{`"huge"`, "one of small, large"}},
		{"enumeration with case", `{"code":"1","flavor":"SMALL"}`, "flavor", []string{`"SMALL"`, "one of small, large"}},
		{"below", `{"code":"1","timeout":0}`, "timeout", []string{"is 0", "an integer from 1 to 300"}},
		{"above", `{"code":"1","timeout":301}`, "timeout", []string{"is 301", "an integer from 1 to 300"}},
		{"no integer", `{"code":"1","timeout":1.5}`, "timeout", []string{"is 1.5", "an integer"}},
		{"integer as text", `{"code":"1","timeout":"10"}`, "timeout", []string{`is "10"`, "an integer"}},
		{"number above", `{"code":"1","wait":2.6}`, "wait", []string{"is 2.6", "a number from 0 to 2.5"}},
		{"boolean", `{"code":"1","background":1}`, "background", []string{"true or false"}},
		{"boolean as text", `{"code":"1","background":"true"}`, "background", []string{"true or false"}},
		{"list", `{"code":"1","args":"a"}`, "args", []string{"an array of strings"}},
		{"list of others", `{"code":"1","args":["a",1]}`, "args", []string{`["a",1]`, "an array of strings"}},
		{"list with null", `{"code":"1","args":[null]}`, "args", []string{"an array of strings"}},
		{"map", `{"code":"1","env":[]}`, "env", []string{"an object of strings"}},
		{"map of others", `{"code":"1","env":{"A":1}}`, "env", []string{"an object of strings"}},
		{"variable without a name", `{"code":"1","env":{"":"x"}}`, "env", []string{"an object of strings"}},
		{"variable whose name holds =", `{"code":"1","env":{"A=B":"x"}}`, "env", []string{"an object of strings"}},
		{"variable with a zero byte", `{"code":"1","env":{"A":"x\u0000y"}}`, "env", []string{"an object of strings"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := sample.Parse(json.RawMessage(tt.raw))
			if !fault.Is(err, fault.InvalidParameters) {
				t.Fatalf("Parse(%s) = %v, want an InvalidParameters fault", tt.raw, err)
			}
			if got := fault.From(err).Context["argument"]; got != tt.argument {
				t.Errorf("context names argument %q, want %q", got, tt.argument)
			}
			if fault.From(err).Context["allowed"] == nil {
				t.Errorf("context does not say what is allowed: %v", fault.From(err).Context)
			}
			for _, w := range tt.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("message %q does not say %q", err, w)
				}
			}
		})
	}
}

// A client's own text comes back in the message: it must not come back whole.
func TestParseClipsWhatWasGiven(t *testing.T) {
	long := strings.Repeat("ä", 10_000)
	for _, raw := range []string{`{"` + long + `":1}`, `{"code":"1","flavor":"` + long + `"}`} {
		_, err := sample.Parse(json.RawMessage(raw))
		if err == nil || len(err.Error()) > 600 {
			t.Errorf("message of %d bytes", len(err.Error()))
		}
		b, merr := json.Marshal(fault.From(err).Data())
		if merr != nil || len(b) > 1200 {
			t.Errorf("data of %d bytes, %v", len(b), merr)
		}
	}
}

func TestBoundsAreWrittenOut(t *testing.T) {
	big := Tool{Name: "big", Params: []Param{Param{Name: "limit", Type: Integer}.Range(1, 4<<20)}}
	_, err := big.Parse(json.RawMessage(`{"limit":0}`))
	if err == nil || !strings.Contains(err.Error(), "from 1 to 4194304") {
		t.Errorf("message %q, want the bounds as plain numbers", err)
	}
}

func TestParamsCanBeAnArgument(t *testing.T) {
	own := Tool{Name: "own", Params: []Param{{Name: "params", Type: Map}}}
	a, err := own.Parse(json.RawMessage(`{"params":{"a":"b"}}`))
	if err != nil || a.Map("params")["a"] != "b" {
		t.Errorf("Parse = %v, %v, want the argument params itself", a, err)
	}
}

func TestNoArguments(t *testing.T) {
	_, err := Tool{Name: "none"}.Parse(json.RawMessage(`{"x":1}`))
	if err == nil || !strings.Contains(err.Error(), "it takes none") {
		t.Errorf("error %v, want one that says that it takes none", err)
	}
}

func TestArgs(t *testing.T) {
	a := Args{"text": "t", "n": 7.0, "f": 1.5, "yes": true, "list": []string{"a"}, "map": map[string]string{"k": "v"}}
	if a.Text("text") != "t" || a.Text("none") != "" || a.Int("n", 1) != 7 || a.Int("none", 1) != 1 ||
		a.Float("f", 2) != 1.5 || a.Float("none", 2) != 2 || !a.Bool("yes") || a.Bool("none") ||
		a.Strings("list")[0] != "a" || a.Strings("none") != nil || a.Map("map")["k"] != "v" || a.Map("none") != nil {
		t.Errorf("an argument came out wrong: %v", a)
	}
	if !a.Has("n") || a.Has("none") {
		t.Error("Has is wrong")
	}
}

func TestSchema(t *testing.T) {
	b, err := json.Marshal(sample.Schema())
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Type                 string
		Required             []string
		AdditionalProperties *bool
		Properties           map[string]struct {
			Type                 string
			Enum                 []string
			Minimum, Maximum     *float64
			Items                *struct{ Type string }
			AdditionalProperties *struct{ Type string }
		}
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "object" || !reflect.DeepEqual(s.Required, []string{"code"}) || s.AdditionalProperties == nil || *s.AdditionalProperties {
		t.Errorf("schema %s", b)
	}
	if len(s.Properties) != len(sample.Params) {
		t.Errorf("%d properties, want %d", len(s.Properties), len(sample.Params))
	}
	if p := s.Properties["timeout"]; p.Type != "integer" || p.Minimum == nil || *p.Minimum != 1 || p.Maximum == nil || *p.Maximum != 300 {
		t.Errorf("timeout: %+v", p)
	}
	if p := s.Properties["args"]; p.Type != "array" || p.Items == nil || p.Items.Type != "string" {
		t.Errorf("args: %+v", p)
	}
	if p := s.Properties["env"]; p.Type != "object" || p.AdditionalProperties == nil || p.AdditionalProperties.Type != "string" {
		t.Errorf("env: %+v", p)
	}
	if p := s.Properties["flavor"]; !reflect.DeepEqual(p.Enum, []string{"small", "large"}) {
		t.Errorf("flavor: %+v", p)
	}
	if _, ok := (Tool{}).Schema()["required"]; ok {
		t.Error("an empty list of required arguments is written: older drafts refuse that")
	}
}
