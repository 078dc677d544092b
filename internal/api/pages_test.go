package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/api/client"
	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/hub"
	"sandlot/internal/image"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/secret"
	"sandlot/internal/template"
	"sandlot/internal/tool"
)

// rows is a source whose tools return lists.
type rows struct {
	sessions []builtin.Session
	servers  []builtin.ServerRow
}

func (*rows) Tools(context.Context, auth.Principal) []tool.Tool {
	return []tool.Tool{{Name: "get_sessions"}, {Name: "list_external_mcp"}}
}

func (l *rows) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	call := func(context.Context, tool.Call) (*tool.Result, error) {
		if name == "get_sessions" {
			return &tool.Result{Fields: &builtin.SessionList{Sessions: l.sessions}}, nil
		}
		return &tool.Result{Fields: &builtin.ServerList{Servers: l.servers}}, nil
	}
	return tool.Callable{Operation: policy.SessionList, Call: call}, true
}

// questions is a question.Store that keeps nothing.
type questions struct{ stored []question.Answer }

func (questions) PutAnswer(context.Context, question.Answer) error { return nil }
func (q questions) Answers(context.Context) ([]question.Answer, error) {
	return q.stored, nil
}
func (questions) RemoveAnswer(context.Context, string) error { return nil }

// lists are the lists that have pages, with the fields that have their entries, and the fields that name those.
var lists = []struct {
	path, field, name string
}{{"/v1/sessions", "sessions", "session_id"}, {"/v1/connections", "connections", "id"},
	{"/v1/secrets", "secrets", "name"}, {"/v1/templates", "templates", "name"}, {"/v1/questions", "answers", "id"}}

// withLists gives an edge seven entries in every list, and returns it and a token.
func withLists(t *testing.T) (e *edge, l *rows, token string) {
	t.Helper()
	e, l = newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets(), &rows{}
	var names []*image.Template
	var stored []question.Answer
	token = e.token("ann")
	for i := range 7 {
		created := fmt.Sprintf("2026-11-2%dT10:00:00Z", i/2) // some at the same time
		l.sessions = append(l.sessions, builtin.Session{ID: fmt.Sprint("s", i), Created: created})
		l.servers = slices.Insert(l.servers, 0, builtin.ServerRow{ID: fmt.Sprint("c", 9-i), Created: created})
		names = append(names, &image.Template{Name: fmt.Sprint("t", i)})
		stored = append(stored, question.Answer{ID: fmt.Sprint("a", i), Given: time.Unix(int64(i/2), 0),
			Subject: question.Subject{Principal: "user:ann", Detail: fmt.Sprint(i)}})
		a := do(e.Handler(), "PUT", fmt.Sprint("/v1/secrets/S", i), "x", "Authorization", token)
		if a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	l.servers[6].Configured = true
	l.servers = append(l.servers[6:], l.servers[:6]...)
	var err error
	if e.Hub.Questions, err = question.New(t.Context(), questions{stored}); err != nil {
		t.Fatal(err)
	}
	e.Hub.Templates = template.New(e.Log, names, nil, false)
	e.Hub.Sources = []tool.Source{l}
	return e, l, token
}

// ids returns the names of the entries of a list in an answer.
func ids(t *testing.T, a answer, field, name string) (all []string) {
	t.Helper()
	entries, is := a.json()[field].([]any)
	if a.StatusCode != 200 || !is {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	for _, e := range entries {
		all = append(all, e.(map[string]any)[name].(string))
	}
	return all
}

// Pages have all entries of a list, in the list's order. Without a limit the list comes whole, as ever.
func TestPages(t *testing.T) {
	e, _, token := withLists(t)
	for _, l := range lists {
		get := func(query string) answer {
			return do(e.Handler(), "GET", l.path+query, "", "Authorization", token)
		}
		whole := get("")
		want := ids(t, whole, l.field, l.name)
		if _, more := whole.json()["next_cursor"]; more || len(want) != 7 {
			t.Errorf("%s: %s", l.path, whole.body)
		}
		for limit := 1; limit <= 8; limit++ {
			var got []string
			query := fmt.Sprintf("?limit=%d", limit)
			for pages := 1; ; pages++ {
				a := get(query)
				got = append(got, ids(t, a, l.field, l.name)...)
				next, more := a.json()["next_cursor"].(string)
				if !more {
					if pages != (7+limit-1)/limit {
						t.Errorf("%s has %d pages of %d", l.path, pages, limit)
					}
					break
				}
				if text, _ := base64.RawURLEncoding.DecodeString(next); strings.Contains(string(text), "2026") {
					t.Errorf("%s: the cursor %s can be read", l.path, next)
				}
				query = fmt.Sprintf("?limit=%d&cursor=%s", limit, next)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s with limit %d: %v, want %v", l.path, limit, got, want)
			}
		}
		first := get("?limit=3").json()["next_cursor"].(string)
		if got := ids(t, get("?cursor="+first), l.field, l.name); !slices.Equal(got, want[3:]) {
			t.Errorf("%s: the rest is %v", l.path, got)
		}
	}
}

// An entry that is there all the time is on exactly one page, whatever goes meanwhile.
func TestPagesOfAListThatChanges(t *testing.T) {
	e, l, token := withLists(t)
	get := func(query string) answer {
		return do(e.Handler(), "GET", "/v1/sessions"+query, "", "Authorization", token)
	}
	first := get("?limit=3")
	l.sessions = append(slices.Delete(slices.Clone(l.sessions), 1, 3), builtin.Session{ID: "s9", Created: "2027"})
	rest := ids(t, get("?cursor="+first.json()["next_cursor"].(string)), "sessions", "session_id")
	if fmt.Sprint(rest) != "[s3 s4 s5 s6 s9]" {
		t.Errorf("%s, then %v", first.body, rest)
	}
}

// A limit or a cursor that is none is refused, and says so. A cursor of another user, of another list or of
// another server is none.
func TestBadPages(t *testing.T) {
	e, _, ann := withLists(t)
	other, _, strangers := withLists(t)
	bob := e.token("bob")
	refused := func(token, path, argument string) {
		t.Helper()
		a := do(e.Handler(), "GET", path, "", "Authorization", token)
		isProblem(t, a, 400, "INVALID_PARAMETERS")
		if m, _ := a.json()["context"].(map[string]any); m["argument"] != argument {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	for _, l := range lists {
		for _, limit := range []string{"0", "-1", "1001", "x", "", "1e2", "99999999999999999999"} {
			refused(ann, l.path+"?limit="+limit, "limit")
		}
		cursor := do(e.Handler(), "GET", l.path+"?limit=1", "", "Authorization", ann).json()["next_cursor"].(string)
		flipped := []byte(cursor)
		flipped[10] ^= 1
		for _, bad := range []string{"", "x", "ü", strings.Repeat("A", 99), string(flipped), cursor + "A",
			cursor[:len(cursor)-2]} {
			refused(ann, l.path+"?cursor="+url.QueryEscape(bad), "cursor")
		}
		refused(bob, l.path+"?cursor="+cursor, "cursor")
		for _, o := range lists {
			if o.path != l.path {
				refused(ann, o.path+"?cursor="+cursor, "cursor")
			}
		}
		foreign := do(other.Handler(), "GET", l.path+"?limit=1", "", "Authorization", strangers)
		refused(ann, l.path+"?cursor="+foreign.json()["next_cursor"].(string), "cursor")
	}
}

// The client reads all pages.
func TestClientReadsAllPages(t *testing.T) {
	e, l, token := withLists(t)
	for i := range 2500 {
		l.sessions = append(l.sessions, builtin.Session{ID: fmt.Sprintf("n%04d", i), Created: "2027"})
	}
	s := httptest.NewServer(e.Handler())
	defer s.Close()
	c, err := client.New("", s.URL, secret.Value(strings.TrimPrefix(token, "Bearer ")))
	if err != nil {
		t.Fatal(err)
	}
	var got hub.SessionList
	if err := c.List(t.Context(), "/v1/sessions", &got); err != nil || len(got.Sessions) != 2507 ||
		got.Sessions[2506].ID != "n2499" || got.Sessions[0].ID != "s0" {
		t.Errorf("%v, %d sessions", err, len(got.Sessions))
	}
	var both hub.QuestionList
	err = c.List(t.Context(), "/v1/questions", &both)
	if err != nil || both.Questions == nil || len(both.Answers) != 7 {
		t.Errorf("%v, %v", err, both)
	}
	var raw map[string]json.RawMessage
	err = c.List(t.Context(), "/v1/questions", &raw)
	if err != nil || len(raw) != 2 || string(raw["questions"]) != "[]" {
		t.Errorf("%v, %s", err, raw)
	}
}
