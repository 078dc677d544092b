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
