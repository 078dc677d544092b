package builtin

import (
	"testing"

	"sandlot/internal/agent"
)

// The text shows that there is more than letters, and the data is what the program wrote.
func TestRenderStream(t *testing.T) {
	for in, want := range map[string]struct{ text, data, base64 string }{
		"a\n":             {"a", "a", ""},
		"a\x00b\x00\n":    {"a␀b␀", "a\x00b\x00", "YQBiAAo="},
		"\x04\x7f":        {"␄␡", "\x04\x7f", "BH8="},
		"\x1b[31mred\a\n": {"red", "\x1b[31mred\a", ""},
		"1%\r2%\n":        {"2%", "1%\r2%", ""},
		"a\xff":           {"a\uFFFD", "a\uFFFD", "Yf8="},
		"a\u0081":         {"a\uFFFD", "a\u0081", "YcKB"},
	} {
		s := renderStream(nil, "stdout", agent.Output{Head: []byte(in[:1]), Tail: []byte(in[1:]), Total: int64(len(in))})
		if s.text != want.text || s.plain() != want.data || s.binary != want.base64 || s.truncated {
			t.Errorf("%q: text %q, data %q, base64 %q, truncated: %t", in, s.text, s.plain(), s.binary, s.truncated)
		}
	}
}

// The text has both streams in the order of time, and each stream stays what it is.
func TestPrintedBy(t *testing.T) {
	out := func(text string) agent.Output { return agent.Output{Head: []byte(text), Total: int64(len(text))} }
	for name, tt := range map[string]struct {
		stdout, stderr string
		merged         *agent.Output
		text, data     string
	}{
		"in turn":            {"a\nb\n", "x\n", &agent.Output{Head: []byte("a\nx"), Tail: []byte("\nb\n"), Total: 6}, "a\nx\nb", "a\nx\nb"},
		"one stream":         {"a\n", "", nil, "a", "a"},
		"an unknown order":   {"a\n", "x\n", nil, "a\nx", "a\nx"},
		"progress, an error": {"1%\r2%", "failed\n", &agent.Output{Head: []byte("1%\r2% failed\n"), Total: 13}, "2% failed", "1%\r2% failed"},
		"too much": {"a\n", "x\n", &agent.Output{Head: []byte("a\n"), Tail: []byte("x\n"), Total: 100},
			"a\n\n… [96 of 100 bytes of the output left out here; the rest was not kept] …\nx",
			"a\n\n… [96 of 100 bytes of the output left out here; the rest was not kept] …\nx"},
	} {
		t.Run(name, func(t *testing.T) {
			got := printedBy(renderStream(nil, "stdout", out(tt.stdout)), renderStream(nil, "stderr", out(tt.stderr)), tt.merged)
			if got.text != tt.text || got.plain() != tt.data {
				t.Errorf("text %q, data %q", got.text, got.plain())
			}
		})
	}
}
