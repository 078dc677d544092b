package terminal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Emulator is a terminal whose screen can be drawn again for whoever comes later. Its methods are not safe for concurrent
// use. What it is given may be hostile: it takes memory for two screens, and its time is linear in the number of sequences
// and the width of the screen.
type Emulator struct {
	d       display
	pending string // the beginning of a sequence or a character
}

// The bounds of an Emulator's size.
const (
	MinRows, MaxRows       = 2, 100
	MinColumns, MaxColumns = 10, 300
)

// Bounded returns the nearest size that an Emulator can have.
func Bounded(rows, columns int) (int, int) {
	return min(max(rows, MinRows), MaxRows), min(max(columns, MinColumns), MaxColumns)
}

// NewEmulator returns an empty terminal. Its size is bounded.
func NewEmulator(rows, columns int) *Emulator {
	e := &Emulator{d: display{kept: map[int]bool{}}}
	e.Resize(rows, columns)
	return e
}

// Size returns the size.
func (e *Emulator) Size() (rows, columns int) { return e.d.Rows, e.d.Columns }

// Resize changes the size, which is bounded. Lines are not wrapped anew: programs draw again what they have drawn.
func (e *Emulator) Resize(rows, columns int) {
	d := &e.d
	rows, columns = Bounded(rows, columns)
	over := max(0, d.row-rows+1) // lines that go, so that the cursor stays
	d.lines, d.other = sized(d.lines, over, rows, columns), sized(d.other, 0, rows, columns)
	d.Rows, d.Columns = rows, columns
	d.position = position{d.row - over, min(d.col, columns-1)}
	for i := range d.saved {
		d.saved[i] = position{min(d.saved[i].row, rows-1), min(d.saved[i].col, columns-1)}
	}
	d.top, d.bottom = 0, rows-1
}

// sized returns rows of a screen of another size, without the first ones.
func sized(lines []gridRow, without, rows, columns int) []gridRow {
	all := make([]gridRow, rows)
	n := copy(all, lines[min(without, len(lines)):])
	for i := range all[:n] {
		if g := &all[i]; len(g.cells) > columns {
			g.part(columns, len(g.cells))
			g.cells = slices.Clone(g.cells[:columns])
		}
	}
	return all
}

// Private modes that a viewer's terminal has to have too, for keys and the mouse.
const (
	modeCursorKeys = 1
	modeHidden     = -25 // the cursor is; programs set mode 25 to show it
	modePaste      = 2004
)

// mouseModes say which events of the mouse are told, and mouseCodes how. Of each, a terminal has one at most: the last one
// that was set.
var mouseModes, mouseCodes = []int{9, 1000, 1002, 1003}, []int{1005, 1006, 1015}

// viewerModes leave out reports of the focus (1004): a viewer's terminal would type them when somebody looks at it, and
// wake the session.
var viewerModes = slices.Concat([]int{modeCursorKeys}, mouseModes, mouseCodes, []int{modePaste})

// passes reports whether viewers get the private mode: one of viewerModes, or one that the screen itself has.
func passes(mode int) bool {
	switch mode {
	case 6, 7, 25, 47, 1047, 1048, 1049:
		return true
	}
	return slices.Contains(viewerModes, mode)
}

// keepMode keeps a private mode that concerns the viewer.
func (d *display) keepMode(n int, on bool) {
	switch {
	case d.kept == nil:
	case n == 25:
		d.kept[modeHidden] = !on
	case slices.Contains(mouseModes, n): // the end of any ends all
		d.keepOne(mouseModes, n, on)
	case on && slices.Contains(mouseCodes, n):
		d.keepOne(mouseCodes, n, true)
	case slices.Contains(viewerModes, n):
		d.kept[n] = on
	}
}

// keepOne sets one of modes of which there is one at most, or none.
func (d *display) keepOne(modes []int, n int, on bool) {
	for _, m := range modes {
		d.kept[m] = on && m == n
	}
}

// maxPending is how many bytes of a sequence that has not ended are kept.
const maxPending = maxString + 64

// Write takes output of the program. It returns what its viewers are to get: text, and the sequences that move the cursor,
// change the screen or its modes. It leaves out questions to the terminal, whose answers it returns instead, and titles,
// links, the clipboard and all else that is no text of a screen.
func (e *Emulator) Write(output []byte) (shown, answers []byte) {
	d, s := &e.d, e.pending+string(output)
	e.pending = ""
	d.budget = 8*len(s) + 1<<12
	shown = make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if c := s[i]; c >= ' ' && c < 0x7f {
			d.put(rune(c))
			shown = append(shown, c)
			i++
			continue
		}
		rest := s[i:]
		if !complete(rest) && len(rest) < maxPending {
			e.pending = strings.Clone(rest)
			break
		}
		r, n := utf8.DecodeRuneInString(rest)
		var part string // what of it viewers get
		switch {
		case r == 0x1b:
			part, answers = d.forViewers(rest, answers)
			n = d.escape(rest)
		case r == 0x9b:
			part, answers = d.csiForViewers(rest[n:], answers)
			n += d.csi(rest[n:])
		case opensString(r):
			n += stringLength(rest[n:])
		case r < ' ' || r >= 0x7f && r < 0xa0:
			d.control(r)
			if r >= 0x07 && r <= 0x0f || r == 0x84 || r == 0x85 || r == 0x8d {
				part = string(r)
			}
		default:
			d.put(r)
			part = string(r)
		}
		shown = append(shown, part...)
		i += max(n, 1)
	}
	return shown, answers
}

// Skip says that output is missing before what Write gets next.
func (e *Emulator) Skip() { e.pending = "" }

// complete reports whether a text begins with a whole character or sequence.
func complete(s string) bool {
	if !utf8.FullRuneInString(s) {
		return false
	}
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case r == 0x9b:
		return csiComplete(s[n:])
	case opensString(r):
		return stringComplete(s[n:])
	case r != 0x1b:
		return true
	case len(s) < 2:
		return false
	}
	switch c := s[1]; {
	case c == '[':
		return csiComplete(s[2:])
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_' || c == 'k':
		return stringComplete(s[2:])
	case c >= 0x20 && c < 0x30:
		n := intermediateLength(s)
		return n < len(s) || n >= 5 || s[n-1] >= 0x30
	}
	return true
}

func csiComplete(s string) bool {
	_, n, ok := readCSI(s)
	return ok || n < len(s) || n >= 64
}

// stringComplete reports whether stringLength does not depend on what follows.
func stringComplete(s string) bool {
	n := stringLength(s)
	switch {
	case len(s) >= maxString:
		return true
	case n == len(s):
		return n > 0 && (s[n-1] == 0x07 || strings.HasSuffix(s, "\x1b\\") || strings.HasSuffix(s, "\u009c"))
	case n == len(s)-1:
		return s[n] == '\n' // else it may be the first half of a terminator
	}
	return true
}

// forViewers returns what viewers get of a sequence that begins with ESC.
func (d *display) forViewers(s string, answers []byte) (string, []byte) {
	if len(s) < 2 {
		return "", answers
	}
	switch c := s[1]; {
	case c == '[':
		part, answers := d.csiForViewers(s[2:], answers)
		return part, answers
	case c == 'Z':
		return "", append(answers, whatItIs...)
	case strings.IndexByte("78DEMc=>", c) >= 0:
		return s[:2], answers
	case c == '(' || c == ')':
		if n := intermediateLength(s); n == 3 && (s[2] == '0' || s[2] == 'B') {
			return s[:3], answers
		}
	}
	return "", answers
}

// whatItIs is what a terminal says that is asked what it is.
const whatItIs = "\x1b[?1;2c"

// csiForViewers returns what viewers get of the sequence that follows a CSI. Questions get answers.
func (d *display) csiForViewers(s string, answers []byte) (string, []byte) {
	q, n, ok := readCSI(s)
	if !ok {
		return "", answers
	}
	row, col := d.row+1, d.at()+1
	if d.origin {
		row -= d.top
	}
	switch {
	case q.final == 'c' && q.mark == 0:
		return "", append(answers, whatItIs...)
	case q.final == 'c' && q.mark == '>':
		return "", append(answers, "\x1b[>0;276;0c"...)
	case q.final == 'n' && q.mark == 0 && q.numbers[0] == 5:
		return "", append(answers, "\x1b[0n"...)
	case q.final == 'n' && q.numbers[0] == 6:
		mark := ""
		if q.mark == '?' {
			mark = "?"
		}
		return "", fmt.Appendf(answers, "\x1b[%s%d;%dR", mark, row, col)
	case q.final == 't' && q.mark == 0 && q.numbers[0] == 18:
		return "", fmt.Appendf(answers, "\x1b[8;%d;%dt", d.Rows, d.Columns)
	case q.mark == '?' && (q.final == 'h' || q.final == 'l'):
		var part []byte
		for _, mode := range q.numbers {
			if passes(mode) {
				part = d.appendMode(part, mode, q.final == 'h')
			}
		}
		return string(part), answers
	case q.mark == 0 && strings.IndexByte("@ABCDEFGHIJKLMPSTXZ`abdefhlmrsu", q.final) >= 0,
		q.mark == '!' && q.final == 'p', q.mark == ' ' && q.final == 'q':
		return "\x1b[" + s[:n], answers
	}
	return "", answers
}

// Draw returns sequences that make any terminal of the size show the screen, and have its modes.
func (e *Emulator) Draw() []byte {
	d := &e.d
	// What an earlier screen may have set is undone first.
	b := []byte("\x1b[!p\x1b[?6l\x1b[4l\x1b[r\x1b(B\x1b)B\x0f\x1b>\x1b[?1049l\x1b[?7l")
	for _, n := range viewerModes {
		b = d.appendMode(b, n, false)
	}
	for _, n := range viewerModes { // afterwards: the end of one mode of the mouse ends another
		if d.kept[n] {
			b = d.appendMode(b, n, true)
		}
	}
	main := d.lines
	if d.alternate {
		main = d.other
	}
	b = appendLines(b, main, d.Columns)
	b = appendMove(b, d.saved[0])
	b = append(d.pens[0].appendTo(b), "\x1b7"...)
	if d.alternate {
		b = append(b, "\x1b[?1049h"...)
		b = appendLines(b, d.lines, d.Columns)
		b = appendMove(b, d.saved[1])
		b = append(d.pens[1].appendTo(b), "\x1b7"...)
	}
	if d.top != 0 || d.bottom != d.Rows-1 {
		b = fmt.Appendf(b, "\x1b[%d;%dr", d.top+1, d.bottom+1)
	}
	b = appendMove(b, position{d.row, d.at()})
	b = d.appendMode(b, 7, !d.noWrap)
	if d.col == d.Columns { // the next character goes to the next row, once the last one is drawn again
		g, at := d.lines[d.row], d.Columns-1
		last := blankOn(g.back)
		if len(g.cells) == d.Columns {
			if g.cells[at].r == wideTail {
				at--
			}
			last = g.cells[at]
		}
		b = last.appendTo(appendMove(b, position{d.row, at}), nil)
	}
	return d.appendState(b)
}

// appendState appends what programs have set, and what moves no cursor.
func (d *display) appendState(b []byte) []byte {
	b = d.pen.appendTo(b)
	for i, lines := range d.graphics {
		if lines {
			b = append(b, '\x1b', "()"[i], '0')
		}
	}
	if d.shifted == 1 {
		b = append(b, 0x0e)
	}
	if d.insert {
		b = append(b, "\x1b[4h"...)
	}
	if d.keypad {
		b = append(b, "\x1b="...)
	}
	if d.origin { // which moves the cursor
		b = fmt.Appendf(b, "\x1b[?6h\x1b[%d;%dH", d.row-d.top+1, d.at()+1)
	}
	return d.appendMode(b, 25, !d.kept[modeHidden])
}

func (d *display) appendMode(b []byte, n int, on bool) []byte {
	b = strconv.AppendInt(append(b, "\x1b[?"...), int64(n), 10)
	if on {
		return append(b, 'h')
	}
	return append(b, 'l')
}

func appendMove(b []byte, p position) []byte { return fmt.Appendf(b, "\x1b[%d;%dH", p.row+1, p.col+1) }

// appendLines appends what draws all rows on an empty screen.
func appendLines(b []byte, lines []gridRow, columns int) []byte {
	b = append(b, "\x1b[0m\x1b[H\x1b[2J"...)
	var now style
	for i, g := range lines {
		if len(g.cells) == 0 && g.back == 0 {
			continue
		}
		b = appendMove(b, position{i, 0})
		for _, c := range g.cells {
			b = c.appendTo(b, &now)
		}
		if g.back != 0 && len(g.cells) < columns {
			now = style{back: g.back}
			b = append(now.appendTo(b), "\x1b[K"...)
		}
	}
	return append(b, "\x1b[0m"...)
}

// appendTo appends the character, and its style unless that is the one now.
func (c cell) appendTo(b []byte, now *style) []byte {
	if c.r == wideTail {
		return b
	}
	if now == nil || *now != c.style {
		b = c.style.appendTo(b)
	}
	if now != nil {
		*now = c.style
	}
	return append(utf8.AppendRune(b, c.r), c.marks...)
}

// Text returns the lines of the screen as text, without spaces at their ends and blank lines at its end.
func (e *Emulator) Text() string { return e.d.view().Screen }
