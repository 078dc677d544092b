package mcpclient

import (
	"bytes"
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"sandlot/internal/rawjson"
)

// TestEncode: a message is that of encoding/json, on one line; what is no JSON is no part of one.
func TestEncode(t *testing.T) {
	long := strings.Repeat("<é\u2028", largeValue/3)
	for _, params := range []rawjson.Object{
		nil, {}, {"a": nil},
		{"name": rawjson.Quote("<x>"), "arguments": json.RawMessage("{\n \"b\": [1, 2.50, \"\\n\"]\r}")},
		{"arguments": rawjson.Quote(long), "\"": json.RawMessage("1")},
		{"arguments": json.RawMessage("{ \"x\":\n" + string(rawjson.Quote(long)) + "\r}")},
		{"arguments": json.RawMessage("{ \"x\": " + string(rawjson.Quote(long)) + "}")},
	} {
		for _, id := range []json.RawMessage{nil, rawjson.Number(7)} {
			want, err := rawjson.Encode(rawjson.Envelope{ID: id, Method: "tools/<call>", Params: params})
			if len(params) == 0 {
				want, err = rawjson.Encode(rawjson.Envelope{ID: id, Method: "tools/<call>"})
			}
			got, gotErr := encode(id, "tools/<call>", params)
			if err != nil || gotErr != nil || bytes.ContainsAny(got, "\n\r") {
				t.Fatalf("%v, %v: %.200q", err, gotErr, got)
			}
			var a, b any
			if json.Unmarshal(got, &a) != nil || json.Unmarshal(want, &b) != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("%.200q, want %.200q", got, want)
			}
			if len(want) < largeValue && string(got) != string(want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
	}
	for _, bad := range []string{"", "{", `{"a":1},"method":"x"`, "1 2", `"` + long, "\xff"} {
		if got, err := encode(nil, "m", rawjson.Object{"a": json.RawMessage(bad)}); err == nil {
			t.Errorf("%.100q is encoded as %.200q", bad, got)
		}
	}
}

// TestEncodeLarge: large parameters are copied once.
func TestEncodeLarge(t *testing.T) {
	value := rawjson.Quote(strings.Repeat("y", 15<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b, err := encode(rawjson.Number(1), "tools/call", rawjson.Object{"arguments": value})
	b = append(b, '\n') // as a transport does
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; err != nil || len(b) < len(value) || n > uint64(len(value))*5/4 {
		t.Errorf("%d bytes were allocated for %d: %v", n, len(value), err)
	}
}
