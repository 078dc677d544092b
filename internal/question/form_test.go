package question

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sandlot/internal/servers/spec"
)

const schema = `{"type":"object","required":["colour","count"],"properties":{
	"colour":{"type":"string","title":"Colour","enum":["red","blue"]},
	"count":{"type":"integer","minimum":1,"maximum":9},
	"share":{"type":"number","default":0.5},
	"long":{"type":"integer","default":null},
	"sure":{"type":"boolean","default":"maybe"},
	"why":{"type":"string","minLength":2,"maxLength":4},
	"size":{"type":"string","oneOf":[{"const":"s","title":"small"},{"const":"l"}]}}}`

func TestForm(t *testing.T) {
	for content, want := range map[string]string{
		`{"colour":"red","count":3}`:                             `{"colour":"red","count":3,"share":0.5}`,
		`{"colour":"red","count":"3","share":"1","sure":"true"}`: `{"colour":"red","count":3,"share":1,"sure":true}`,
		`{"colour":"blue","count":9,"sure":false,"why":"né","size":"l"}`: `{"colour":"blue","count":9,"share":0.5,` +
			`"size":"l","sure":false,"why":"né"}`,
		`{"colour":"red"}`:                                     `the form needs "count"`,
		`{"colour":"green","count":3}`:                         `"colour" must be one of ["red" "blue"]`,
		`{"colour":"red","count":3.5}`:                         `"count" must be a number (integer)`,
		`{"colour":"red","count":10}`:                          `"count" must be at most 9`,
		`{"colour":"red","count":"Inf"}`:                       `"count" must be a number (integer)`,
		`{"colour":"red","count":3,"why":"x"}`:                 `"why" must have at least 2`,
		`{"colour":"red","count":3,"why":"xxxxx"}`:             `"why" must have at most 4`,
		`{"colour":"red","count":3,"why":{}}`:                  `"why" must be a text`,
		`{"colour":"red","count":3,"sure":1}`:                  `"sure" must be true or false`,
		`{"colour":"red","count":3,"why":null}`:                `"why" must not be null`,
		`{"colour":"red","count":null}`:                        `"count" must not be null`,
		`{"colour":"red","count":"0x3"}`:                       `"count" must be a number (integer)`,
		`{"colour":"red","count":3,"share":"0x1"}`:             `"share" must be a number (number)`,
		`{"colour":"red","count":3,"share":"1_0"}`:             `"share" must be a number (number)`,
		`{"colour":"red","count":3,"share":"NaN"}`:             `"share" must be a number (number)`,
		`{"colour":"red","count":"03"}`:                        `"count" must be a number (integer)`,
		`{"colour":"red","count":3,"long":9007199254740993}`:   `{"colour":"red","count":3,"long":9007199254740993,"share":0.5}`,
		`{"colour":"red","count":3,"long":"9007199254740993"}`: `{"colour":"red","count":3,"long":9007199254740993,"share":0.5}`,
		`{"colour":"red","count":3,"share":1e2}`:               `{"colour":"red","count":3,"share":1e2}`,
		`{"colour":"red","count":3,"x":1}`:                     `the form has no field "x"`,
	} {
		f, err := ParseForm(json.RawMessage(schema), spec.SafeText)
		if err != nil {
			t.Fatal(err)
		}
		var values map[string]json.RawMessage
		if err := json.Unmarshal([]byte(content), &values); err != nil {
			t.Fatal(err)
		}
		got, err := f.Fill(values)
		if text := string(got); text != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %s, %v; want %s", content, text, err, want)
		}
	}
}

// TestFormsRefused: a form is shown as it is, or not at all.
func TestFormsRefused(t *testing.T) {
	for schema, want := range map[string]string{
		`7`:                                      "not an object",
		`{"properties":{"x":{"type":"object"}}}`: `the type "object"`,
		`{"properties":{"x":{"type":"array","items":{"enum":["a"]}}}}`:          `the type "array"`,
		`{"properties":{"x":{"type":["string"]}}}`:                              "is not text, number or choice",
		`{"properties":{"x":{"type":"integer","enum":["1"]}}}`:                  `the type "integer"`,
		`{"properties":{"a\u202eb":{"type":"string"}}}`:                         "a name that cannot be shown",
		`{"properties":{"":{"type":"string"}}}`:                                 "a name that cannot be shown",
		`{"properties":{"x":{"type":"string","enum":["a\u0007"]}}}`:             "the choices of",
		`{"properties":{"a\nb":{"type":"string"}}}`:                             "a name that cannot be shown",
		`{"properties":{"a\tb":{"type":"string"}}}`:                             "a name that cannot be shown",
		`{"properties":{"a\u2028b":{"type":"string"}}}`:                         "a name that cannot be shown",
		`{"properties":{"x":{"type":"string","enum":["a\nb"]}}}`:                "the choices of",
		`{"properties":{"x":{"type":"string","oneOf":[{"const":"a\u2029b"}]}}}`: "the choices of",
		`{"properties":{` + many(33) + `}}`:                                     "has 33 fields",
	} {
		_, err := ParseForm(json.RawMessage(schema), spec.SafeText)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", schema, err, want)
		}
	}
	f, err := ParseForm(json.RawMessage(`{"properties":{"x":{"type":"string","title":"a\nq_1  (the answer\u2028b",`+
		`"description":"a\n\n\tb\u2029c"}}}`), spec.SafeText)
	if err != nil || f.Fields[0].Title != "a q_1 (the answer b" || f.Fields[0].Description != "a b c" {
		t.Errorf("lines of titles and descriptions: %+v, %v", f, err)
	}
	if f, err := ParseForm(nil, spec.SafeText); err != nil || len(f.Fields) != 0 {
		t.Errorf("no form: %v, %v", f, err)
	}
}

// TestAnswerEndedForm: an answer that comes when the question has ended is none, also if it was found open.
func TestAnswerEndedForm(t *testing.T) {
	s, err := New(t.Context(), &memory{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q := Question{Subject: Subject{Principal: ann.ID}, Session: "s", Form: &Form{}}
	for range 2000 {
		o, err := s.Ask(q, time.Minute, true)
		if err != nil {
			t.Fatal(err)
		}
		declined := make(chan bool, 1)
		go func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			declined <- s.endLocked(o, Answered, false, No)
		}()
		accepted, err := s.AnswerForm(o.ID, map[string]json.RawMessage{})
		if err != nil || accepted == <-declined || (s.Content(o) != nil) != accepted {
			t.Fatalf("accepted is %v, and the content %s; %v", accepted, s.Content(o), err)
		}
	}
}

func many(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"f%d":{"type":"string"}`, i))
	}
	return strings.Join(all, ",")
}

// TestAnswerForm: the answer of a form counts once, and forms leave room for what rules ask.
func TestAnswerForm(t *testing.T) {
	s, err := New(t.Context(), &memory{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(shown string, form *Form) (*Open, error) {
		q := Question{Subject: Subject{Principal: ann.ID, Shown: shown}, Session: "s", Form: form}
		return s.Ask(q, time.Minute, true)
	}
	f, _ := ParseForm(json.RawMessage(`{"properties":{"n":{"type":"integer"}},"required":["n"]}`), spec.SafeText)
	o, err := ask("1", f)
	if err != nil {
		t.Fatal(err)
	}
	for _, span := range []Span{Session, Always} {
		if ok, err := s.Answer(t.Context(), o.ID, true, span, ann); ok || err == nil {
			t.Errorf("for %s: %v, %v", span, ok, err)
		}
	}
	if ok, err := s.Answer(t.Context(), o.ID, true, Once, ann); ok || err == nil {
		t.Errorf("without the field: %v, %v", ok, err)
	}
	if ok, err := s.AnswerForm(o.ID, map[string]json.RawMessage{"n": json.RawMessage("7")}); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if reason, err := s.Wait(t.Context(), o); reason != "" || err != nil || string(s.Content(o)) != `{"n":7}` {
		t.Errorf("%q, %v, %s", reason, err, s.Content(o))
	}
	if ok, err := s.AnswerForm(o.ID, nil); ok || err != nil {
		t.Errorf("a second answer: %v, %v", ok, err)
	}
	for n := range maxForms {
		if _, err := ask(string(rune('a'+n)), f); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask("more", f); err == nil {
		t.Error("more forms wait")
	}
	rule, err := ask("a rule", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.AnswerForm(rule.ID, map[string]json.RawMessage{"n": nil}); ok || err == nil {
		t.Errorf("a form for a rule: %v, %v", ok, err)
	}
}
