package terminal

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Display is a terminal of a fixed size.
type Display struct {
	Rows, Columns int
	// Seen is how many bytes of the output somebody has seen the effect of.
	Seen int
	// Most is how many bytes of lines that scrolled off the screen are kept: the last ones.
	Most int
}

// View is what a terminal shows.
type View struct {
	// Screen has the lines of the screen, without spaces at their ends and blank lines at its end.
	Screen string
	// Scrolled has the lines that have scrolled off the screen and that nobody has seen, each with a newline.
	Scrolled string
	// LeftOut is how many such lines before those are left out.
	LeftOut int
	// Drawn has the lines of an alternate screen with text that nobody has seen. It is empty for the main screen.
	Drawn string
}

// Show returns what the terminal shows after output: valid UTF-8 whose only control characters are newlines. It answers
// none of the questions that programs may ask a terminal. As in Text, the output may be hostile.
func (t Display) Show(output string) View {
	t.Rows, t.Columns, t.Most = max(t.Rows, 1), max(t.Columns, 2), max(t.Most, 0)
	d := &display{Display: t, lines: make([]gridRow, t.Rows), other: make([]gridRow, t.Rows), bottom: t.Rows - 1,
		budget: 8*len(output) + 1<<12}
	d.feed(output)
	return d.view()
}

// cell is one place of a screen.
type cell struct {
	r     rune   // wideTail: the second half of the character before
	marks string // characters that combine with it
	style style
}

const (
	wideTail = -1
	maxMarks = 8 // bytes of combining characters in one place
)

var blankCell = cell{r: ' '}

// gridRow is a row of a screen.
type gridRow struct {
	cells []cell // as far as something was written
	seen  bool   // it has not changed since somebody has seen it
	back  colour // of what is behind cells
}

func (g gridRow) text() string {
	var b strings.Builder
	for _, c := range g.cells {
		if c.r != wideTail {
			b.WriteRune(c.r)
			b.WriteString(c.marks)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// pad fills the row with spaces up to a column.
func (g *gridRow) pad(to int) {
	for len(g.cells) < to {
		g.cells = append(g.cells, blankOn(g.back))
	}
}

// part makes spaces of the halves of wide characters that are cut by a change of the cells from one column up to another.
func (g *gridRow) part(from, to int) {
	if from > 0 && from < len(g.cells) && g.cells[from].r == wideTail {
		g.cells[from-1] = blankCell
	}
	if to < len(g.cells) && g.cells[to].r == wideTail {
		g.cells[to] = blankCell
	}
}

// display is the state of a Display.
type display struct {
	Display
	lines     []gridRow // of the screen that is shown
	other     []gridRow // of the main or alternate screen, whichever is not shown
	alternate bool
	position              // of the cursor; in column Columns the next character goes to the next row
	saved     [2]position // that programs saved, on the main and the alternate screen
	top       int         // the first row of those that scroll
	bottom    int         // the last row of those that scroll
	origin    bool        // rows are counted from top
	noWrap    bool
	insert    bool
	graphics  [2]bool // whether the character sets G0 and G1 have lines in place of small letters
	shifted   int     // which of them is used
	last      rune    // the last character; 0: none
	news      bool    // the output that nobody has seen has begun
	scrolled  []byte
	leftOut   int
	spare     []gridRow
	budget    int // how many characters sequences may still repeat

	// The following are of an Emulator. Without kept, there are no styles, and they stay zero.
	pen    style
	pens   [2]style     // that programs saved with the cursor
	kept   map[int]bool // private modes that concern the viewer
	keypad bool         // it sends other codes
}

// empty returns a row without text.
func (d *display) empty(old []cell) gridRow { return gridRow{cells: old[:0], back: d.pen.back} }

func (d *display) feed(s string) {
	for i := 0; i < len(s); {
		if !d.news && i >= d.Seen {
			d.begin()
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == 0x1b:
			i += d.escape(s[i:])
			continue
		case r == 0x9b:
			i += n + d.csi(s[i+n:])
			continue
		case opensString(r):
			i += n + stringLength(s[i+n:])
			continue
		case r < ' ' || r >= 0x7f && r < 0xa0:
			d.control(r)
		default:
			d.put(r)
		}
		i += n
	}
}

// begin is called before the output that nobody has seen.
func (d *display) begin() {
	d.news = true
	for _, lines := range [][]gridRow{d.lines, d.other} {
		for i := range lines {
			lines[i].seen = len(lines[i].cells) > 0
		}
	}
}

// at returns the column of the cursor.
func (d *display) at() int { return min(d.col, d.Columns-1) }

// current returns the row of the cursor, to change it.
func (d *display) current() *gridRow {
	g := &d.lines[d.row]
	g.seen = false
	return g
}

// lineDrawing has what the character set of the VT100 for lines has in place of ` to ~.
var lineDrawing = []rune("◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")

func (d *display) put(r rune) {
	if d.graphics[d.shifted] && r >= '`' && r <= '~' {
		r = lineDrawing[r-'`']
	}
	n := columns(r)
	if n == 0 {
		d.combine(r)
		return
	}
	if d.col+n > d.Columns {
		if d.noWrap {
			d.col = d.Columns - n
		} else {
			d.col = 0
			d.lineFeed()
		}
	}
	if d.insert {
		d.insertCells(n)
	}
	g := d.current()
	g.pad(d.col + n)
	g.part(d.col, d.col+n)
	g.cells[d.col] = cell{r: r, style: d.pen}
	if n == 2 {
		g.cells[d.col+1] = cell{r: wideTail, style: d.pen}
	}
	d.col, d.last = d.col+n, r
}

// columns returns how many columns a character takes.
func columns(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// combine adds a character to the one before the cursor.
func (d *display) combine(r rune) {
	g, col := d.current(), d.col-1
	if col > 0 && col < len(g.cells) && g.cells[col].r == wideTail {
		col--
	}
	if col >= 0 && col < len(g.cells) && len(g.cells[col].marks)+utf8.RuneLen(r) <= maxMarks {
		g.cells[col].marks += string(r)
	}
}

func (d *display) control(r rune) {
	switch r {
	case '\n', '\v', '\f', 0x84:
		d.lineFeed()
	case 0x85:
		d.col = 0
		d.lineFeed()
	case 0x8d:
		d.reverseLineFeed()
	case '\r':
		d.col = 0
	case '\b':
		d.col = max(0, d.at()-1)
	case '\t':
		d.tab(1)
	case 0x0e:
		d.shifted = 1
	case 0x0f:
		d.shifted = 0
	}
}

// tab moves the cursor by tabs, also backwards.
func (d *display) tab(n int) {
	stop := d.at()/8 + n
	if n < 0 {
		stop = (d.at()+7)/8 + n
	}
	d.col = min(max(0, stop)*8, d.Columns-1)
}

func (d *display) lineFeed() {
	d.col = d.at()
	switch {
	case d.row == d.bottom:
		d.scrollUp(d.top, 1, true)
	case d.row < d.Rows-1:
		d.row++
	}
}

func (d *display) reverseLineFeed() {
	switch {
	case d.row == d.top:
		d.scrollDown(d.top, 1)
	case d.row > 0:
		d.row--
	}
}

// scrollUp moves the rows from one to the last that scrolls up by n. With keep, those that go beyond the top of the main
// screen are kept.
func (d *display) scrollUp(from, n int, keep bool) {
	n = min(n, d.bottom-from+1)
	if n <= 0 {
		return
	}
	d.spare = append(d.spare[:0], d.lines[from:from+n]...)
	copy(d.lines[from:], d.lines[from+n:d.bottom+1])
	for i, g := range d.spare {
		if keep && from == 0 && !d.alternate && d.news && !g.seen {
			d.keep(g)
		}
		d.lines[d.bottom-n+1+i] = d.empty(g.cells)
	}
}

// scrollDown moves the rows from one to the last that scrolls down by n.
func (d *display) scrollDown(from, n int) {
	n = min(n, d.bottom-from+1)
	if n <= 0 {
		return
	}
	d.spare = append(d.spare[:0], d.lines[d.bottom-n+1:d.bottom+1]...)
	copy(d.lines[from+n:d.bottom+1], d.lines[from:])
	for i, g := range d.spare {
		d.lines[from+i] = d.empty(g.cells)
	}
}

// keep keeps a row that has scrolled off the screen, and in the end the last ones.
func (d *display) keep(g gridRow) {
	d.scrolled = append(append(d.scrolled, g.text()...), '\n')
	if len(d.scrolled) > 2*d.Most+1<<12 {
		d.shorten()
	}
}

// shorten leaves out the first lines that scrolled off, until the others have the size that is wanted.
func (d *display) shorten() {
	over := len(d.scrolled) - d.Most
	if over <= 0 {
		return
	}
	if end := bytes.IndexByte(d.scrolled[over-1:], '\n'); end >= 0 {
		over += end
	} else {
		over = len(d.scrolled)
	}
	d.leftOut += bytes.Count(d.scrolled[:over], []byte("\n"))
	d.scrolled = d.scrolled[:copy(d.scrolled, d.scrolled[over:])]
}

// escape carries out a sequence that begins with ESC, and returns its length in bytes.
func (d *display) escape(s string) int {
	if len(s) < 2 {
		return 1
	}
	switch c := s[1]; {
	case c == '[':
		return 2 + d.csi(s[2:])
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_' || c == 'k':
		return 2 + stringLength(s[2:])
	case c == '7':
		d.save()
	case c == '8':
		d.restore()
	case c == 'D':
		d.lineFeed()
	case c == 'E':
		d.control(0x85)
	case c == 'M':
		d.reverseLineFeed()
	case c == 'c':
		d.reset()
	case c == '=' || c == '>':
		d.keypad = d.kept != nil && c == '='
	case c >= 0x20 && c < 0x30:
		n := intermediateLength(s)
		if (c == '(' || c == ')') && n == 3 {
			d.graphics[c-'('] = s[2] == '0'
		}
		return n
	case c < ' ' || c >= 0x7f:
		return 1
	}
	return 2
}

func (d *display) save() {
	which := 0
	if d.alternate {
		which = 1
	}
	d.saved[which], d.pens[which] = position{d.row, d.at()}, d.pen
}

func (d *display) restore() {
	which := 0
	if d.alternate {
		which = 1
	}
	d.position, d.pen = d.saved[which], d.pens[which]
	if d.origin {
		d.row = min(max(d.row, d.top), d.bottom)
	}
}

// reset makes the terminal what it was at its start.
func (d *display) reset() {
	d.pen, d.pens = style{}, [2]style{}
	clear(d.kept)
	d.show(false)
	d.clear(0, d.Rows)
	d.position, d.saved = position{}, [2]position{}
	d.resetModes()
}

func (d *display) resetModes() {
	d.top, d.bottom, d.origin, d.noWrap, d.insert = 0, d.Rows-1, false, false, false
	d.graphics, d.shifted = [2]bool{}, 0
	d.pen, d.keypad = style{}, false
	delete(d.kept, modeHidden)
	delete(d.kept, modeCursorKeys)
}

// show shows the alternate screen, which is empty then, or the main one.
func (d *display) show(alternate bool) {
	if d.alternate == alternate {
		return
	}
	d.alternate = alternate
	d.lines, d.other = d.other, d.lines
	if alternate {
		d.clear(0, d.Rows)
	}
}

// clear clears the rows from one up to another.
func (d *display) clear(from, to int) {
	for i := from; i < to; i++ {
		d.lines[i] = d.empty(d.lines[i].cells)
	}
}

// csi carries out the sequence that follows a CSI, and returns its length in bytes.
func (d *display) csi(s string) int {
	q, n, ok := readCSI(s)
	switch {
	case !ok:
	case q.mark == 0 && q.final == 'm':
		if d.kept != nil {
			d.pen.set(s[:n-1])
		}
	case q.mark == 0:
		d.run(q.final, q.numbers[0], q.numbers[1])
	case q.mark == '?' && (q.final == 'h' || q.final == 'l'):
		for _, mode := range q.numbers {
			d.mode(mode, q.final == 'h')
		}
	case q.mark == '!' && q.final == 'p':
		d.resetModes()
	}
	return n
}

// mode sets a private mode.
func (d *display) mode(n int, on bool) {
	switch n {
	case 6:
		d.origin = on
		d.moveTo(0, 0)
	case 7:
		d.noWrap = !on
	case 47, 1047:
		d.show(on)
	case 1048:
		if on {
			d.save()
		} else {
			d.restore()
		}
	case 1049:
		if on && !d.alternate {
			d.save()
		}
		was := d.alternate
		d.show(on)
		if !on && was {
			d.restore()
		}
	default:
		d.keepMode(n, on)
	}
}

// moveTo moves the cursor to a row, counted as programs do, and a column.
func (d *display) moveTo(row, col int) {
	first, last := 0, d.Rows-1
	if d.origin {
		first, last = d.top, d.bottom
	}
	d.row, d.col = min(first+row, last), min(max(col, 0), d.Columns-1)
}

// run carries out a CSI sequence.
func (d *display) run(c byte, a, b int) {
	n := max(a, 1)
	switch c {
	case 'A', 'F':
		d.vertical(-n)
	case 'B', 'E', 'e':
		d.vertical(n)
	case 'C', 'a':
		d.col = min(d.at()+n, d.Columns-1)
	case 'D':
		d.col = max(0, d.at()-n)
	case 'G', '`':
		d.col = min(n, d.Columns) - 1
	case 'd':
		d.moveTo(n-1, d.at())
	case 'H', 'f':
		d.moveTo(n-1, max(b, 1)-1)
	case 'I':
		d.tab(n)
	case 'Z':
		d.tab(-n)
	case 's':
		d.save()
	case 'u':
		d.restore()
	case 'r':
		if b == 0 || b > d.Rows {
			b = d.Rows
		}
		if n < b {
			d.top, d.bottom = n-1, b-1
			d.moveTo(0, 0)
		}
	case 'h', 'l':
		if a == 4 {
			d.insert = c == 'h'
		}
	case 'b':
		for range min(n, d.Columns) {
			if d.budget--; d.last != 0 && d.budget >= 0 {
				d.put(d.last)
			}
		}
	default:
		d.edit(c, a)
	}
	if c == 'E' || c == 'F' {
		d.col = 0
	}
}

// vertical moves the cursor by rows, and not out of those that scroll.
func (d *display) vertical(n int) {
	first, last := 0, d.Rows-1
	if d.row >= d.top {
		first = d.top
	}
	if d.row <= d.bottom {
		last = d.bottom
	}
	d.row, d.col = min(max(d.row+n, first), last), d.at()
}

// edit carries out a CSI sequence that changes the screen.
func (d *display) edit(c byte, a int) {
	n := max(a, 1)
	scrolls := d.row >= d.top && d.row <= d.bottom
	switch c {
	case 'J':
		switch a {
		case 0:
			d.eraseLine(0)
			d.clear(d.row+1, d.Rows)
		case 1:
			d.clear(0, d.row)
			d.eraseLine(1)
		case 2:
			d.clear(0, d.Rows)
		}
	case 'K':
		d.eraseLine(a)
	case 'X':
		d.blank(d.at(), d.at()+n)
	case '@':
		d.insertCells(n)
	case 'P':
		g := d.current()
		from := d.at()
		to := min(from+n, len(g.cells))
		if from < to {
			g.part(from, to)
			g.cells = append(g.cells[:from], g.cells[to:]...)
		}
	case 'L':
		if scrolls {
			d.scrollDown(d.row, n)
			d.col = 0
		}
	case 'M':
		if scrolls {
			d.scrollUp(d.row, n, false)
			d.col = 0
		}
	case 'S':
		d.scrollUp(d.top, n, true)
	case 'T':
		d.scrollDown(d.top, n)
	}
}

func (d *display) eraseLine(how int) {
	g := d.current()
	switch how {
	case 0:
		if d.at() < len(g.cells) {
			g.part(d.at(), len(g.cells))
			g.cells = g.cells[:d.at()]
		} else if g.back != d.pen.back {
			g.pad(d.at())
		}
		g.back = d.pen.back
	case 1:
		d.blank(0, d.at()+1)
	case 2:
		g.cells, g.back = g.cells[:0], d.pen.back
	}
}

// blank overwrites the cells of the cursor's row from one column up to another with spaces.
func (d *display) blank(from, to int) {
	g := d.current()
	if to = min(to, d.Columns); g.back != d.pen.back {
		g.pad(to)
	}
	to = min(to, len(g.cells))
	if from >= to {
		return
	}
	g.part(from, to)
	for i := from; i < to; i++ {
		g.cells[i] = blankOn(d.pen.back)
	}
}

// insertCells inserts n spaces at the cursor.
func (d *display) insertCells(n int) {
	g, from := d.current(), d.at()
	n = min(n, d.Columns-from)
	if from >= len(g.cells) {
		return
	}
	g.part(from, from)
	g.pad(min(len(g.cells)+n, d.Columns))
	copy(g.cells[from+n:], g.cells[from:])
	for i := from; i < from+n; i++ {
		g.cells[i] = blankOn(d.pen.back)
	}
	if end := len(g.cells); end == d.Columns && g.cells[end-1].r != wideTail && columns(g.cells[end-1].r) == 2 {
		g.cells[end-1] = blankCell // its second half is gone
	}
}

func (d *display) view() View {
	d.shorten()
	v := View{Scrolled: string(d.scrolled), LeftOut: d.leftOut}
	lines, drawn := make([]string, d.Rows), []string(nil)
	for i, g := range d.lines {
		if lines[i] = g.text(); d.alternate && d.news && !g.seen && lines[i] != "" {
			drawn = append(drawn, lines[i])
		}
	}
	v.Drawn = strings.Join(drawn, "\n")
	v.Screen = strings.TrimRight(strings.Join(lines, "\n"), "\n")
	return v
}
