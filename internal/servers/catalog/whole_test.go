package catalog

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
)

// padding makes a result large enough for Result not to make it anew.
var padding = `"padding":"` + strings.Repeat(`\n`, maxRemade/2+1) + `"`

// Code gets a large result as the server sent it, but for what no client gets. Nothing is copied.
func TestWholeResult(t *testing.T) {
	const left = `{"text":"[a block of type image was left out: its data is not base64]","type":"text"}`
	for name, tt := range map[string]struct{ raw, want string }{
		"whole": {`{"content":[{"type":"text","text":"<é>\u00e9\/"},{"type":"new","a":1}],"x":1}`, ``},
		"image": {`{"content":[{"type":"image","data":"QU\/D","mimeType":"image/png"}]}`, ``},
		"lines": {"{\n\"content\":[\n]}", `{"content":[]}`},
		"bad image": {`{"content":[{"type":"image","data":"QUJD=` + strings.Repeat("A", 100) +
			`","mimeType":"i"},{"type":"text","text":""}]}`,
			`{"content":[` + left + `,{"type":"text","text":""}]}`},
		"bad short image": {`{"content":[{"type":"image"}]}`, "error"},
		"no object":       {`{"content":[1]}`, "error"},
		"no list":         {`{"content":"text"}`, `{"content":[]}`},
		"no list at all":  {`{"content":1}`, "error"},
		"meta": {`{"_meta":{"a":1},"content":[{"type":"text","text":"","_meta":{"progressToken":1}}]}`,
			`{"_meta":{"a":1},"content":[{"type":"text","text":"","_meta":{}}]}`},
		"meta of the protocol": {`{"_meta":{"io.modelcontextprotocol/x":1,"a":"b"}}`, `{"_meta":{"a":"b"}}`},
		"too much meta":        {`{"_meta":{"a":"` + strings.Repeat("x", maxMeta) + `"}}`, `{"_meta":{}}`},
		"failed":               {`{"isError":true}`, ``},
		"deep":                 {`{"a":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}`, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := json.RawMessage(tt.raw[:len(tt.raw)-1] + `,` + padding + `}`)
			want := tt.raw
			if tt.want != "" {
				want = tt.want
			}
			first := &raw[0]
			got, isError, err := Result(t.Context(), raw, true)
			if want == "error" {
				if err == nil {
					t.Errorf("got %.200s", got)
				}
				return
			}
			if want = want[:len(want)-1] + `,` + padding + `}`; err != nil || &got[0] != first || len(got) != len(raw) ||
				strings.Contains(string(got), "\n") {
				t.Fatalf("%v: %.300s", err, got)
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, got); err != nil || compact.String() != want {
				t.Fatalf("%v\ngot  %.300s\nwant %.300s", err, compact.String(), want)
			}
			if isError != (name == "failed") {
				t.Error(isError)
			}
		})
	}
	small := `{"content":[{"type":"new"}]}`
	got, _, err := Result(t.Context(), json.RawMessage(small), true)
	if err != nil || !strings.Contains(string(got), "unknown type") {
		t.Errorf("a small one: %s, %v", got, err)
	}
	many := `{"content":[` + strings.Repeat(`{"type":"text","text":""},`, maxBlocks) + `{"type":"text","text":"last"}]}`
	if got, _, err := Result(t.Context(), json.RawMessage(many), true); err != nil || string(got) != many {
		t.Errorf("many blocks: %d bytes, %v", len(got), err)
	}
}

// TestBlocksAlike: which block is left out, and what is said of it, does not depend on how large the result for code is.
func TestBlocksAlike(t *testing.T) {
	pad := `,"pad":"` + strings.Repeat("x", 200) + `"}`
	for _, block := range []string{`{"type":"text","text":5`, `{"type":"image","data":"QQ=","mimeType":"image/png"`,
		`{"type":"image","data":"QQ=="`, `{"type":"audio","data":7,"mimeType":"audio/wav"`, `{"type":"resource_link"`,
		`{"type":"resource_link","uri":"notes/1","name":"n"`, `{"type":"resource","resource":{"uri":"a:b"}`,
		`{"type":"resource","resource":{"uri":"a:b","blob":"!"}`, `{"type":"resource"`,
		`{"type":"resource","resource":{"uri":"x","text":"t"}`} {
		var texts []string
		for _, more := range []string{"", "," + padding} {
			got, _, err := Result(t.Context(), json.RawMessage(`{"content":[`+block+pad+`]`+more+`}`), true)
			var r struct{ Content []struct{ Type, Text string } }
			if err = errors.Join(err, json.Unmarshal(got, &r)); err != nil || len(r.Content) != 1 {
				t.Fatalf("%s: %v", block, err)
			}
			texts = append(texts, r.Content[0].Type+": "+r.Content[0].Text)
		}
		// A text that is a number is repaired where there is space.
		if texts[0] != texts[1] && !strings.Contains(block, `"text":5`) || !strings.Contains(texts[1], "was left out: ") {
			t.Errorf("%s: %q", block, texts)
		}
	}
}

// A result may have many blocks, but not so many that reading them takes seconds, be they in one member or in several.
// Nothing is allocated for each. Reading ends when the call does, or the memory is lost.
func TestManyBlocks(t *testing.T) {
	blocks := func(n int) string { return strings.Repeat(`{},`, n-1) + `{}` }
	most := `{"content":[` + blocks(maxWholeBlocks) + `]}`
	if got, _, err := Result(t.Context(), json.RawMessage(most), true); err != nil || string(got) != most {
		t.Errorf("%d bytes of %d, %v", len(got), len(most), err)
	}
	for _, raw := range []string{`{"content":[` + blocks(maxWholeBlocks+1) + `]}`,
		`{"content":[` + blocks(maxWholeBlocks) + `],"content":[{}],` + padding + `}`} {
		_, _, err := Result(t.Context(), json.RawMessage(raw), true)
		if !fault.Is(err, fault.ResourceLimit) || !strings.Contains(err.Error(), "more than 100000 content blocks") {
			t.Errorf("too many: %v", err)
		}
	}
	number := json.RawMessage(`{"content":[` + strings.Repeat("1", 8<<20) + `]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := Result(t.Context(), number, true)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; err != nil || made > 1<<20 {
		t.Errorf("%d bytes were allocated for a block that is a long number: %v", made, err)
	}
	raw := json.RawMessage(`{"content":[` + blocks(50_000) + `]}`)
	if n := testing.AllocsPerRun(1, func() { _, _, _ = Result(t.Context(), raw, true) }); n > 1000 {
		t.Errorf("%v allocations for 50,000 blocks", n)
	}
	ctx, lose := context.WithCancelCause(t.Context())
	lose(errors.New("others wait"))
	if _, _, err := Result(ctx, raw, true); !fault.Is(err, fault.Connection) ||
		!strings.Contains(err.Error(), "others wait") {
		t.Errorf("of which the memory is lost: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Result(ctx, raw, true); !fault.Is(err, fault.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// FuzzWholeResult: what code gets of a large result is JSON, and its blocks are those that clients would get.
func FuzzWholeResult(f *testing.F) {
	for _, s := range []string{`{"content":[{"type":"text","text":"a"}]}`,
		`{"content":[1,{"type":"image","data":"!","data":"QQ=="}]}`,
		`{"a\u0062":["]",{"\\":"\\\""}],"content":[ {} , [] ]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) || !rawjson.IsObject(raw) {
			return
		}
		var all map[string]any
		_ = json.Unmarshal(raw, &all)
		text := strings.TrimRight(string(raw), " \t\r\n")
		comma := ","
		if len(all) == 0 {
			comma = ""
		}
		got, _, err := Result(t.Context(), json.RawMessage(text[:len(text)-1]+comma+padding+"}"), true)
		if err != nil {
			return
		}
		if !json.Valid(got) || strings.Contains(string(got), "\n") {
			t.Fatalf("%q becomes what is not a line of JSON", raw)
		}
		var r struct{ Content []json.RawMessage }
		if err := json.Unmarshal(got, &r); err != nil {
			return // a member that is content in other letters
		}
		for _, b := range r.Content {
			if problem, known := blockProblem(rawjson.ShortText(rawjson.Shared(b, "type")["type"]),
				rawjson.Shared(b, "type", "text", "data", "mimeType", "uri", "resource")); known && problem != "" {
				t.Fatalf("%q has a block with a problem: %s", raw, problem)
			}
		}
	})
}

// FuzzBase64: a string is base64 if encoding/base64 can decode it.
func FuzzBase64(f *testing.F) {
	for _, s := range []string{`""`, `"QQ=="`, `"QQ="`, `"QUI="`, `"QQ==QQ=="`,
		`"Q\n\u0051=\r="`, `"\/\/\/\/"`, `"=QQQ"`, `"QQ=\u003D"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) || !rawjson.IsString(raw) {
			return
		}
		_, err := base64.StdEncoding.DecodeString(rawjson.Text(raw))
		if isBase64(raw) != (err == nil) {
			t.Fatalf("%s: %v, %v", raw, isBase64(raw), err)
		}
	})
}
