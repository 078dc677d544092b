package builtin

import "testing"

// TestUnshown: whoever reads a text with characters that are not shown is told.
func TestUnshown(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a\tb\r\nc\f": "", "é 中 \u200b": "",
		"a\x00b\x00": "[control characters in the text that may not be shown: 2, the first is U+0000; with encoding " +
			`"base64" all bytes can be read]`,
		"\x1b[31mred": "[control characters in the text that may not be shown: 1, the first is U+001B; with encoding " +
			`"base64" all bytes can be read]`,
		"x\x7f\u0085": "[control characters in the text that may not be shown: 2, the first is U+007F; with encoding " +
			`"base64" all bytes can be read]`,
	} {
		if got := unshown(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
