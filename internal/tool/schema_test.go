package tool

import (
	"encoding/json"
	"testing"
)

// compare compares a schema with JSON.
func compare(t *testing.T, o *Object, want string) {
	t.Helper()
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	said, _ := json.Marshal(w)
	if got, err := json.Marshal(o.Schema()); err != nil || string(got) != string(said) {
		t.Errorf("schema\n%s, %v, want\n%s", got, err, said)
	}
}

func TestInputSchema(t *testing.T) {
	compare(t, sample.Input, `{"type":"object","required":["code"],"additionalProperties":false,"properties":{
		"code":{"type":"string","description":"What to run."},
		"language":{"type":"string","enum":["python","node"],"default":"python"},
		"flavor":{"type":"string","enum":["small","large"]},
		"timeout":{"type":"integer","minimum":1,"maximum":300},
		"wait":{"type":"number","minimum":0,"maximum":2.5},
		"count":{"type":"integer"},
		"background":{"type":"boolean"},
		"args":{"type":"array","items":{"type":"string"}},
		"env":{"type":"object","additionalProperties":{"type":"string"}},
		"stdin":{"type":"string"},
		"start":{"type":"object","required":["program"],"additionalProperties":false,"properties":{
			"program":{"type":"string","description":"Which one."},"shell":{"type":"boolean"}}}}}`)
	// An empty list of required arguments is not written: older drafts refuse that.
	compare(t, nil, `{"type":"object","properties":{},"additionalProperties":false}`)
	compare(t, InputOf[struct{}](), `{"type":"object","properties":{},"additionalProperties":false}`)
}

type sampleOutput struct {
	ID   string `json:"id"`
	Code *int   `json:"code"`
	Rows []struct {
		Name string `json:"name"`
		Size int    `json:"size"`
	} `json:"rows"`
	Refused []struct {
		Host string `json:"host"`
		Why  string `json:"why"`
	} `json:"refused,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
}

// What a tool does not name is in its results, and no promise.
func TestOutputSchema(t *testing.T) {
	compare(t, OutputOf[sampleOutput]([]string{"id"}, Prop{Name: "id", Description: "Its id."},
		Prop{Name: "code", Nullable: true}, Prop{Name: "rows"},
		Prop{Name: "refused", Description: "Hosts.", Props: []Prop{{Name: "host", Description: "Which."}}}),
		`{"type":"object","required":["id"],"properties":{
			"id":{"type":"string","description":"Its id."},
			"code":{"type":["integer","null"]},
			"rows":{"type":"array","items":{"type":"object"}},
			"refused":{"type":"array","description":"Hosts.",
				"items":{"type":"object","properties":{"host":{"type":"string","description":"Which."}}}}}}`)
}

// A property without a field is a mistake that shows when the schema is first used: the golden files use all.
func TestPropertiesHaveFields(t *testing.T) {
	for name, make := range map[string]func(){
		"of arguments": func() { InputOf[sampleInput](Prop{Name: "nothing"}).Schema() },
		"of a result":  func() { OutputOf[sampleOutput](nil, Prop{Name: "nothing"}).Schema() },
		"of a row": func() {
			OutputOf[sampleOutput](nil, Prop{Name: "rows", Props: []Prop{{Name: "nothing"}}}).Schema()
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it is taken", name)
				}
			}()
			make()
		}()
	}
}

// Models are not told what Decode knows, nor what is hidden.
func TestShownSchema(t *testing.T) {
	in := InputOf[sampleInput](Prop{Name: "language", Description: "Which.", Enum: []string{"python", "node"}},
		Prop{Name: "flavor", Enum: []string{"a", "b", "c", "d", "e", "f"}}, Prop{Name: "timeout"}.Range(1, 300),
		Prop{Name: "count", Hidden: true, Default: 1},
		Prop{Name: "start", Props: []Prop{{Name: "shell", Hidden: true}}})
	got, _ := json.Marshal(in.Shown())
	want := `{"properties":{"args":{"items":{"type":"string"},"type":"array"},"background":{"type":"boolean"},` +
		`"code":{"type":"string"},"env":{"type":"object"},"flavor":{"type":"string"},` +
		`"language":{"description":"Which.","enum":["python","node"],"type":"string"},` +
		`"start":{"properties":{"program":{"type":"string"}},"required":["program"],"type":"object"},` +
		`"stdin":{"type":"string"},"timeout":{"type":"integer"},"wait":{"type":"number"}},` +
		`"required":["code"],"type":"object"}`
	if string(got) != want {
		t.Errorf("models get\n%s, want\n%s", got, want)
	}
	all := in.Schema()["properties"].(map[string]any)
	if all["count"] == nil || all["timeout"].(map[string]any)["maximum"] == nil {
		t.Errorf("the whole schema: %v", all)
	}
	if got, _ := json.Marshal((*Object)(nil).Shown()); string(got) != `{"properties":{},"type":"object"}` {
		t.Errorf("without arguments: %s", got)
	}
}
