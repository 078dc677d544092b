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
		"": "", "0123456789": "0123456789", "0123456789a": `"0123456789"…`} {
		if got := Name(text, 10); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
