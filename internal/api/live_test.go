package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandlot/internal/agent"
	"sandlot/internal/api/openapi"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/session"
	"sandlot/internal/tty"
)

// liveMessage is a message of the server.
type liveMessage struct {
	Op      string
	Channel int
	Cursor  string
	Data    json.RawMessage
	Error   *protocol.Problem
}

func (m liveMessage) String() string {
	if m.Error != nil {
		detail := m.Error.Detail
		for _, prefix := range []string{"Invalid parameters: ", "Not allowed: ", "Resource limit exceeded: "} {
			detail = strings.TrimPrefix(detail, prefix)
		}
		return fmt.Sprintf("%s %d %s %s", m.Op, m.Channel, m.Error.Title, detail)
	}
	return fmt.Sprintf("%s %d %s", m.Op, m.Channel, m.Data)
}

// liveClient is a real client of the live channel.
type liveClient struct {
	*websocket.Conn
	t testing.TB
}

// liveServer serves an edge over HTTP.
func (e *edge) liveServer() string {
	s := httptest.NewServer(e.Handler())
	e.t.Cleanup(s.Close)
	return s.URL
}

func dialLive(t testing.TB, url, token string) *liveClient {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), url+"/v1/live",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {token}}})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(1 << 20)
	t.Cleanup(func() { ws.CloseNow() })
	return &liveClient{ws, t}
}

func (c *liveClient) says(format string, args ...any) {
	c.t.Helper()
	if err := c.Write(c.t.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)); err != nil {
		c.t.Fatal(err)
	}
}

// hears returns the next message. It comes within a minute.
func (c *liveClient) hears() liveMessage {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	kind, b, err := c.Read(ctx)
	if err != nil || kind != websocket.MessageText {
		c.t.Fatalf("no message comes: %v, %v", kind, err)
	}
	var m liveMessage
	if err := json.Unmarshal(b, &m); err != nil {
		c.t.Fatal(err)
	}
	return m
}

// expects fails unless the next message begins so.
func (c *liveClient) expects(begins string) liveMessage {
	c.t.Helper()
	m := c.hears()
	if !strings.HasPrefix(m.String(), begins) {
		c.t.Fatalf("it says %q, want %q", m, begins)
	}
	return m
}

// ends returns the status with which the connection ends, and why.
func (c *liveClient) ends() (websocket.StatusCode, string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for {
		if _, _, err := c.Read(ctx); err != nil {
			return websocket.CloseStatus(err), err.Error()
		}
	}
}

// noAnswers is a question.Store that stores nothing.
type noAnswers struct{}

func (noAnswers) PutAnswer(context.Context, question.Answer) error   { return nil }
func (noAnswers) Answers(context.Context) ([]question.Answer, error) { return nil, nil }
func (noAnswers) RemoveAnswer(context.Context, string) error         { return nil }

// withQuestions gives a hub questions.
func withQuestions(c *hub.Config) {
	c.Questions, _ = question.New(context.Background(), noAnswers{})
	c.QuestionTimeout = func() time.Duration { return time.Hour }
}

// Messages that mean nothing get an error, and end nothing else.
func TestLiveMistakes(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, withQuestions)
	url, token := e.liveServer(), e.token("ann")
	c := dialLive(t, url, token)
	c.says(`{"op":"open","channel":7,"kind":"questions"}`)
	c.expects(`opened 7`)
	c.expects(`data 7 {"change":"all","questions":[]}`)
	for text, want := range map[string]string{
		`{"op":`:                        "error 0 INVALID_PARAMETERS a message is not understood",
		`[]`:                            "error 0 INVALID_PARAMETERS a message must be a JSON object",
		`{"op":"close","channel":7} {}`: "error 0 INVALID_PARAMETERS a message is not understood: something follows",
		"{\"op\":\"\xff\"}":             "error 0 INVALID_PARAMETERS a message must be a JSON object",
		`{"op":"close","chanel":7}`:     "error 0 INVALID_PARAMETERS a message is not understood",
		`{"op":"close"}`:                "error 0 INVALID_PARAMETERS channel must be a number",
		`{"op":"close","channel":-1}`:   "error 0 INVALID_PARAMETERS channel must be a number",
		`{"op":"dance","channel":7}`:    "error 7 INVALID_PARAMETERS op \"dance\" must be one of",
		`{"op":"close","channel":8}`:    "error 8 NOT_FOUND there is no channel 8",
		`{"op":"open","channel":7,"kind":"questions"}`:  "error 7 INVALID_PARAMETERS channel 7 was used",
		`{"op":"open","channel":3,"kind":"questions"}`:  "error 3 INVALID_PARAMETERS channel 3 was used",
		`{"op":"open","channel":9,"kind":"secrets"}`:    "error 9 INVALID_PARAMETERS kind \"secrets\" must be",
		`{"op":"ack","channel":7,"count":9}`:            "error 7 INVALID_PARAMETERS count is 9",
		`{"op":"ack","channel":7,"bytes":1}`:            "error 7 INVALID_PARAMETERS an acknowledgement",
		`{"op":"resize","channel":7,"rows":1,"cols":1}`: "error 7 INVALID_PARAMETERS channel 7 has no size",
	} {
		c.says("%s", text)
		c.expects(want)
	}
	for frame, want := range map[string]string{
		"\x00\x00":             "error 0 INVALID_PARAMETERS a binary message begins",
		"\x00\x00\x00\x63some": "error 99 NOT_FOUND there is no channel 99",
		"\x00\x00\x00\x07some": "error 7 INVALID_PARAMETERS channel 7 takes no bytes",
		"\xff\xff\xff\xffsome": "error 4294967295 NOT_FOUND there is no channel",
	} {
		if err := c.Write(t.Context(), websocket.MessageBinary, []byte(frame)); err != nil {
			t.Fatal(err)
		}
		c.expects(want)
	}
	c.says(`{"op":"open","channel":10,"kind":"events","args":{"kinds":["secrets"]}}`)
	c.expects(`closed 10 INVALID_PARAMETERS kind "secrets" must be one of`)
	c.says(`{"op":"open","channel":11,"kind":"questions","args":{"all":true}}`)
	c.expects(`closed 11 INVALID_PARAMETERS args is not understood`)
	c.says(`{"op":"close","channel":11}`) // it has ended: no mistake
	c.says(`{"op":"close","channel":7}`)
	if m := c.expects("closed 7"); m.Error != nil {
		t.Errorf("the end says %v", m)
	}
	c.says(`{"op":"ack","channel":7,"count":1}`)
	for n := range 4 {
		c.says(`{"op":"open","channel":%d,"kind":"questions"}`, 100+n)
		c.expects(fmt.Sprintf("opened %d", 100+n))
		c.expects(fmt.Sprintf("data %d", 100+n))
	}
	c.says(`{"op":"open","channel":200,"kind":"questions"}`)
	c.expects("error 200 RESOURCE_LIMIT_EXCEEDED 4 channels of questions are open")
	c.says(`{"op":"close","channel":100}`)
	c.expects("closed 100")
	c.says(`{"op":"open","channel":201,"kind":"questions"}`)
	c.expects("opened 201")
	c.expects("data 201")
	c.says(`{"op":"close","channel":%s1}`, strings.Repeat(" ", 70000))
	if status, why := c.ends(); status != websocket.StatusMessageTooBig {
		t.Errorf("a message of 70,000 bytes: %v %s", status, why)
	}
}

// Nothing else than a WebSocket is served, and none to a page of another origin.
func TestLiveNeedsAWebSocket(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	token := e.token("ann")
	isProblem(t, do(e.Handler(), "GET", "/v1/live", "", "Authorization", token), 400, "INVALID_PARAMETERS")
	isProblem(t, do(e.Handler(), "GET", "/v1/live", ""), 401, "UNAUTHORIZED")
	url := e.liveServer()
	for origin, want := range map[string]int{"https://evil.example": 403, "null": 403, "": 101, url: 101} {
		ws, r, err := websocket.Dial(t.Context(), url+"/v1/live", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {token}, "Origin": {origin}}})
		if r == nil || r.StatusCode != want {
			t.Errorf("from %q: %v, %v", origin, r, err)
		}
		if ws != nil {
			ws.CloseNow()
		}
	}
}

// Questions are pushed when they are asked and when they end, to those who may see them.
func TestLiveQuestions(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, withQuestions)
	url := e.liveServer()
	ann, bob := dialLive(t, url, e.token("ann")), dialLive(t, url, e.token("bob"))
	_, v, err := auth.Issue(t.Context(), e.tokens, "eve", false, 0, auth.Operator)
	if err != nil {
		t.Fatal(err)
	}
	eve := dialLive(t, url, "Bearer "+v.Reveal())
	for _, c := range []*liveClient{ann, bob, eve} {
		c.says(`{"op":"open","channel":1,"kind":"questions"}`)
		c.expects("opened 1")
		c.expects(`data 1 {"change":"all","questions":[]}`)
	}
	newest := e.Hub.Events.Newest()
	ask := func(user string) *question.Open {
		t.Helper()
		o, err := e.Hub.Questions.Ask(question.Question{Subject: question.Subject{Principal: "user:" + user,
			Operation: policy.ShellExecute, Detail: "make"}, Text: "May it?"}, time.Hour, false)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	asked := ask("ann")
	for _, c := range []*liveClient{ann, eve} {
		var got struct{ Question question.Question }
		m := c.expects(`data 1 {"change":"asked","question":{`)
		if err := json.Unmarshal(m.Data, &got); err != nil || got.Question.ID != asked.ID || got.Question.Text != "May it?" {
			t.Errorf("asked: %v, %v", m, err)
		}
	}
	if got := do(e.Handler(), "POST", "/v1/questions/"+asked.ID, `{"answer":"yes"}`, "Authorization", e.token("ann"),
		"Content-Type", "application/json"); got.StatusCode != 204 {
		t.Fatal(got.StatusCode, got.body)
	}
	for _, c := range []*liveClient{ann, eve} {
		c.expects(`data 1 {"change":"ended","id":"` + asked.ID + `","how":"answered","answer":"yes"}`)
	}
	ask("bob") // the first that he hears of
	bob.expects(`data 1 {"change":"asked","question":{`)
	if e.Hub.Events.Newest() != newest+1 { // the answer
		t.Errorf("%d events", e.Hub.Events.Newest()-newest)
	}
}

// While rules refuse a list, its changes are not pushed either.
func TestLiveAsksPolicyAgain(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, withQuestions)
	c := dialLive(t, e.liveServer(), e.token("ann"))
	c.says(`{"op":"open","channel":1,"kind":"questions"}`)
	c.expects("opened 1")
	c.expects("data 1")
	a := e.refusing()
	if _, err := e.Hub.Questions.Ask(question.Question{Subject: question.Subject{Principal: "user:ann"}}, time.Hour,
		false); err != nil {
		t.Fatal(err)
	}
	c.expects("closed 1 FORBIDDEN " + forbids)
	n := 1
	for kind, want := range map[string]policy.Operation{"events": policy.EventRead, "questions": policy.QuestionList,
		"sessions": policy.SessionList, "servers": policy.MCPList, "log": policy.MCPLogs, "terminal": policy.ShellExecute} {
		n++
		a.take()
		c.says(`{"op":"open","channel":%d,"kind":"%s"}`, n, kind)
		c.expects(fmt.Sprintf("closed %d FORBIDDEN %s", n, forbids))
		if ops := a.take(); len(ops) != 1 || ops[0] != want {
			t.Errorf("a channel of %s asks for %v, want %s", kind, ops, want)
		}
	}
}

// Events go on where a cursor says, without a gap, also for a client that reads late.
func TestLiveEvents(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	url, token := e.liveServer(), e.token("ann")
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			e.Hub.Events.Publish(event.Event{Kind: event.Call, Principal: "user:ann", Name: fmt.Sprint(i), Outcome: event.OK})
			e.Hub.Events.Publish(event.Event{Kind: event.Call, Principal: "user:bob", Name: "another's", Outcome: event.OK})
		}
	}
	c := dialLive(t, url, token)
	c.says(`{"op":"open","channel":1,"kind":"events"}`)
	c.expects("opened 1")
	c.expects(`data 1 {"id":1,`) // this connection
	c.expects("current 1")       // what has happened was told
	taken := 1
	cursor := ""
	read := func(name int) {
		t.Helper()
		m := c.hears()
		var got event.Event
		if err := json.Unmarshal(m.Data, &got); err != nil || m.Op != "data" || got.Name != fmt.Sprint(name) || m.Cursor == "" {
			t.Fatalf("want the event %d: %v, %v", name, m, err)
		}
		cursor = m.Cursor
		if taken++; taken%50 == 0 {
			c.says(`{"op":"ack","channel":1,"count":%d}`, taken)
		}
	}
	for n := 0; n < 10000; n += 100 {
		publish(n, n+100)
		for i := n; i < n+100; i++ {
			read(i)
		}
	}
	c.CloseNow()
	publish(10000, 10100)
	c = dialLive(t, url, token)
	taken = 0
	c.says(`{"op":"open","channel":5,"kind":"events","args":{"cursor":"%s","kinds":["call"]}}`, cursor)
	c.expects("opened 5")
	for i := 10000; i < 10100; {
		m := c.hears()
		if m.Op == "current" {
			continue
		}
		var got event.Event
		if err := json.Unmarshal(m.Data, &got); err != nil || m.Op != "data" {
			t.Fatal(m, err)
		}
		if got.Operation == string(policy.ClientConnect) {
			continue
		}
		if got.Name != fmt.Sprint(i) {
			t.Fatalf("after the break comes %v, want %d", m, i)
		}
		i++
	}
	c.says(`{"op":"open","channel":6,"kind":"events","args":{"principal":"user:bob"}}`)
	for {
		if m := c.hears(); m.Channel == 6 {
			if m.Op != "closed" || m.Error == nil || m.Error.Title != "FORBIDDEN" {
				t.Errorf("another's events: %v", m)
			}
			break
		}
	}
}

// floodedLive returns a client with the channel 1 of events, of which 10,000 have happened since, and what makes more.
func floodedLive(t *testing.T) (*liveClient, func(name string)) {
	t.Helper()
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	c := dialLive(t, e.liveServer(), e.token("ann"))
	c.says(`{"op":"open","channel":1,"kind":"events","args":{"limit":1}}`)
	c.expects("opened 1")
	publish := func(name string) {
		e.Hub.Events.Publish(event.Event{Kind: event.Call, Principal: "user:ann", Name: name, Outcome: event.OK})
	}
	for i := range 10000 {
		publish(fmt.Sprint(i))
	}
	return c, publish
}

// A client that does not acknowledge gets a bounded number of messages, and is told what it has missed.
func TestLiveSlowReader(t *testing.T) {
	c, publish := floodedLive(t)
	got := 0
	c.says(`{"op":"open","channel":2,"kind":"questions"}`) // other channels go on
	for opened := false; !opened; {
		m := c.hears()
		if m.Channel == 1 && m.Op != "current" {
			got++
		}
		opened = m.Channel == 2 && m.Op == "data"
	}
	for got < 256 { // a server that was slow has lost most, and sends but the last
		publish("more")
		if m := c.hears(); m.Channel == 1 && m.Op != "current" {
			got++
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, b, err := c.Read(ctx); err == nil && !strings.Contains(string(b), `"channel":2`) {
		t.Errorf("after 256 messages comes %.200s", b)
	}
}

// A client that has missed events is told, once it reads again.
func TestLiveLost(t *testing.T) {
	c, _ := floodedLive(t)
	lost, last, taken := false, "", 0
	for last != "9999" {
		m := c.hears()
		if m.Op == "current" {
			continue
		}
		taken++
		c.says(`{"op":"ack","channel":1,"count":%d}`, taken)
		lost = lost || m.Op == "lost"
		var got event.Event
		if err := json.Unmarshal(m.Data, &got); m.Op == "data" && err == nil {
			last = got.Name
		}
	}
	if !lost || taken > 2000 {
		t.Errorf("lost %v, %d messages", lost, taken)
	}
}

// The connection ends when its token does, with a reason, and what comes afterwards counts for nothing.
func TestLiveTokenEnds(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, withQuestions)
	e.TokenWatch = auth.NewTokenWatch(e.Authenticator, e.Log, e.Hub.Events)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); e.TokenWatch.Run(ctx) }()
	defer func() { cancel(); <-over }()
	url := e.liveServer()
	c, bob := dialLive(t, url, e.token("ann")), dialLive(t, url, e.token("bob"))
	for _, c := range []*liveClient{c, bob} {
		c.says(`{"op":"open","channel":1,"kind":"questions"}`)
		c.expects("opened 1")
		c.expects("data 1")
	}
	all, err := e.tokens.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.tokens.RemoveToken(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	if status, why := c.ends(); status != websocket.StatusPolicyViolation || !strings.Contains(why, "UNAUTHORIZED") {
		t.Errorf("%v %s", status, why)
	}
	bob.says(`{"op":"open","channel":2,"kind":"questions"}`)
	bob.expects("opened 2")
}

// The connection ends when the server stops.
func TestLiveServerStops(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, withQuestions)
	c := dialLive(t, e.liveServer(), e.token("ann"))
	c.says(`{"op":"open","channel":1,"kind":"events"}`)
	c.expects("opened 1")
	e.Hub.Events.Close()
	if status, why := c.ends(); status != websocket.StatusGoingAway {
		t.Errorf("%v %s", status, why)
	}
}

// What faces read again and again is no event: a new route that reads says that it is such a one, or why not here.
func TestReadsOfFaces(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	others := map[policy.Operation]string{policy.FileRead: "a file of a sandbox",
		policy.FileList: "a folder of a sandbox", policy.ProcessRead: "it lasts", policy.ClientConnect: "it lasts",
		policy.RegistrySearch: "somebody searches, and faces do not repeat it", policy.RegistryRead: "as registry.search"}
	reads := 0
	for _, r := range e.routes() {
		method, path := openapi.SplitPattern(r.pattern)
		if method != http.MethodGet || !strings.HasPrefix(path, "/v1/") || r.audience == everyone {
			continue
		}
		reads++
		if !r.operation.Polled() && others[r.operation] == "" || r.operation.Polled() && r.operation.Changes() {
			t.Errorf("%s is %s: is that an event each time?", r.pattern, r.operation)
		}
	}
	if reads < 10 {
		t.Errorf("%d routes read", reads)
	}
}

// A live connection is one of its principal's streams.
func TestLiveIsAStream(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	url, token := e.liveServer(), e.token("ann")
	for range 64 {
		dialLive(t, url, token)
	}
	_, r, err := websocket.Dial(t.Context(), url+"/v1/live",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {token}}})
	if err == nil || r == nil || r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the 65th: %v, %v", r, err)
	}
	dialLive(t, url, e.token("bob"))
}

// reading is a machine whose reads last.
type reading struct {
	began chan struct{} // holds one element once one has begun
}

func (r reading) ReadProcess(ctx context.Context, _ string, _ int64, _ int, _ time.Duration) (agent.ProcessOutput, error) {
	select {
	case r.began <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return agent.ProcessOutput{}, ctx.Err()
}

func (reading) TypeKeys(context.Context, string, []byte) (int, error)    { return 0, nil }
func (reading) ResizeTerminal(context.Context, string, agent.Size) error { return nil }
func (reading) ListProcesses(context.Context) ([]agent.Process, error)   { return nil, nil }
func (reading) StopProcess(context.Context, string, syscall.Signal, time.Duration) (bool, int, error) {
	return false, 0, nil
}

// A terminal that has ended with its sandbox cannot be ended again: that would start another sandbox.
func TestEndedTerminal(t *testing.T) {
	var gone atomic.Bool
	machine := reading{make(chan struct{}, 1)}
	terminals := tty.New(tty.Config{Log: slog.New(slog.DiscardHandler),
		Programs: func(string, string) (tty.Programs, error) {
			return tty.Programs{Machine: machine, Kept: !gone.Load()}, nil
		}})
	defer terminals.Close()
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) { c.Terminals = terminals })
	token := e.token("ann")
	l, err := e.Hub.Sessions.Open(t.Context(), auth.User("ann", false), session.OpenRequest{ID: "new"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	release, err := terminals.Reserve("user:ann", l.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := terminals.Add(tty.Start{Owner: "user:ann", Session: l.ID(), ID: "p1", Release: release}); err != nil {
		t.Fatal(err)
	}
	<-machine.began // it has not heard of the end yet
	gone.Store(true)
	isProblem(t, do(e.Handler(), "DELETE", "/v1/sessions/"+l.ID()+"/terminals/p1", "", "Authorization", token),
		http.StatusNotFound, "NOT_FOUND")
}
