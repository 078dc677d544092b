package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// prints is a source whose one tool returns what it is told, in the caller's home.
type prints struct {
	e      *edge
	result func(code string) *tool.Result
}

func (p *prints) Tools(context.Context, auth.Principal) []tool.Tool {
	return []tool.Tool{{Name: "execute_code"}, {Name: "sandbox_read_file"}}
}

func (p *prints) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	o := map[string]policy.Operation{"execute_code": policy.CodeExecute, "sandbox_read_file": policy.FileRead}[name]
	return tool.Callable{Operation: o, Call: p.call}, o != ""
}

func (p *prints) call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	l, err := p.e.Hub.Sessions.Wake(ctx, c.Principal, "home")
	if err != nil {
		return nil, err
	}
	defer l.Release()
	r := p.result(string(c.Args))
	r.Session = l.ID()
	return r, nil
}

// The last results of a session are there for its owner alone, and are bounded.
func TestResults(t *testing.T) {
	source := &prints{}
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) { c.Sources = []tool.Source{source} })
	source.e = e
	ann, bob := e.token("ann"), e.token("bob")
	call := func(token, name, code string) {
		t.Helper()
		got := do(e.Handler(), "POST", "/v1/tools/"+name, fmt.Sprintf(`{"code":%q}`, code), "Authorization", token,
			"Content-Type", "application/json")
		if got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
	}
	results := func(token, session, query string) (all []map[string]any) {
		t.Helper()
		got := do(e.Handler(), "GET", "/v1/sessions/"+session+"/results"+query, "", "Authorization", token)
		if got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
		for _, r := range got.json()["results"].([]any) {
			all = append(all, r.(map[string]any))
		}
		return all
	}
	image := &tool.Blob{MIME: "image/png", Data: []byte("\x89PNG\r\n\x1a\n")}
	source.result = func(string) *tool.Result {
		return &tool.Result{IsError: true, Content: []tool.Content{tool.Text("<b>hi\x1b[1m"), {Image: image},
			{Resource: &tool.Resource{MIME: "text/markdown", Text: "| a |\n|---|\n| 1 |"}}, {Link: &tool.Link{Name: "f"}}}}
	}
	call(ann, "execute_code", "print(1)")
	call(ann, "sandbox_read_file", "no code")
	got := results(ann, "home", "")
	if len(got) != 1 || got[0]["tool"] != "execute_code" || got[0]["input"] != "print(1)" || got[0]["failed"] != true ||
		got[0]["left"] != 1.0 {
		t.Fatalf("%v", got)
	}
	want := "[map[text:<b>hi\x1b[1m type:text] map[data:iVBORw0KGgo= mime:image/png type:image] " +
		"map[mime:text/markdown text:| a |\n|---|\n| 1 | type:text]]"
	if text := fmt.Sprint(got[0]["content"]); text != want {
		t.Errorf("%q\nwant %q", text, want)
	}
	call(bob, "execute_code", "bob's")
	if mine := results(bob, "home", ""); len(mine) != 1 || mine[0]["input"] != "bob's" {
		t.Errorf("bob sees %v", mine)
	}
	all, err := e.Hub.Sessions.List(t.Context(), auth.User("ann", false), "")
	if err != nil {
		t.Fatal(err)
	}
	isProblem(t, do(e.Handler(), "GET", "/v1/sessions/"+all[0].ID+"/results", "", "Authorization", bob), 404,
		"SESSION_NOT_FOUND")
	isProblem(t, do(e.Handler(), "GET", "/v1/sessions/home/results?after=x", "", "Authorization", ann), 400,
		"INVALID_PARAMETERS")

	source.result = func(string) *tool.Result {
		return &tool.Result{Content: slices.Repeat([]tool.Content{tool.Text(strings.Repeat("ü", 100_000))}, 40)}
	}
	call(ann, "execute_code", strings.Repeat("x", 100_000))
	got = results(ann, "home", fmt.Sprintf("?after=%.0f", got[0]["id"]))
	first := got[0]["content"].([]any)[0].(map[string]any)
	if len(got) != 1 || len(got[0]["content"].([]any)) != 32 || got[0]["left"] != 8.0 || first["truncated"] != true ||
		len(first["text"].(string)) > 64<<10 || len(got[0]["input"].(string)) > 8<<10 {
		t.Errorf("%.300v", got)
	}
	for n := range 30 {
		call(ann, "execute_code", fmt.Sprint(n))
	}
	got = results(ann, "home", "")
	if len(got) > 20 || len(got) < 3 || got[len(got)-1]["input"] != "29" {
		t.Errorf("%d are kept, the last of %v", len(got), got[len(got)-1]["input"])
	}
	if mine := results(bob, "home", ""); len(mine) != 1 {
		t.Errorf("bob sees %v", mine)
	}
	// Nothing is left of a session that has ended.
	source.result = func(string) *tool.Result { return &tool.Result{Content: []tool.Content{tool.Text("new")}} }
	if got := do(e.Handler(), "DELETE", "/v1/sessions/home", "", "Authorization", ann); got.StatusCode != 204 {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	call(ann, "execute_code", "again")
	if got := results(ann, "home", ""); len(got) != 1 || got[0]["input"] != "again" {
		t.Errorf("of the session before: %.200v", got)
	}
	e.Hub.Decide = func(q policy.Question) policy.Decision {
		if q.Operation == policy.ResultRead {
			return policy.Decision{Reason: fault.New(fault.Forbidden, forbids)}
		}
		return policy.Decision{Effect: policy.Allow}
	}
	isProblem(t, do(e.Handler(), "GET", "/v1/sessions/home/results", "", "Authorization", ann), 403, "FORBIDDEN")
}
