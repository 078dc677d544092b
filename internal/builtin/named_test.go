package builtin

import (
	"encoding/json"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
)

// What a call says of its session by a name is done to the session that policy has decided about, with each tool that
// takes a session.
func TestDecidedSession(t *testing.T) {
	const id = "abcdefghijklmnopqrstuvwxyz"
	tools := toolsWith(t, tool.Allow)
	named := 0
	for _, k := range tools.kinds {
		d := tools.current.Load().byName[k.name]()
		text, err := json.Marshal(d.Input.Schema())
		if err != nil {
			t.Fatal(err)
		}
		var schema struct {
			Properties map[string]struct {
				Type string
				Enum []any
			}
			Required []string
		}
		if err := json.Unmarshal(text, &schema); err != nil {
			t.Fatal(err)
		}
		if _, ok := schema.Properties["session_id"]; !ok {
			continue
		}
		args := map[string]any{}
		for _, name := range schema.Required {
			switch p := schema.Properties[name]; {
			case len(p.Enum) > 0:
				args[name] = p.Enum[0]
			case p.Type == "integer":
				args[name] = 1
			case p.Type == "array":
				args[name] = []string{}
			default:
				args[name] = "x"
			}
		}
		args["session_id"] = "build"
		f, _ := tools.Find(auth.Local, k.name)
		for _, form := range []any{args, map[string]any{"params": args}} { // some clients nest them
			text, _ := json.Marshal(form)
			for session, want := range map[string]string{"": "build", id: id} {
				got, err := f.Detail(tool.Call{Principal: auth.Local, Name: k.name, Args: text, Session: session})
				if err != nil || got.Session != want {
					t.Errorf("%s: it is for the session %q, want %q, %v", text, got.Session, want, err)
				}
			}
		}
		named++
	}
	if named < 10 {
		t.Errorf("%d tools take a session", named)
	}
}
