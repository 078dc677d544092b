package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// live is a client of the live channel.
type live struct {
	*websocket.Conn
	t      *testing.T
	screen map[uint32]string // what each terminal has printed since it was opened, at most its end
	taken  map[uint32]int
}

// liveMessage is what the server says.
type liveMessage struct {
	Op      string
	Channel uint32
	Data    map[string]any
	Error   map[string]any
}

func (s *server) live(token string) *live {
	s.t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	ws, _, err := websocket.Dial(s.t.Context(), s.URL+"/v1/live", &websocket.DialOptions{HTTPHeader: header,
		HTTPClient: &http.Client{Transport: s.web()}})
	if err != nil {
		s.t.Fatal(err)
	}
	ws.SetReadLimit(4 << 20)
	s.t.Cleanup(func() { ws.CloseNow() })
	return &live{ws, s.t, map[uint32]string{}, map[uint32]int{}}
}

func (l *live) says(format string, a ...any) {
	l.t.Helper()
	if err := l.Write(l.t.Context(), websocket.MessageText, fmt.Appendf(nil, format, a...)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *live) types(channel uint32, keys string) {
	l.t.Helper()
	frame := append([]byte{0, 0, byte(channel >> 8), byte(channel)}, keys...)
	if err := l.Write(l.t.Context(), websocket.MessageBinary, frame); err != nil {
		l.t.Fatal(err)
	}
}

// hears returns the next text message. It keeps what terminals print, and acknowledges it.
func (l *live) hears() liveMessage {
	l.t.Helper()
	for {
		if m, is := l.next(); is {
			return m
		}
	}
}

func (l *live) next() (m liveMessage, is bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	defer cancel()
	kind, b, err := l.Read(ctx)
	if err != nil {
		l.t.Fatalf("%v; the screens are %v", err, l.screen)
	}
	if kind == websocket.MessageText {
		if err := json.Unmarshal(b, &m); err != nil {
			l.t.Fatal(err)
		}
		return m, true
	}
	n := uint32(b[2])<<8 | uint32(b[3])
	l.screen[n] += string(b[4:])
	l.screen[n] = l.screen[n][max(0, len(l.screen[n])-64<<10):]
	l.taken[n] += len(b) - 4
	l.says(`{"op":"ack","channel":%d,"bytes":%d}`, n, l.taken[n])
	return m, false
}

// until reads up to a text message of a channel.
func (l *live) until(op string, channel uint32) liveMessage {
	l.t.Helper()
	for {
		if m := l.hears(); m.Channel == channel && m.Op == op {
			return m
		} else if m.Op == "closed" || m.Op == "error" {
			l.t.Fatalf("%+v in place of %s %d", m, op, channel)
		}
	}
}

// shows reads until a terminal has printed something.
func (l *live) shows(channel uint32, what string) {
	l.t.Helper()
	for !strings.Contains(l.screen[channel], what) {
		if m, is := l.next(); is && (m.Op == "closed" || m.Op == "error") {
			l.t.Fatalf("%+v in place of %q", m, what)
		}
	}
}

// terminal opens a terminal, and returns its id.
func (l *live) terminal(channel uint32, session, terminal string) string {
	l.t.Helper()
	l.says(`{"op":"open","channel":%d,"kind":"terminal","args":{"session_id":"%s","terminal_id":"%s","rows":24,"cols":80}}`,
		channel, session, terminal)
	id, _ := l.until("opened", channel).Data["terminal_id"].(string)
	return id
}

// TestLiveQuestions: what a rule asks is pushed at once, and so is the answer, from whatever face it comes.
func TestLiveQuestions(t *testing.T) {
	t.Parallel()
	s := start(t)
	token, other := s.token("ann"), s.token("bob")
	s.applySettings("policy:\n  question_timeout: 1h\n  rules: [\"ask ann shell.execute touch *\"]\n")
	l, bob := s.live(token), s.live(other)
	for _, l := range []*live{l, bob} {
		l.says(`{"op":"open","channel":1,"kind":"questions"}`)
		l.until("opened", 1)
		l.until("data", 1)
	}
	c := s.connect(older, token, nil)
	done := make(chan error, 1)
	go func() {
		_, err := c.try(t.Context(), "execute_command", args{"command": "touch asked"})
		done <- err
	}()
	asked := l.until("data", 1)
	q, _ := asked.Data["question"].(map[string]any)
	if asked.Data["change"] != "asked" || q["detail"] != "touch asked" {
		t.Fatalf("asked: %+v", asked)
	}
	id := q["id"].(string)
	if out, code := s.cliAs(token, "", "questions", "answer", id, "yes"); code != 0 {
		t.Fatal(out)
	}
	if m := l.until("data", 1); m.Data["change"] != "ended" || m.Data["id"] != id || m.Data["how"] != "answered" ||
		m.Data["answer"] != "yes" {
		t.Errorf("ended: %+v", m)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if status, _, body := s.post("/v1/questions/"+id, `{"answer":"no"}`, "Authorization", "Bearer "+token); status != 404 {
		t.Errorf("a second answer: %d %s", status, body)
	}
	// Reading the list is no event, as often as it is.
	events := func() string {
		_, _, text := s.request("GET", "/v1/events?follow=false", nil, "Authorization", "Bearer "+token)
		return text
	}
	for range 20 {
		for _, path := range []string{"/v1/questions", "/v1/sessions", "/v1/connections", "/v1/secrets", "/v1/quota"} {
			if status, _, body := s.request("GET", path, nil, "Authorization", "Bearer "+token); status != 200 {
				t.Fatal(path, status, body)
			}
		}
	}
	if text := events(); strings.Contains(text, ".list") || strings.Contains(text, "quota.read") ||
		!strings.Contains(text, "question.answer") {
		t.Errorf("the events are %s", text)
	}
}

// TestLiveSessions: what sessions and third-party servers become is pushed.
func TestLiveSessions(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := s.live("")
	l.says(`{"op":"open","channel":1,"kind":"sessions"}`)
	l.until("opened", 1)
	if m := l.until("data", 1); m.Data["change"] != "all" {
		t.Errorf("%+v", m)
	}
	c := s.connect(older, "", nil)
	id := c.shell("new", "true").session()
	session := func(m liveMessage) map[string]any {
		row, _ := m.Data["session"].(map[string]any)
		return row
	}
	for session(l.until("data", 1))["session_id"] != id {
	}
	if status, _, body := s.request("PATCH", "/v1/sessions/"+id, strings.NewReader(`{"name":"build"}`)); status != 200 {
		t.Fatal(status, body)
	}
	for session(l.until("data", 1))["name"] != "build" {
	}
	c.call("stop_session", args{"session_id": id})
	for {
		m := l.until("data", 1)
		if m.Data["change"] == "removed" && m.Data["session_id"] == id {
			break
		}
	}
	l.says(`{"op":"open","channel":2,"kind":"servers"}`)
	l.until("opened", 2)
	l.until("data", 2)
	s.put("", "odd.py")
	if out, errs, code := s.cli("mcp", "add", "odd", "--", "python3", "/workspace/odd.py", "plain", "odd"); code != 0 {
		t.Fatal(out, errs)
	}
	server := func(m liveMessage) map[string]any {
		row, _ := m.Data["server"].(map[string]any)
		return row
	}
	for server(l.until("data", 2))["state"] != "connected" {
	}
	if out, errs, code := s.cli("mcp", "remove", "odd"); code != 0 {
		t.Fatal(out, errs)
	}
	for l.until("data", 2).Data["change"] != "removed" {
	}
}

// TestLiveTerminal: a terminal outlives its viewers, who share it; the sleep of its session, which only typing ends; and
// the server.
func TestLiveTerminal(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_HIBERNATE_JOBS=0", "MSB_SESSION_TIMEOUT=10", "MSB_CLEANUP_INTERVAL=1", "SANDLOT_SNAPSHOTS=true")
	c := s.connect(older, "", nil)
	id := c.shell("new", "true").session()
	first := s.live("")
	term := first.terminal(1, id, "")
	first.types(1, "echo hi-$((6*7)); stty size\r")
	first.shows(1, "hi-42")
	first.shows(1, "24 80")
	second := s.live("")
	if got := second.terminal(1, id, term); got != term {
		t.Fatalf("it is %q, and was %q", got, term)
	}
	second.shows(1, "hi-42")
	second.types(1, "\x01\x0becho to-$((1+1))\r")
	first.shows(1, "to-2")
	second.shows(1, "to-2")
	// A smaller viewer counts, as long as it is there.
	second.says(`{"op":"resize","channel":1,"rows":20,"cols":70}`)
	if m := first.until("data", 1); m.Data["rows"] != 20.0 || m.Data["cols"] != 70.0 {
		t.Errorf("%+v", m)
	}
	second.types(1, "stty size\r")
	second.shows(1, "20 70")
	second.CloseNow()
	if m := first.until("data", 1); m.Data["rows"] != 24.0 {
		t.Errorf("%+v", m)
	}
	// A flood is not kept for a viewer.
	first.types(1, "yes flood | head -c 20000000; echo after-$((2+2))\r")
	first.shows(1, "after-4")
	if n := first.taken[1]; n > 19<<20 {
		t.Errorf("the viewer got %d bytes", n)
	}
	// Reload.
	first.CloseNow()
	again := s.live("")
	again.terminal(3, id, term)
	again.shows(3, "after-4")
	list := func() string {
		t.Helper()
		status, _, body := s.request("GET", "/v1/sessions/"+id+"/terminals", nil)
		if status != 200 {
			t.Fatal(status, body)
		}
		return body
	}
	if text := list(); !strings.Contains(text, `"terminal_id":"`+term+`"`) || !strings.Contains(text, `"viewers":1`) {
		t.Errorf("the list is %s", text)
	}
	// The session sleeps, and looking wakes nothing.
	until(t, "it sleeps", func() bool { return sessionStatus(c, id) == "hibernated" })
	asleep := s.live("")
	asleep.terminal(1, id, term)
	asleep.shows(1, "after-4")
	asleep.says(`{"op":"resize","channel":1,"rows":30,"cols":90}`)
	if text := list(); !strings.Contains(text, term) {
		t.Errorf("asleep, the list is %s", text)
	}
	s.looksAsleep(t, id)
	asleep.types(1, "echo woken-$((3+3))\r")
	asleep.shows(1, "woken-6")
	again.shows(3, "woken-6")
	asleep.types(1, "stty size\r")
	asleep.shows(1, "24 80")
	// The next server takes it over, once the session is awake.
	s.stop()
	s.launch()
	c = s.connect(older, "", nil)
	next := s.live("")
	next.says(`{"op":"open","channel":1,"kind":"terminal","args":{"session_id":"%s","terminal_id":"%s"}}`, id, term)
	if m := next.hears(); m.Op != "closed" || m.Error["title"] != "NOT_FOUND" ||
		!strings.Contains(fmt.Sprint(m.Error), "Wake the session") {
		t.Errorf("asleep, after a restart: %+v", m)
	}
	s.looksAsleep(t, id)
	c.shell(id, "true")
	if text := list(); !strings.Contains(text, term) {
		t.Errorf("awake, after a restart, the list is %s", text)
	}
	next.terminal(2, id, term)
	next.shows(2, "woken-6")
	next.types(2, "echo next-$((4+4))\r")
	next.shows(2, "next-8")
	// Its end.
	if status, _, body := s.request("DELETE", "/v1/sessions/"+id+"/terminals/"+term, nil); status != 204 {
		t.Errorf("the end: %d %s", status, body)
	}
	for {
		m, is := next.next()
		if is && m.Op == "closed" && m.Channel == 2 {
			break
		}
	}
	if status, _, _ := s.request("DELETE", "/v1/sessions/"+id+"/terminals/"+term, nil); status != 404 {
		t.Errorf("the end again: %d", status)
	}
	next.says(`{"op":"open","channel":3,"kind":"terminal","args":{"session_id":"%s","command":["sh","-c","exit 7"]}}`, id)
	next.until("opened", 3)
	for {
		if m, is := next.next(); is && m.Op == "closed" && m.Channel == 3 {
			if m.Data["exit_code"] != 7.0 {
				t.Errorf("%+v", m)
			}
			break
		}
	}
	c.call("stop_session", args{"session_id": id})
}

// TestLiveOthers: nobody sees, finds or ends what belongs to another, and a token that is revoked ends its terminals.
func TestLiveOthers(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann, bob := s.token("ann"), s.token("bob")
	id := s.connect(older, ann, nil).shell("new", "true").session()
	l := s.live(ann)
	term := l.terminal(1, id, "")
	l.types(1, "echo secret-$((6*7))\r")
	l.shows(1, "secret-42")
	o := s.live(bob)
	for n, a := range []string{`"session_id":"` + id + `","terminal_id":"` + term + `"`, `"session_id":"` + id + `"`} {
		o.says(`{"op":"open","channel":%d,"kind":"terminal","args":{%s}}`, n+1, a)
		if m := o.hears(); m.Op != "closed" || m.Error["title"] != "SESSION_NOT_FOUND" || len(o.screen) > 0 {
			t.Errorf("another's terminal: %+v, %v", m, o.screen)
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		path := "/v1/sessions/" + id + "/terminals"
		if method == "DELETE" {
			path += "/" + term
		}
		if status, _, body := s.request(method, path, nil, "Authorization", "Bearer "+bob); status != 404 {
			t.Errorf("%s of another: %d %s", method, status, body)
		}
	}
	// A scope without shells has no terminals.
	narrow := s.live(s.token("ann", "--scope", "session.*", "--scope", "process.list"))
	narrow.says(`{"op":"open","channel":1,"kind":"terminal","args":{"session_id":"%s","terminal_id":"%s"}}`, id, term)
	if m := narrow.hears(); m.Op != "closed" || m.Error["title"] != "FORBIDDEN" {
		t.Errorf("out of scope: %+v", m)
	}
	// Rules that change end what may be typed.
	s.applySettings("policy:\n  rules: [\"deny ann shell.execute\"]\n")
	l.types(1, "touch typed\r")
	for {
		if m, is := l.next(); is && m.Op == "closed" {
			if m.Error["title"] != "FORBIDDEN" {
				t.Errorf("refused: %+v", m)
			}
			break
		}
	}
}
