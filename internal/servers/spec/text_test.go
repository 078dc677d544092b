package spec

import (
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzSafeText: what SafeText returns is the text without what it removes, or the longest beginning of that.
func FuzzSafeText(f *testing.F) {
	for _, s := range []string{"", "a\tb\n\x00c", "é\xff\xfeé\xff\x00\xff", "\ufffd\xff", "a\u200bb\u200dc\U000e0041",
		strings.Repeat("\U0001f600", 10), "\x7f\u0085\u00ad"} {
		f.Add(s, 5)
		f.Add(s, 12)
	}
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 0 || most > 1000 {
			return
		}
		want := strings.Map(func(r rune) rune {
			if isHidden(r) {
				return -1
			}
			return r
		}, strings.ToValidUTF8(s, "\uFFFD"))
		if len(want) > most {
			cut := most
			for !utf8.RuneStart(want[cut]) {
				cut--
			}
			want = want[:cut] + "…"
		}
		if got := SafeText(s, most); got != want {
			t.Errorf("%q, %d: %q, want %q", s, most, got, want)
		}
	})
}

// TestHidden: what people do not see, models do not read. Emojis keep what they are made with.
func TestHidden(t *testing.T) {
	for text, want := range map[string]string{"a\u3164b\u115f\u1160\uffa0c": "abc", "a\u034fb\u180b\u2800c\ufe00\U000e0100": "abc",
		"❤\ufe0f\u200d🔥": "❤\ufe0f\u200d🔥", "全\u3000角\u00a0한글": "全\u3000角\u00a0한글"} {
		if got := SafeText(text, 100); got != want {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}

// A large text is not copied.
func TestLargeText(t *testing.T) {
	const size = 8 << 20
	for _, part := range []string{"x\x00", "\xff", "\x00"} {
		s := strings.Repeat(part, size/len(part))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := SafeText(s, 100)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > size/8 || len(got) > 100+len("…") {
			t.Errorf("%q and so on: %d bytes are made with %d", part, len(got), n)
		}
	}
}
