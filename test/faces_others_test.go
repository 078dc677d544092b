package test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// described is what this test reads of the HTTP API's description.
type described struct {
	Paths      map[string]map[string]describedRoute
	Components struct{ Schemas map[string]describedSchema }
}

type describedRoute struct {
	RequestBody *struct {
		Content map[string]struct{ Schema describedSchema }
	}
}

type describedSchema struct {
	Ref        string `json:"$ref"`
	Type       any
	Properties map[string]describedSchema
	Required   []string
	Enum       []any
}

// UnmarshalJSON implements json.Unmarshaler. A schema may be true: anything.
func (s *describedSchema) UnmarshalJSON(text []byte) error {
	type object describedSchema
	if text[0] != '{' {
		return nil
	}
	return json.Unmarshal(text, (*object)(s))
}

// belongings are what a user has, and what only that user may read. The same with made-up ids is what nobody has.
type belongings struct {
	ids   map[string]string // by what they are of
	words []string
}

// minWord is how long an id is that is found in no text by chance. Those of processes and terminals are numbers in their
// session.
const minWord = 6

// annsWord is in all that ann writes, names and runs.
const annsWord = "anns-own-word"

// isClosedToOthers has bob use each route, tool and channel with what is ann's. The list of routes is that of the
// description, so a new one is in this test. He is answered as if there were nothing, reads nothing of ann's, and all of
// it is as before.
func (f *face) isClosedToOthers() {
	f.applySettings("policy:\n  question_timeout: 1h\n  rules: [\"ask ann shell.execute *ask-me*\"]\n")
	ann := f.belongs()
	nobody := belongings{ids: map[string]string{}}
	for kind, id := range ann.ids {
		nobody.ids[kind] = madeUp(id)
	}
	_, _, text := f.request("GET", "/v1/openapi.json", nil)
	var d described
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		f.t.Fatal(err)
	}
	tried := 0
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			route := d.Paths[path][method]
			name := strings.ToUpper(method) + " " + path
			at, body, ok := d.request(f.t, path, route, ann)
			if !ok {
				continue
			}
			tried++
			status, answer := f.asOther(method, at, body)
			for _, word := range ann.words {
				// What bob has asked for is in his own events, and what was counted of it in his usage.
				if own := path == "/v1/events" || path == "/v1/usage"; own && word != annsWord && word != `"user:ann"` {
					continue
				}
				if strings.Contains(answer, word) && !strings.Contains(at+body, word) && path != "/v1/openapi.json" {
					f.t.Errorf("%s: bob is answered with ann's %s: %.1000s", name, word, answer)
				}
			}
			if !ann.in(`"`+strings.ReplaceAll(at, "/", `"`)+`"`+body) || ownNames[name] {
				continue
			}
			refused := strings.Contains(answer, `"isError":true`) || strings.Contains(answer, `"success":false`)
			if status < 400 && !refused {
				f.t.Errorf("%s %s: %d %.300s", name, body, status, answer)
			}
			at, body, _ = d.request(f.t, path, route, nobody)
			if other, made := f.asOther(method, at, body); other != status || titleOf(made) != titleOf(answer) {
				f.t.Errorf("%s: %d %.300s\nand of what nobody has %d %.300s", name, status, answer, other, made)
			}
		}
	}
	f.t.Logf("bob has tried %d routes and tools", tried)
	if tried < 100 {
		f.t.Errorf("bob has tried %d routes and tools", tried)
	}
	f.channelsAreClosed(ann)
	f.isAsBefore(ann)
}

// ownNames are the routes whose names are each user's own: bob's secret of that name is another one.
var ownNames = map[string]bool{"PUT /v1/secrets/{name}": true, "DELETE /v1/secrets/{name}": true}

// belongs gives ann one of each thing.
func (f *face) belongs() belongings {
	f.agent.shell("home", "mkdir -p /workspace/d; echo "+annsWord+" > /workspace/d/anns.txt")
	process, _ := f.agent.call("execute_command", args{"command": "sleep 3111; : " + annsWord, "background": true}).
		Fields["process_id"].(string)
	f.live.says(`{"op":"open","channel":50,"kind":"terminal","args":{"session_id":"%s","rows":24,"cols":80}}`, f.id)
	terminal, _ := f.live.until("opened", 50).Data["terminal_id"].(string)
	snapshot := "anns-snapshot"
	f.asks(200, "POST", "/snapshots", `{"name":"`+snapshot+`"}`)
	connection, _ := f.agent.call("connect_external_mcp", args{"name": "odd", "command": "python3",
		"args": []string{f.put(f.token, "odd.py"), "shelf", annsWord}}).Fields["connectionId"].(string)
	secret := "ANNS_SECRET"
	f.request("PUT", "/v1/secrets/"+secret, strings.NewReader(annsWord), credentials(f.token)...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	f.t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		_, _ = f.agent.try(ctx, "execute_command", args{"command": "echo ask-me " + annsWord})
	}()
	question := ""
	until(f.t, "the question is there", func() bool {
		_, _, text := f.request("GET", "/v1/questions", nil, credentials(f.token)...)
		_, rest, found := strings.Cut(text, `"id":"`)
		question, _, _ = strings.Cut(rest, `"`)
		return found && strings.HasPrefix(question, "q_")
	})
	_, _, text := f.request("GET", "/v1/tokens", nil, credentials(f.token)...)
	_, rest, _ := strings.Cut(text, `"id":"`)
	token, _, _ := strings.Cut(rest, `"`)
	b := belongings{ids: map[string]string{"session": f.id, "process": process, "terminal": terminal, "snapshot": snapshot,
		"connection": connection, "secret": secret, "question": question, "token": token}}
	b.words = []string{annsWord, `"user:ann"`}
	for kind, id := range b.ids {
		if len(id) >= minWord {
			b.words = append(b.words, id)
		}
		if id == "" {
			f.t.Fatalf("ann has no %s", kind)
		}
	}
	return b
}

// madeUp returns an id of the same form that nobody has.
func madeUp(id string) string {
	if session, number, ok := strings.Cut(id, "."); ok { // of a process
		return madeUp(session) + "." + number
	}
	if len(id) < minWord {
		return id + "9"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'b' && r <= 'z', r >= 'B' && r <= 'Z':
			return r - 1
		}
		return r
	}, id[:len(id)-4]) + strings.Repeat("a", 4)
}

func (b belongings) in(text string) bool {
	for _, id := range b.ids {
		if strings.Contains(text, `"`+id+`"`) {
			return true
		}
	}
	return false
}

func titleOf(problem string) string {
	var p struct{ Title string }
	_ = json.Unmarshal([]byte(problem), &p)
	return p.Title
}

// asOther sends a request as bob.
func (f *face) asOther(method, path, body string) (int, string) {
	f.t.Helper()
	headers := append(credentials(f.other), "Content-Type", "application/json")
	switch {
	case strings.HasSuffix(path, "/exec"):
		headers = append(headers, "Connection", "Upgrade", "Upgrade", "sandlot-exec")
	case strings.Contains(path, "/ports/"):
		headers = append(headers, "Connection", "Upgrade", "Upgrade", "sandlot-dial")
	}
	status, _, text := f.request(strings.ToUpper(method), path, strings.NewReader(body), headers...)
	return status, text
}

// notTried are routes that are streams on upgraded connections, those that begin one for who asks, and those that are about
// nobody's things, and take long: each has a test of its own.
var notTried = map[string]bool{"/v1/live": true, "/v1/stdio": true}

// request returns the path and the body with which a user reaches for what belongs to somebody. It is false for what
// cannot be about that.
func (d described) request(t *testing.T, path string, route describedRoute, b belongings) (at, body string, ok bool) {
	t.Helper()
	if notTried[path] || strings.HasPrefix(path, "/v1/registry/") || path == "/v1/tools/{name}" {
		return "", "", false
	}
	at = path
	for part := range strings.SplitSeq(path, "/") {
		if !strings.HasPrefix(part, "{") {
			continue
		}
		value := map[string]string{"/v1/sessions/{id}": b.ids["session"], "/v1/snapshots/{name}": b.ids["snapshot"],
			"/v1/connections/{id}": b.ids["connection"], "/v1/secrets/{name}": b.ids["secret"],
			"/v1/questions/{id}": b.ids["question"], "/v1/tokens/{id}": b.ids["token"], "/console/{path}": "main.js",
			"/install/{client}": "cursor", "/oauth/start/{id}": "none", "/v1/templates/{name}": "none",
			"/console/oidc/{provider}": "none", "/v1/images/{name}": "none", "/v1/pulls/{id}": "none"}[path[:strings.Index(path, part)+len(part)]]
		switch part {
		case "{path}":
			if value == "" {
				value = "workspace/d/anns.txt"
			}
		case "{process}":
			value = b.ids["process"]
		case "{terminal}":
			value = b.ids["terminal"]
		case "{port}":
			value = "8123"
		}
		if value == "" {
			t.Errorf("%s: this test does not know what %s is", path, part)
		}
		at = strings.Replace(at, part, value, 1)
	}
	if path == "/v1/events" {
		at += "?follow=false&limit=1000"
	}
	if route.RequestBody == nil {
		return at, "", true
	}
	schema, isJSON := route.RequestBody.Content["application/json"]
	if !isJSON {
		return at, "x", true
	}
	fields, whole := d.fields(path, schema.Schema, b)
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	// A tool that is about nothing of anybody's, and needs arguments, does something new.
	if strings.HasPrefix(path, "/v1/tools/") && !b.in(string(text)) && !whole {
		return "", "", false
	}
	return at, string(text), true
}

// fields returns a body with what belongs to somebody where it can stand. whole: nothing else is needed.
func (d described) fields(path string, s describedSchema, b belongings) (fields map[string]any, whole bool) {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		s = d.Components.Schemas[name]
	}
	fields, whole = map[string]any{}, true
	for name, one := range s.Properties {
		id := map[string]string{"session_id": b.ids["session"], "sessionId": b.ids["session"], "connectionId": b.ids["connection"],
			"connection_id": b.ids["connection"], "process_id": b.ids["process"], "terminal_id": b.ids["terminal"],
			"snapshot": b.ids["snapshot"], "question_id": b.ids["question"], "token_id": b.ids["token"]}[name]
		if name == "name" && strings.Contains(path, "snapshot") {
			id = b.ids["snapshot"]
		}
		switch needed := slices.Contains(s.Required, name); {
		case id != "":
			fields[name] = id
		case needed && name == "name" && strings.Contains(path, "secret"):
			fields[name] = b.ids["secret"]
		case needed:
			whole = false
			fields[name] = d.example(name, one)
		}
	}
	return fields, whole
}

// example returns a value of a schema.
func (d described) example(name string, s describedSchema) any {
	if to, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		s = d.Components.Schemas[to]
	}
	if len(s.Enum) > 0 {
		return s.Enum[0]
	}
	switch s.Type {
	case "integer", "number":
		return 8123
	case "boolean":
		return true
	case "array":
		return []any{}
	case "object":
		return map[string]any{}
	}
	return map[string]string{"path": "/workspace/d/anns.txt", "from": "/workspace/d/anns.txt", "to": "/workspace/d/x",
		"command": "cat /workspace/d/anns.txt", "operation": "session.list", "signal": "KILL", "answer": "yes"}[name] + ""
}

// channelsAreClosed opens each channel as bob, with what is ann's.
func (f *face) channelsAreClosed(ann belongings) {
	l := f.server.live(f.other)
	for i, c := range []struct {
		kind, args string
		mine       bool // it tells what bob has
	}{
		{"events", `{"limit":1000}`, true},
		{"events", `{"session":"SESSION","limit":1000}`, true},
		{"events", `{"principal":"user:ann","limit":1000}`, true},
		{"questions", `{}`, true}, {"sessions", `{}`, true}, {"servers", `{}`, true},
		{"files", `{"session_id":"SESSION","path":"/workspace/d"}`, false},
		{"process", `{"session_id":"SESSION","process_id":"PROCESS"}`, false},
		{"process", `{"session_id":"home","process_id":"PROCESS"}`, false},
		{"terminal", `{"session_id":"SESSION","terminal_id":"TERMINAL"}`, false},
		{"terminal", `{"session_id":"SESSION"}`, false},
		{"terminal", `{"session_id":"home","terminal_id":"TERMINAL"}`, false},
		{"log", `{"server":"CONNECTION"}`, false}, {"log", `{"server":"odd"}`, false},
	} {
		arguments := strings.NewReplacer("SESSION", ann.ids["session"], "PROCESS", ann.ids["process"], "TERMINAL", ann.ids["terminal"],
			"CONNECTION", ann.ids["connection"]).Replace(c.args)
		l.says(`{"op":"open","channel":%d,"kind":"%s","args":%s}`, i+1, c.kind, arguments)
		for over := false; !over; {
			m := l.hears()
			text := fmt.Sprint(m)
			for _, word := range ann.words {
				if m.Data["principal"] == "user:bob" && word != annsWord { // what he has asked for
					continue
				}
				if strings.Contains(text, strings.Trim(word, `"`)) && !strings.Contains(arguments, strings.Trim(word, `"`)) {
					f.t.Errorf("the channel %s %s tells bob of %s: %.1000s", c.kind, arguments, word, text)
				}
			}
			if m.Channel != uint32(i+1) {
				continue
			}
			switch status, _ := m.Error["status"].(float64); {
			case m.Op == "closed" && !c.mine && status != http.StatusNotFound && status != http.StatusBadRequest:
				f.t.Errorf("the channel %s %s ends with %s", c.kind, arguments, text)
				over = true
			case m.Op == "closed":
				over = true
			case !c.mine:
				f.t.Errorf("the channel %s %s says %s", c.kind, arguments, text)
				over = true
			case m.Op == "current", m.Op == "data" && c.kind != "events":
				over = true
			}
		}
	}
}

// isAsBefore looks at what is ann's.
func (f *face) isAsBefore(ann belongings) {
	if got := f.agent.shell("home", "cat /workspace/d/anns.txt; ls /workspace/d").Text; !strings.Contains(got, annsWord) {
		f.t.Errorf("her file is %q", got)
	}
	for path, parts := range map[string][]string{
		"/v1/sessions": {ann.ids["session"]}, "/v1/snapshots": {ann.ids["snapshot"]}, "/v1/questions": {ann.ids["question"]},
		"/v1/connections":                     {ann.ids["connection"]},
		"/v1/secrets":                         {ann.ids["secret"]},
		"/v1/tokens":                          {ann.ids["token"]},
		"/v1/sessions/" + f.id + "/processes": {ann.ids["process"]},
		"/v1/sessions/" + f.id + "/terminals": {ann.ids["terminal"]},
	} {
		status, _, text := f.request("GET", path, nil, credentials(f.token)...)
		for _, part := range parts {
			if status != http.StatusOK || !strings.Contains(text, part) {
				f.t.Errorf("%s of ann: %d, no %s in %s", path, status, part, text)
			}
		}
	}
	f.request("DELETE", "/v1/snapshots/"+ann.ids["snapshot"], nil, credentials(f.token)...)
}
