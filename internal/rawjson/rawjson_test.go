package rawjson

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMembers(t *testing.T) {
	for raw, want := range map[string]string{
		`{}`: "", `{"a": 1, "b": {"c": "</"}}`: `a=1 b={"c": "</"}`, ` {"a":1} `: "a=1",
		// "a" is "a", and so here twice.
		`{"a":1,"\u0061":2}`: "none", `{"a":1}{}`: "none", `[1]`: "none", `null`: "none", ``: "none", `{"a":}`: "none",
	} {
		all, ok := Members(json.RawMessage(raw))
		got := []string{}
		for _, k := range []string{"a", "b"} {
			if v, has := all[k]; has {
				got = append(got, k+"="+string(v))
			}
		}
		if text := strings.Join(got, " "); ok != (want != "none") || ok && text != want {
			t.Errorf("%s: %s, %v", raw, text, ok)
		}
	}
}

func TestWithout(t *testing.T) {
	for _, tt := range []struct{ raw, rest, member string }{
		{`{"a":1, "b" : [ 2 ], "c":"<"}`, `{"a":1,"c":"<"}`, `[ 2 ]`},
		{`{"a":1}`, `{"a":1}`, ``},
		{`{"b":1,"b":2}`, `{}`, `2`},
		{`[]`, ``, ``},
		{`{"a":1,`, ``, ``},
	} {
		rest, member := Without(json.RawMessage(tt.raw), "b")
		if string(rest) != tt.rest || string(member) != tt.member {
			t.Errorf("%s: %s and %s", tt.raw, rest, member)
		}
	}
}

func TestDeeper(t *testing.T) {
	for text, want := range map[string]bool{
		`[[[1]]]`: false, `[[[[1]]]]`: true, `["[[[[", "\"[[[["]`: false, `{"a":{"b":{"c":{}}}}`: true,
		`[[[]]],[[[]]]`: false,
	} {
		if NestedDeeper([]byte(text), 3) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

// FuzzRawJSON: what is read and written here is what encoding/json reads.
func FuzzRawJSON(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":[{"c":"\u0061"}]}`, `{"a":1,"a":2}`, `"a\ud800"`,
		"{\"\xff\":1}", `[1e999]`, `{}{}`, ` {"<":"&"} `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want map[string]any
		valid := json.Unmarshal(raw, &want) == nil && want != nil
		all, ok := Members(raw)
		if ok && !json.Valid(raw) {
			t.Fatalf("members of what is no JSON: %q", raw)
		}
		if ok && valid && len(all) != len(want) {
			t.Fatalf("%d members of %d: %q", len(all), len(want), raw)
		}
		if !IsObject(raw) && ok {
			t.Fatalf("members of no object: %q", raw)
		}
		if ok && utf8.Valid(raw) {
			shared := Object{}
			EachMember(raw, func(name string, value json.RawMessage) { shared[name] = value })
			for name, value := range all {
				if len(name) < maxShared/6 && !bytes.Equal(shared[name], value) {
					t.Fatalf("%q: member %q is %q", raw, name, shared[name])
				}
			}
		}
		if json.Valid(raw) && hasPrefix(raw, "[") {
			var want, got []json.RawMessage
			_ = json.Unmarshal(raw, &want)
			EachElement(raw, func(value json.RawMessage) { got = append(got, value) })
			if !slices.EqualFunc(want, got, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("%q: elements %q, want %q", raw, got, want)
			}
		}
		for name, value := range all {
			rest, member := Without(raw, name)
			if !bytes.Equal(member, value) || !json.Valid(rest) {
				t.Fatalf("without %q: %q and %q", name, rest, member)
			}
			if left, ok := Members(rest); !ok || len(left) != len(all)-1 {
				t.Fatalf("without %q: %q", name, rest)
			}
		}
		q := Quote(string(raw))
		if !json.Valid(q) || Text(q) != strings.ToValidUTF8(string(raw), "\uFFFD") &&
			!strings.Contains(string(q), `\ufffd`) {
			t.Fatalf("%q is quoted as %q", raw, q)
		}
		if s, plain := UnescapedString(raw); plain && json.Valid(raw) && s != Text(raw) &&
			strings.ToValidUTF8(s, "") == s {
			t.Fatalf("%q is %q", raw, s)
		}
		if json.Valid(raw) && !NestedDeeper(raw, 20) {
			var v any
			if json.Unmarshal(raw, &v) == nil && depth(reflect.ValueOf(v)) > 20 {
				t.Fatalf("deeper than 20: %q", raw)
			}
		}
	})
}

func depth(v reflect.Value) int {
	most := 0
	switch v.Kind() {
	case reflect.Interface:
		return depth(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			most = max(most, depth(v.Index(i)))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			most = max(most, depth(v.MapIndex(k)))
		}
	default:
		return 0
	}
	return most + 1
}
