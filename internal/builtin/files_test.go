package builtin

import (
	"strings"
	"testing"
)

// TestTextOf: texts of other encodings are shown too, and what is none is not.
func TestTextOf(t *testing.T) {
	for data, want := range map[string]shownText{
		"":                               {"", "", true},
		"é":                              {"é", "", true},
		"a\x00":                          {"a\x00", "", true},
		"caf\xe9; \x80 5\r\n":            {"café; € 5\r\n", "Windows-1252", true},
		"\xff\xfea\x00\xe9\x00":          {"aé", "UTF-16", true},
		"\xfe\xff\x00a\x00\xe9":          {"aé", "UTF-16", true},
		"\x00\x01\x02\xff":               {},
		"PK\x03\x04\x14\x00\x00\x08\xff": {},
		"\x7fELF\x02\x01\x01\x00\xe9":    {},
		"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n":  {},
		"\x1f\x8b\x08\x00\xff":           {},
	} {
		got := textOf([]byte(data))
		if got.text != want.text || got.is != want.is || (got.note == "") != (want.note == "") ||
			!strings.Contains(got.note, want.note) {
			t.Errorf("%q: %+v, want %+v", data, got, want)
		}
	}
}

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
