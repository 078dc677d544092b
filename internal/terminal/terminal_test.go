package terminal

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", "a\tb  \nc\n", "a\tb  \nc\n"},
		{"other scripts", "Grüße, 世界 🎉\n", "Grüße, 世界 🎉\n"},
		{"not UTF-8", "a\xffb\n", "a\uFFFDb\n"},
		{"lines of Windows", "a\r\nb\r\n", "a\nb\n"},
		{"colours", "\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mmore\x1b[m\n", "red and more\n"},
		{"a bar", "  0%|   |\r 50%|█  |\r100%|██ |\ndone\n", "100%|██ |\ndone\n"},
		{"a bar that gets shorter", "downloading 10%\rdone\x1b[K\n", "done\n"},
		{"a bar that is wiped with spaces", "downloading\r           \rok\n", "ok\n"},
		{"spaces at the end that nothing was written over stay", "a  \r\nb \x1b[0m\n", "a  \nb \n"},
		{"a spinner", "-\b\\\b|\b/\bdone\n", "done\n"},
		{"npm's spinner", "⠙\x1b[1G\x1b[0K⠹\x1b[1G\x1b[0Kadded 1 package\n", "added 1 package\n"},
		{"two bars, as tqdm draws them", "a: 0%\n\rb: 0%\x1b[A\ra: 50%\n\rb: 50%\x1b[A\ra: 100%\n\rb: 100%\n",
			"a: 100%\nb: 100%\n"},
		{"two bars, as Docker draws them", "one\ntwo\n\x1b[2A\x1b[2Kone done\x1b[1B\r\x1b[2Ktwo done\x1b[1B\rend\n",
			"one done\ntwo done\nend\n"},
		{"a title and a link", "\x1b]0;title\x07a \x1b]8;;https://x.test\x1b\\link\x1b]8;;\x1b\\\n", "a link\n"},
		{"a title that does not end hides its line alone", "\x1b]0;title\nb\n", "\nb\n"},
		{"character sets", "\x1b(B\x1b)0\x1b=a\x1b>\n", "a\n"},
		{"bells and character sets", "a\a\x0e\x0fb\n", "ab\n"},
		{"names that end with zeros", "a\x00b\x00", "a␀b␀"},
		{"what means nothing to a terminal", "\x01\x06\x10\x1a\x1f\x7f\u0081\u009a\n", "␁␆␐␚␟␡\uFFFD\uFFFD\n"},
		{"a zero in a sequence", "\x1b[3\x00m\x1b\x00a", "␀m␀a"},
		{"controls of C1", "\u009b31mred\u009b0m\u0085next\n", "red\nnext\n"},
		{"a cleared screen", "before\n\x1b[H\x1b[2Jframe 1\n\x1b[H\x1b[2Jframe 2\n", "before\nframe 2\n"},
		{"an alternate screen", "before\n\x1b[?1049h\x1b[Hvi\x1b[5;5Hx\x1b[?1049lafter\n", "before\nafter\n"},
		{"an alternate screen that was not left", "before\n\x1b[?1049h\x1b[Hvi\n", "before\n\nvi\n"},
		{"columns", "\x1b[5Gx\x1b[1Ga\x1b[3Cy\n", "a   y\n"},
		{"inserted and deleted", "abcdef\r\x1b[2P\x1b[1@\n", " cdef\n"},
		{"erased to the left", "abcdef\x1b[3D\x1b[1Kx\n", "   xef\n"},
		{"erased below", "a\nb\nc\x1b[2A\x1b[Jz\n", "az\n"},
		{"saved", "ab\x1b7cd\x1b8x\n", "abxd\n"},
		{"cut in the middle of a sequence", "a\x1b[3", "a"},
		{"cut after ESC", "a\x1b", "a"},
		{"the end of one whose beginning was cut", "1mred", "1mred"},
		{"up beyond the beginning", "a\x1b[99A\rb\n", "b\n"},
		{"far to the right", "\x1b[9999Cx\n", strings.Repeat(" ", maxColumn) + "x\n"},
	}
	for _, tt := range tests {
		if got := Text(tt.in); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := Text(Text(tt.in)); got != Text(tt.in) {
			t.Errorf("%s: shown again it is %q", tt.name, got)
		}
	}
}

func TestIsText(t *testing.T) {
	for in, want := range map[string]bool{"": true, "a\tb\r\n": true, "\x1b[31mred\a\b\x0f\u009b0m": true, "é \uFFFD": true,
		"a\x00b": false, "\x7f": false, "\x04": false, "\u0081": false, "\xff": false, "\xc2": false} {
		if got := IsText([]byte(in)); got != want {
			t.Errorf("%q: %t", in, got)
		}
	}
}

// What is hostile costs no more than what is long.
func TestHostile(t *testing.T) {
	for _, piece := range []string{"\x1b[9999C\x1b[9999Cx\n", "\x1b[1Kx\x1b[9999C", "\x1b[9999;9999Hx", "x\x1b[9999X\r",
		"\x1b[@", "x\x1b[P\r",
		"\x1b[2J\x1b[H\n", "\x1b[?1049hx\x1b[?1049l", "\x1b]", "\u009d", "\u0090x", "\x1bP\x1b", "\x1b[", "\x1b[1J\n",
		"\x1b[9999;9999;9999;", "\x1b[512Gx\r\x1b[1K", "\x1b7\x1b8\x1b[9999B\x1b[9999A"} {
		for _, head := range []string{"", strings.Repeat("y", 1<<18), strings.Repeat("y\n", 1<<17)} {
			in := head + strings.Repeat(piece, 1<<18/len(piece))
			began := time.Now()
			out := Text(in)
			t.Logf("%q %d: %v", piece, len(head), time.Since(began))
			if took := time.Since(began); took > 2*time.Minute { // what is not linear takes hours
				t.Errorf("%q takes %v", piece, took)
			}
			if len(out) > 3*len(in)+1<<16 {
				t.Errorf("%q: %d bytes of %d", piece, len(out), len(in))
			}
		}
	}
}

// Many lines take not much more than their text does.
func TestMemory(t *testing.T) {
	for _, piece := range []string{"\n", "a\n", "\x1bD", "\x1b[?1049h\n", "\x1b[500;1H\n", "\x1b7\n\n\x1b8\n"} {
		in := "\x1b[m" + strings.Repeat(piece, 1<<20/len(piece))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Text(in)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 24<<20 {
			t.Errorf("%q: %d MiB for 1 MiB", piece, took>>20)
		}
	}
}

// What has scrolled out is there, and rows are counted from where they are.
func TestScroll(t *testing.T) {
	var in, want strings.Builder
	for i := range 5 * maxKept {
		fmt.Fprintf(&in, "%d\n", i)
		if i == 3*maxKept {
			in.WriteString("\x1b7")
		}
	}
	in.WriteString("\x1b[2A\x1b[Klast but one\x1b[2B\rend\x1b8\x1b[Ksaved, and gone from the screen")
	for i := range 5 * maxKept {
		switch i {
		case 5*maxKept - 2:
			want.WriteString("last but one\n")
		default:
			fmt.Fprintf(&want, "%d\n", i)
		}
	}
	want.WriteString("end")
	got := strings.Split(Text(in.String()), "\n")
	wanted := strings.Split(want.String(), "\n")
	if len(got) != len(wanted) {
		t.Fatalf("%d lines, want %d", len(got), len(wanted))
	}
	for i := range wanted {
		if got[i] != wanted[i] && got[i] != "saved, and gone from the screen" {
			t.Fatalf("line %d is %q, want %q", i, got[i], wanted[i])
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"a\r\x1b[Kb\n", "\x1b[2A\x1b[2K", "\x1b[9999;9999Hx\x1b[1J", "\x1b[?1049h\x1b[?1049l",
		"\x1b]0;x\x07\u009b1K", "\b\b\t\v\f\x1bM\x1bD\x1b8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := Text(s)
		if !utf8.ValidString(out) || len(out) > 6*len(s)+1<<16 {
			t.Fatalf("%d bytes of %d, valid: %t", len(out), len(s), utf8.ValidString(out))
		}
		for _, r := range out {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%U is left in %q", r, out)
			}
		}
		if again := Text(out); again != out {
			t.Fatalf("%q becomes %q", out, again)
		}
	})
}
