package fault

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClip(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"short", "short"},
		{"a\xffb", "a\uFFFDb"},
		{strings.Repeat("x", 120), strings.Repeat("x", 120)},
		{strings.Repeat("x", 121), strings.Repeat("x", 120) + "…"},
		// A character that the bound would cut goes as a whole.
		{strings.Repeat("x", 118) + "日本", strings.Repeat("x", 118) + "…"},
		{strings.Repeat("日", 41), strings.Repeat("日", 40) + "…"},
		{strings.Repeat("\x80", 200), "\uFFFD…"},
	} {
		got := Clip(tt.text)
		if got != tt.want || !utf8.ValidString(got) {
			t.Errorf("%q is clipped to %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"code", "template", "session_id", "timeout", "id"}
	tools := []string{"execute_code", "sandbox_write_file_twice", "sandbox_write_file", "sandbox_list_files"}
	for name, want := range map[string]string{
		"write_file": "sandbox_write_file", "Write_File": "sandbox_write_file", "list_files": "sandbox_list_files",
		"write": "sandbox_write_file", "sandbox_list": "sandbox_list_files", "de": "", "fetch_url": "",
	} {
		if got := Nearest(name, tools); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"templat": "template", "tempalte": "template", "TEMPLATE": "template", "sesion_id": "session_id",
		"session":         "session_id",
		"timeout_seconds": "timeout", "codes": "code", "banana": "", "": "", "ab": "", strings.Repeat("code", 20): "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":               "plain",
		"two\nlines\tand tab": "two\nlines\tand tab",
		"\x1b[31mred\x07\x00": "[31mred",
		"a\xffb":              "a\uFFFDb",
		"\u202eright to left": "right to left",
		"grüße":               "grüße",
		"0123456789tail":      "0123456789tail",
	} {
		if got := Printable(in, 100); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Printable("0123456789", 4); got != "0123…" {
		t.Errorf("cut to 4: %q", got)
	}
	if got := Printable("aä", 2); strings.ContainsRune(got, 0) || len(got) > 10 {
		t.Errorf("cut in the middle of a letter: %q", got)
	}
}

func TestName(t *testing.T) {
	for text, want := range map[string]string{"a b": "a b", "a\nb": `"a\nb"`, "\u202ea": `"\u202ea"`, "\xff": `"\xff"`,
		"": "", "0123456789": "0123456789", "0123456789a": `"0123456789"…`, "a\u3164": `"a\u3164"`,
		"ㅤ": `"\u3164"`, "\U000e0041": `"\U000e0041"`} {
		if got := Name(text, 10); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestInvisible: no character that shows as nothing stays as it is.
func TestInvisible(t *testing.T) {
	for _, r := range []rune{0, '\a', '\r', 0x7f, 0x85, 0xad, 0x34f, 0x61c, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x180b, 0x180e, 0x180f,
		0x200b, 0x200c, 0x200d, 0x200e, 0x202e, 0x2028, 0x2029, 0x2060, 0x2065, 0x206a, 0x2800, 0x3164, 0xfe00, 0xfe0f, 0xfeff,
		0xffa0, 0xfff0, 0xfff9, 0x16fe4, 0x1bca0, 0x1d159, 0x1d173, 0xe0001, 0xe0041, 0xe0100, 0xe01ef, 0xe0fff} {
		text := "a" + string(r) + "b"
		if got := Printable(text, 100); got != "ab" {
			t.Errorf("%U is printed: %q", r, got)
		}
		if got := Name(text, 100); strings.ContainsRune(got, r) || !strings.HasPrefix(got, `"a\`) {
			t.Errorf("%U in a name: %q", r, got)
		}
	}
	for _, text := range []string{"grüße", "한글", "ﾡ", "日本 語", "😀", "e\u0301", "⠁", "नी", "ب", "\uFFFD"} {
		if got := Printable(text, 100); got != text {
			t.Errorf("%q is printed as %q", text, got)
		}
	}
}

// The line that says why a program failed is found among others, wherever it is.
func TestTelling(t *testing.T) {
	for output, want := range map[string]string{
		"": "", "one\ntwo\n": "two", "\n \n": "",
		"npm warn deprecated x@1: this fails\nnpm error code E404\nnpm error 404 Not Found - GET /nope\nnpm error A complete " +
			"log of this run can be found in: /root/x.log\n": "npm error 404 Not Found - GET /nope",
		"Collecting nope\nERROR: Could not find a version that satisfies the requirement nope\nERROR: No matching " +
			"distribution found for nope\n\n[notice] A new release of pip is available\n": "ERROR: Could not find a version that " +
			"satisfies the requirement nope",
		"Traceback (most recent call last):\n  File \"/usr/lib/errors.py\", line 1, in fail\n    raise ValueError(text)\n" +
			"ValueError: no key\n": "ValueError: no key",
		"node:internal/modules/cjs/loader:1228\n  throw err;\n  ^\n\nError: Cannot find module '/x.js'\n    at Module._resolve " +
			"(node:internal)\n\nNode.js v20": "Error: Cannot find module '/x.js'",
		"fatal: repository 'x' does not exist\n": "fatal: repository 'x' does not exist",
		"working\nusage: x [options]\n":          "usage: x [options]",
		"sh: 1: nope: not found\ndone\n":         "sh: 1: nope: not found",
		"Err\x1b[31mor: red\n":                   "Err[31mor: red",
	} {
		if got := Telling(output); got != want {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
	if got := Telling(strings.Repeat("error ", 1000)); len(got) > 310 {
		t.Errorf("%d bytes", len(got))
	}
}
