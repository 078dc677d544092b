package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// asksOf writes a script into the home that calls the tool ask, and prints the answer. It returns a function that
// starts it in the background with arguments, and returns the id of the process.
func (c *client) asksOf(server string) func(arguments string) string {
	c.t.Helper()
	c.script("ask_"+server+".py", fmt.Sprintf("import sys\nprint(text(call(%q, 'ask', **json.loads(sys.argv[1]))), "+
		"flush=True)", server))
	return func(arguments string) string {
		c.t.Helper()
		return c.background("python3 /workspace/ask_" + server + ".py '" + arguments + "'")
	}
}

// fullForm is the argument of ask for a question with all kinds of fields.
const fullForm = `{"params": {"message": "What is it?",
"requestedSchema": {"type": "object", "required": ["colour", "count"],
"properties": {"colour": {"type": "string", "enum": ["red", "blue"]},
"count": {"type": "integer", "minimum": 1, "maximum": 9},
"why": {"type": "string", "minLength": 2}, "sure": {"type": "boolean"}, "share": {"type": "number", "default": 0.5}}}}}`

// TestForms: what a server asks in a call of a program in the background is answered over the HTTP API: with content
// that its form takes, a no, or by nobody. Content that the form does not take is refused, and the question stays.
func TestForms(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann, bob := s.token("ann"), s.token("bob")
	s.put(ann, "odd.py")
	c := s.connect(older, ann, nil)
	c.odd("odd", "plain", nil)
	ask := c.asksOf("odd")
	answer := func(token, question, body string) (int, string) {
		t.Helper()
		status, _, text := s.post("/v1/questions/"+question, body, credentials(token)...)
		return status, text
	}
	process := ask(strings.ReplaceAll(fullForm, "\n", ""))
	question := s.question("> What is it?")
	_, _, text := s.request("GET", "/v1/questions", nil, credentials(ann)...)
	var list struct {
		Questions []struct {
			ID   string
			Form struct{ Fields []map[string]any }
		}
	}
	if json.Unmarshal([]byte(text), &list) != nil || len(list.Questions) != 1 || list.Questions[0].ID != question ||
		len(list.Questions[0].Form.Fields) != 5 || list.Questions[0].Form.Fields[0]["name"] != "colour" {
		t.Errorf("the questions are %s", text)
	}
	for content, want := range map[string]string{
		`{"colour":"green","count":3}`:                 `\"colour\" must be one of [\"red\" \"blue\"]`,
		`{"colour":"red"}`:                             `the form needs \"count\"`,
		`{"colour":"red","count":10}`:                  `\"count\" must be at most 9`,
		`{"colour":"red","count":3.5}`:                 `\"count\" must be a number (integer)`,
		`{"colour":"red","count":null}`:                `\"count\" must not be null`,
		`{"colour":"red","count":3,"why":"x"}`:         `\"why\" must have at least 2 characters`,
		`{"colour":"red","count":3,"why":["because"]}`: `\"why\" must be a text`,
		`{"colour":"red","count":3,"sure":1}`:          `\"sure\" must be true or false`,
		`{"colour":"red","count":3,"more":"x"}`:        `the form has no field \"more\"`,
		`{"colour":"red","count":3},"for":"always"`:    "only a yes that counts once has content",
		`{"colour":"red","count":3},"for":"session"`:   "only a yes that counts once has content",
		`["red",3]`: "content",
		`"red"`:     "content",
		`{}`:        `the form needs \"colour\"`,
		`{"colour":"red","count":3},"answer":"no"`:        "only a yes that counts once has content",
		`{"colour":"red","count":3},"answer":"perhaps"`:   "must be yes or no",
		`{"colour":"red","count":3},"action":"accept"`:    "nothing but answer",
		`{"colour":"` + strings.Repeat("r", 1<<16) + `"}`: "",
	} {
		if status, text := answer(ann, question, `{"answer":"yes","content":`+content+`}`); status < 400 || status > 413 ||
			!strings.Contains(text, want) {
			t.Errorf("%.60s: %d %s; want %s", content, status, text, want)
		}
	}
	const good = `{"answer":"yes","content":{"colour":"red","count":3,"why":"né\"\n","sure":false}}`
	if status, text := answer(bob, question, good); status != 404 && status != 403 {
		t.Errorf("another user answers: %d %s", status, text)
	}
	if status, text := answer(ann, question, good); status >= 300 {
		t.Errorf("an answer that fits: %d %s", status, text)
	}
	c.awaitOutput(process, `[{"action": "accept", "content": {"colour": "red", "count": 3, "share": 0.5, "sure": false, `+
		`"why": "n\u00e9\"\n"}}]`)
	if status, text := answer(ann, question, good); status != 404 {
		t.Errorf("a second answer: %d %s", status, text)
	}

	process = ask(`{"params": {"message": "Declined?"}}`)
	if status, text := answer(ann, s.question("> Declined?"), `{"answer":"no"}`); status >= 300 {
		t.Errorf("no: %d %s", status, text)
	}
	c.awaitOutput(process, `[{"action": "decline"}]`)
	process = ask(`{"params": {"message": "Without fields?"}}`)
	if status, text := answer(ann, s.question("> Without fields?"), `{"answer":"yes"}`); status >= 300 {
		t.Errorf("yes: %d %s", status, text)
	}
	c.awaitOutput(process, `[{"action": "accept", "content": {}}]`)

	// Nobody answers: the server learns that its question was cancelled.
	s.applySettings("policy:\n  question_timeout: 1s\n")
	c.awaitOutput(ask(`{"params": {"message": "Anybody?"}}`), `[{"action": "cancel"}]`)
}

// waitingForms are the questions of a user that wait, by the name in their text.
func (s *server) waitingForms(token string, names ...string) map[string]string {
	s.t.Helper()
	_, _, text := s.request("GET", "/v1/questions", nil, credentials(token)...)
	var all struct{ Questions []struct{ ID, Text string } }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		s.t.Fatal(err)
	}
	found := map[string]string{}
	for _, q := range all.Questions {
		for _, name := range names {
			if strings.HasSuffix(q.Text, "> Which colour for "+name+"?") {
				found[name] = q.ID
			}
		}
	}
	if len(found) != len(all.Questions) {
		s.t.Errorf("the questions are %s", text)
	}
	return found
}

// colourOf is the argument of ask for a question about something.
func colourOf(name string) string {
	return fmt.Sprintf(`{"params": {"message": "Which colour for %s?", "requestedSchema": {"type": "object", `+
		`"properties": {"colour": {"type": "string"}}, "required": ["colour"]}}}`, name)
}

// TestFormsAtOnce: programs in the background call a server at once that asks in each call. Each question waits by
// itself, and each answer goes to its own call, in whatever order the answers come.
func TestFormsAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann := s.token("ann")
	s.put(ann, "stateless.py")
	c := s.connect(older, ann, nil)
	c.call("connect_external_mcp", args{"name": "paint", "command": "python3",
		"args": []string{"/workspace/stateless.py"}})
	ask := c.asksOf("paint")
	names, processes := []string{"the roof", "the door", "the wall"}, map[string]string{}
	for _, name := range names {
		processes[name] = ask(colourOf(name))
	}
	var questions map[string]string
	until(t, "all questions wait", func() bool {
		questions = s.waitingForms(ann, names...)
		return len(questions) == len(names)
	})
	list, _, _ := s.cli("questions", "list")
	for _, name := range names {
		_, process, _ := strings.Cut(processes[name], ".")
		_, text, _ := strings.Cut(list, questions[name])
		text, _, _ = strings.Cut(text, name+"?")
		if strings.Count(text, "process ") != 1 || !strings.Contains(text, "process "+process+" of the session ") {
			t.Errorf("%s has asked for %s; the questions are %s", processes[name], name, list)
		}
	}
	// answered answers a question, and waits until its own program alone has that answer.
	answered := func(name, body, want string) {
		t.Helper()
		status, _, text := s.post("/v1/questions/"+questions[name], body, credentials(ann)...)
		if status >= 300 {
			t.Fatalf("%s: %d %s", name, status, text)
		}
		c.awaitOutput(processes[name], fmt.Sprintf(`{"for": "Which colour for %s?", "got": %s, `+
			`"state": "Which colour for %[1]s?"}`, name, want))
		delete(questions, name)
		for other := range questions {
			got := c.call("read_process", args{"process_id": processes[other]}).Text
			if strings.Contains(got, "colour") {
				t.Errorf("%s was answered, and %s has got %s", name, other, got)
			}
		}
	}
	answered("the wall", `{"answer":"yes","content":{"colour":"white"}}`,
		`{"action": "accept", "content": {"colour": "white"}}`)
	answered("the roof", `{"answer":"no"}`, `{"action": "decline"}`)
	answered("the door", `{"answer":"yes","content":{"colour":"red"}}`,
		`{"action": "accept", "content": {"colour": "red"}}`)
	if left := s.waitingForms(ann, names...); len(left) > 0 {
		t.Errorf("questions are left: %v", left)
	}
}

// TestFormsStateful: a server of the stateful protocol does not say which call it asks for. While its question for one
// program waits, one for another program is refused with that reason, and shown to nobody.
func TestFormsStateful(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann := s.token("ann")
	s.put(ann, "odd.py")
	c := s.connect(older, ann, nil)
	c.odd("odd", "plain", nil)
	ask := c.asksOf("odd")
	roof := ask(colourOf("the roof"))
	s.question("> Which colour for the roof?")
	c.awaitOutput(ask(colourOf("the door")), "several clients have calls in flight")
	waiting := s.waitingForms(ann, "the roof")
	s.answerQuestion(waiting["the roof"], "yes", "colour=red")
	c.awaitOutput(roof, `[{"action": "accept", "content": {"colour": "red"}}]`)
	door := ask(colourOf("the door"))
	s.answerQuestion(s.question("> Which colour for the door?"), "yes", "colour=blue")
	c.awaitOutput(door, `[{"action": "accept", "content": {"colour": "blue"}}]`)
}
