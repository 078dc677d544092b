package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestFaces: what faces for people do with a session, over HTTP and the live channel: files that nobody overwrites unseen,
// folders that tell of their changes, processes whose output goes on where it was, ports and results. Nothing of it wakes
// a session, but what changes something. Another user finds nothing at any route, tool or channel.
func TestFaces(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann, bob := s.token("ann"), s.token("bob")
	f := &face{t: t, server: s, agent: s.connect(older, ann, nil), token: ann, other: bob}
	f.id = f.agent.shell("home", "mkdir /workspace/d; echo one > /workspace/d/a.txt").session()
	f.live = s.live(ann)
	f.overwritesNothing()
	f.watches()
	f.followsAProcess()
	f.seesPorts()
	f.seesResults()
	f.isClosedToOthers()
}

type face struct {
	t *testing.T
	*server
	agent        *client
	token, other string
	id           string
	live         *live
}

// asks sends a request about the session, and fails unless it is answered with that status.
func (f *face) asks(status int, method, path, body string, header ...string) (map[string]any, string, string) {
	f.t.Helper()
	got, h, text := f.request(method, "/v1/sessions/"+f.id+path, strings.NewReader(body), append(header, "Authorization",
		"Bearer "+f.token, "Content-Type", "application/json")...)
	if got != status {
		f.t.Errorf("%s %s: %d %s, want %d", method, path, got, text, status)
	}
	var fields map[string]any
	_ = json.Unmarshal([]byte(text), &fields) // a file is not JSON
	return fields, text, h.Get("ETag")
}

func (f *face) overwritesNothing() {
	const file = "/files/workspace/d/a.txt"
	_, text, first := f.asks(200, "GET", file, "")
	if text != "one\n" || first == "" {
		f.t.Fatalf("%q with the ETag %q", text, first)
	}
	f.asks(304, "GET", file, "", "If-None-Match", first)
	_, _, second := f.asks(201, "PUT", file, "two", "If-Match", first)
	if second == "" || second == first {
		f.t.Errorf("the ETags are %s and %s", first, second)
	}
	if p, _, _ := f.asks(412, "PUT", file, "three", "If-Match", first); p["title"] != "FILE_CHANGED" {
		f.t.Errorf("%v", p)
	}
	f.asks(412, "PUT", file, strings.Repeat("x", 5<<20), "If-None-Match", "*")
	f.agent.shell("home", "printf 'TWO' > /workspace/d/a.txt") // of the same size
	f.asks(412, "PUT", file, "three", "If-Match", second)
	f.asks(412, "DELETE", file, "", "If-Match", second)
	stat, _, _ := f.asks(200, "GET", "/stat/workspace/d/a.txt", "")
	third, _ := stat["etag"].(string)
	f.asks(204, "POST", "/move", `{"from":"/workspace/d/a.txt","to":"/workspace/d/e/b.txt"}`, "If-Match", third)
	f.asks(404, "GET", file, "")
	f.asks(201, "PUT", file, "new", "If-None-Match", "*")
	f.asks(204, "POST", "/folders/workspace/d/f", "")
	f.asks(412, "POST", "/folders/workspace/d/f", "")
	f.asks(400, "DELETE", "/files/workspace/d/e", "")
	f.asks(204, "DELETE", "/files/workspace/d/e?recursive=true", "")
	if got := f.agent.shell("home", "cd /workspace/d; ls -A; cat a.txt").Text; !strings.Contains(got, "a.txt\nf\nnew") {
		f.t.Errorf("there is %s", got)
	}
}

// watches watches a folder while its session is used, and while it stands still.
func (f *face) watches() {
	l := f.live
	l.says(`{"op":"open","channel":1,"kind":"files","args":{"session_id":"home","path":"/workspace/d"}}`)
	l.until("opened", 1)
	if m := l.until("data", 1); m.Data["change"] != "all" || len(m.Data["files"].([]any)) != 2 {
		f.t.Errorf("%v", m.Data)
	}
	f.agent.shell("home", "echo x > /workspace/d/made; rm /workspace/d/a.txt")
	seen := map[any]bool{}
	for !seen["put made"] || !seen["removed a.txt"] {
		m := l.until("data", 1)
		file, _ := m.Data["file"].(map[string]any)
		seen[fmt.Sprint(m.Data["change"], " ", file["name"])] = true
		seen[fmt.Sprint(m.Data["change"], " ", m.Data["name"])] = true
	}
	f.asks(200, "POST", "/pause", "")
	for l.until("data", 1).Data["change"] != "asleep" {
	}
	list, _, _ := f.asks(200, "GET", "", "")
	if row := list["sessions"].([]any)[0].(map[string]any); row["status"] != "paused" {
		f.t.Errorf("the session is %v", row["status"])
	}
	f.asks(409, "PUT", "/files/workspace/d/a.txt", "x")
	f.asks(200, "GET", "/ports", "")
	f.asks(200, "GET", "/results", "")
	f.asks(200, "POST", "/resume", "")
	for l.until("data", 1).Data["change"] != "all" {
	}
	l.says(`{"op":"close","channel":1}`)
	l.until("closed", 1)
}

func (f *face) followsAProcess() {
	r := f.agent.call("execute_command", args{"command": "while read l; do echo got-$l; done; echo over; exit 3",
		"background": true, "session_id": f.id})
	process, _ := r.Fields["process_id"].(string)
	if process == "" {
		f.t.Fatal(r.Text)
	}
	path := "/processes/" + process
	list, _, _ := f.asks(200, "GET", "/processes", "")
	if !strings.Contains(fmt.Sprint(list), process) {
		f.t.Errorf("%s is not among %v", process, list)
	}
	l := f.live
	l.says(`{"op":"open","channel":2,"kind":"process","args":{"session_id":"home","process_id":"%s"}}`, process)
	l.until("opened", 2)
	f.asks(200, "POST", path+"/input", `{"data":"one\n"}`)
	l.shows(2, "got-one\n")
	l.says(`{"op":"close","channel":2}`)
	l.until("closed", 2)
	f.asks(200, "POST", path+"/input", `{"data":"two\n"}`)
	// It goes on where it was.
	l.says(`{"op":"open","channel":3,"kind":"process","args":{"session_id":"home","process_id":"%s","cursor":%d}}`, process,
		len("got-one\n"))
	l.until("opened", 3)
	l.shows(3, "got-two\n")
	if got := l.screen[3]; got != "got-two\n" {
		f.t.Errorf("from the cursor on: %q", got)
	}
	f.asks(200, "POST", path+"/input", `{"eof":true}`)
	if m := l.until("closed", 3); m.Data["exit_code"] != 3.0 {
		f.t.Errorf("it ends with %v", m)
	}
	if _, text, _ := f.asks(200, "GET", path+"/output?cursor=8", ""); text != "got-two\nover\n" {
		f.t.Errorf("over HTTP: %q", text)
	}
	f.asks(404, "GET", "/processes/none/output", "")
	f.asks(400, "GET", path+"/output?cursor=-1", "")
	f.asks(400, "POST", path+"/signal", `{"signal":"WINCH"}`)
	r = f.agent.call("execute_command", args{"command": "sleep 3000", "background": true, "session_id": f.id})
	process, _ = r.Fields["process_id"].(string)
	if end, text, _ := f.asks(200, "POST", "/processes/"+process+"/signal", `{"signal":"KILL"}`); end["running"] != false {
		f.t.Error(text)
	}
	for _, request := range [][2]string{{"GET", ""}, {"GET", "/" + process + "/output"}, {"POST", "/" + process + "/input"},
		{"POST", "/" + process + "/signal"}} {
		status, _, text := f.request(request[0], "/v1/sessions/"+f.id+"/processes"+request[1], strings.NewReader("{}"),
			"Authorization", "Bearer "+f.other, "Content-Type", "application/json")
		if status != 404 {
			f.t.Errorf("another's %s %s: %d %s", request[0], request[1], status, text)
		}
	}
	o := f.server.live(f.other)
	o.says(`{"op":"open","channel":1,"kind":"process","args":{"session_id":"%s","process_id":"%s"}}`, f.id, process)
	if m := o.hears(); m.Op != "closed" || m.Error["title"] != "SESSION_NOT_FOUND" {
		f.t.Errorf("another's process: %+v", m)
	}
}

func (f *face) seesPorts() {
	f.agent.call("execute_command", args{"command": "python3 -m http.server 8123", "background": true, "session_id": f.id})
	port := func() map[string]any {
		list, _, _ := f.asks(200, "GET", "/ports", "")
		for _, p := range list["ports"].([]any) {
			if p := p.(map[string]any); p["port"] == 8123.0 {
				return p
			}
		}
		return nil
	}
	until(f.t, "the port is listed", func() bool { return port() != nil })
	if p := port(); p["listening"] != true || p["exposed"] != false || !strings.HasPrefix(fmt.Sprint(p["program"]), "python") {
		f.t.Errorf("%v", p)
	}
	f.agent.call("expose_port", args{"port": 8123, "session_id": f.id})
	if p := port(); p["listening"] != true || p["exposed"] != true || p["url"] == nil {
		f.t.Errorf("%v", p)
	}
}

func (f *face) seesResults() {
	f.agent.call("execute_code", args{"code": "print(6*7)", "session_id": f.id})
	list, text, _ := f.asks(200, "GET", "/results", "")
	all := list["results"].([]any)
	if last := all[len(all)-1].(map[string]any); last["input"] != "print(6*7)" || !strings.Contains(text, "42") {
		f.t.Errorf("%v", last)
	}
	if status, _, body := f.request("GET", "/v1/sessions/"+f.id+"/results", nil, "Authorization", "Bearer "+f.other); status != 404 {
		f.t.Errorf("another's results: %d %s", status, body)
	}
}
