package terminal

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestDisplay(t *testing.T) {
	small := Display{Rows: 5, Columns: 10, Most: 1000}
	for _, tt := range []struct{ name, in, screen, scrolled string }{
		{"nothing", "", "", ""},
		{"lines", "a\r\nb\r\n", "a\nb", ""},
		{"a prompt", ">>> 1+1\r\n2\r\n>>> ", ">>> 1+1\n2\n>>>", ""},
		{"colours and a title", "\x1b]0;title\x07\x1b[1;31mred\x1b[0m\x1b[38;5;9m!", "red!", ""},
		{"a line feed alone goes down", "ab\ncd", "ab\n  cd", ""},
		{"a long line goes on below", "abcdefghijklm", "abcdefghij\nklm", ""},
		{"the last column waits", "abcdefghij\r\nk", "abcdefghij\nk", ""},
		{"the last column waits for BS, too", "abcdefghij\bX", "abcdefghXj", ""},
		{"not beyond the margin", "\x1b[?7labcdefghijklm", "abcdefghim", ""},
		{"what scrolls off", "1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n7", "3\n4\n5\n6\n7", "1\n2\n"},
		{"blank lines scroll off, too", "1\r\n\r\n3\r\n4\r\n5\r\n6\r\n7\r\n8", "4\n5\n6\n7\n8", "1\n\n3\n"},
		{"a redrawn screen", "\x1b[H\x1b[2Jframe 1\x1b[3;4Hx\x1b[H\x1b[2Jframe 2\x1b[4;5Hy", "frame 2\n\n\n    y", ""},
		{"parts of a screen", "\x1b[2;3Hab\x1b[1Ac\x1b[2Dd\x1b[2Be\x1b[5G!", "   dc\n  ab\n    !", ""},
		{"erased", "abc\r\ndef\r\nghi\x1b[2;2H\x1b[K\x1b[1J", "\n\nghi", ""},
		{"erased below", "abc\r\ndef\r\nghi\x1b[2;2H\x1b[J", "abc\nd", ""},
		{"erased in the line", "abcdef\x1b[3G\x1b[2X\x1b[6G\x1b[1K", "", ""},
		{"a line of its own", "abc\x1b[2Kd", "   d", ""},
		{"inserted and deleted", "abcdef\x1b[3G\x1b[2@xy\x1b[P\x1b[4hz", "abxyzdef", ""},
		{"inserted up to the margin", "abcdefghij\x1b[1G\x1b[3@", "   abcdefg", ""},
		{"lines inserted and deleted", "1\r\n2\r\n3\r\n4\r\n5\x1b[2;1H\x1b[L\x1b[4;1H\x1b[M", "1\n\n2\n4", ""},
		{"a region that scrolls", "1\r\n2\r\n3\r\n4\r\nbar\x1b[2;4r\x1b[4;1H\na\r\nb", "1\n4\na\nb\nbar", ""},
		{"a region below which a bar stays", "1\r\n2\r\n3\r\n4\r\nbar\x1b[1;4r\x1b[4;1H\r\n5\r\n6", "3\n4\n5\n6\nbar", "1\n2\n"},
		{"up in a region", "1\r\n2\r\n3\x1b[2;3r\x1b[2;1H\x1bMnew", "1\nnew\n2", ""},
		{"rows of a region", "\x1b[2;4r\x1b[?6h\x1b[1;1Ha\x1b[9;1Hb", "\na\n\nb", ""},
		{"moved in steps", "\x1b[2S1\x1b[2T2\x1b[3S", "", "\n\n 2\n\n1\n"},
		{"an alternate screen", "before\r\n\x1b[?1049h\x1b[Hvi\r\n1\r\n2\r\n3\r\n4\r\n5", "1\n2\n3\n4\n5", ""},
		{"an alternate screen that was left", "before\r\n\x1b[?1049h\x1b[Hvi\x1b[?1049lafter", "before\nafter", ""},
		{"saved", "ab\x1b7cd\r\ne\x1b8x\x1b[s\x1b[Hy\x1b[uz", "ybxz\ne", ""},
		{"wide characters", "世界\r\n\x1b[1;2Hx🎉|", " x🎉|", ""},
		{"a wide one at the margin", "abcdefghi世", "abcdefghi\n世", ""},
		{"halves of wide ones", "世界\x1b[1;4H\x1b[K", "世", ""},
		{"combined", "e\u0301a\u0301\u0301x", "e\u0301a\u0301\u0301x", ""},
		{"a frame", "\x1b(0lqk\x1b(B\r\n\x1b)0\x0ex\x0f x", "┌─┐\n│ x", ""},
		{"tabs", "a\tb\tc\x1b[Zd\x1b[2Ze", "e       dc", ""},
		{"repeated", "ab\x1b[3b", "abbbb", ""},
		{"reset", "abc\x1b[2;3r\x1b[?6hx\x1bcy", "y", ""},
		{"what means nothing", "a\x00\x07\x7fb\x1b[?25l\x1b[6n\x1b[c\x1b[>c\x1b=\x1b[4:3mc", "abc", ""},
		{"not UTF-8", "a\xffb", "a\uFFFDb", ""},
		{"cut", "a\x1b[3", "a", ""},
	} {
		got := small.Show(tt.in)
		if got.Screen != tt.screen || got.Scrolled != tt.scrolled || got.LeftOut != 0 {
			t.Errorf("%s: %q shows %q after %q, want %q after %q", tt.name, tt.in, got.Screen, got.Scrolled, tt.screen, tt.scrolled)
		}
	}
}

// Lines that somebody has seen are not told again when they scroll off, unless they have changed.
func TestSeen(t *testing.T) {
	var all strings.Builder
	for i := range 20 {
		fmt.Fprintf(&all, "%d\r\n", i)
	}
	in := all.String()
	until := func(text string) int { return strings.Index(in, text) }
	for name, tt := range map[string]struct {
		seen, most, leftOut int
		scrolled            string
	}{
		"nothing":           {0, 1000, 0, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n"},
		"a part":            {until("12"), 1000, 0, "12\n13\n14\n15\n"},
		"all":               {len(in), 1000, 0, ""},
		"more than is kept": {0, 10, 13, "13\n14\n15\n"},
		"nothing is kept":   {0, 0, 16, ""},
	} {
		got := Display{Rows: 5, Columns: 10, Seen: tt.seen, Most: tt.most}.Show(in)
		if got.Scrolled != tt.scrolled || got.LeftOut != tt.leftOut || got.Screen != "16\n17\n18\n19" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	changed := Display{Rows: 2, Columns: 10, Seen: 4, Most: 100}.Show("a\r\nb" + "\x1b[1;2H!\x1b[2;1H\r\nc\r\nd")
	if changed.Scrolled != "a!\n" {
		t.Errorf("a line that was seen and changed: %+v", changed)
	}
	drawn := "\x1b[?1049h\x1b[2;3Hkeys: 0\x1b[3;3Hother"
	for more, want := range map[string]string{"": "", "\x1b[2;9H1": "  keys: 1", "\x1b[2;9H0": "  keys: 0",
		"\x1b[?1049lx": "", "\x1b[?1049l\x1b[?1049hx": "x"} {
		v := Display{Rows: 3, Columns: 20, Seen: len(drawn)}.Show(drawn + more)
		if v.Drawn != want {
			t.Errorf("%q is drawn: %q", more, v.Drawn)
		}
	}
}

// What is hostile costs not much more than what is long: else this takes hours.
func TestHostileDisplay(t *testing.T) {
	for _, piece := range []string{"\n", "x", "\x1b[9999b", "x\x1b[9999b", "\x1b[9999S", "\x1b[9999T", "\x1b[2J", "\x1b[1J",
		"\x1b[9999;9999Hx", "\x1b[9999Cx\x1b[2K", "\x1b[9999Cx\x1b[1G\x1b[9999@", "\x1b[9999Cx\x1b[1G\x1b[P", "\x1b[L", "\x1b[M",
		"\x1bM", "\x1b[?1049h\x1b[?1049l", "\x1bc", "e\u0301", "\u0301", "世", "世\x1b[1D", "\x1b]", "\x1b[", "\x1b[1;1r\n", "\x1b[Z\x1b[I",
		"\x1b[;;;;;;;;m", "\x1b[?1;2;3;4;5;6;7h", "\x1b7\x1b8", "\x1b(0", "\x1b[4h\x1b[1Gx", "\x1b[99b"} {
		in := "\x1b[2;3r\x1b[4h\x1b[30;1Hx" + strings.Repeat(piece, 1<<20/len(piece))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		v := Display{Rows: 30, Columns: 120, Most: 16000}.Show(in)
		runtime.ReadMemStats(&after)
		t.Logf("%q: %v, %d KiB", piece, time.Since(began), (after.TotalAlloc-before.TotalAlloc)>>10)
		if len(v.Scrolled) > 16000 || len(v.Screen) > 30*(120*(4+maxMarks)+1) {
			t.Errorf("%q: %d and %d bytes", piece, len(v.Scrolled), len(v.Screen))
		}
	}
}

func FuzzDisplay(f *testing.F) {
	for _, s := range []string{"a\r\x1b[Kb\n", "\x1b[2;3r\x1b[?6h\x1b[9;9H\n\x1bM", "\x1b[9999;9999H世\x1b[1J\x1b[3@\x1b[2P",
		"\x1b[?1049h\x1b[5L\x1b[?1049l\x1b[2M", "\x1b)0\x0eq\x0f\u0301\x1b[9b\x1b[4h\x1b[Z", "世\x1b[1D\x1b[X\x1b[1G\x1b[?7l"} {
		f.Add(s, 5, 10, 3, 20)
		f.Add(s, 1, 1, 0, 0)
	}
	f.Fuzz(func(t *testing.T, s string, rows, columns, seen, most int) {
		d := Display{Rows: rows % 50, Columns: columns % 200, Seen: seen, Most: most % 1000}
		v := d.Show(s)
		if !utf8.ValidString(v.Screen) || !utf8.ValidString(v.Scrolled) || len(v.Scrolled) > max(0, d.Most) {
			t.Fatalf("%+v", v)
		}
		for _, r := range v.Screen + v.Scrolled {
			if r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%U is left in %+v", r, v)
			}
		}
		if lines := strings.Count(v.Screen, "\n"); lines >= max(1, d.Rows) {
			t.Fatalf("%d lines in %+v", lines+1, v)
		}
	})
}
