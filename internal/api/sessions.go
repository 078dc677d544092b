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

func (s *Server) getSession(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
	return s.structured(w, r, p, "get_sessions", map[string]any{"session_id": r.PathValue("id")})
}

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

// callTool calls the tool of the path. The response is flat, as that of a bare call: the
// result's fields beside content and isError, for tools of third-party servers too.
func (s *Server) callTool(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
	var args json.RawMessage
	if err := decode(w, r, 16<<20, &args, "the tool's arguments"); err != nil {
		return nil, err
	}
	res, err := s.call(w, r, p, r.PathValue("name"), args)
	if err != nil {
		return nil, err
	}
	return rpc.FlatResult(res), nil
}

// structured calls a tool and returns its structured content.
func (s *Server) structured(w http.ResponseWriter, r *http.Request, p auth.Principal, name string,
	args map[string]any) (any, error) {
	given, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	res, err := s.call(w, r, p, name, given)
	if err != nil {
		return nil, err
	}
	return res.Fields, nil
}

func (s *Server) call(w http.ResponseWriter, r *http.Request, p auth.Principal, name string,
	args json.RawMessage) (*tool.Result, error) {
	return s.Hub.Call(r.Context(), tool.Call{Principal: p, Name: name, Args: args, Reservation: reservedFor(w)})
}
