package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"sandlot/internal/event"
	"sandlot/internal/hub"
)

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	return v
}

// narrow reports whether there is room for one column only.
func (m *model) narrow() bool { return m.width < 64 }

// lines draws the screen: as many lines as it has.
func (m *model) lines() []string {
	w, h := m.width, m.height
	if w < 10 || h < 4 {
		return []string{cut("sandlot", w)}
	}
	var top []string
	if h >= 16 {
		top = append(top, m.titleLine(w))
	}
	bottom := []string{m.statusLine(w), m.lastLine(w)}
	room := h - len(top) - len(bottom)
	top = append(top, m.questionPanel(w, max(4, min(room-3, room*2/3)))...)
	room = h - len(top) - len(bottom)
	body := m.body(w, max(0, room))
	all := slices.Concat(top, body, bottom)
	if over := len(all) - h; over > 0 {
		all = slices.Concat(all[:max(0, len(top)+len(body)-over)], bottom)
	}
	for i, l := range all {
		if lipgloss.Width(l) > w {
			all[i] = lipgloss.NewStyle().Inline(true).MaxWidth(w).Render(l)
		}
	}
	return all
}

func (m *model) titleLine(w int) string {
	left := "Sandlot"
	if m.opts.Server != "" {
		left += "  " + word(m.opts.Server)
	}
	if m.me.Name != "" {
		left += "  " + word(m.me.Name)
	}
	if m.me.Version != "" {
		left += "  " + word(m.me.Version)
	}
	text, style := m.connText()
	width := min(lipgloss.Width(text), w/2)
	return bold.Render(pad(left, w-width)) + style.Render(pad(text, width))
}

// connText says in a word whether there is a connection.
func (m *model) connText() (string, lipgloss.Style) {
	switch m.conn.state {
	case isOnline:
		return "● connected", good
	case isOffline:
		return "✗ no connection", bad
	case isEnded:
		return "✗ not let in", bad
	}
	return "◐ connecting", warning
}

// body draws what is between the question and the status line.
func (m *model) body(w, h int) []string {
	if d := m.dialog(); d != nil {
		return box(d, m, w, h)
	}
	if m.conn.state != isOnline && len(m.sessions)+len(m.servers)+len(m.events) == 0 {
		return fill(m.apart(w), w, h)
	}
	if m.narrow() {
		if m.side {
			return fill(m.right(w, h), w, h)
		}
		return fill(m.left(w, h), w, h)
	}
	lw := max(28, min(44, w/3))
	left, right := fill(m.left(lw, h), lw, h), fill(m.right(w-lw-3, h), w-lw-3, h)
	lines := make([]string, h)
	for i := range lines {
		lines[i] = left[i] + faint.Render(" │ ") + right[i]
	}
	return lines
}

// apart says why nothing is shown, and what to do.
func (m *model) apart(w int) []string {
	var text string
	switch m.conn.state {
	case isConnecting:
		text = "Connecting …"
	case isOffline:
		text = "No connection to the server: " + clean(m.conn.why) + "\n\n" +
			"Start a server with `sandlot serve`. This screen connects by itself, or with r at once."
	case isEnded:
		text = "The server does not let you in: " + clean(m.conn.why) + "\n\n" +
			"Leave with q, set SANDLOT_TOKEN to a token of the server, and start again; or try again with r."
	}
	return append([]string{""}, wrap(text, w)...)
}

// fill makes exactly h lines of at least the width w.
func fill(lines []string, w, h int) []string {
	lines = slices.Clone(lines[:max(0, min(len(lines), h))])
	for i, l := range lines {
		lines[i] = l + strings.Repeat(" ", max(0, w-lipgloss.Width(l)))
	}
	for len(lines) < h {
		lines = append(lines, strings.Repeat(" ", w))
	}
	return lines
}

// left draws the list of sessions and servers.
func (m *model) left(w, h int) (lines []string) {
	at := 0
	selected, _ := m.selected()
	section := func(title string, n int, known bool) {
		lines = append(lines, accent.Bold(true).Render(pad(title, w)))
		if n == 0 {
			text := "  none"
			if !known {
				text = "  …"
			}
			lines = append(lines, faint.Render(pad(text, w)))
		}
	}
	rows := m.rows()
	sessions := 0
	for _, r := range rows {
		if r.session != nil {
			sessions++
		}
	}
	section("Sessions", sessions, m.sessions != nil)
	for i, r := range rows {
		if i == sessions {
			section("Servers", 1, true)
		}
		if r.id() == selected.id() {
			at = len(lines)
		}
		lines = append(lines, m.rowLine(r, w, r.id() == selected.id()))
	}
	if sessions == len(rows) {
		section("Servers", 0, m.servers != nil)
	}
	if len(lines) > h && h > 0 {
		from := max(0, min(at-h/2, len(lines)-h))
		lines = lines[from : from+h]
	}
	return lines
}

func (m *model) rowLine(r row, w int, chosen bool) string {
	sign, text := r.mark()
	arrow := "  "
	if chosen {
		arrow = "› "
	}
	width := min(lipgloss.Width(text), max(0, w/2-2))
	line := arrow + sign + " " + pad(r.title(), max(1, w-5-width)) + " " + pad(text, width)
	if chosen {
		return selected.Render(pad(line, w))
	}
	return pad(line, w)
}

// right draws the timeline, or what is selected.
func (m *model) right(w, h int) []string {
	r, ok := m.selected()
	title, lines := "Timeline", []string(nil)
	if m.detail && ok {
		title, lines = r.title(), m.details(r, w)
	} else {
		for _, e := range m.events {
			lines = append(lines, m.eventLine(e, w))
		}
		if m.missing {
			lines = append(lines, faint.Render(cut("Some events are missing.", w)))
		}
		if len(m.events) == 0 {
			lines = append(lines, faint.Render(cut("Nothing has happened yet.", w)))
		}
	}
	m.scroll = max(0, min(m.scroll, len(lines)-h+1))
	return append([]string{accent.Bold(true).Render(pad(title, w))}, lines[min(m.scroll, len(lines)):]...)
}

// details draws a session or a server, and what happened there.
func (m *model) details(r row, w int) (lines []string) {
	fact := func(name, value string) {
		if value == "" {
			return
		}
		for i, l := range wrap(clean(value), max(2, w-12)) {
			if i > 0 {
				name = ""
			}
			lines = append(lines, faint.Render(pad(name, 11))+" "+l)
		}
	}
	_, state := r.mark()
	fact("state", state)
	if s := r.session; s != nil {
		sessionFacts(s, fact)
	} else {
		serverFacts(r.server, fact)
	}
	lines = append(lines, "", accent.Bold(true).Render(pad("What happened there", w)))
	for _, e := range m.events {
		if r.session != nil && e.Session == r.session.ID || r.server != nil &&
			(e.Name == r.server.Name || strings.HasPrefix(e.Name, r.server.Name+"/")) {
			lines = append(lines, m.eventLine(e, w))
		}
	}
	return lines
}

func sessionFacts(s *hub.SessionRow, fact func(name, value string)) {
	fact("id", s.ID)
	fact("template", strings.Trim(s.Template+", "+s.Flavor, ", "))
	fact("processes", fmt.Sprint(s.Processes))
	if u := s.Usage; u != nil {
		fact("memory", fmt.Sprintf("%.0f of %d MB", u.MemoryMB, s.Limits.MemoryMB))
		fact("disk", fmt.Sprintf("%.0f MB", u.DiskMB))
	}
	fact("network", fmt.Sprintf("%.1f MB sent, %.1f MB received", s.Network.SentMB, s.Network.ReceivedMB))
	for _, p := range s.Ports {
		fact(fmt.Sprintf("port %d", p.Port), p.URL)
	}
	fact("paused by", s.PausedBy)
	fact("ends at", s.EndsAt)
	if s.Parent != nil {
		fact("copy of", cmp.Or(s.Parent.Session, s.Parent.Snapshot))
	}
	fact("created", s.Created)
	fact("last used", s.Used)
}

func serverFacts(s *hub.ServerRow, fact func(name, value string)) {
	fact("why", s.LastError)
	fact("runs", cmp.Or(s.URL, strings.Join(append([]string{s.Command}, s.Args...), " ")))
	fact("offers", offers(s))
	if s.Latency != nil {
		fact("calls", fmt.Sprintf("%d, 95 %% within %.0f ms", s.Calls, s.Latency.P95))
	} else {
		fact("calls", fmt.Sprint(s.Calls))
	}
	for _, t := range s.HeldTools {
		fact("held back", t.Remote+": "+t.Reason)
	}
	fact("log in", s.AuthURL)
}

// eventLine draws one event.
func (m *model) eventLine(e event.Event, w int) string {
	what := word(string(e.Operation))
	if e.Name != "" {
		what += " " + word(e.Name)
	}
	if e.Refused.Program != "" {
		what += " by " + word(e.Refused.Program)
	}
	if e.Count > 1 {
		what += fmt.Sprintf(" × %d", e.Count)
	}
	outcome := word(e.Outcome)
	style := good
	switch outcome {
	case "ok":
		if e.Duration > 0 {
			outcome = e.Duration.Round(time.Millisecond).String()
		}
	case "started", "":
		style = faint
	default:
		style = warning
	}
	ow := min(lipgloss.Width(outcome), w/3)
	return faint.Render(e.Time.Local().Format("15:04:05")) + " " + pad(what, max(1, w-10-ow)) + " " +
		style.Render(pad(outcome, ow))
}

// statusLine says how the third-party servers are, those with trouble first.
func (m *model) statusLine(w int) string {
	var parts []string
	for _, r := range m.servers {
		sign, text := serverMark(&r)
		part := sign + " " + word(r.Name)
		switch {
		case sign == "●":
			part += " " + offers(&r)
		default:
			part += " " + text
			if r.LastError != "" && sign == "✗" {
				part += ": " + cut(word(r.LastError), 60)
			}
		}
		parts = append(parts, part)
	}
	order := "✗▲◐●○"
	slices.SortStableFunc(parts, func(a, b string) int {
		return cmp.Compare(strings.Index(order, string([]rune(a)[0])), strings.Index(order, string([]rune(b)[0])))
	})
	if len(parts) == 0 {
		text := "no MCP servers"
		if m.servers == nil { // nobody has said so yet
			text = ""
		}
		return faint.Render(pad(text, w))
	}
	return pad(strings.Join(parts, "  "), w)
}

// lastLine says what has just happened, or else which keys there are.
func (m *model) lastLine(w int) string {
	switch {
	case m.list.filtering:
		return bold.Render(pad("/"+word(m.list.filter)+"▏", w))
	case m.note != "" && m.bad:
		return bad.Render(pad("✗ "+word(m.note), w))
	case m.note != "":
		return pad(word(m.note), w)
	case m.conn.state == isOffline:
		return bad.Render(pad(fmt.Sprintf("✗ no connection (%s): tries again in %d s, or with r", word(m.conn.why),
			max(0, int(time.Until(m.conn.next).Round(time.Second).Seconds()))), w))
	case m.conn.state == isEnded:
		return bad.Render(pad("✗ "+word(m.conn.why)+": r tries again, q leaves", w))
	case m.running > 0:
		return faint.Render(pad("working …", w))
	case len(m.closed) > 0:
		return warning.Render(pad(word(m.closed[0]), w))
	case m.list.filter != "":
		return faint.Render(pad("shows /"+word(m.list.filter)+"   esc shows all", w))
	}
	return faint.Render(pad(keysLine(w), w))
}

// keysLine names as many keys as there is room for.
func keysLine(w int) (line string) {
	for _, k := range []string{"? help", ": commands", "m servers", "s shell", "l logs", "o port", "/ filter", "tab turn",
		"q leave"} {
		if lipgloss.Width(line)+len(k)+2 > w {
			break
		}
		if line != "" {
			line += "  "
		}
		line += k
	}
	return line
}
