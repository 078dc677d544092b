package api

import (
	"encoding/json"
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
)

func sessionRequest(w http.ResponseWriter, r *http.Request) (hub.SessionSpec, error) {
	var q protocol.SessionRequest
	err := decodeOptional(w, r, 1<<20, &q, "nothing but template, flavor, env, name, labels, ends_at, ends_in and on_end")
	return hub.SessionSpec{Template: q.Template, Flavor: q.Flavor, Env: q.Env, Set: q.SessionSettings}, err
}

// sessionChange reads the change of a session.
func sessionChange(w http.ResponseWriter, r *http.Request) (c hub.SessionChange, err error) {
	err = decode(w, r, 1<<20, &c, "name, labels, ends_at, ends_in or on_end")
	c.SessionID = hub.SessionID(r.PathValue("id"))
	return c, err
}

// toolCall reads the call of the tool of the path.
func toolCall(w http.ResponseWriter, r *http.Request) (tool.Call, error) {
	var args json.RawMessage
	err := decode(w, r, 16<<20, &args, "the tool's arguments")
	return tool.NewCall(auth.Principal{}, r.PathValue("name"), args, reservedFor(w)), err
}

// flatResult makes the response of a call flat, as that of a bare call: the result's fields beside content and isError,
// for tools of third-party servers too.
func flatResult(_ *http.Request, made *tool.Result) any { return rpc.FlatResult(made) }

// arguments returns what reads the arguments of an operation that a tool carries out: the fields of the body, which may
// be missing, and the parameter of the path. An empty argument: the path has none.
func arguments(argument, parameter string) input[tool.Call] {
	return func(w http.ResponseWriter, r *http.Request) (c tool.Call, err error) {
		values := map[string]any{}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			err = decodeOptional(w, r, 1<<20, &values, "the tool's other arguments")
		}
		if err != nil {
			return c, err
		}
		if argument != "" {
			values[argument] = r.PathValue(parameter)
		}
		args, err := json.Marshal(values)
		return tool.NewCall(auth.Principal{}, "", args, reservedFor(w)), err
	}
}

// labelled reads the labels that the listed sessions have.
func labelled(w http.ResponseWriter, r *http.Request) (tool.Call, error) {
	values := map[string]any{}
	if labels := r.URL.Query()["label"]; len(labels) > 0 {
		values["labels"] = labels
	}
	args, err := json.Marshal(values)
	return tool.NewCall(auth.Principal{}, "", args, reservedFor(w)), err
}

// The bodies of requests, for their description.
type (
	forkRequest struct {
		Count int `json:"count,omitempty" jsonschema:"How many: from 1, which is the default, to 8."`
	}
	snapshotRequest struct {
		Name string `json:"name,omitempty" jsonschema:"Its name. Default: made of the time."`
	}
	restoreRequest struct {
		Session string `json:"session_id,omitempty" jsonschema:"An id, home, or new. Default: the one it was made of."`
	}
)

func terminalID(_ http.ResponseWriter, r *http.Request) (hub.TerminalID, error) {
	return hub.TerminalID{SessionID: hub.SessionID(r.PathValue("id")), Terminal: r.PathValue("terminal")}, nil
}
