package rawjson

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestValid: what is valid is what encoding/json says.
func TestValid(t *testing.T) {
	all := []string{"", " ", "{", "}", "{}", "[]", "[", "]", "{]", "[}", "[1,]", "[,1]", `{"a":1,}`, `{"a"}`, `{"a":}`,
		`{1:2}`, `{"a":1 "b":2}`, ` { "a" : [ 1 , { } , [ ] ] } `, "{}{}", "1", "-1", "-", "01", "1.",
		"1.5", ".5", "1e", "1e5", "1E+5", "1e-", "-0", "+1", "0x1", "true", "tru", "truee", "false", "null", "nul",
		`"`, `"a`, `"a"`, `"\n"`, `"\x"`, `"\`,
		`"\u12`, `"\u12g4"`, `"\u12aF"`, "\"a\nb\"", "\"\x00\"", "\"\x7f\xff\"", "\x00", "[1\x00]", "\ufeff1", "[1 2]",
		strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
		strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), strings.Repeat("[", 10_001)}
	for n := range 20 { // a byte at each place of a word
		for _, c := range []string{`"`, `\`, `\"`, "\x1f", " ", "!", "#", "[", "]", "\x80", "\xa2", "\xdc", "\xff",
			"\n"} {
			all = append(all, `["`+strings.Repeat("y", n)+c+strings.Repeat("é", 9)+`"]`)
		}
	}
	for _, text := range all {
		if got, want := Valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("%.100q: %v, want %v", text, got, want)
		}
	}
}

// FuzzValid: what is valid is what encoding/json says.
func FuzzValid(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":[{"c":"\u0061"}, -1.5e+7, true, false, null]}`, `["a\ud800", "yyyyyyy\"y"]`,
		"{\"\xff\":\"\x1f\"}", `[1e999, 0, -0.0]`, `{}{}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, want := Valid(raw), json.Valid(raw); got != want {
			t.Fatalf("%q: %v, want %v", raw, got, want)
		}
	})
}
