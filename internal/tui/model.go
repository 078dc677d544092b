package tui

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/api/protocol"
	"sandlot/internal/event"
	"sandlot/internal/hub"
)

// maxEvents is how many events are kept.
const maxEvents = 500

// requestTimeout is how long a request may take: one that starts a server or a session may install something.
const requestTimeout = 10 * time.Minute

// state says whether there is a connection.
type state int

const (
	isConnecting state = iota
	isOnline
	isOffline
	isEnded
)

// connection is the state of the connection to the server.
type connection struct {
	state state
	why   string
	next  time.Time // the next attempt
}

// model is the whole interface. Bubble Tea calls its methods in one goroutine. Parts are structs without a goroutine, and no
// method waits: what takes time is a command.
type model struct {
	ctx   context.Context
	opts  Options
	again chan struct{} // tells the feed to connect now
	// json sends a request to the API.
	json func(ctx context.Context, method, path string, in, out any) error

	width, height int
	conn          connection
	me            protocol.Principal
	questions     questions
	sessions      []hub.SessionRow
	servers       []hub.ServerRow
	events        []event.Event // the newest first
	missing       bool          // of events
	closed        []string      // what the server does not show
	list          list
	detail        bool // the right side shows what is selected, and not the timeline
	scroll        int  // of the right side
	side          bool // on a narrow screen: the right side is shown
	dialogs       []dialog
	note          string // the last line
	bad           bool   // it is an error
	running       int    // requests
	ticking       bool
}

func newModel(ctx context.Context, o Options) *model {
	m := &model{ctx: ctx, opts: o, again: make(chan struct{}, 1), questions: questions{pending: map[string]bool{}}}
	if o.Client != nil {
		m.json = o.Client.JSON
	}
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	cmd := m.update(msg)
	if !m.ticking && (m.questions.shown != "" || m.conn.state == isOffline) {
		m.ticking = true
		cmd = tea.Batch(cmd, everySecond())
	}
	return m, cmd
}

func (m *model) update(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		if m.width != msg.Width || m.height != msg.Height {
			m.width, m.height = msg.Width, msg.Height
			m.questions.disarm()
			return afterGrace()
		}
	case tea.KeyPressMsg:
		return m.key(msg)
	case tea.PasteMsg:
		if d := m.dialog(); d != nil {
			return d.paste(m, msg.Content)
		}
		if m.list.filtering {
			m.list.filter += word(msg.Content)
		}
	case tick:
		m.ticking = false
	case result:
		m.running--
		return m.update(msg.msg)
	case answered:
		return m.onAnswered(msg)
	case shellOver:
		m.questions.disarm()
		return tea.Batch(afterGrace(), m.onShellOver(msg))
	case loaded:
		return msg.show(m)
	default:
		return m.told(msg)
	}
	return nil
}

// told applies what the feed tells.
func (m *model) told(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case online:
		m.conn, m.me, m.closed, m.missing = connection{state: isOnline}, msg.me, nil, false
	case offline:
		m.conn = connection{isOffline, msg.why, time.Now().Add(msg.in)}
	case ended:
		m.conn = connection{state: isEnded, why: msg.why}
		m.forget()
	case closed:
		m.closed = append(m.closed, msg.kind+" are not shown: "+msg.why)
	case lost:
		m.missing = true
	case hub.QuestionChange:
		changed := m.questions.change(msg)
		if f, is := m.dialog().(*form); is && f.question != "" && !m.asked(f.question) {
			m.closeDialog()
			m.note, m.bad = "The question is over.", false
		}
		if changed {
			return afterGrace()
		}
	case hub.SessionsChange:
		m.sessions = follow(m.sessions, msg.Sessions, msg.Session, msg.ID, func(s hub.SessionRow) string { return s.ID })
	case hub.ServersChange:
		m.servers = follow(m.servers, msg.Servers, msg.Server, msg.ID, func(s hub.ServerRow) string { return s.ConnectionID })
	case event.Event:
		m.events = slices.Insert(m.events, 0, msg)
		m.events = m.events[:min(len(m.events), maxEvents)]
	}
	return nil
}

// forget drops what a user who may not see it any more has seen.
func (m *model) forget() {
	m.questions = questions{pending: map[string]bool{}}
	m.sessions, m.servers, m.events, m.dialogs = nil, nil, nil, nil
}

func (m *model) asked(id string) bool {
	for _, q := range m.questions.all {
		if q.ID == id {
			return true
		}
	}
	return false
}

// follow applies a change to a list: all, one that is new or has changed, or one that is gone.
func follow[T any](list []T, all *[]T, one *T, gone string, id func(T) string) []T {
	switch {
	case all != nil:
		return *all
	case one != nil:
		if i := slices.IndexFunc(list, func(x T) bool { return id(x) == id(*one) }); i >= 0 {
			list[i] = *one
			return list
		}
		return append(list, *one)
	}
	return slices.DeleteFunc(list, func(x T) bool { return id(x) == gone })
}

// say puts a sentence on the last line, until the next key.
func (m *model) say(text string) tea.Cmd {
	m.note, m.bad = text, false
	return nil
}

// fail says why something was not done.
func (m *model) fail(what string, err error) tea.Cmd {
	text := err.Error()
	if p, is := errors.AsType[*protocol.Problem](err); is {
		text = p.Detail
	}
	m.note, m.bad = what+": "+word(text), true
	return nil
}

// result is what a request has led to.
type result struct{ msg tea.Msg }

// request does something that takes time.
func (m *model) request(do func(ctx context.Context) tea.Msg) tea.Cmd {
	m.running++
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, requestTimeout)
		defer cancel()
		return result{do(ctx)}
	}
}

// loaded is the answer to a request, and what becomes of it.
type loaded struct{ show func(*model) tea.Cmd }

// call sends a request, and gives the answer to show.
func call[T any](m *model, what, method, path string, in any, show func(*model, T) tea.Cmd) tea.Cmd {
	if m.conn.state != isOnline {
		return m.say("There is no connection to the server.")
	}
	return m.request(func(ctx context.Context) tea.Msg {
		var out T
		var into any = &out
		if _, none := into.(*struct{}); none {
			into = nil
		}
		err := m.json(ctx, method, path, in, into)
		return loaded{func(m *model) tea.Cmd {
			if err != nil {
				return m.fail(what, err)
			}
			return show(m, out)
		}}
	})
}

// key handles a key: of the dialog, the filter, the question, and else of the screen.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	m.note = ""
	name := k.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	if d := m.dialog(); d != nil {
		return d.key(m, k)
	}
	if m.list.filtering {
		m.list.filterKey(m, k)
		m.questions.tooEarly()
		return afterGrace()
	}
	early, done := m.questionKey(name)
	if done {
		return early
	}
	return tea.Batch(early, m.screenKey(name))
}

// screenKey handles a key of the screen.
func (m *model) screenKey(name string) tea.Cmd {
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.open(help())
	case ":", "ctrl+p":
		return m.openCommands()
	case "m":
		m.openServers()
	case "/":
		m.list.filtering = true
	case "esc":
		m.list.filter, m.detail, m.side, m.scroll = "", false, false, 0
	case "j", "down":
		m.move(1)
	case "k", "up":
		m.move(-1)
	case "enter":
		m.detail, m.side, m.scroll = true, true, 0
	case "tab", "t":
		m.scroll = 0
		m.turn()
	case "J", "ctrl+d":
		m.scroll += 5
	case "K", "ctrl+u":
		m.scroll = max(0, m.scroll-5)
	case "r":
		m.retry()
	case "s":
		return m.shell()
	case "l":
		return m.logs()
	case "o":
		return m.openPort()
	}
	return nil
}

// turn shows what the right side does not show.
func (m *model) turn() {
	switch {
	case !m.narrow():
		m.detail = !m.detail
	case !m.side:
		m.side, m.detail = true, false
	case !m.detail:
		m.detail = true
	default:
		m.side, m.detail = false, false
	}
}

// retry connects now.
func (m *model) retry() {
	if m.conn.state == isOnline {
		return
	}
	m.conn.state = isConnecting
	select {
	case m.again <- struct{}{}:
	default: // it will
	}
}

// dialog is what covers the screen below the question.
type dialog interface {
	key(m *model, k tea.KeyPressMsg) tea.Cmd
	paste(m *model, text string) tea.Cmd
	// view returns the title, and the lines for a width and a height.
	view(m *model, width, height int) (title string, lines []string)
}

// dialog returns the top dialog, or nil.
func (m *model) dialog() dialog {
	if len(m.dialogs) == 0 {
		return nil
	}
	return m.dialogs[len(m.dialogs)-1]
}

func (m *model) open(d dialog) { m.dialogs = append(m.dialogs, d) }

// closeDialog closes the top dialog. Its last key is not meant for a question.
func (m *model) closeDialog() {
	if len(m.dialogs) > 0 {
		m.dialogs = m.dialogs[:len(m.dialogs)-1]
	}
	m.questions.disarm()
}

// printable returns the text of a key that types; empty: it does something else.
func printable(k tea.KeyPressMsg) string {
	if k.Text == "" || strings.ContainsFunc(k.Text, func(r rune) bool { return !seen(r) }) {
		return ""
	}
	return k.Text
}
