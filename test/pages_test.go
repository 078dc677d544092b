package test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// TestPagesReachNoRoute: what a web page makes a browser send to a server without tokens makes, wakes and changes no
// session, whichever route it is, and gets nothing of the API.
func TestPagesReachNoRoute(t *testing.T) {
	t.Parallel()
	s := start(t, sleepy...)
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1").session()
	s.request("PUT", "/v1/sessions/"+id+"/files/workspace/f", strings.NewReader("x"))
	link := s.expose(c, args{"port": 8080, "session_id": id}) // which no page knows the token of
	sleeps := "hibernated"
	if daemonOf(t) != nil {
		sleeps = "stopped"
	}
	sessions := func() string {
		_, _, text := s.request("GET", "/v1/sessions", nil)
		return text
	}
	before := ""
	until(t, "all sessions sleep", func() bool { // also the home, which a connection may make
		last := before
		before = sessions()
		for _, awake := range []string{"creating", "ready", "processing", "running"} {
			if strings.Contains(before, `"`+awake+`"`) {
				return false
			}
		}
		return before == last && sessionStatus(c, id) == sleeps
	})
	_, _, text := s.request("GET", "/v1/openapi.json", nil)
	var d struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{"/mcp": true, "/mcp/": true, "/v1": true, "/v1/": true, "/v1/nothing": true, "/metrics": true,
		"//v1/sessions/" + id + "/files/workspace/f": true, "/v1/./sessions/" + id + "/files/workspace/f": true,
		"/x/../v1/sessions/" + id + "/files/workspace/f": true, "/V1/sessions/" + id + "/files/workspace/f": true}
	for path, methods := range d.Paths {
		if methods["get"] == nil {
			continue
		}
		for _, name := range []string{id, "new", "home", "%6eew", "..", "x"} {
			paths[strings.NewReplacer("{id}", name, "{name}", name, "{client}", name, "{port}", "8080", "{path}",
				"workspace/f").Replace(path)] = true
		}
	}
	if len(paths) < 30 {
		t.Errorf("there are only %d paths: %v", len(paths), paths)
	}
	ways := [][]string{
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
		{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-User", "?1"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "prefetch", "Purpose", "prefetch"},
		{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"},
		{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"},
		{"Origin", "https://evil.example"}, // of a browser that says no more
	}
	for _, how := range ways {
		for _, get := range []func() (int, http.Header, string){
			func() (int, http.Header, string) { return link.get("/", how...) },
			func() (int, http.Header, string) { return s.request("GET", link.path+"/", nil, how...) },
		} {
			if status, _, body := get(); status != http.StatusUnauthorized && status != http.StatusForbidden {
				t.Errorf("an exposed port as %v is answered with %d %.100s", how, status, body)
			}
		}
	}
	for path := range paths {
		for _, how := range ways {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				status, header, body := s.request(method, path, nil, how...)
				if api := strings.HasPrefix(path, "/v1") || strings.HasPrefix(path, "/mcp") || path == "/metrics"; api &&
					status < 300 {
					t.Errorf("%s %s as %v is answered with %d %.100s", method, path, how, status, body)
				}
				if header.Get("Access-Control-Allow-Origin") == "*" && strings.HasPrefix(path, "/v1") {
					t.Errorf("%s %s as %v may be read by any page", method, path, how)
				}
			}
		}
		if now := sessions(); now != before {
			t.Fatalf("after %s the sessions are %s, and were %s", path, now, before)
		}
	}
	if got := sessionStatus(c, id); got != sleeps {
		t.Errorf("it is %v", got)
	}
}
