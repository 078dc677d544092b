package servers

import (
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Prompts and resources of one connection, by their own names and the exposed
// ones, also when the server has never run.
func TestPromptAndResource(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	own(servers, P, "x", "aaaaaa", onhost("x", script(t, `
caps["prompts"]={}
while True:
    m=readmsg()
    meth, p = m.get("method"), m.get("params") or {}
    if meth=="prompts/list": ok(m["id"],{"prompts":[{"name":"sum up"}]})
    elif meth=="resources/list": ok(m["id"],{"resources":[{"uri":"x://a"}]})
    elif base(m): pass
    elif meth=="prompts/get": ok(m["id"],{"messages":[{"role":"user","content":{"type":"text","text":p["name"]+" "+(p["arguments"]["topic"] if "arguments" in p else "nothing")}}]})
    elif meth=="resources/read": ok(m["id"],{"contents":[{"uri":p["uri"],"blob":"not base64!" if p["uri"]=="x://bad" else "AAH/"}]})
`), nil))
	for _, name := range []string{"sum up", "ext_aaaaaa_sum_up"} {
		raw, err := servers.Prompt(t.Context(), P, "x", name, map[string]string{"topic": "mice"})
		if err != nil || !strings.Contains(string(raw), `"sum up mice"`) {
			t.Errorf("%s: %s, %v", name, raw, err)
		}
	}
	raw, err := servers.Prompt(t.Context(), P, "x", "sum up", nil)
	if err != nil || !strings.Contains(string(raw), `"sum up nothing"`) {
		t.Errorf("without arguments: %s, %v", raw, err)
	}
	_, err = servers.Prompt(t.Context(), P, "aaaaaa", "sum_up", nil)
	if f := fault.From(err); f.Kind != fault.NotFound || !strings.Contains(f.Message, `did you mean "sum up"?`) {
		t.Error(err)
	}
	for uri, want := range map[string]string{"x://a": `"blob":"AAH/"`, "ext+aaaaaa:x://a": `"uri":"x://a"`,
		"x://unlisted": `"uri":"x://unlisted"`, "x://bad": "data that is not base64"} {
		raw, err := servers.Resource(t.Context(), P, "x", uri)
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %s, %v", uri, raw, err)
		}
	}
	for _, uri := range []string{"", "x://\n", strings.Repeat("x", 5000)} {
		if _, err := servers.Resource(t.Context(), P, "x", uri); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("%.20q: %v", uri, err)
		}
	}
	if _, err := servers.Resource(t.Context(), P, "y", "x://a"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if i := servers.List(P)[0]; i.Prompts != 1 || i.Resources != 1 {
		t.Errorf("%+v", i)
	}
}

// A name that is not there leads to the nearest that is, of the caller's alone.
func TestTheNearestConnection(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	own(servers, P, "notes", "aaaaaa", spec.Configured{})
	_, err := servers.Prompt(t.Context(), P, "notez", "x", nil)
	if err == nil || !strings.Contains(err.Error(), `did you mean "notes"?`) {
		t.Errorf("hers: %v", err)
	}
	if _, err := servers.Prompt(t.Context(), auth.User("mallory", false), "notez", "x",
		nil); err == nil || strings.Contains(err.Error(), `"notes"`) {
		t.Errorf("another's: %v", err)
	}
}
