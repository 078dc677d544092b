package tui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
)

// box draws a dialog in a frame.
func box(d dialog, m *model, w, h int) []string {
	if h < 4 {
		_, lines := d.view(m, w, h)
		return fill(lines, w, h)
	}
	inner := min(w-4, 100)
	title, lines := d.view(m, inner, h-2)
	title = cut(" "+title+" ", inner)
	left := strings.Repeat(" ", (w-inner-4)/2)
	out := []string{left + accent.Render("╭─"+title+strings.Repeat("─", max(0, inner+1-lipgloss.Width(title)))+"╮")}
	for _, l := range fill(lines, inner, h-2) {
		out = append(out, left+accent.Render("│ ")+l+accent.Render(" │"))
	}
	return append(out, left+accent.Render("╰"+strings.Repeat("─", inner+2)+"╯"))
}

// page is a text to read, which can be copied.
type page struct {
	title, text string // text is that of others
	copyable    bool
	scroll      int
	// again, if there is one, loads it anew.
	again func(*model) tea.Cmd
}

func (p *page) paste(*model, string) tea.Cmd { return nil }

func (p *page) key(m *model, k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc", "q", "enter":
		m.closeDialog()
	case "j", "down":
		p.scroll++
	case "k", "up":
		p.scroll--
	case "pgdown", "space":
		p.scroll += max(1, m.height/2)
	case "pgup":
		p.scroll -= max(1, m.height/2)
	case "G", "end":
		p.scroll = 1 << 30
	case "g", "home":
		p.scroll = 0
	case "c":
		if p.copyable {
			m.note = "Copied, if your terminal lets programs do that (OSC 52)."
			return tea.SetClipboard(p.text)
		}
	case "r":
		if p.again != nil {
			m.closeDialog()
			return p.again(m)
		}
	}
	return nil
}

func (p *page) view(_ *model, w, h int) (string, []string) {
	lines := wrap(clean(p.text), w)
	room := max(1, h-1)
	p.scroll = max(0, min(p.scroll, len(lines)-room))
	lines = lines[p.scroll:min(len(lines), p.scroll+room)]
	for len(lines) < room {
		lines = append(lines, "")
	}
	keys := "esc closes"
	if p.copyable {
		keys += "   c copies"
	}
	if p.again != nil {
		keys += "   r reloads"
	}
	return p.title, append(lines, faint.Render(cut(keys, w)))
}

// item is an entry of a menu.
type item struct {
	tab         int
	title, note string
	do          func(*model) tea.Cmd // it closes the menu if it has to
}

// menu is a list of entries to choose from, with tabs if it has any, and a filter that is typed.
type menu struct {
	title  string
	tabs   []string
	empty  []string // of each tab: what is said if it has no entry
	items  []item
	tab    int
	at     int
	filter string
	// keys, if there is one, handles a key of the chosen entry before the filter takes it.
	keys func(m *model, at int, key string) (tea.Cmd, bool)
	hint string
}

func (d *menu) shown() (all []int) {
	want := strings.ToLower(d.filter)
	for i, x := range d.items {
		if x.tab == d.tab && strings.Contains(strings.ToLower(x.title+" "+x.note), want) {
			all = append(all, i)
		}
	}
	return all
}

func (d *menu) paste(_ *model, text string) tea.Cmd {
	d.filter += word(text)
	return nil
}

func (d *menu) key(m *model, k tea.KeyPressMsg) tea.Cmd {
	all := d.shown()
	d.at = max(0, min(d.at, len(all)-1))
	name := k.String()
	switch name {
	case "esc":
		if d.filter != "" {
			d.filter = ""
			return nil
		}
		m.closeDialog()
	case "down", "ctrl+n":
		d.at = min(d.at+1, max(0, len(all)-1))
	case "up":
		d.at = max(0, d.at-1)
	case "tab":
		if len(d.tabs) > 0 {
			d.tab, d.at = (d.tab+1)%len(d.tabs), 0
		}
	case "shift+tab":
		if len(d.tabs) > 0 {
			d.tab, d.at = (d.tab+len(d.tabs)-1)%len(d.tabs), 0
		}
	case "enter":
		if len(all) > 0 {
			return d.items[all[d.at]].do(m)
		}
	case "backspace":
		d.filter = withoutLast(d.filter)
	default:
		if d.keys != nil {
			at := -1
			if len(all) > 0 {
				at = all[d.at]
			}
			if cmd, done := d.keys(m, at, name); done {
				return cmd
			}
		}
		d.filter += printable(k)
		d.at = 0
	}
	return nil
}

func (d *menu) view(_ *model, w, h int) (string, []string) {
	var lines []string
	if len(d.tabs) > 0 {
		line, plain := "", 0
		for i, t := range d.tabs {
			if plain += lipgloss.Width(t) + 4; plain > w {
				break
			}
			if i == d.tab {
				line += selected.Render("["+t+"]") + "  "
			} else {
				line += " " + t + "   "
			}
		}
		lines = append(lines, line)
	}
	if d.keys == nil || d.filter != "" {
		lines = append(lines, cut("> "+word(d.filter)+"▏", w))
	}
	all := d.shown()
	room := max(1, h-len(lines)-1)
	d.at = max(0, min(d.at, len(all)-1))
	from := max(0, min(d.at-room/2, len(all)-room))
	for i, n := range all[from:min(len(all), from+room)] {
		x := d.items[n]
		arrow, chosen := "  ", from+i == d.at
		if chosen {
			arrow = "› "
		}
		title := word(x.title)
		line := pad(arrow+pad(title, min(max(24, lipgloss.Width(title)), w/2))+"  "+word(x.note), w)
		if chosen {
			line = selected.Render(line)
		}
		lines = append(lines, line)
	}
	if len(all) == 0 {
		text := "nothing fits"
		if d.filter == "" && d.tab < len(d.empty) {
			text = d.empty[d.tab]
		}
		for _, l := range wrap(text, w) {
			lines = append(lines, faint.Render(l))
		}
	}
	lines = fill(lines, w, h-1)
	hint := d.hint
	if hint == "" {
		hint = "enter does it   esc closes"
		if len(d.tabs) > 0 {
			hint = "tab turns   " + hint
		}
	}
	return d.title, append(lines, faint.Render(cut(hint, w)))
}

// field is a value that a form asks for.
type field struct {
	name, label, help, kind string // those of others
	required                bool
	choices                 []string // one of them; none: any text
	value                   string
}

// form asks for values.
type form struct {
	title, about string // clean
	question     string // the id of the question that it answers; empty: none
	fields       []field
	at           int
	wrong        string
	send         func(m *model, values map[string]string) tea.Cmd // it closes the form
}

func (f *form) paste(_ *model, text string) tea.Cmd {
	if len(f.fields) > 0 && len(f.fields[f.at].choices) == 0 {
		f.fields[f.at].value += word(text)
	}
	return nil
}

func (f *form) key(m *model, k tea.KeyPressMsg) tea.Cmd {
	f.wrong = ""
	name := k.String()
	if name == "esc" {
		m.closeDialog()
		return nil
	}
	if len(f.fields) == 0 {
		if name == "enter" {
			return f.send(m, map[string]string{})
		}
		return nil
	}
	x := &f.fields[f.at]
	switch name {
	case "enter":
		if f.at < len(f.fields)-1 {
			f.at++
			return nil
		}
		return f.submit(m)
	case "ctrl+s":
		return f.submit(m)
	case "tab", "down":
		f.at = (f.at + 1) % len(f.fields)
	case "shift+tab", "up":
		f.at = (f.at + len(f.fields) - 1) % len(f.fields)
	case "left", "right":
		f.choose(x, name == "right")
	case "backspace":
		if len(x.choices) > 0 {
			x.value = ""
		} else {
			x.value = withoutLast(x.value)
		}
	case "ctrl+u":
		x.value = ""
	default:
		if len(x.choices) == 0 {
			x.value += printable(k)
		}
	}
	return nil
}

// choose takes the next or the previous choice.
func (f *form) choose(x *field, next bool) {
	if len(x.choices) == 0 {
		return
	}
	at := -1
	for i, c := range x.choices {
		if c == x.value {
			at = i
		}
	}
	switch {
	case next:
		at = (at + 1) % len(x.choices)
	default:
		at = (max(at, 0) + len(x.choices) - 1) % len(x.choices)
	}
	x.value = x.choices[at]
}

func (f *form) submit(m *model) tea.Cmd {
	values := map[string]string{}
	for i, x := range f.fields {
		switch {
		case x.value != "":
			values[x.name] = x.value
		case x.required:
			f.at, f.wrong = i, "This one is required."
			return nil
		}
	}
	return f.send(m, values)
}

func (f *form) view(_ *model, w, h int) (string, []string) {
	var lines []string
	at := 0
	if f.about != "" {
		lines = append(lines, wrap(f.about, w)...)
	}
	for i, x := range f.fields {
		label := word(x.label)
		if x.required {
			label += " (required)"
		}
		lines = append(lines, bold.Render(cut(label, w)))
		if x.help != "" {
			for _, l := range wrap(word(x.help), w) {
				lines = append(lines, faint.Render(l))
			}
		}
		lines = append(lines, f.entry(i, x, w))
		if i == f.at {
			at = len(lines) - 1
		}
	}
	if f.wrong != "" {
		lines = append(lines, bad.Render(cut("✗ "+f.wrong, w)))
	}
	room := max(1, h-1)
	from := max(0, min(at-room/2, len(lines)-room))
	lines = fill(lines[from:min(len(lines), from+room)], w, room)
	return f.title, append(lines, faint.Render(cut("enter next, at the end: sends   ctrl+s sends   esc closes", w)))
}

// entry draws the value of a field.
func (f *form) entry(i int, x field, w int) string {
	arrow := "  "
	if i == f.at {
		arrow = "› "
	}
	if len(x.choices) > 0 {
		value := "none yet"
		if x.value != "" {
			value = word(x.value)
		}
		return cut(fmt.Sprintf("%s‹ %s ›  (left and right choose)", arrow, value), w)
	}
	value := clean(x.value)
	for lipgloss.Width(value) > max(1, w-3) { // its end is shown, where one types
		_, value, _ = strings.Cut(value, string([]rune(value)[0]))
	}
	return arrow + value + "▏"
}
