package test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/secret"
	"sandlot/internal/servers"
	"sandlot/internal/servers/spec"
	"sandlot/internal/store"
)

// idOf are the parts of requests that name something of a principal, with what they name.
var idOf = map[string]string{
	"/v1/sessions/{id}": "session", "/v1/connections/{id}": "connection", "/v1/questions/{id}": "answer",
	"/v1/secrets/{name}": "secret", "session_id": "session", "connectionId": "connection", "process_id": "process",
	"/v1/snapshots/{name}": "snapshot",
}

// further are requests with ids that the description of the API does not show as such.
var further = []probe{
	{"POST", "/v1/questions/" + idPlace, `{"answer":"yes"}`, "question"},
	{"POST", "/v1/questions/" + idPlace, `{"answer":"no","for":"always"}`, "question"},
	{"DELETE", "/v1/questions/" + idPlace, "", "question"},
	{"POST", "/v1/tools/restore_snapshot", `{"name":"` + idPlace + `"}`, "snapshot"},
	{"POST", "/v1/tools/restore_snapshot", `{"name":"` + idPlace + `","session_id":"new"}`, "snapshot"},
	{"POST", "/v1/tools/remove_snapshot", `{"name":"` + idPlace + `"}`, "snapshot"},
	{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandlot://sessions/` + idPlace +
		`/files/workspace/f"}}`, "session"},
	{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"1",` +
		`"session_id":"` + idPlace + `"}}}`, "session"},
}

// bodies are the bodies of routes that need one.
var bodies = map[string]string{
	"PATCH /v1/sessions/{id}/network":        `{"allow":["a.test:443"]}`,
	"POST /v1/connections/{id}/prompt":       `{"name":"x"}`,
	"POST /v1/connections/{id}/read":         `{"uri":"file:///x"}`,
	"POST /v1/questions/{id}":                `{"answer":"yes"}`,
	"PUT /v1/sessions/{id}/files/{path}":     "x",
	"POST /v1/tools/execute_code":            `{"code":"1"}`,
	"POST /v1/tools/execute_command":         `{"command":"true"}`,
	"POST /v1/tools/sandbox_read_file":       `{"path":"f"}`,
	"POST /v1/tools/sandbox_write_file":      `{"path":"f","content":"x"}`,
	"POST /v1/tools/write_process":           `{"input":"x"}`,
	"POST /v1/tools/expose_port":             `{"port":8080,"wait":0}`,
	"POST /v1/tools/close_port":              `{"port":8080}`,
	"POST /v1/tools/sandbox_shell_exec":      `{"command":"true"}`,
	"POST /v1/tools/disconnect_external_mcp": `{"delete":true}`,
}

// probe is a request with a place for an id.
type probe struct{ method, path, body, kind string }

const idPlace = "ID_PLACE"

// probes returns a request for each route with an id, and for each tool with an argument that is one.
func (s *server) probes() (all []probe) {
	s.t.Helper()
	_, _, text := s.request("GET", "/v1/openapi.json", nil)
	var d struct {
		Paths map[string]map[string]struct {
			RequestBody struct {
				Content map[string]struct {
					Schema struct{ Properties map[string]any }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		s.t.Fatal(err)
	}
	for path, methods := range d.Paths {
		for method, o := range methods {
			method = strings.ToUpper(method)
			body := bodies[method+" "+path]
			for prefix, kind := range idOf {
				makes := method == http.MethodPut && kind == "secret"
				if strings.HasPrefix(prefix, "/") && strings.HasPrefix(path, prefix) && !makes {
					all = append(all, probe{method, strings.NewReplacer("{id}", idPlace, "{name}", idPlace, "{path}",
						"workspace/f", "{port}", "8080").Replace(path), body, kind})
				}
				if o.RequestBody.Content["application/json"].Schema.Properties[prefix] == nil {
					continue
				}
				given := map[string]any{}
				if err := json.Unmarshal([]byte(cmp.Or(body, "{}")), &given); err != nil {
					s.t.Fatal(err)
				}
				given[prefix] = idPlace
				encoded, _ := json.Marshal(given)
				all = append(all, probe{method, path, string(encoded), kind})
			}
		}
	}
	all = append(all, further...)
	slices.SortFunc(all, func(x, y probe) int {
		return strings.Compare(x.path+x.method+x.kind, y.path+y.method+y.kind)
	})
	return all
}

var anySession = regexp.MustCompile(`\b[a-z2-7]{26}\b`)

// send sends a probe with an id, and returns what the answer tells but for the id.
func (s *server) send(p probe, token, id string) (answer string, took time.Duration) {
	s.t.Helper()
	header := append(credentials(token), "Content-Type", "application/json")
	switch {
	case strings.HasSuffix(p.path, "/exec"):
		header = append(header, "Connection", "Upgrade", "Upgrade", "sandlot-exec")
	case strings.Contains(p.path, "/ports/"):
		header = append(header, "Connection", "Upgrade", "Upgrade", "sandlot-dial")
	}
	began := time.Now()
	status, headers, text := s.request(p.method, strings.ReplaceAll(p.path, idPlace, id),
		strings.NewReader(strings.ReplaceAll(p.body, idPlace, id)), header...)
	took = time.Since(began)
	lines := []string{fmt.Sprint(status)}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if name != "Date" && name != "X-Request-Id" {
			lines = append(lines, name+": "+strings.Join(headers[name], ", "))
		}
	}
	answer = strings.ReplaceAll(strings.Join(append(lines, text), "\n"), id, idPlace)
	if p.kind == "process" {
		answer = anySession.ReplaceAllString(answer, idPlace)
	}
	return answer, took
}

// median returns the median of the times, and the median of their distances from it.
func median(times []time.Duration) (middle, spread time.Duration) {
	slices.Sort(times)
	middle = times[len(times)/2]
	var away []time.Duration
	for _, t := range times {
		away = append(away, (t - middle).Abs())
	}
	slices.Sort(away)
	return middle, away[len(away)/2]
}

// waitingQuestion makes a call wait for the answer of the user of a token, and returns the id of the question.
func (s *server) waitingQuestion(token string) (id string) {
	s.t.Helper()
	s.applySettings("policy:\n  question_timeout: 1h\n  rules: [\"ask * shell.execute asked *\"]\n")
	ctx, cancel := context.WithCancel(s.t.Context())
	var waits sync.WaitGroup
	waits.Go(func() {
		r, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/tools/execute_command",
			strings.NewReader(`{"command":"asked x"}`))
		if err == nil {
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Content-Type", "application/json")
			var answer *http.Response
			if answer, err = s.web().RoundTrip(r); err == nil {
				answer.Body.Close()
			}
		}
		if err == nil || ctx.Err() == nil {
			s.t.Errorf("the call did not wait: %v", err)
		}
	})
	s.t.Cleanup(func() { cancel(); waits.Wait() })
	until(s.t, "the question waits", func() bool {
		_, _, text := s.request("GET", "/v1/questions", nil, credentials(token)...)
		id = questionID.FindString(text)
		return id != ""
	})
	return id
}

var questionID = regexp.MustCompile(`\bq_[a-z2-7]+`)

// TestIdsOfOthers: a request for what is somebody else's gets the same answer, byte for byte, as one for what does
// not exist: by every route with an id, and by every tool with an argument that is one. The test prints how much longer
// the one takes than the other.
func TestIdsOfOthers(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	db, err := store.Open(t.Context(), s.State)
	if err != nil {
		t.Fatal(err)
	}
	owner := "user:ann"
	connection, answer := "annsid", "a_"+secret.ID()[:12]
	err = db.PutConnection(t.Context(), servers.Record{Owner: owner, ID: connection, Created: time.Now(),
		Spec: spec.Spec{Name: "peer", Kind: spec.Stdio, Command: "true"}})
	if err == nil {
		err = db.PutAnswer(t.Context(), question.Answer{ID: answer, Allowed: true, By: owner, Given: time.Now(),
			Subject: question.Subject{Principal: owner, Operation: policy.ShellExecute, Detail: "true"}})
	}
	db.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.begin([]string{"SANDLOT_AUTH=required"})
	ann, eve := s.token("ann"), s.token("eve")
	asAnn := func(method, path, body string) (got map[string]any) {
		status, _, text := s.request(method, path, strings.NewReader(body), credentials(ann)...)
		if json.Unmarshal([]byte(text), &got); status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, status, text)
		}
		return got
	}
	session := asAnn("POST", "/v1/sessions", "{}")["session_id"].(string)
	process := asAnn("POST", "/v1/tools/execute_command", fmt.Sprintf(
		`{"command":"sleep 999","background":true,"session_id":%q}`, session))["process_id"].(string)
	asAnn("POST", "/v1/tools/expose_port", fmt.Sprintf(`{"port":8080,"session_id":%q,"wait":0}`, session))
	asAnn("PUT", "/v1/secrets/ANNS_SECRET", "x")
	theirs := map[string]string{"session": session, "connection": connection, "answer": answer, "secret": "ANNS_SECRET",
		"process": process, "snapshot": "anns-snapshot", "question": s.waitingQuestion(ann)}
	if daemonOf(t) == nil { // Docker's sessions have none
		asAnn("POST", "/v1/sessions/"+session+"/snapshots", `{"name":"anns-snapshot"}`)
	}
	unused := func(kind string) string {
		switch kind {
		case "connection":
			return "x" + secret.ID()[:5]
		case "answer":
			return "a_" + secret.ID()[:12]
		case "question":
			return "q_" + secret.ID()[:12]
		case "secret":
			return "NO_" + strings.ToUpper(secret.ID()[:8])
		case "snapshot":
			return "no-" + secret.ID()[:10] // as long as the other one
		case "process": // which has its session's id in it
			return strings.Replace(process, session, secret.ID(), 1)
		}
		return secret.ID()
	}
	all := s.probes()
	if len(all) < 30 {
		t.Errorf("there are only %d requests with ids: %v", len(all), all)
	}
	for _, p := range all {
		var there, nowhere []time.Duration
		for range 50 {
			have, tookThere := s.send(p, eve, theirs[p.kind])
			none, tookNowhere := s.send(p, eve, unused(p.kind))
			there, nowhere = append(there, tookThere), append(nowhere, tookNowhere)
			if have != none {
				t.Errorf("%s %s %s is answered with\n%s\nfor a %s of somebody else, and with\n%s\nfor none", p.method,
					p.path, p.body, have, p.kind, none)
				break
			}
			if strings.HasPrefix(have, "2") && p.path != "/v1/tools/stop_session" && p.kind != "secret" && p.path != "/mcp" ||
				p.path == "/mcp" && !strings.Contains(have, "rror") {
				t.Errorf("%s %s is done: %s", p.method, p.path, have)
			}
		}
		x, spread := median(there)
		y, _ := median(nowhere)
		t.Logf("%-6s %-42s %-10s %4d µs, for none %+4d µs, spread %d µs", p.method, p.path, p.kind, x.Microseconds(),
			(y - x).Microseconds(), spread.Microseconds())
	}
	defer s.request("DELETE", "/v1/snapshots/anns-snapshot", nil, credentials(ann)...) // its image stays otherwise
	// What is Ann's is untouched.
	if _, _, text := s.request("GET", "/v1/questions", nil, credentials(ann)...); !strings.Contains(text, theirs["question"]) {
		t.Errorf("her question does not wait any more: %s", text)
	}
	want := map[string]string{"/v1/sessions": session, "/v1/connections": connection, "/v1/questions": answer,
		"/v1/secrets": "ANNS_SECRET"}
	if daemonOf(t) == nil {
		want["/v1/snapshots"] = "anns-snapshot"
	}
	for path, want := range want {
		_, _, text := s.request("GET", path, nil, credentials(ann)...)
		if !strings.Contains(text, want) {
			t.Errorf("%s: %s", path, text)
		}
	}
}
