package tool

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// sampleInput has one argument of each kind.
type sampleInput struct {
	Code     string `json:"code"`
	Language string `json:"language,omitempty"`
	Flavor   string `json:"flavor,omitempty"`
	sampleTimes
	Count      int               `json:"count,omitempty"`
	Background bool              `json:"background,omitempty"`
	Args       []string          `json:"args,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Stdin      *string           `json:"stdin,omitempty"`
	Start      sampleStart       `json:"start,omitempty"`
}

type sampleTimes struct {
	Timeout int64   `json:"timeout,omitempty"`
	Wait    float64 `json:"wait,omitempty"`
}

type sampleStart struct {
	Program string `json:"program"`
	Shell   bool   `json:"shell,omitempty"`
}

var sample = Tool{Name: "sample", Input: InputOf[sampleInput](
	Prop{Name: "code", Description: "What to run."},
	Prop{Name: "language", Enum: []string{"python", "node"}, Default: "python"},
	Prop{Name: "flavor", Enum: []string{"small", "large"}},
	Prop{Name: "timeout"}.Range(1, 300),
	Prop{Name: "wait"}.Range(0, 2.5),
	Prop{Name: "start", Props: []Prop{{Name: "program", Description: "Which one."}}},
)}

func TestDecode(t *testing.T) {
	text := ""
	tests := []struct {
		name, raw string
		want      sampleInput
	}{
		{"alone", `{"code":"1"}`, sampleInput{Code: "1"}},
		{"empty text is given", `{"code":"","stdin":""}`, sampleInput{Stdin: &text}},
		{"nested under params", `{"params":{"code":"1","timeout":3}}`,
			sampleInput{Code: "1", sampleTimes: sampleTimes{Timeout: 3}}},
		{"null counts as absent", `{"code":"1","timeout":null,"env":null,"stdin":null,"start":null}`,
			sampleInput{Code: "1"}},
		{"null nested counts as absent", `{"params":{"code":"1","timeout":null}}`, sampleInput{Code: "1"}},
		{"lower bound", `{"code":"1","timeout":1}`, sampleInput{Code: "1", sampleTimes: sampleTimes{Timeout: 1}}},
		{"upper bound", `{"code":"1","timeout":300}`, sampleInput{Code: "1", sampleTimes: sampleTimes{Timeout: 300}}},
		{"integer written as a fraction", `{"code":"1","timeout":3.0}`,
			sampleInput{Code: "1", sampleTimes: sampleTimes{Timeout: 3}}},
		{"number", `{"code":"1","wait":0.25}`, sampleInput{Code: "1", sampleTimes: sampleTimes{Wait: 0.25}}},
		{"enumeration", `{"code":"1","language":"node"}`, sampleInput{Code: "1", Language: "node"}},
		{"boolean", `{"code":"1","background":true}`, sampleInput{Code: "1", Background: true}},
		{"values as text", `{"code":"1","timeout":"5","wait":" 0.5","background":"True","args":"[\"a\"]","env":"{\"A\":\"1\"}","start":"{\"program\":\"p\",\"shell\":\"true\"}"}`,
			sampleInput{Code: "1", sampleTimes: sampleTimes{5, 0.5}, Background: true, Args: []string{"a"},
				Env: map[string]string{"A": "1"}, Start: sampleStart{"p", true}}},
		{"text stays text", `{"code":"5","stdin":"true"}`, sampleInput{Code: "5", Stdin: ptr("true")}},
		{"list", `{"code":"1","args":["a",""]}`, sampleInput{Code: "1", Args: []string{"a", ""}}},
		{"empty list", `{"code":"1","args":[]}`, sampleInput{Code: "1", Args: []string{}}},
		{"map", `{"code":"1","env":{"A":"b=c","E":""}}`,
			sampleInput{Code: "1", Env: map[string]string{"A": "b=c", "E": ""}}},
		{"object", `{"code":"1","start":{"program":"p","shell":true}}`,
			sampleInput{Code: "1", Start: sampleStart{"p", true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode[sampleInput](sample, json.RawMessage(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Decode(%s) = %#v, want %#v", tt.raw, got, tt.want)
			}
		})
	}
}

func ptr(s string) *string { return &s }

func TestDecodeNothing(t *testing.T) {
	type input struct {
		SessionID string `json:"session_id,omitempty"`
	}
	free := Tool{Name: "free", Input: InputOf[input]()}
	for _, raw := range []string{"", "null", " null ", "{}", `{"params":{}}`, `{"session_id":null}`} {
		if in, err := Decode[input](free, json.RawMessage(raw)); err != nil || in != (input{}) {
			t.Errorf("Decode(%q) = %v, %v, want no arguments", raw, in, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name, raw, argument string
		words               []string // that the message holds
	}{
		{"no object", `[1]`, "arguments", []string{"JSON object"}},
		{"broken", `{"code":`, "arguments", []string{"JSON object"}},
		{"missing", `{}`, "code", []string{`"code" is missing`, "What to run."}},
		{"missing by null", `{"code":null}`, "code", []string{`"code" is missing`}},
		{"unknown with a near name", `{"code":"1","timout":3}`, "timout",
			[]string{`no argument "timout"`, `did you mean "timeout"?`}},
		{"unknown by case", `{"code":"1","Flavor":"small"}`, "Flavor", []string{`did you mean "flavor"?`}},
		{"unknown by its beginning", `{"code":"1","back":true}`, "back", []string{`did you mean "background"?`}},
		{"unknown with no near name", `{"code":"1","zzzzzz":3}`, "zzzzzz",
			[]string{`no argument "zzzzzz"`, "allowed are: code, language"}},
		{"unknown and null", `{"code":"1","zzzzzz":null}`, "zzzzzz", []string{`no argument "zzzzzz"`}},
		{"unknown inside params", `{"params":{"code":"1","timout":3}}`, "timout", []string{`did you mean "timeout"?`}},
		{"params beside others", `{"params":{"code":"1"},"timeout":3}`, "params", []string{`no argument "params"`}},
		{"params that is not an object", `{"params":"1"}`, "params", []string{`no argument "params"`}},
		{"string", `{"code":5}`, "code", []string{`"code" is 5`, "must be a string"}},
		{"enumeration", `{"code":"1","flavor":"huge"}`, "flavor", []string{`"huge"`, "one of small, large"}},
		{"enumeration with case", `{"code":"1","flavor":"SMALL"}`, "flavor",
			[]string{`"SMALL"`, "one of small, large"}},
		{"below", `{"code":"1","timeout":0}`, "timeout", []string{"is 0", "an integer from 1 to 300"}},
		{"above", `{"code":"1","timeout":301}`, "timeout", []string{"is 301", "an integer from 1 to 300"}},
		{"no integer", `{"code":"1","timeout":1.5}`, "timeout", []string{"is 1.5", "an integer"}},
		{"a text that is no integer", `{"code":"1","timeout":"ten"}`, "timeout", []string{`is "ten"`, "an integer"}},
		{"an integer as text that is too large", `{"code":"1","timeout":"301"}`, "timeout", []string{"an integer from 1 to 300"}},
		{"number above", `{"code":"1","wait":2.6}`, "wait", []string{"is 2.6", "a number from 0 to 2.5"}},
		{"boolean", `{"code":"1","background":1}`, "background", []string{"true or false"}},
		{"a text that is no boolean", `{"code":"1","background":"yes"}`, "background", []string{"true or false"}},
		{"a list of others as text", `{"code":"1","args":"[1]"}`, "args", []string{"an array of strings"}},
		{"list", `{"code":"1","args":"a"}`, "args", []string{"an array of strings"}},
		{"list of others", `{"code":"1","args":["a",1]}`, "args", []string{`["a",1]`, "an array of strings"}},
		{"list with null", `{"code":"1","args":[null]}`, "args", []string{"an array of strings"}},
		{"map", `{"code":"1","env":[]}`, "env", []string{"an object of strings"}},
		{"map of others", `{"code":"1","env":{"A":1}}`, "env", []string{"an object of strings"}},
		{"variable without a name", `{"code":"1","env":{"":"x"}}`, "env", []string{"an object of strings"}},
		{"variable whose name holds =", `{"code":"1","env":{"A=B":"x"}}`, "env", []string{"an object of strings"}},
		{"an object that is none", `{"code":"1","start":"p"}`, "start", []string{`"start" is "p"`, "an object {program, shell?}"}},
		{"unknown, and known in an object", `{"code":"1","program":"p"}`, "program",
			[]string{"it belongs into start: {program, shell?}"}},
		{"missing in an object", `{"code":"1","start":{}}`, "start.program",
			[]string{`"start.program" is missing`, "Which one."}},
		{"unknown in an object", `{"code":"1","start":{"program":"p","shel":true}}`, "start.shel",
			[]string{`start has no argument "start.shel"`, `did you mean "start.shell"?`}},
		{"wrong in an object", `{"code":"1","start":{"program":5}}`, "start.program",
			[]string{`"start.program" is 5`, "a string"}},
		{"more than a number holds", `{"code":"1","count":1e300}`, "count", []string{"an integer"}},
		{"variable with a zero byte", `{"code":"1","env":{"A":"x\u0000y"}}`, "env", []string{"an object of strings"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Decode[sampleInput](sample, json.RawMessage(tt.raw))
			if !fault.Is(err, fault.InvalidParameters) {
				t.Fatalf("Decode(%s) = %v, want an InvalidParameters fault", tt.raw, err)
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
func TestDecodeClipsWhatWasGiven(t *testing.T) {
	long := strings.Repeat("ä", 10_000)
	for _, raw := range []string{`{"` + long + `":1}`, `{"code":"1","flavor":"` + long + `"}`} {
		_, err := Decode[sampleInput](sample, json.RawMessage(raw))
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
	type input struct {
		Limit int `json:"limit,omitempty"`
	}
	big := Tool{Name: "big", Input: InputOf[input](Prop{Name: "limit"}.Range(1, 4<<20))}
	_, err := Decode[input](big, json.RawMessage(`{"limit":0}`))
	if err == nil || !strings.Contains(err.Error(), "from 1 to 4194304") {
		t.Errorf("message %q, want the bounds as plain numbers", err)
	}
}

func TestParamsCanBeAnArgument(t *testing.T) {
	type input struct {
		Params map[string]string `json:"params,omitempty"`
	}
	own := Tool{Name: "own", Input: InputOf[input]()}
	in, err := Decode[input](own, json.RawMessage(`{"params":{"a":"b"}}`))
	if err != nil || in.Params["a"] != "b" {
		t.Errorf("Decode = %v, %v, want the argument params itself", in, err)
	}
}

func TestNoArguments(t *testing.T) {
	_, err := Decode[struct{}](Tool{Name: "none"}, json.RawMessage(`{"x":1}`))
	if err == nil || !strings.Contains(err.Error(), "it takes none") {
		t.Errorf("error %v, want one that says that it takes none", err)
	}
}
