package transport

import (
	"errors"
	"testing"
)

// TestOutcome: an error keeps its text, however a server writes it, and an answer without a result is called that.
func TestOutcome(t *testing.T) {
	for response, want := range map[string]struct {
		code    int64
		message string
		data    string
	}{
		`{"error":{"code":-32042,"message":"custom","data":{"retry":5}}}`: {-32042, "custom", `{"retry":5}`},
		`{"error":{"code":"E1","message":"string code"}}`:                 {CodeInternal, "string code (code E1)", ""},
		`{"error":{"code":"-32602","message":"a numeral","data":null}}`:   {CodeInvalidParams, "a numeral", ""},
		`{"error":{"code":1e300,"message":"large"}}`:                      {CodeInternal, "large (code 1e300)", ""},
		`{"error":{"message":"no code"}}`:                                 {CodeInternal, "no code", ""},
		`{"error":{"code":null,"message":{"why":"nested"}}}`:              {CodeInternal, `{"why":"nested"}`, ""},
		`{"error":{"detail":"another name"}}`:                             {CodeInternal, `{"detail":"another name"}`, ""},
		`{"error":"just text"}`:                                           {CodeInternal, "just text", ""},
		`{"error":["a"]}`:                                                 {CodeInternal, `["a"]`, ""},
		`{"error":{}}`:                                                    {CodeInternal, "an error without a text", ""},
	} {
		all, err := Decode([]byte(`{"jsonrpc":"2.0","id":1,` + response[1:]))
		if err != nil {
			t.Fatalf("%s: %v", response, err)
		}
		_, err = all[0].Outcome()
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != want.code || e.Message != want.message || string(e.Data) != want.data {
			t.Errorf("%s: %+v, want %+v", response, err, want)
		}
	}
	for _, response := range []string{`{"result":null}`, `{"result":"hello"}`, `{"result":[1]}`} {
		all, err := Decode([]byte(`{"jsonrpc":"2.0","id":1,` + response[1:]))
		if err != nil {
			t.Fatalf("%s: %v", response, err)
		}
		if _, err := all[0].Outcome(); !isInvalidAnswer(err) {
			t.Errorf("%s: %v", response, err)
		}
	}
	for _, empty := range []string{"null", `""`, "false", "{}"} {
		all, _ := Decode([]byte(`{"jsonrpc":"2.0","id":1,"result":{"a":1},"error":` + empty + `}`))
		if result, err := all[0].Outcome(); string(result) != `{"a":1}` || err != nil {
			t.Errorf("a result beside the error %s: %s, %v", empty, result, err)
		}
	}
}

func isInvalidAnswer(err error) bool {
	_, ok := errors.AsType[*InvalidAnswerError](err)
	return ok
}

// TestHalfCharacters: some clients refuse a whole message for one.
func TestHalfCharacters(t *testing.T) {
	all, err := Decode([]byte(`{"id":1,"result":{"a":"x\ud800y \ud83d\ude00 \\ud800 \udc00"}}`))
	if want := `{"a":"x\ufffdy \ud83d\ude00 \\ud800 \ufffd"}`; err != nil || string(all[0].Result) != want {
		t.Errorf("%s, %v", all[0].Result, err)
	}
	m, err := DecodeLarge([]byte(`{"id":1,"result":{"a":"\udfff\ud800"}}`))
	if want := `{"a":"\ufffd\ufffd"}`; err != nil || string(m.Result) != want {
		t.Errorf("%s, %v", m.Result, err)
	}
}
