package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/quota"
	"sandlot/internal/tool"
)

// source is a source of tools for one principal, or for all.
type source struct {
	name  string
	tools []string
	only  string // a principal's id
	err   error
	bad   bool
}

func (s source) Tools(_ context.Context, p auth.Principal) []tool.Tool {
	var all []tool.Tool
	for _, n := range s.tools {
		if s.only == "" || s.only == p.ID {
			all = append(all, tool.Tool{Name: n, Title: s.name})
		}
	}
	return all
}

func (s source) Find(p auth.Principal, name string) (tool.Callable, bool) {
	has := slices.Contains(s.tools, name) && (s.only == "" || s.only == p.ID)
	return tool.Callable{Operation: policy.FileRead, Call: s.call}, has
}

func (s source) call(_ context.Context, c tool.Call) (*tool.Result, error) {
	if s.err != nil {
		return nil, s.err
	}
	return &tool.Result{Summary: s.name + " did " + c.Name, IsError: s.bad}, nil
}

// library is a source that has resources too.
type library struct {
	source
	uri string
}

func (library) File(string) (session, path string, ok bool) { return "", "", false }

func (l library) ResourceTemplates() []tool.Link { return []tool.Link{{URI: l.uri, Name: l.name}} }

func (l library) Read(_ context.Context, _ auth.Principal, uri string, max int) (tool.Blob, int64, error) {
	if uri != l.uri {
		return tool.Blob{}, 0, fault.New(fault.NotFound, "%s has no %s", l.name, uri)
	}
	text := l.name + " text"
	return tool.Blob{Data: []byte(text[:min(max, len(text))])}, int64(len(text)), nil
}

// newHub returns a hub with these sources.
func newHub(sources ...tool.Source) *Hub { return New(Config{Sources: sources}) }

func names(tools []tool.Tool) string {
	var all []string
	for _, t := range tools {
		all = append(all, t.Title+"/"+t.Name)
	}
	return strings.Join(all, " ")
}

func TestTools(t *testing.T) {
	h := newHub(source{name: "a", tools: []string{"run", "read"}}, source{name: "b", tools: []string{"read", "extra"}},
		source{name: "mine", tools: []string{"secret"}, only: "user:ann"})
	const all = "a/run a/read b/extra"
	for range 3 {
		if got := names(h.Tools(t.Context(), auth.Local)); got != all {
			t.Errorf("the local user sees %s, want %s", got, all)
		}
		if got := names(h.Tools(t.Context(), auth.User("ann", false))); got != all+" mine/secret" {
			t.Errorf("ann sees %s", got)
		}
	}
}

func TestCall(t *testing.T) {
	h := newHub(source{name: "a", tools: []string{"read"}}, source{name: "b", tools: []string{"read", "extra"}},
		source{name: "mine", tools: []string{"secret"}, only: "user:ann"})
	call := func(p auth.Principal, name string) (string, error) {
		r, err := h.Call(t.Context(), tool.Call{Principal: p, Name: name})
		if err != nil {
			return "", err
		}
		return r.Summary, nil
	}
	ann := auth.User("ann", false)
	for name, want := range map[string]string{"read": "a did read", "extra": "b did extra",
		"secret": "mine did secret"} {
		if got, err := call(ann, name); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	// To other principals, a principal's tool does not exist.
	if got, err := call(auth.Local, "secret"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another's tool: %q, %v", got, err)
	}
}

// Where there are third-party tools, it is said how they are found.
func TestUnknownToolAmongExternal(t *testing.T) {
	known := []tool.Tool{{Name: "ext_github_create_issue", Raw: json.RawMessage(`{}`)}}
	err := unknownTool("nope", known)
	if want := `Unknown tool: "nope"; search_tools finds tools`; err.Error() != want || !fault.Is(err, fault.NotFound) {
		t.Errorf("%v is not %s", err, want)
	}
	if err := unknownTool("ext_github_create_isue", known); !strings.HasSuffix(err.Error(), `did you mean "ext_github_create_issue"?`) {
		t.Error(err)
	}
}

func TestUnknownTool(t *testing.T) {
	h := newHub(source{name: "a", tools: []string{"execute_code", "get_sessions", "sandbox_write_file"}})
	for name, words := range map[string][]string{
		"execute_kode": {`Unknown tool: "execute_kode"`, `did you mean "execute_code"?`},
		"banana":       {`Unknown tool: "banana"`},
		"":             {`Unknown tool: ""`},
		"write_file":   {`Unknown tool: "write_file"; did you mean "sandbox_write_file"?`},
		"Get_Sessions": {`did you mean "get_sessions"?`},
	} {
		_, err := h.Call(t.Context(), tool.Call{Principal: auth.Local, Name: name})
		if !fault.Is(err, fault.NotFound) {
			t.Fatalf("%q: %v", name, err)
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: message %q does not say %q", name, err, w)
			}
		}
		if c := fault.From(err).Context; c["tool"] != name || len(c["available_tools"].([]string)) != 3 {
			t.Errorf("%q: context %v", name, c)
		}
	}
	_, err := h.Call(t.Context(), tool.Call{Principal: auth.Local, Name: strings.Repeat("ä", 10_000)})
	if err == nil || len(err.Error()) > 1000 || !utf8.ValidString(err.Error()) {
		t.Errorf("a long name: %d bytes", len(err.Error()))
	}
}

func TestUnknownAmongMany(t *testing.T) {
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("ext_tool_number_%04d", i))
	}
	h := newHub(source{name: "a", tools: append(many, "execute_code")})
	for name, first := range map[string]string{"execute_kode": "execute_code", "banana": many[0]} {
		_, err := h.Call(t.Context(), tool.Call{Principal: auth.Local, Name: name})
		c := fault.From(err).Context
		names := c["available_tools"].([]string)
		if len(names) != maxNames || names[0] != first || c["tools_count"] != 5001 {
			t.Errorf("%s: %d names, the first %s, of %v", name, len(names), names[0], c["tools_count"])
		}
	}
}

func TestObserve(t *testing.T) {
	tests := []struct {
		source  source
		outcome string
	}{
		{source{}, "ok"},
		{source{bad: true}, "error"},
		{source{err: fault.New(fault.SessionNotFound, "x")}, "SESSION_NOT_FOUND"},
		{source{err: errors.New("x")}, "INTERNAL_ERROR"},
		{source{err: context.Canceled}, "CANCELED"},
		{source{err: &tool.ExternalError{Code: -32000, Message: "no"}}, "error"},
	}
	for _, tt := range tests {
		tt.source.tools = []string{"x"}
		h := newHub(tt.source)
		var got []string
		h.Observe = func(_ context.Context, c tool.Call, outcome string, took time.Duration) {
			got = append(got, c.Name+" "+outcome)
		}
		h.Call(t.Context(), tool.Call{Principal: auth.Local, Name: "x"})
		h.Call(t.Context(), tool.Call{Principal: auth.Local, Name: "made up"}) // is no name for a metric
		if len(got) != 1 || got[0] != "x "+tt.outcome {
			t.Errorf("observed %q, want x %s", got, tt.outcome)
		}
	}
}

func TestResources(t *testing.T) {
	h := newHub(source{name: "a"}, library{source{name: "one"}, "x://one"}, library{source{name: "two"}, "x://two"})
	if got := h.ResourceTemplates(); len(got) != 2 || got[0].URI != "x://one" || got[1].URI != "x://two" {
		t.Errorf("templates %v", got)
	}
	for _, tt := range []struct {
		uri  string
		max  int
		want string
	}{{"x://one", 100, "one text"}, {"x://two", 100, "two text"}, {"x://two", 3, "two"}} {
		b, err := ReadResource.Do(t.Context(), h, auth.Local, ResourceRead{URI: tt.uri, Max: tt.max})
		if err != nil || string(b.Data) != tt.want || b.Size != 8 {
			t.Errorf("Read(%s, %d) = %q of %d, %v", tt.uri, tt.max, b.Data, b.Size, err)
		}
	}
	for _, h := range []*Hub{h, newHub()} {
		if _, err := ReadResource.Do(t.Context(), h, auth.Local,
			ResourceRead{URI: "x://three", Max: 10}); !fault.Is(err,
			fault.NotFound) {
			t.Errorf("what is not there: %v", err)
		}
	}
	_, err := ReadResource.Do(t.Context(), newHub(), auth.Local,
		ResourceRead{URI: strings.Repeat("x", 10_000), Max: 10})
	if err == nil || len(err.Error()) > 1000 {
		t.Errorf("a long name: %d bytes", len(err.Error()))
	}
}

// A service is one from its first request of any kind on, before the request does anything.
func TestServiceIsKnownFirst(t *testing.T) {
	quotas := quota.New()
	quotas.Set(quota.Settings{Users: quota.Limits{Sessions: 1}, Services: quota.Limits{Sessions: 2}})
	h := New(Config{Quotas: quotas})
	limit := 0
	if _, err := Do(t.Context(), h, Request{Principal: auth.User("gitu", true), Operation: policy.SessionCreate},
		func(context.Context) (None, error) {
			limit = quotas.Of("user:gitu").Sessions
			return None{}, nil
		}); err != nil || limit != 2 {
		t.Errorf("its limit is %d, %v", limit, err)
	}
}
