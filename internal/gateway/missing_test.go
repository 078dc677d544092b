package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// explainingSource is a source of third-party servers that can explain why a tool is missing.
type explainingSource struct{ *fakeExternal }

func (explainingSource) Find(auth.Principal, string) (tool.Callable, bool) {
	return tool.Callable{}, false
}

func (explainingSource) WhyMissing(p auth.Principal, name string) error {
	if p != auth.Local || name != "ext_held" {
		return nil
	}
	f := fault.New(fault.Forbidden, "it is held back")
	f.Advice = []string{"approve it"}
	return f
}

// The explanation of a missing tool is in the answer of both protocols and of bare calls. To
// other principals, the tool is one that never existed.
func TestMissingTools(t *testing.T) {
	called := func(context.Context, tool.Call) (*tool.Result, error) { return nil, fmt.Errorf("called") }
	g := newGateway(fakeBuiltin{}, explainingSource{&fakeExternal{call: called}})
	ann := auth.User("ann", false)
	session, anns := begin(t, g, auth.Local), begin(t, g, ann)
	stateful := func(p auth.Principal, session, name string) string {
		w := post(g, p, session, callOf("2", name, "{}"))
		_, data, _ := strings.Cut(w.Body.String(), "data: ")
		return data
	}
	stateless := func(p auth.Principal, name string) string {
		return askAs(g, p, "tools/call", name, fmt.Sprintf(`"name":%q,"arguments":{}`, name))
	}
	for protocol, answer := range map[string]string{
		"stateful":  stateful(auth.Local, session, "ext_held"),
		"stateless": stateless(auth.Local, "ext_held"),
		"bare":      askBare(g, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_held"}}`),
	} {
		type failure struct {
			Code int
			Data fault.Data
		}
		var m struct {
			Error struct {
				failure
				Message string
			}
			Result struct {
				IsError bool
				Content []struct{ Text string }
				Meta    struct {
					Error failure `json:"sandlot/error"`
				} `json:"_meta"`
			}
		}
		err := json.Unmarshal([]byte(answer), &m)
		got, text, want := m.Error.failure, m.Error.Message, "Not allowed: it is held back. approve it"
		if protocol != "bare" && len(m.Result.Content) == 1 && m.Result.IsError { // models see results, and rarely errors
			got, text, want = m.Result.Meta.Error, m.Result.Content[0].Text, "Not allowed: it is held back\n- approve it"
		}
		if err != nil || got.Code != -32600 || text != want || got.Data.RecoverySuggestions[0] != "approve it" {
			t.Errorf("%s: %s", protocol, answer)
		}
	}
	for protocol, call := range map[string]func(name string) string{
		"stateful":  func(name string) string { return stateful(ann, anns, name) },
		"stateless": func(name string) string { return stateless(ann, name) },
	} {
		others, none := call("ext_held"), call("ext_none")
		if others != strings.ReplaceAll(none, "ext_none", "ext_held") ||
			!strings.Contains(strings.ToLower(none), "unknown tool") {
			t.Errorf("%s: another's tool is %s, and one that never was %s", protocol, others, none)
		}
	}
}
