// Package terminal turns the output of a program into the text that a terminal shows at the
// end: a progress bar is in its last state, and colours and other escape sequences are gone.
// Control characters that mean nothing to a terminal, such as NUL, become visible.
// The output may be hostile: time and memory are linear in its length, whatever its
// sequences ask for.
//
// Display shows the screen of a terminal that a program was given, whose size is fixed.
package terminal

import (
	"strings"
	"unicode/utf8"
)

// Text returns the text that a terminal shows after s: valid UTF-8 whose only control
// characters are newlines and tabs. The terminal has no right margin, and lines that
// scrolled out are included. Trailing spaces of a line stay, unless the line was
// overwritten in part.
func Text(s string) string {
	if plain(s) {
		return s
	}
	v := &screen{budget: 32*len(s) + 1<<16, padding: len(s) + 1<<12}
	v.lines = make([]line, 1)
	v.feed(strings.ToValidUTF8(s, "\uFFFD"))
	return v.text()
}

// plain reports whether a terminal shows s unchanged.
func plain(s string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			return false
		case c >= utf8.RuneSelf:
			if c == 0xc2 && i+1 < len(s) && s[i+1] < 0xa0 { // the controls of C1
				return false
			}
			if r, n := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && n == 1 {
				return false
			} else {
				i += n - 1
			}
		}
	}
	return true
}

// Limits of what a sequence can move to or add beyond the existing text.
const (
	maxColumn = 512
	maxRow    = 500
	maxNumber = 9999
	maxKept   = 1000 // rows that can still change; earlier ones are stored as text
	maxString = 4096 // bytes of a title and the like
)

type line struct {
	cells       []rune
	overwritten bool // it was overwritten or erased in part
}

type position struct{ row, col int }

// screen is the state of the terminal. Lines are never empty.
type screen struct {
	scrolledOut []byte // lines that scrolled out, each with a newline
	lines       []line
	position
	top    int      // the row that sequences address as the first
	topSet bool     // top was set
	saved  position // the cursor that the program saved

	main *screen // the main screen, while the alternate one is shown

	budget  int // cells that sequences may still change
	padding int // cells and lines that cursor movements may still add
}

func (v *screen) feed(s string) {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == 0x1b:
			i += v.escape(s[i:])
			continue
		case r == 0x9b:
			i += n + v.csi(s[i+n:])
			continue
		case opensString(r):
			i += n + stringLength(s[i+n:])
			continue
		case r < ' ' || r >= 0x7f && r < 0xa0:
			v.controlChar(r)
		default:
			v.put(r)
		}
		i += n
	}
}

func (v *screen) put(r rune) {
	v.padToCursor()
	l := &v.lines[v.row]
	if v.col < len(l.cells) {
		l.cells[v.col], l.overwritten = r, true
	} else {
		l.cells = append(l.cells, r)
	}
	v.col++
}

// padToCursor pads the line with spaces up to the cursor.
func (v *screen) padToCursor() {
	l := &v.lines[v.row]
	for len(l.cells) < v.col {
		if v.padding--; v.padding < 0 {
			v.col = len(l.cells)
			return
		}
		l.cells = append(l.cells, ' ')
	}
}

// controlChar carries out a control character.
func (v *screen) controlChar(r rune) {
	switch r {
	case '\n', '\v', '\f', 0x85:
		v.down()
		v.col = 0
	case '\r':
		v.col = 0
	case '\b':
		v.col = max(0, v.col-1)
	case '\t':
		if l := v.lines[v.row]; v.col >= len(l.cells) {
			v.put('\t')
		} else {
			v.col = min(v.col/8*8+8, len(l.cells))
		}
	default:
		if shown, ok := picture(r); ok {
			v.put(shown)
		}
	}
}

// picture returns what stands for a control character that means nothing to a terminal: its symbol (U+2400 for NUL),
// or U+FFFD for one without a symbol. ok is false for a character that a terminal acts upon.
func picture(r rune) (shown rune, ok bool) {
	switch {
	case r >= '\a' && r <= '\x0f' || r == 0x1b: // the bell, movements, character sets
		return 0, false
	case r >= 0 && r < ' ':
		return '\u2400' + r, true
	case r == 0x7f:
		return '\u2421', true
	case r >= 0x80 && r <= 0x9f:
		return utf8.RuneError, !strings.ContainsRune("\u0084\u0085\u0088\u008d\u008e\u008f\u0090\u0098\u009b\u009c\u009d\u009e\u009f", r)
	}
	return 0, false
}

// IsText reports whether b is text: UTF-8 without control characters that mean nothing to a terminal.
func IsText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if _, ok := picture(r); ok {
			return false
		}
	}
	return true
}

// down moves the cursor to the next line, and adds one at the end.
func (v *screen) down() {
	if v.row++; v.row < len(v.lines) {
		return
	}
	if len(v.lines) >= 2*maxKept {
		v.scroll(len(v.lines) - maxKept)
	}
	v.lines = append(v.lines, line{})
}

// scroll moves the first n lines out of the screen.
func (v *screen) scroll(n int) {
	for _, l := range v.lines[:n] {
		v.scrolledOut = append(append(v.scrolledOut, l.text()...), '\n')
	}
	kept := copy(v.lines, v.lines[n:])
	clear(v.lines[kept:])
	v.lines = v.lines[:kept]
	v.row, v.top, v.saved.row = v.row-n, max(0, v.top-n), max(0, v.saved.row-n)
}

func (l line) text() string {
	text := string(l.cells)
	if l.overwritten {
		text = strings.TrimRight(text, " ")
	}
	return text
}

// escape carries out a sequence that begins with ESC, and returns its length in bytes.
func (v *screen) escape(s string) int {
	if len(s) < 2 {
		return 1
	}
	switch c := s[1]; {
	case c == '[':
		return 2 + v.csi(s[2:])
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_' || c == 'k':
		return 2 + stringLength(s[2:])
	case c == '7':
		v.saved = v.position
	case c == '8':
		v.moveTo(v.saved)
	case c == 'M':
		v.row = max(min(v.top, v.row), v.row-1)
	case c == 'D':
		v.down()
	case c == 'E':
		v.controlChar('\n')
	case c == 'c':
		v.erase(2)
		v.col = 0
	case c >= 0x20 && c < 0x30: // such as ESC ( B
		return intermediateLength(s)
	case c < ' ' || c >= 0x7f:
		return 1
	}
	return 2
}

// intermediateLength returns the length in bytes of a sequence whose second byte is an intermediate one, such as ESC ( B.
func intermediateLength(s string) int {
	n := 2
	for n < len(s) && n < 5 && s[n] >= 0x20 && s[n] < 0x30 {
		n++
	}
	if n < len(s) && s[n] >= 0x30 && s[n] < 0x7f {
		n++
	}
	return n
}

// opensString reports whether a C1 control character begins a control string, such as a title.
func opensString(r rune) bool { return r == 0x90 || r == 0x98 || r >= 0x9d && r <= 0x9f }

// stringLength returns the length in bytes of a control string, with its terminator.
func stringLength(s string) int {
	for i := 0; i < len(s) && i < maxString; i++ {
		switch {
		case s[i] == 0x07:
			return i + 1
		case s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\':
			return i + 2
		case s[i] == 0xc2 && i+1 < len(s) && s[i+1] == 0x9c:
			return i + 2
		case s[i] == 0x1b || s[i] == '\n': // without a terminator
			return i
		case s[i] == 0xc2 && i+1 < len(s) && opensString(rune(s[i+1])): // likewise
			return i
		}
	}
	if len(s) < maxString {
		return len(s)
	}
	return 0
}

// sequence is what follows a CSI.
type sequence struct {
	numbers [4]int // no sequence that matters has more
	mark    byte   // what is in it beside numbers; 0: nothing
	final   byte
}

// readCSI reads the sequence that follows a CSI. It returns its length in bytes, and whether it is one.
func readCSI(s string) (q sequence, length int, ok bool) {
	n := 0
	for i := 0; i < len(s) && i < 64; i++ {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			if n < len(q.numbers) {
				q.numbers[n] = min(q.numbers[n]*10+int(c-'0'), maxNumber)
			}
		case c == ';' || c == ':':
			n++
		case c >= 0x20 && c < 0x40:
			q.mark = c
		case c >= 0x40 && c < 0x7f:
			q.final = c
			return q, i + 1, true
		default:
			return q, i, false
		}
	}
	return q, min(len(s), 64), false
}

// csi carries out the sequence that follows a CSI, and returns its length in bytes.
func (v *screen) csi(s string) int {
	q, n, ok := readCSI(s)
	switch {
	case !ok:
	case q.mark == 0:
		v.runCSI(q.final, q.numbers[0], q.numbers[1])
	case q.mark == '?' && (q.final == 'h' || q.final == 'l'):
		v.mode(q.numbers[0], q.final == 'h')
	}
	return n
}

// runCSI carries out a CSI sequence, if it affects the text.
func (v *screen) runCSI(c byte, a, b int) {
	n := max(a, 1)
	switch c {
	case 'A', 'F':
		v.row = max(min(v.top, v.row), v.row-n)
	case 'B', 'E', 'e':
		v.row = min(len(v.lines)-1, v.row+n)
	case 'C', 'a':
		v.column(v.col + n)
	case 'D':
		v.col = max(0, v.col-n)
	case 'G', '`':
		v.column(n - 1)
	case 'd':
		v.moveTo(position{v.firstRow() + n - 1, v.col})
	case 'H', 'f':
		v.moveTo(position{v.firstRow() + n - 1, max(b, 1) - 1})
	case 'J':
		v.erase(a)
	case 'K':
		v.eraseLine(a)
	case 'X':
		v.blank(v.col, v.col+n)
	case 'P':
		v.delete(n)
	case '@':
		v.insert(n)
	case 's':
		v.saved = v.position
	case 'u':
		v.moveTo(v.saved)
	}
	if c == 'E' || c == 'F' {
		v.col = 0
	}
}

func (v *screen) column(n int) {
	v.col = min(n, max(maxColumn, len(v.lines[v.row].cells)))
}

// firstRow returns the row that sequences address as the first. At the first such sequence it
// is the row below the existing text, which stays above.
func (v *screen) firstRow() int {
	if !v.topSet {
		v.topSet = true
		if v.col = 0; len(v.lines[v.row].cells) > 0 {
			v.row = len(v.lines) - 1
			v.down()
		}
		v.top = v.row
	}
	return v.top
}

func (v *screen) moveTo(p position) {
	p.row = min(p.row, max(len(v.lines)-1, v.top+maxRow))
	for len(v.lines) <= p.row && v.padding > 0 {
		v.padding--
		v.lines = append(v.lines, line{})
	}
	v.row = min(p.row, len(v.lines)-1)
	v.column(p.col)
}

// spend takes n cells from the budget, and reports whether it was enough.
func (v *screen) spend(n int) bool {
	v.budget -= n
	return v.budget >= 0
}

func (v *screen) erase(how int) {
	switch how {
	case 0:
		v.eraseLine(0)
		v.lines = v.lines[:v.row+1]
	case 1:
		for i := v.firstRow(); i < v.row && v.spend(1); i++ {
			v.lines[i] = line{}
		}
		v.eraseLine(1)
	case 2:
		top := v.firstRow()
		v.lines = append(v.lines[:top], line{})
		v.row = top
	}
}

func (v *screen) eraseLine(how int) {
	l := &v.lines[v.row]
	l.overwritten = true
	switch how {
	case 0:
		l.cells = l.cells[:min(v.col, len(l.cells))]
	case 1:
		v.blank(0, v.col+1)
	case 2:
		l.cells = l.cells[:0]
	}
}

// blank overwrites the cells from one column up to another with spaces.
func (v *screen) blank(from, to int) {
	l := &v.lines[v.row]
	l.overwritten = true
	to = min(to, len(l.cells))
	if from >= to || !v.spend(to-from) {
		return
	}
	for i := from; i < to; i++ {
		l.cells[i] = ' '
	}
}

// delete removes n cells at the cursor.
func (v *screen) delete(n int) {
	l := &v.lines[v.row]
	if v.col >= len(l.cells) || !v.spend(len(l.cells)-v.col) {
		return
	}
	l.overwritten = true
	l.cells = append(l.cells[:v.col], l.cells[min(v.col+n, len(l.cells)):]...)
}

// insert inserts n spaces at the cursor.
func (v *screen) insert(n int) {
	l := &v.lines[v.row]
	n = min(n, maxColumn)
	if v.col >= len(l.cells) || n > v.padding || !v.spend(len(l.cells)-v.col+n) {
		return
	}
	v.padding -= n
	l.overwritten = true
	tail := append([]rune(strings.Repeat(" ", n)), l.cells[v.col:]...)
	l.cells = append(l.cells[:v.col], tail...)
}

// mode switches to the alternate screen, whose text is discarded, and back.
func (v *screen) mode(n int, on bool) {
	if n != 47 && n != 1047 && n != 1049 {
		return
	}
	switch {
	case on && v.main == nil:
		before := *v
		*v = screen{main: &before, lines: make([]line, 1), topSet: true, budget: v.budget, padding: v.padding}
	case !on && v.main != nil:
		budget, padding := v.budget, v.padding
		*v = *v.main
		v.budget, v.padding = budget, padding
	}
}

func (v *screen) text() string {
	var b strings.Builder
	if v.main != nil { // the program was ended on its alternate screen
		b.WriteString(v.main.text())
		b.WriteByte('\n')
	}
	b.Write(v.scrolledOut)
	for i, l := range v.lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(l.text())
	}
	return b.String()
}
