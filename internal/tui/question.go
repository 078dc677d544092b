package tui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/api/protocol"
	"sandlot/internal/hub"
	"sandlot/internal/question"
)

// grace is how long a question is shown, with no key pressed, before a key answers it. A key that is pressed earlier was
// meant for something else. maxGrace is how long such keys can put that off.
const (
	grace    = 425 * time.Millisecond
	maxGrace = 1500 * time.Millisecond
)

// questions are those that wait, the oldest first, and which one is shown.
type questions struct {
	all     []question.Question
	shown   string    // the id of the one that is shown; empty: none
	since   time.Time // when it appeared, or moved, or a key was pressed too early
	first   time.Time // when it appeared or moved
	scroll  int
	rows    int             // of its text that there is room for, and how many it has
	height  int             // rows of its text
	read    bool            // its end was on the screen
	pending map[string]bool // those whose answer is on its way
}

// current returns the question that is shown.
func (q *questions) current() *question.Question {
	for i := range q.all {
		if q.all[i].ID == q.shown {
			return &q.all[i]
		}
	}
	return nil
}

// show shows a question anew: keys that were pressed before count for nothing.
func (q *questions) show(id string) {
	q.shown, q.scroll, q.read = id, 0, false
	q.disarm()
}

// disarm begins the grace time again: what is shown has moved, or was out of sight.
func (q *questions) disarm() {
	q.since = time.Now()
	q.first = q.since
}

// armed reports whether a key may answer.
func (q *questions) armed() bool { return q.shown != "" && time.Since(q.since) >= grace }

// tooEarly notes a key that was pressed in the grace time.
func (q *questions) tooEarly() {
	if now := time.Now(); now.Sub(q.first) < maxGrace-grace {
		q.since = now
	}
}

// change applies what the server tells. It reports whether another question is shown now.
func (q *questions) change(c hub.QuestionChange) bool {
	was := q.current()
	switch c.Change {
	case "all":
		q.all = nil
		if c.Questions != nil {
			q.all = *c.Questions
		}
	case "asked":
		if c.Question == nil {
			return false
		}
		if i := slices.IndexFunc(q.all, func(x question.Question) bool { return x.ID == c.Question.ID }); i >= 0 {
			q.all[i] = *c.Question
		} else {
			q.all = append(q.all, *c.Question)
		}
	default:
		q.all = slices.DeleteFunc(q.all, func(x question.Question) bool { return x.ID == c.ID })
		delete(q.pending, c.ID)
	}
	is := q.current()
	switch {
	case is == nil && len(q.all) == 0:
		q.shown = ""
		return was != nil
	case is == nil:
		q.show(q.all[0].ID)
		return true
	case was == nil || was.Text != is.Text:
		q.show(is.ID)
		return true
	}
	return false
}

// next shows the next question, or with -1 the previous one.
func (q *questions) next(by int) {
	if len(q.all) < 2 {
		return
	}
	i := slices.IndexFunc(q.all, func(x question.Question) bool { return x.ID == q.shown })
	q.show(q.all[(i+by+len(q.all))%len(q.all)].ID)
}

// answers are the keys that answer: capitals for what lasts longer than the call.
var answers = map[string]hub.QuestionAnswer{
	"a": {Answer: "yes", For: question.Once},
	"S": {Answer: "yes", For: question.Session},
	"A": {Answer: "yes", For: question.Always},
	"d": {Answer: "no", For: question.Once},
}

// answered is the outcome of an answer.
type answered struct {
	id, answer string
	err        error
}

// graceOver makes the screen say that keys count now.
type graceOver struct{}

// tick makes the screen show the time that is left.
type tick struct{}

func afterGrace() tea.Cmd {
	return tea.Tick(grace+10*time.Millisecond, func(time.Time) tea.Msg { return graceOver{} })
}

func everySecond() tea.Cmd { return tea.Tick(time.Second, func(time.Time) tea.Msg { return tick{} }) }

// questionKey handles a key that is about the question on the screen. It returns false for another key.
func (m *model) questionKey(key string) (tea.Cmd, bool) {
	q := m.questions.current()
	if q == nil {
		return nil, false
	}
	switch key {
	case "]":
		m.questions.next(1)
		return afterGrace(), true
	case "[":
		m.questions.next(-1)
		return afterGrace(), true
	case "pgdown", "space", "pgup":
		by := max(1, m.questions.rows-1)
		if key == "pgup" {
			by = -by
		}
		m.questions.scroll = max(0, min(m.questions.scroll+by, m.questions.height-m.questions.rows))
		return nil, true
	}
	a, is := answers[key]
	if !is {
		if !m.questions.armed() {
			m.questions.tooEarly()
			return afterGrace(), false
		}
		return nil, false
	}
	switch {
	case !m.questions.armed():
		m.questions.tooEarly()
		return afterGrace(), true
	case m.conn.state != isOnline:
		return m.say("There is no connection to the server: nothing was answered."), true
	case m.questions.pending[q.ID]:
		return nil, true
	case a.Answer == "no":
	case !m.questions.read:
		return m.say("Read the question to its end first: press pgdn."), true
	case a.For == question.Session && (q.Session == "" || q.Form != nil), a.For == question.Always && q.Form != nil:
		return m.say("This question is answered once: press a or d."), true
	case q.Form != nil && len(q.Form.Fields) > 0:
		m.open(questionForm(q))
		return nil, true
	}
	return m.answer(q.ID, a), true
}

// answer sends an answer to one question.
func (m *model) answer(id string, a hub.QuestionAnswer) tea.Cmd {
	m.questions.pending[id] = true
	said := a.Answer
	if a.Answer == "yes" && a.For != question.Once {
		said += " (" + string(a.For) + ")"
	}
	return m.request(func(ctx context.Context) tea.Msg {
		err := m.json(ctx, "POST", "/v1/questions/"+url.PathEscape(id), a, nil)
		return answered{id, said, err}
	})
}

func (m *model) onAnswered(a answered) tea.Cmd {
	if a.err != nil { // else the question waits for the server to say that it is over
		delete(m.questions.pending, a.id)
	}
	switch p, _ := errors.AsType[*protocol.Problem](a.err); {
	case a.err == nil:
		return m.say("Answered: " + a.answer + ".")
	case p != nil && p.Status == http.StatusNotFound:
		return m.say("The question was over already.")
	}
	return m.fail("answer", a.err)
}

// questionForm asks for the values of a question's fields. It answers that question alone.
func questionForm(q *question.Question) *form {
	f := &form{title: "Answer to a server's question", about: word(q.Text), question: q.ID}
	for _, x := range q.Form.Fields {
		e := field{name: x.Name, label: x.Name, kind: x.Type, required: x.Required, choices: x.Choices,
			help: strings.TrimSpace(x.Title + " " + x.Description)}
		if x.Type == "boolean" {
			e.choices = []string{"true", "false"}
		}
		if len(x.Default) > 0 && json.Unmarshal(x.Default, &e.value) != nil {
			e.value = string(x.Default)
		}
		f.fields = append(f.fields, e)
	}
	id := q.ID
	f.send = func(m *model, values map[string]string) tea.Cmd {
		a := hub.QuestionAnswer{Answer: "yes", For: question.Once, Content: map[string]json.RawMessage{}}
		for _, x := range f.fields {
			v, given := values[x.name]
			switch {
			case !given:
			case x.kind == "string":
				a.Content[x.name], _ = json.Marshal(v) // a string
			case json.Valid([]byte(v)):
				a.Content[x.name] = json.RawMessage(v)
			default:
				return m.say(fmt.Sprintf("%s must be of the type %s.", word(x.label), word(x.kind)))
			}
		}
		m.closeDialog()
		return m.answer(id, a)
	}
	return f
}

// questionPanel draws the question on the top of the screen: at most rows lines.
func (m *model) questionPanel(width, rows int) []string {
	q := m.questions.current()
	if q == nil {
		return nil
	}
	head := m.questionHead(q)
	if m.dialog() != nil && rows < 12 { // whose keys are its own
		return []string{warning.Bold(true).Render(pad(head, width))}
	}
	text := wrap(clean(q.Text), width-2)
	if owner := q.Principal; m.me.Principal != "" && owner != m.me.Principal {
		text = append(text, cut("Asked of "+word(owner)+".", width-2))
	}
	room := max(1, rows-3)
	v := &m.questions
	v.height, v.rows = len(text), min(room, len(text))
	v.scroll = max(0, min(v.scroll, v.height-v.rows))
	v.read = v.read || v.scroll+v.rows >= v.height
	lines := []string{warning.Bold(true).Render(pad(head, width))}
	for _, l := range text[v.scroll : v.scroll+v.rows] {
		lines = append(lines, warning.Render("│ ")+pad(l, width-2))
	}
	lines = append(lines, warning.Render("│ ")+m.answerKeys(q, width-2), faint.Render(strings.Repeat("─", width)))
	return lines
}

// questionHead says that a question waits, and for how long.
func (m *model) questionHead(q *question.Question) string {
	head := "? Question"
	if n := len(m.questions.all); n > 1 {
		i := slices.IndexFunc(m.questions.all, func(x question.Question) bool { return x.ID == q.ID })
		head += fmt.Sprintf(" %d of %d ([ and ])", i+1, n)
	}
	return head + fmt.Sprintf(": the answer is no in %d s", max(0, int(time.Until(q.Until).Round(time.Second).Seconds())))
}

// answerKeys says which keys answer, or why none does.
func (m *model) answerKeys(q *question.Question, width int) string {
	switch v := &m.questions; {
	case v.pending[q.ID]:
		return faint.Render(pad("Answering …", width))
	case !v.armed():
		return faint.Render(pad("…", width))
	case !v.read:
		return bold.Render(pad(fmt.Sprintf("pgdn: %d more lines   d no", v.height-v.scroll-v.rows), width))
	case q.Form != nil && len(q.Form.Fields) > 0:
		return bold.Render(pad("a fill in   d no", width))
	case q.Form != nil:
		return bold.Render(pad("a yes   d no", width))
	}
	keys, session := []string{"a once", "A always", "d no"}, "S this session"
	if width < 44 {
		session = "S session"
	}
	if q.Session != "" {
		keys = slices.Insert(keys, 1, session)
	}
	return bold.Render(pad(strings.Join(keys, "  "), width))
}
