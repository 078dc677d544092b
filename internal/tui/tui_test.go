package tui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"sandlot/internal/api/protocol"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/question"
	"sandlot/internal/terminal"
)

var update = flag.Bool("update", false, "write the golden screens")

func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

// requested is a request to the API.
type requested struct {
	method, path string
	body         string
}

// bench is a model whose requests are kept, and answered with what answers has for their path.
type bench struct {
	*model
	t       *testing.T
	sent    []requested
	answers map[string]string
	fails   error
	cmds    []tea.Cmd
}

func newBench(t *testing.T, width, height int) *bench {
	t.Helper()
	b := &bench{model: newModel(t.Context(), Options{}), t: t, answers: map[string]string{}}
	b.json = func(_ context.Context, method, path string, in, out any) error {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		b.sent = append(b.sent, requested{method, path, string(body)})
		if b.fails != nil {
			return b.fails
		}
		if a := b.answers[path]; a != "" && out != nil {
			return json.Unmarshal([]byte(a), out)
		}
		return nil
	}
	b.tell(tea.WindowSizeMsg{Width: width, Height: height})
	b.tell(online{protocol.Principal{Principal: "user:ann", Name: "ann", Version: "v1"}})
	return b
}

// tell gives the model a message, and does what it asks for, but for waiting.
func (b *bench) tell(msg tea.Msg) {
	b.t.Helper()
	b.do(b.update(msg))
}

func (b *bench) do(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	before := b.running
	if before == 0 { // a wait for a time, or an end
		b.cmds = append(b.cmds, cmd)
		return
	}
	switch msg := cmd().(type) {
	case tea.BatchMsg:
		for _, c := range msg {
			b.do(c)
		}
	case result:
		b.tell(msg)
	}
}

// keys presses keys: names of special keys, or else characters.
func (b *bench) keys(names ...string) {
	b.t.Helper()
	for _, n := range names {
		b.tell(press(n))
	}
}

func press(name string) tea.KeyPressMsg {
	special := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "down": tea.KeyDown,
		"up": tea.KeyUp, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "backspace": tea.KeyBackspace, "right": tea.KeyRight,
		"left": tea.KeyLeft, "space": tea.KeySpace}
	if code, is := special[name]; is {
		return tea.KeyPressMsg{Code: code}
	}
	if after, is := strings.CutPrefix(name, "ctrl+"); is {
		return tea.KeyPressMsg{Code: rune(after[0]), Mod: tea.ModCtrl}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

// screen draws the model with a terminal emulator.
func (b *bench) screen() string {
	b.t.Helper()
	e := terminal.NewEmulator(b.height, b.width)
	e.Write([]byte("\x1b[2J\x1b[H" + strings.ReplaceAll(b.View().Content, "\n", "\r\n")))
	return e.Text()
}

func (b *bench) shows(want ...string) {
	b.t.Helper()
	s := b.screen()
	for _, w := range want {
		if !strings.Contains(s, w) {
			b.t.Errorf("no %q on the screen:\n%s", w, s)
		}
	}
}

func ask(id, text string) hub.QuestionChange {
	q := question.Question{ID: id, Text: text, Session: "s1", Asked: time.Now(), Until: time.Now().Add(30 * time.Second),
		Subject: question.Subject{Principal: "user:ann", Operation: "network.reach"}}
	return hub.QuestionChange{Change: "asked", Question: &q}
}

func (b *bench) answered() (all []string) {
	for _, r := range b.sent {
		if id, is := strings.CutPrefix(r.path, "/v1/questions/"); is {
			var a hub.QuestionAnswer
			if err := json.Unmarshal([]byte(r.body), &a); err != nil {
				b.t.Fatal(err)
			}
			all = append(all, fmt.Sprint(id, " ", a.Answer, " ", a.For))
		}
	}
	return all
}

// TestGrace: no key answers a question that has just appeared, replaced another one, or moved; then a key answers the
// question that is shown.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		want := func(all ...string) {
			t.Helper()
			if got := b.answered(); !slices.Equal(got, all) {
				t.Fatalf("answered %q, want %q", got, all)
			}
		}
		b.tell(ask("q1", "one"))
		b.screen()
		b.keys("a")
		time.Sleep(grace - time.Millisecond)
		b.keys("a") // each key that is too early begins it again
		want()
		time.Sleep(grace)
		b.keys("a")
		want("q1 yes once")
		b.keys("a") // on its way
		want("q1 yes once")

		b.tell(ask("q2", "two"))
		if b.questions.shown != "q1" {
			t.Fatal("a new question takes the place of the one that is shown")
		}
		b.tell(hub.QuestionChange{Change: "ended", ID: "q1"})
		b.screen()
		b.keys("A") // it was meant for q1
		want("q1 yes once")
		time.Sleep(grace)
		b.keys("S")
		want("q1 yes once", "q2 yes session")

		b.tell(hub.QuestionChange{Change: "ended", ID: "q2"})
		b.tell(ask("q3", "three"))
		time.Sleep(grace)
		b.screen()
		b.tell(tea.WindowSizeMsg{Width: 70, Height: 20}) // it moves
		b.keys("d")
		want("q1 yes once", "q2 yes session")
		b.tell(ask("q3", "three, changed"))
		b.screen()
		time.Sleep(grace - time.Millisecond)
		b.keys("d")
		want("q1 yes once", "q2 yes session")
		time.Sleep(grace)
		b.keys("?") // what closes a dialog answers nothing behind it
		b.keys("d")
		b.keys("esc", "d")
		want("q1 yes once", "q2 yes session")
		time.Sleep(grace)
		b.keys("d")
		want("q1 yes once", "q2 yes session", "q3 no once")

		// Who types without a pause is not kept from answering for ever.
		b.tell(hub.QuestionChange{Change: "ended", ID: "q3"})
		b.tell(ask("q4", "four"))
		b.screen()
		for range 20 {
			b.keys("d")
			time.Sleep(100 * time.Millisecond)
		}
		want("q1 yes once", "q2 yes session", "q3 no once", "q4 no once")
	})
}

// TestLongQuestion: a yes counts when the end of the question was on the screen, and a no at once.
func TestLongQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 40, 12)
		b.tell(ask("q1", strings.Repeat("harmless words ", 60)+"rm -rf /"))
		b.screen()
		time.Sleep(time.Second)
		b.keys("a")
		if got := b.answered(); len(got) > 0 {
			t.Fatalf("answered unread: %q", got)
		}
		for range 60 {
			if strings.Contains(b.screen(), "rm -rf /") {
				break
			}
			b.keys("pgdown")
		}
		b.shows("rm -rf /", "a once")
		b.keys("a")
		if got := b.answered(); !slices.Equal(got, []string{"q1 yes once"}) {
			t.Errorf("answered %q", got)
		}
	})
}

// TestAnswerFails: the screen says why an answer did not count.
func TestAnswerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		b.tell(ask("q1", "one"))
		b.screen()
		time.Sleep(time.Second)
		b.fails = &protocol.Problem{Status: 429, Title: "X", Detail: "somebody else is answering: try again"}
		b.keys("a")
		b.shows("somebody else is answering: try again", "a once")
		b.fails = &protocol.Problem{Status: 404, Title: "X", Detail: "gone"}
		b.keys("a")
		b.shows("The question was over already.")
		b.tell(offline{"the server stops", time.Second})
		b.keys("a")
		b.shows("nothing was answered")
		if n := len(b.answered()); n != 2 {
			t.Errorf("%d answers", n)
		}
	})
}

// TestQuestionWithForm: a server's question is answered with values of the right types; the form ends with its question.
func TestQuestionWithForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		c := ask("q1", "srv asks")
		c.Question.Form = &question.Form{Fields: []question.Field{{Name: "colour", Type: "string", Required: true},
			{Name: "size", Type: "integer"}, {Name: "sure", Type: "boolean"}}}
		b.tell(c)
		b.screen()
		time.Sleep(time.Second)
		b.keys("A", "S")
		b.shows("answered once")
		b.keys("a", "r", "e", "d", "enter", "4", "x", "enter", "right", "enter")
		b.shows("size must be of the type integer")
		b.keys("up", "backspace", "enter", "enter")
		if len(b.sent) != 1 || !strings.Contains(b.sent[0].body, `"content":{"colour":"red","size":4,"sure":true}`) &&
			!strings.Contains(b.sent[0].body, `"size":4`) {
			t.Errorf("%+v", b.sent)
		}
		b.tell(hub.QuestionChange{Change: "ended", ID: "q1"})
		c.Question.ID = "q2"
		b.tell(c)
		b.screen()
		time.Sleep(time.Second)
		b.keys("a")
		b.tell(ask("q3", "another"))
		b.tell(hub.QuestionChange{Change: "ended", ID: "q2"})
		if b.dialog() != nil {
			t.Error("the form of a question that is over is still there")
		}
		b.keys("enter", "a")
		if n := len(b.sent); n != 1 {
			t.Errorf("%d answers: %+v", n, b.sent)
		}
	})
}

// scene fills a model with something of everything. Texts of others are made by name.
func scene(b *bench, name func(string) string) {
	at := time.Date(2026, 11, 30, 9, 8, 7, 0, time.UTC)
	sessions := []hub.SessionRow{{ID: "7mt7r5rdvu5uq44wumygahyviv", Home: true, Template: "host", Flavor: "small",
		Status: "running", Processes: 2}, {ID: "s2", Template: name("python"), Status: "hibernated"},
		{ID: "s3", Template: "host", Status: "error"}}
	sessions[1].Name = name("build")
	b.tell(hub.SessionsChange{Change: "all", Sessions: &sessions})
	servers := []hub.ServerRow{{ID: "c1"}, {ID: "c2"}, {ID: "c3", LastError: name("exit code 1: no such file")}, {ID: "c4"}}
	for i, s := range []string{"connected", "starting", "error", "needs auth"} {
		servers[i].ConnectionID, servers[i].State = servers[i].ID, s
		servers[i].Name = name([]string{"time", "github", "jira", "linear"}[i])
	}
	servers[0].ToolCount, servers[0].PromptCount = 2, 1
	b.tell(hub.ServersChange{Change: "all", Servers: &servers})
	for i, e := range []event.Event{{Operation: "shell.execute", Name: name("execute_command"), Outcome: "ok",
		Duration: 1234 * time.Millisecond}, {Operation: "network.connect", Name: name("api.github.com:443"),
		Outcome: "refused", Refused: event.Refused{Program: name("curl")}}} {
		e.ID, e.Time, e.Session = uint64(i+1), at.Add(time.Duration(i)*time.Second), sessions[0].ID
		b.tell(e)
	}
	b.tell(ask("q1", name("May an agent of ann do this?\nnetwork.reach: api.github.com:443\nin the session home")))
}

func same(s string) string { return s }

// TestScreens compares screens, as a terminal draws them, with files.
func TestScreens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range [][2]int{{80, 24}, {120, 40}, {40, 12}} {
			for _, s := range []struct {
				name string
				keys []string
			}{{"now", nil}, {"detail", []string{"j", "enter"}}, {"commands", []string{":"}}, {"servers", []string{"m"}},
				{"help", []string{"?"}}, {"port", []string{"o"}}} {
				b := newBench(t, size[0], size[1])
				scene(b, same)
				b.screen()
				time.Sleep(time.Second)
				b.keys(s.keys...)
				got := b.screen() + "\n"
				file := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", s.name, size[0], size[1]))
				if *update {
					if err := os.MkdirAll("testdata", 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if got != string(want) {
					t.Errorf("%s is not as it was (-update writes it):\n%s", file, got)
				}
			}
		}
	})
}

// hostile are texts that would do something to a terminal, or look like something else.
var hostile = []string{"\x1b[2J\x1b[H", "\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b]0;title\x07", "\x9b31m", "\x1bP+q\x1b\\", "\r",
	"\b\b\b", "\x00", "\u202egnp.exe", "\u2066x\u2069", "\u200b", "\ufeff", "\u2028", "\U000e0041", "\u115f", "\u3164",
	"a\u0300\u0301\u0302\u0303\u0304\u0305", "漢字漢字漢字漢字", "👨\u200d👩\u200d👧", "\xff\xfe", "\t\t", "\n\n\n", strings.Repeat("x", 9000),
	"\x1b]8;;http://evil.test\x07link\x1b]8;;\x07", "\x1b[?1049l", "\x05", "\x0e", "│ a once   A always   d no"}

// TestHostileText: nothing that others have written reaches the terminal as more than text, wherever it is shown.
func TestHostileText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, evil := range hostile {
			b := newBench(t, 80, 24)
			scene(b, func(s string) string { return s + evil + s })
			b.me.Name = evil
			b.answers["/v1/connections/c1"] = mustJSON(t, map[string]any{"tools": []any{map[string]any{"remote": evil,
				"held": evil, "raw": map[string]any{"description": evil}}}, "prompts": []any{map[string]any{"remote": "p" + evil,
				"raw": map[string]any{"description": evil, "arguments": []any{map[string]any{"name": evil, "description": evil}}}}}})
			b.answers["/v1/tools/external_mcp_logs"] = mustJSON(t, map[string]any{"log": evil})
			b.answers["/v1/tools/list_processes"] = mustJSON(t, map[string]any{"processes": []any{map[string]any{
				"process_id": "p", "command": evil, "kind": "background", "status": evil}}})
			b.answers["/v1/connections/c1/prompt"] = mustJSON(t, map[string]any{"messages": []any{map[string]any{
				"role": evil, "content": map[string]any{"type": "text", "text": evil}}, map[string]any{"role": "user",
				"content": map[string]any{"type": "image", "data": evil}}}})
			at := func(where string) { t.Helper(); harmless(t, b, where, evil) }
			at("the screen")
			b.keys("j", "enter")
			at("a session")
			b.keys("j", "j")
			at("a server")
			b.keys("k", "k", "l")
			at("processes")
			b.keys("esc", "m")
			at("servers")
			b.keys("enter")
			at("tools")
			b.keys("esc", "l")
			at("a log")
			b.keys("esc", "esc", ":", "tab", "tab")
			at("prompts")
			b.keys("enter")
			at("a form")
			b.tell(tea.PasteMsg{Content: evil})
			at("a pasted text")
			b.keys("enter")
			at("the result")
			b.keys("esc", "/")
			b.tell(tea.PasteMsg{Content: evil})
			at("a filter")
			b.keys("esc")
			b.tell(answered{"q", "yes", errors.New(evil)})
			at("an error")
			b.tell(offline{evil, time.Second})
			at("no connection")
			b.tell(ended{evil})
			at("not let in")
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// harmless checks what is written to the terminal: lines that fit, of text and styles alone.
func harmless(t *testing.T, b *bench, where, evil string) {
	t.Helper()
	lines := strings.Split(b.View().Content, "\n")
	if len(lines) != b.height {
		t.Errorf("%q in %s: %d lines", evil, where, len(lines))
	}
	for _, l := range lines {
		if w := lipgloss.Width(l); w > b.width {
			t.Errorf("%q in %s: %d columns", evil, where, w)
		}
		text := styles(l)
		if i := strings.IndexFunc(text, func(r rune) bool { return fault.Invisible(r) || !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q in %s: writes %q", evil, where, text)
			return
		}
	}
}

// styles removes the sequences that change how text looks.
func styles(line string) string {
	for {
		before, after, found := strings.Cut(line, "\x1b[")
		if !found {
			return line
		}
		n := strings.IndexFunc(after, func(r rune) bool { return r != ';' && (r < '0' || r > '9') })
		if n < 0 || after[n] != 'm' {
			return line
		}
		line = before + after[n+1:]
	}
}

// TestSizes: every screen has exactly the lines of its terminal, whatever its size, and none is too long.
func TestSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		scene(b, same)
		for _, keys := range [][]string{nil, {"tab"}, {":"}, {"tab"}, {"esc", "m"}, {"esc", "?"}, {"esc", "o"}, {"esc", "/"}} {
			b.keys(keys...)
			for w := 1; w < 140; w += 1 + w/9 {
				for h := 1; h < 44; h += 1 + h/9 {
					b.tell(tea.WindowSizeMsg{Width: w, Height: h})
					lines := b.lines()
					if len(lines) != h && w >= 10 && h >= 4 {
						t.Fatalf("%d×%d after %q: %d lines", w, h, keys, len(lines))
					}
					for _, l := range lines {
						if lipgloss.Width(l) > w {
							t.Fatalf("%d×%d after %q: %q", w, h, keys, l)
						}
					}
				}
			}
		}
	})
}

// TestCommands: what the commands send.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			keys []string
			want string
		}{
			{[]string{":", "p", "a", "u", "s", "e", "enter"}, "POST /v1/sessions/s2/pause null"},
			{[]string{":", "f", "o", "r", "k", "enter"}, `POST /v1/sessions/s2/fork {"count":1}`},
			{[]string{":", "s", "n", "a", "p", "enter", "g", "enter"}, `POST /v1/sessions/s2/snapshots {"name":"g"}`},
			{[]string{":", "e", "n", "d", " ", "b", "enter", "down", "enter"}, "DELETE /v1/sessions/s2 null"},
			{[]string{":", "e", "n", "d", " ", "b", "enter", "enter"}, ""},
			{[]string{"o", "enter"}, `POST /v1/tools/expose_port {"port":8080,"session_id":"s2","wait":0}`},
			{[]string{"m", "x"}, `POST /v1/tools/disconnect_external_mcp {"connectionId":"c1"}`},
			{[]string{"m", "j", "s"}, `POST /v1/tools/restart_external_mcp {"connectionId":"c2"}`},
			{[]string{"m", "l"}, `POST /v1/tools/external_mcp_logs {"connectionId":"c1","lines":500}`},
			{[]string{"l"}, `POST /v1/tools/list_processes {"session_id":"s2"}`},
			{[]string{"/", "j", "i", "r", "a", "enter", "l"}, `POST /v1/tools/external_mcp_logs {"connectionId":"c3","lines":500}`},
		} {
			b := newBench(t, 80, 24)
			scene(b, same)
			b.tell(hub.QuestionChange{Change: "ended", ID: "q1"})
			b.keys("j")
			b.keys(tt.keys...)
			got := ""
			for _, r := range b.sent {
				if !strings.HasPrefix(r.path, "/v1/connections/") {
					got = r.method + " " + r.path + " " + r.body
				}
			}
			if got != tt.want {
				t.Errorf("%q: %q, want %q\n%s", tt.keys, got, tt.want, b.screen())
			}
		}
	})
}

// TestPrompt: a prompt asks for its arguments, its result is shown, and copied when a key says so.
func TestPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		scene(b, same)
		b.answers["/v1/connections/c1"] = `{"prompts":[{"remote":"greet","raw":{"name":"greet","description":"Says hello",
			"arguments":[{"name":"to","required":true}]}}]}`
		b.answers["/v1/connections/c1/prompt"] = `{"messages":[{"role":"user","content":{"type":"text","text":"Hello \u001b[31mAnn"}}]}`
		b.keys(":", "tab", "tab")
		b.shows("time: greet", "Says hello")
		b.keys("enter", "enter")
		b.shows("to (required)", "This one is required")
		b.keys("A", "n", "n", "enter")
		if last := b.sent[len(b.sent)-1]; last.body != `{"arguments":{"to":"Ann"},"name":"greet"}` {
			t.Errorf("%+v", last)
		}
		b.shows(`Hello \u001b[31mAnn`, "c copies")
		cmd := b.update(press("c"))
		if got := fmt.Sprint(cmd()); got != "Hello \x1b[31mAnn" { // in OSC 52 it is base64
			t.Errorf("copied %q", got)
		}
	})
}

// TestLogin: the address of a log-in is shown if it is one of the web.
func TestLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		scene(b, same)
		for address, want := range map[string]string{"https://idp.test/authorize?x=1": "https://idp.test/authorize?x=1",
			"javascript:alert(1)": "does not ask you to log in"} {
			b.servers[3].AuthURL = address
			b.keys("m", "j", "j", "j", "i")
			b.shows(want)
			b.keys("esc", "esc")
		}
	})
}

// TestEnded: what the user may not see any more goes from the screen, which says what to do.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80, 24)
		scene(b, same)
		b.keys(":")
		b.tell(ended{"the token has ended"})
		b.shows("The server does not let you in: the token has ended", "not let in")
		if s := b.screen(); strings.Contains(s, "github") || strings.Contains(s, "build") {
			t.Errorf("it still shows\n%s", s)
		}
		b.keys("r")
		b.shows("connecting")
		b.tell(closed{"questions", "you may not"})
		b.tell(online{})
		b.shows("connected")
	})
}

// window is a terminal that a program writes to.
type window struct {
	mu  sync.Mutex
	e   *terminal.Emulator
	raw bytes.Buffer
}

func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.raw.Write(p)
	w.e.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))) // as the kernel does for what is no terminal in raw mode
	return len(p), nil
}

func (w *window) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.e.Text()
}

// TestProgram runs the interface as a program in an emulated terminal: keys come as bytes, and the screen is what the
// terminal shows. With NO_COLOR there are no colours.
func TestProgram(t *testing.T) {
	w := &window{e: terminal.NewEmulator(24, 80)}
	in, keys := io.Pipe()
	m := newModel(t.Context(), Options{})
	p := tea.NewProgram(m, tea.WithContext(t.Context()), tea.WithInput(in), tea.WithOutput(w), tea.WithoutSignals(),
		tea.WithWindowSize(80, 24), tea.WithEnvironment([]string{"TERM=xterm-256color", "NO_COLOR=1"}))
	over := make(chan error, 1)
	go func() {
		_, err := p.Run()
		over <- err
	}()
	shows := func(want string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !strings.Contains(w.text(), want); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %q on the screen:\n%s", want, w.text())
			}
		}
	}
	p.Send(online{protocol.Principal{Name: "ann"}})
	p.Send(ask("q1", "May it?"))
	shows("May it?")
	shows("a once")
	fmt.Fprint(keys, "?")
	shows("Questions stand on the top")
	fmt.Fprint(keys, "\x1b")
	shows("Timeline")
	p.Send(tea.WindowSizeMsg{Width: 40, Height: 12})
	p.Send(hub.QuestionChange{Change: "ended", ID: "q1"})
	shows("Sessions")
	fmt.Fprint(keys, "\x03")
	select {
	case err := <-over:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("ctrl+c does not end it:\n%s", w.text())
	}
	for _, colour := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", ";36m", ";33m"} {
		if strings.Contains(w.raw.String(), colour) {
			t.Errorf("with NO_COLOR it writes %q", colour)
		}
	}
}

// TestGuide: the guide shows a screen as it is.
func TestGuide(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("testdata", "now-80x24.txt"))
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/guide/tui.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(guide, append([]byte("```text\n"), want...)) {
		t.Error("docs/guide/tui.md has another screen than testdata/now-80x24.txt")
	}
}
