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
