package tui

import (
	"slices"
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/hub"
)

// list is the list at the left: sessions, and then servers.
type list struct {
	selected  string // the id of the session or server
	filter    string
	filtering bool
}

// row is a session or a server; one of the two is nil.
type row struct {
	session *hub.SessionRow
	server  *hub.ServerRow
}

func (r row) id() string {
	switch {
	case r.session != nil:
		return r.session.ID
	case r.server != nil:
		return r.server.ConnectionID
	}
	return ""
}

func (r row) title() string {
	if r.session != nil {
		return sessionTitle(*r.session)
	}
	return word(r.server.Name)
}

func sessionTitle(s hub.SessionRow) string {
	switch {
	case s.Name != "":
		return word(s.Name)
	case s.Home:
		return "home"
	}
	return cut(word(s.ID), 12)
}

// rows returns what passes the filter.
func (m *model) rows() (all []row) {
	want := strings.ToLower(m.list.filter)
	passes := func(r row, more ...string) bool {
		return want == "" || strings.Contains(strings.ToLower(r.title()+" "+strings.Join(more, " ")), want)
	}
	for i := range m.sessions {
		s := &m.sessions[i]
		if r := (row{session: s}); passes(r, s.ID, s.Status, s.Template) {
			all = append(all, r)
		}
	}
	for i := range m.servers {
		s := &m.servers[i]
		if r := (row{server: s}); passes(r, s.State) {
			all = append(all, r)
		}
	}
	return all
}

// selected returns the selected row: the first one, if what was selected is gone.
func (m *model) selected() (row, bool) {
	all := m.rows()
	if len(all) == 0 {
		return row{}, false
	}
	i := slices.IndexFunc(all, func(r row) bool { return r.id() == m.list.selected })
	return all[max(i, 0)], true
}

// session returns the selected session.
func (m *model) session() *hub.SessionRow {
	r, _ := m.selected()
	return r.session
}

func (m *model) move(by int) {
	all := m.rows()
	if len(all) == 0 {
		return
	}
	i := slices.IndexFunc(all, func(r row) bool { return r.id() == m.list.selected })
	m.list.selected = all[max(0, min(max(i, 0)+by, len(all)-1))].id()
	m.scroll = 0
}

func (l *list) filterKey(m *model, k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		l.filtering = false
	case "esc":
		l.filtering, l.filter = false, ""
	case "backspace":
		l.filter = withoutLast(l.filter)
	case "down":
		m.move(1)
	case "up":
		m.move(-1)
	default:
		l.filter += printable(k)
	}
}

func withoutLast(text string) string {
	_, n := utf8.DecodeLastRuneInString(text)
	return text[:len(text)-n]
}

// mark returns how the state of a session or a server looks: a sign and a word, so that no colour is needed.
func (r row) mark() (sign, text string) {
	if r.session != nil {
		switch s := r.session.Status; s {
		case "creating":
			return "◐", "starting"
		case "ready", "running", "processing":
			return "●", s
		case "error":
			return "✗", s
		default:
			return "○", word(s)
		}
	}
	return serverMark(r.server)
}
