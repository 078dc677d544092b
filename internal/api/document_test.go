package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"sandlot/internal/api/openapi"
	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// ownTool is a tool with a schema.
var ownTool = tool.Tool{Name: "count", Title: "Count", Operation: policy.CodeExecute, Description: "Counts.",
	Input: tool.InputOf[struct {
		To int `json:"to"`
	}](), Output: tool.OutputOf[struct {
		Sum int `json:"sum" jsonschema:"The sum."`
	}]([]string{"sum"})}

// Every route is in the document, with its operation, and the document has nothing else but the tools.
func TestDocumentFollowsTheRoutes(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	want := map[string]route{}
	for _, r := range e.routes() {
		method, path := openapi.SplitPattern(r.pattern)
		want[method+" "+path] = r
		if d, described := descriptions()[r.pattern]; !described || d.Summary == "" || len(d.Answers) == 0 {
			t.Errorf("%q is not in the table `descriptions`: say there what it answers", r.pattern)
		}
	}
	for pattern := range descriptions() {
		if !slices.ContainsFunc(e.routes(), func(r route) bool { return r.pattern == pattern }) {
			t.Errorf("%q is in the table `descriptions`, and is no route", pattern)
		}
	}
	found := 0
	for endpoint, o := range Document("v1", []tool.Tool{ownTool, {Name: "old", Alias: "count"}}).Routes {
		if endpoint == "POST /v1/tools/count" {
			if o.ID != "code.execute.count" || o.Act != policy.CodeExecute {
				t.Errorf("the tool is %+v", o)
			}
			continue
		}
		r, is := want[endpoint]
		if !is {
			t.Errorf("%s is in the document, and is no route", endpoint)
			continue
		}
		found++
		public := len(o.Security) == 0
		if id := policy.Operation(o.ID); o.Act != r.operation || public != (r.audience == everyone) ||
			id != o.Act && !strings.HasPrefix(o.ID, string(o.Act)+".") && !(o.Act == "" && id.Known()) {
			t.Errorf("%s is %+v, want the operation %s", endpoint, o, r.operation)
		}
	}
	if found != len(want) || found < 30 {
		t.Errorf("%d of %d routes are in the document", found, len(want))
	}
}

// The document is public, and the server's own.
func TestDocumentIsServed(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	got := do(e.Handler(), "GET", documentPath, "")
	m := got.json()
	if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "application/json" ||
		m["openapi"] != openapi.Version || m["info"].(map[string]any)["version"] != "v1.2.3" {
		t.Fatalf("%d %.300s", got.StatusCode, got.body)
	}
	paths := m["paths"].(map[string]any)
	if paths["/v1/sessions/{id}/files/{path}"] == nil || paths["/v1/tools/get_sessions"] == nil ||
		paths["/v1/tools/old_name"] != nil {
		t.Errorf("the paths are %v", slices.Sorted(maps.Keys(paths)))
	}
}

// validator returns a function that checks a value against a schema of the document.
func validator(d *openapi.Document) func(s *openapi.JSONSchema, value any) error {
	return func(s *openapi.JSONSchema, value any) error {
		if name, is := strings.CutPrefix(s.Ref, "#/components/schemas/"); is {
			s = d.Components.Schemas[name]
		}
		resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
		if err != nil {
			return err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		var decoded any
		if err := json.Unmarshal(text, &decoded); err != nil {
			return err
		}
		return resolved.Validate(decoded)
	}
}

// The examples match their schemas.
func TestExamples(t *testing.T) {
	d := Document("v1", []tool.Tool{ownTool})
	check := validator(d)
	examples := 0
	try := func(where string, all map[string]openapi.Media) {
		for kind, m := range all {
			if kind == openapi.JSON && m.Schema == nil {
				t.Errorf("%s: no schema", where)
				continue
			}
			if m.Example == nil {
				continue
			}
			examples++
			if err := check(m.Schema, m.Example); err != nil {
				t.Errorf("%s: the example %v: %v", where, m.Example, err)
			}
		}
	}
	for where, o := range d.Routes {
		if o.RequestBody != nil {
			try(where, o.RequestBody.Content)
		}
		for status, r := range o.Responses {
			try(where+" "+status, r.Content)
		}
		for _, p := range o.Parameters {
			if p.Schema == nil || p.Description == "" {
				t.Errorf("%s: the parameter %s has no schema or no description", where, p.Name)
			}
		}
	}
	if examples < 10 {
		t.Errorf("there are %d examples", examples)
	}
	if check(d.Components.Schemas["Uploaded"], map[string]any{"path": 1}) == nil {
		t.Error("a schema accepts everything")
	}
}

// A request that HTTP itself refuses gets problem details that say what to do.
func TestWrongRequests(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	token := e.token("ann")
	for _, c := range []struct {
		method, path, kind, body string
		status                   int
		title                    string
	}{
		{"PUT", "/v1/sessions", "", "", 405, "METHOD_NOT_ALLOWED"},
		{"DELETE", "/v1/openapi.json", "", "", 405, "METHOD_NOT_ALLOWED"},
		{"POST", "/healthz", "", "", 405, "METHOD_NOT_ALLOWED"},
		{"BREW", "/v1/sessions/home/files/a", "", "", 405, "METHOD_NOT_ALLOWED"},
		{"BREW", "/v1/nothing", "", "", 404, "NOT_FOUND"},
		{"POST", "/v1/tools/get_sessions", "text/plain", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"POST", "/v1/tools/get_sessions", "multipart/form-data; boundary=x", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"POST", "/v1/tools/get_sessions", "/;", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"POST", "/v1/tools/get_sessions", "application/json; charset=utf-8", "{}", 200, ""},
		{"POST", "/v1/tools/get_sessions", "application/merge-patch+json", "{}", 200, ""},
		{"POST", "/v1/tools/get_sessions", "application/x-www-form-urlencoded", "{}", 200, ""}, // of curl -d
		{"POST", "/v1/tools/get_sessions", "", " {} ", 200, ""},
		{"POST", "/v1/tools/get_sessions", "", "", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/tools/get_sessions", "", "{", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/tools/get_sessions", "", "{}{}", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/tools/get_sessions", "", "null", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/tools/get_sessions", "", "[]", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/tools/get_sessions", "", "{\"a\":\"\xff\"}", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/sessions", "", "{\"other\":1}", 400, "INVALID_PARAMETERS"},
		{"POST", "/v1/sessions", "text/html", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"},
	} {
		headers := []string{"Authorization", token}
		if c.kind != "" {
			headers = append(headers, "Content-Type", c.kind)
		}
		got := do(e.Handler(), c.method, c.path, c.body, headers...)
		m := got.json()
		if got.StatusCode != c.status || c.title != "" && (m["title"] != c.title || m["detail"] == "" ||
			m["status"] != float64(c.status) || m["error_code"] == "" || m["recovery_suggestions"] == nil ||
			m["type"] != "urn:sandlot:problem:"+strings.ToLower(strings.ReplaceAll(c.title, "_", "-"))) {
			t.Errorf("%s %s %q %q: %d %.300s", c.method, c.path, c.kind, c.body, got.StatusCode, got.body)
		}
		if allow := got.Header.Get("Allow"); (c.status == 405) != (allow != "") ||
			c.path == "/v1/sessions" && c.status == 405 && allow != "GET, HEAD, POST, DELETE" {
			t.Errorf("%s %s allows %q", c.method, c.path, allow)
		}
	}
}

// What encodes itself is described as what it becomes.
func TestEncodedTypes(t *testing.T) {
	if roles := openapi.Of[auth.Token]().Schema.Properties["roles"]; roles == nil || roles.Type != "array" {
		t.Errorf("the roles of a token are %+v", roles)
	}
}

// What is said to be allowed at a path is what the document has there, and anything else gets 405.
func TestAllowedMethods(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	token := e.token("ann")
	for path, want := range map[string]string{"/v1/images": "GET, HEAD, POST", "/v1/images/python:3": "DELETE",
		"/v1/images/a/b:3": "DELETE", "/v1/sessions/home/files/a/b": "GET, HEAD, PUT, DELETE"} {
		a := do(e.Handler(), "OPTIONS", path, "", "Authorization", token)
		if got := a.Header.Get("Allow"); a.StatusCode != http.StatusMethodNotAllowed || got != want {
			t.Errorf("%s: %d %q, want %q", path, a.StatusCode, got, want)
		}
	}
	if a := do(e.Handler(), "DELETE", "/v1/images", "", "Authorization", token); a.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("DELETE of all images: %d %s", a.StatusCode, a.body)
	}
}
