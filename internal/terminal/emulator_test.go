package terminal

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// state describes all that a viewer sees of a terminal.
func (e *Emulator) state() string {
	d := &e.d
	var b strings.Builder
	fmt.Fprintf(&b, "%d,%d of %dx%d alternate %v top %d bottom %d origin %v noWrap %v insert %v graphics %v %d pen %v "+
		"keypad %v\n", d.row, d.col, d.Rows, d.Columns, d.alternate, d.top, d.bottom, d.origin, d.noWrap, d.insert,
		d.graphics, d.shifted, d.pen, d.keypad)
	for _, n := range append([]int{modeHidden}, viewerModes...) {
		fmt.Fprint(&b, n, d.kept[n], " ")
	}
	for _, g := range d.lines {
		line := make([]cell, d.Columns)
		for i := range line {
			if line[i] = blankOn(g.back); i < len(g.cells) {
				line[i] = g.cells[i]
			}
		}
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

func written(rows, cols int, output string) *Emulator {
	e := NewEmulator(rows, cols)
	e.Write([]byte(output))
	return e
}

// programs print what programs print.
var programs = []string{
	"hello\r\nworld", "\x1b[31mred\x1b[0m and \x1b[1;4;38;5;200mmore\x1b[48;2;1;2;3m behind\x1b[K\r\nnext",
	"\x1b[?1049h\x1b[H\x1b[2J\x1b[7m status \x1b[0m\x1b[5;3Htext\x1b[?25l\x1b[?1h\x1b=\x1b[?1000h\x1b[?1006h\x1b[?2004h",
	"main\x1b[?1049hother\x1b[?1049l back", "wide 漢字 é e\u0301 \U0001f600 end",
	strings.Repeat("0123456789", 3), strings.Repeat("line\r\n", 40), "\x1b[2;5r\x1b[?6h\x1b[Hregion\r\n\r\n\r\n\r\nx",
	"\x1b(0lqqk\x1b(B\x0e\x1b)0x\x0f", "\x1b[44m\x1b[2J\x1b[3;3Hblue\x1b[1K\x1b[3X", "\x1b7\x1b[5;5Hx\x1b8y",
	"\x1b]0;title\x07text\x1b]52;c;YWJj\x1b\\more\x1bPq#0\x1b\\end", "\x1b[4habc\x1b[1G\x1b[4lX", "a\tb\bc\x1b[3Pd\x1b[2@e",
	"\x1b[10;1Hbottom\x1b[3L\x1b[2M\x1bM\x1bD\x1bE", "\x1b[?7l" + strings.Repeat("x", 100), "abc\x1b[5b", "\x1b[!p\x1bc",
	"1234567890123456789\U00006f22x", "\x1b[?1000h\x1b[?1015h\x1b[?1006h\x1b[?1h", "\x1b[?1003h\x1b[?9h",
	"\x1b[?1002;1006;2004h\x1b[?1000l", "\x1b[?7;25;1049hx\x1b[?25;7l",
}

// What is drawn for those who come later, what viewers get piece by piece, and what the terminal has is the same.
func TestDrawnAgain(t *testing.T) {
	for _, output := range programs {
		e := NewEmulator(10, 20)
		viewer := NewEmulator(10, 20)
		for _, c := range []byte(output) { // each byte by itself
			shown, _ := e.Write([]byte{c})
			viewer.Write(shown)
		}
		whole := written(10, 20, output)
		if got, want := e.state(), whole.state(); got != want {
			t.Errorf("%q in pieces is\n%s\nwhole\n%s", output, got, want)
		}
		if got, want := viewer.state(), e.state(); got != want {
			t.Errorf("%q: a viewer has\n%s\nwant\n%s", output, got, want)
		}
		late := written(10, 20, "\x1b[41;1mrubbish\x1b[?1049h\x1b[2;3r\x1b[?6h\x1b(0\x1b[4h\x1b[?1000hx")
		late.Write(e.Draw())
		if got, want := late.state(), e.state(); got != want {
			t.Errorf("%q: who comes later has\n%s\nwant\n%s", output, got, want)
		}
		for _, more := range []string{"more", "\r\nmore\x1b[A!", "\x1b8x", "\x1b[?1049ly"} {
			late, e := written(10, 20, string(e.Draw())), written(10, 20, output)
			late.Write([]byte(more))
			e.Write([]byte(more))
			if got, want := late.Text(), e.Text(); got != want {
				t.Errorf("%q, then %q: who came later has\n%s\nwant\n%s", output, more, got, want)
			}
		}
	}
}

// FuzzEmulator: hostile output makes neither the terminal nor a viewer's differ from each other, whatever it is cut into.
func FuzzEmulator(f *testing.F) {
	for i, p := range programs {
		f.Add(p, i)
	}
	f.Fuzz(func(t *testing.T, output string, seed int) {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		e, viewer := NewEmulator(10, 20), NewEmulator(10, 20)
		for rest := output; len(rest) > 0; {
			n := random.IntN(len(rest)) + 1
			shown, answers := e.Write([]byte(rest[:n]))
			rest = rest[n:]
			if again, asked := viewer.Write(shown); len(asked) > 0 || !utf8.Valid(shown) ||
				string(again) != string(shown) && viewer.pending == "" {
				t.Fatalf("%q: viewers get %q, of which they would get %q, and ask %q", output, shown, again, asked)
			}
			for _, c := range answers {
				if c != 0x1b && (c < ' ' || c >= 0x7f) {
					t.Fatalf("an answer is %q", answers)
				}
			}
			if random.IntN(4) == 0 {
				rows, cols := random.IntN(30), random.IntN(50)
				e.Resize(rows, cols)
				viewer.Resize(rows, cols)
			}
		}
		if got, want := viewer.state(), e.state(); got != want {
			t.Fatalf("%q: a viewer has\n%s\nwant\n%s", output, got, want)
		}
		late := NewEmulator(e.Size())
		late.Write(e.Draw())
		if got, want := late.state(), e.state(); got != want {
			t.Fatalf("%q: who comes later has\n%s\nwant\n%s", output, got, want)
		}
	})
}

// Questions to the terminal are answered once, and viewers get none of them, nor anything else that is no text.
func TestAnswers(t *testing.T) {
	for output, want := range map[string]string{
		"\x1b[c": "\x1b[?1;2c", "\x1b[>c": "\x1b[>0;276;0c", "\x1b[5n": "\x1b[0n", "ab\r\nc\x1b[6n": "\x1b[2;2R",
		"\x1b[?6n": "\x1b[?1;1R", "\x1b[18t": "\x1b[8;10;20t", "\x1bZ": "\x1b[?1;2c", "\x1b[2;5r\x1b[?6h\x1b[6n": "\x1b[1;1R",
		"\x1b]10;?\x07": "", "\x1bP+q544e\x1b\\": "", "\x1b[>q": "", "\x1b[?u": "", "\x05": "", "\x1b[21t": "", "\x1b[?2026$p": "",
		"\x1b]52;c;aGk=\x07": "", "\x1b]0;rm -rf\x07": "", "\x1b_x\x1b\\": "", "\x1b^x\x1b\\": "", "\x9b": "", "\x1b[5i": "",
		"\u009b6n": "\x1b[1;1R", "\u009d0;x\u009c": "",
	} {
		e := NewEmulator(10, 20)
		shown, answers := e.Write([]byte(output))
		if string(answers) != want {
			t.Errorf("%q is answered with %q, want %q", output, answers, want)
		}
		for _, secret := range []string{"]", "\x1bP", "\x1b_", "\x1b^", "6n", "$p", "\u009b", "\u009d", "i", "\x05"} {
			if strings.Contains(string(shown), secret) {
				t.Errorf("of %q viewers get %q", output, shown)
			}
		}
	}
}

// Viewers get the modes of a screen, of keys and of the mouse, one by one, and none by which their terminals would type
// by themselves.
func TestModesOfViewers(t *testing.T) {
	for output, want := range map[string]string{
		"\x1b[?1004h": "", "\x1b[?1004l": "", "\x1b[?1000;1004;1006h": "\x1b[?1000h\x1b[?1006h", "\x1b[?2031h": "",
		"\x1b[?1;6;7;9h":             "\x1b[?1h\x1b[?6h\x1b[?7h\x1b[?9h",
		"\x1b[?25;47;1000;1002h":     "\x1b[?25h\x1b[?47h\x1b[?1000h\x1b[?1002h",
		"\x1b[?1003;1005;1006;1015l": "\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l",
		"\x1b[?1047;1048;1049;12l":   "\x1b[?1047l\x1b[?1048l\x1b[?1049l",
		"\x1b[?1049;2004;2026;12h":   "\x1b[?1049h\x1b[?2004h", "\x1b[?h": "", "\u009b?1004h": "",
	} {
		e := NewEmulator(10, 20)
		if shown, _ := e.Write([]byte(output)); string(shown) != want {
			t.Errorf("of %q viewers get %q, want %q", output, shown, want)
		}
		if drawn := string(e.Draw()); strings.Contains(drawn, "1004") {
			t.Errorf("after %q it draws %q", output, drawn)
		}
	}
	drawn := string(written(10, 20, "\x1b[?1003h\x1b[?1000h\x1b[?1006h").Draw())
	unset, set, more := strings.Cut(drawn, "\x1b[?1000h\x1b[?1006h")
	if !more || !strings.Contains(unset, "\x1b[?1003l") || strings.Contains(set, "\x1b[?1") {
		t.Errorf("modes of the mouse are drawn as %q", drawn)
	}
}

// A sequence that does not end is kept in part, and what follows is shown.
func TestPendingIsBounded(t *testing.T) {
	e := NewEmulator(10, 20)
	for range 1000 {
		e.Write([]byte("\x1b]0;" + strings.Repeat("x", 100)))
		if len(e.pending) > maxPending {
			t.Fatalf("%d bytes are kept", len(e.pending))
		}
	}
	e.Write([]byte("\x07\x1b[H\x1b[2Jdone"))
	if e.Text() != "done" {
		t.Errorf("it shows %q", e.Text())
	}
}

func TestResized(t *testing.T) {
	e := written(10, 20, strings.Repeat("line\r\n", 9)+"last")
	e.Resize(5, 12)
	if rows, cols := e.Size(); rows != 5 || cols != 12 || e.Text() != "line\nline\nline\nline\nlast" {
		t.Errorf("%dx%d:\n%s", rows, cols, e.Text())
	}
	e.Resize(1000000, -5)
	if rows, cols := e.Size(); rows != MaxRows || cols != MinColumns {
		t.Errorf("%dx%d", rows, cols)
	}
	e.Write([]byte("\x1b[999;999Hx"))
}
