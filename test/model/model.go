// Package model owns the language model of the tests with real agents. It "says" what a script has, over the HTTP APIs
// of the large providers, and notes what each request showed it.
package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Name is the model's name in clients' settings.
const Name = "scripted-model"

// End is what the model says when its script is at its end.
const End = "The script is done."

// Step is one turn of the model: it calls a tool.
type Step struct {
	Tool string // the end of its name: clients put prefixes before names
	Args map[string]any
	// Before is called once, by Run, before the model answers; nil: nothing is done.
	Before func()
}

// Result is what the model was shown of a call's result.
type Result struct {
	Tool   string // the name of the tool, as the client has it
	Text   string
	Images int
}

// Says reports whether the text has a part, also where the client has put the text into JSON.
func (r Result) Says(part string) bool {
	for text := r.Text; ; {
		if strings.Contains(text, part) {
			return true
		}
		plain := strings.NewReplacer(`\n`, "\n", `\"`, `"`, `\\`, `\`).Replace(text)
		if plain == text {
			return false
		}
		text = plain
	}
}

// Model is a scripted model, whose APIs listen on a loopback address.
type Model struct {
	URL string // without a path
	// Wait is a call by which the model waits for a tool that is not offered; without a tool it does not wait.
	Wait Step

	steps []Step
	due   chan due

	mu      sync.Mutex
	begun   map[int]bool // steps whose Before was done, or is being done
	results []Result     // of the steps, as first shown
	system  string
	tools   []string
	missing []string // tools that the script has and the client does not offer
	unknown []string // requests of no API that the model has
	ended   bool
}

// due is something that Run has to do before the model answers.
type due struct {
	do   func()
	done chan struct{}
}

// Start starts a model that follows a script until the test ends.
func Start(t testing.TB, steps []Step) *Model {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{URL: "http://" + l.Addr().String(), steps: steps, due: make(chan due), begun: map[int]bool{}}
	s := &http.Server{Handler: m}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return m
}

// Run calls agent, which uses the model, and meanwhile, in its own goroutine, what the steps have to be done before.
func (m *Model) Run(agent func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		agent()
	}()
	for {
		select {
		case d := <-m.due:
			d.do()
			close(d.done)
		case <-ended:
			return
		}
	}
}

// Results returns the results of the steps, as far as they were shown.
func (m *Model) Results() []Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.results)
}

// System returns the texts of the last request that are neither the model's nor results: clients put what they tell the
// model into messages of its user, too.
func (m *Model) System() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.system
}

// Tools returns the names of the tools that the client offered.
func (m *Model) Tools() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.tools)
}

// Ended reports whether the model has said End.
func (m *Model) Ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// Problems says what the model could not do.
func (m *Model) Problems() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("tools that were not offered: %q of %q; requests that it has no answer for: %q", m.missing, m.tools,
		m.unknown)
}

// tool is one that a client offers.
type tool struct{ name, namespace string }

// conversation is a request, in the words of no provider.
type conversation struct {
	system  strings.Builder
	tools   []tool
	results []Result
	stream  bool
	raw     []byte
}

// call is a tool call that the model makes; with an empty name it says text.
type call struct {
	tool
	id   string
	args string // JSON
	text string
}

func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	api := apiOf(r)
	switch {
	case api.answer != nil:
		c, err := api.read(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.raw, c.stream = body, c.stream || strings.Contains(r.URL.Path, ":stream")
		api.answer(&writer{ResponseWriter: w}, c, m.next(c))
	case strings.HasSuffix(r.URL.Path, "/count_tokens"), strings.HasSuffix(r.URL.Path, ":countTokens"):
		writeJSON(w, object{"input_tokens": 100, "totalTokens": 100})
	case strings.HasSuffix(r.URL.Path, "/models"):
		writeJSON(w, object{"object": "list", "models": []any{}, "data": []any{
			object{"id": Name, "object": "model", "created": 1, "owned_by": "test"}}})
	default:
		m.mu.Lock()
		m.unknown = append(m.unknown, r.Method+" "+r.URL.Path)
		m.mu.Unlock()
		http.NotFound(w, r)
	}
}

// api is an HTTP API of a provider.
type api struct {
	read   func(body []byte) (*conversation, error)
	answer func(w *writer, c *conversation, next call)
}

// apiOf returns the API that a request is for; without functions: none.
func apiOf(r *http.Request) api {
	if r.Method != http.MethodPost {
		return api{}
	}
	path := r.URL.Path
	for end, a := range map[string]api{
		"/messages":              {readAnthropic, answerAnthropic},
		"/chat/completions":      {readChat, answerChat},
		"/responses":             {readResponses, answerResponses},
		":generateContent":       {readGemini, answerGemini},
		":streamGenerateContent": {readGemini, answerGemini},
	} {
		if strings.HasSuffix(path, end) {
			return a
		}
	}
	return api{}
}

// patience is how many calls that are no steps the model makes before it gives up.
const patience = 40

// finders are tools by which clients let models look for other tools.
var finders = []string{"tool_search", "ToolSearch"}

// next returns what the model does in a conversation: the results in it say which steps are done.
func (m *Model) next(c *conversation) call {
	if len(c.tools) == 0 { // the client wants a title, or the like; JSON serves those that want an object
		return call{text: `{"title": "Scripted", "next_speaker": "user", "reasoning": "none"}`}
	}
	done := slices.DeleteFunc(slices.Clone(c.results), func(r Result) bool {
		return slices.Contains(finders, r.Tool) || m.Wait.Tool != "" && r.Tool == m.Wait.Tool
	})
	again := 100 * (len(c.results) - len(done)) // makes ids of calls that are no steps
	searched := len(c.results) > 0 && len(done) < len(c.results) &&
		slices.Contains(finders, c.results[len(c.results)-1].Tool)
	m.note(c, done)
	n := len(done)
	if n >= len(m.steps) {
		m.mu.Lock()
		m.ended = true
		m.mu.Unlock()
		return call{text: End}
	}
	step := m.steps[n]
	m.prepare(n)
	if t, ok := find(c.tools, step.Tool); ok {
		return newCall(t, n+again, step.Args)
	}
	for _, f := range finders {
		if t, ok := find(c.tools, f); ok && !searched {
			return newCall(t, n+again+50, map[string]any{"query": "select:" + fullName(c.raw, step.Tool)})
		}
	}
	if t, ok := find(c.tools, m.Wait.Tool); ok && m.Wait.Tool != "" && again < 100*patience {
		return newCall(t, n+again+50, m.Wait.Args)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missing = append(m.missing, step.Tool)
	return call{text: "There is no tool " + step.Tool + "."}
}

// note keeps what a request shows: of each result what was shown first, since clients shorten old ones.
func (m *Model) note(c *conversation, done []Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(done) > len(m.results) {
		m.results = append(m.results, done[len(m.results):]...)
	}
	m.system, m.tools = c.system.String(), nil
	for _, t := range c.tools {
		m.tools = append(m.tools, t.name)
	}
}

// prepare has Run do what is to be done before a step, once.
func (m *Model) prepare(n int) {
	m.mu.Lock()
	before := m.steps[n].Before
	if m.begun[n] {
		before = nil
	}
	m.begun[n] = true
	m.mu.Unlock()
	if before != nil {
		d := due{before, make(chan struct{})}
		m.due <- d
		<-d.done
	}
}

// find returns the tool whose name ends in the one given. Clients replace - in names.
func find(tools []tool, end string) (tool, bool) {
	plain := func(name string) string { return strings.ReplaceAll(strings.ToLower(name), "-", "_") }
	end = plain(end)
	i := slices.IndexFunc(tools, func(t tool) bool {
		before, found := strings.CutSuffix(plain(t.name), end)
		return found && (before == "" || strings.ContainsAny(before[len(before)-1:], "_.:/"))
	})
	if i < 0 {
		return tool{}, false
	}
	return tools[i], true
}

// fullName returns the name of a tool that is in a request's texts alone.
func fullName(request []byte, end string) string {
	pattern := `\b[a-z0-9]\w*` + strings.ReplaceAll(regexp.QuoteMeta(end), "_", "[-_]") + `\b`
	text := strings.ReplaceAll(string(request), `\n`, "\n")
	return cmp.Or(regexp.MustCompile(pattern).FindString(text), end)
}

func newCall(t tool, n int, args map[string]any) call {
	text, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return call{tool: t, id: fmt.Sprintf("call_%04d", n), args: string(text)}
}

// object is a JSON object.
type object = map[string]any

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// writer writes events.
type writer struct {
	http.ResponseWriter
	n int // events so far
}

// event writes an event, with a name if it has one, and a number if the API counts them.
func (w *writer) event(name string, data object) {
	if w.n == 0 {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	w.n++
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	if name != "" {
		fmt.Fprintf(w, "event: %s\n", name)
	}
	fmt.Fprintf(w, "data: %s\n\n", text)
	w.Flush()
}

// Flush sends what is written.
func (w *writer) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// calls gives results the names of their tools, by the ids of calls.
type calls map[string]string

// add adds a result to the conversation.
func (c *conversation) add(tool string, content any) {
	r := Result{Tool: tool}
	r.show(content)
	c.results = append(c.results, r)
}

// more adds what a client shows beside results, in messages after them: images.
func (c *conversation) more(content any) {
	if len(c.results) > 0 {
		var r Result
		r.show(content)
		c.results[len(c.results)-1].Images += r.Images
	}
}

// show adds content of any shape: texts, and how many images there are. Objects of other kinds are shown as their texts.
func (r *Result) show(content any) {
	switch v := content.(type) {
	case string:
		r.Text += v
	case []any:
		for _, e := range v {
			r.show(e)
		}
	case map[string]any:
		switch v["type"] {
		case "image", "input_image", "image_url", "media":
			r.Images++
			return
		}
		if v["inlineData"] != nil {
			r.Images++
			return
		}
		if text, ok := v["text"].(string); ok {
			r.Text += text
			return
		}
		text, _ := json.Marshal(v) // it was JSON
		r.Text += string(text)
	}
}

// textOf returns the texts of content.
func textOf(content any) string {
	var r Result
	r.show(content)
	return r.Text
}
