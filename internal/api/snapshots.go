package api

import (
	"encoding/json"
	"net/http"

	"sandlot/internal/auth"
)

// byTool returns an endpoint that calls a tool: its arguments are the fields of the body, which may be missing, and the
// parameter of the path. Without an answer it returns nothing.
func (s *Server) byTool(name, argument, parameter string, answer bool) endpoint {
	return func(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
		args := map[string]any{}
		if err := decodeOptional(w, r, 1<<20, &args, "the tool's other arguments"); err != nil {
			return nil, err
		}
		if argument != "" {
			args[argument] = r.PathValue(parameter)
		}
		given, err := json.Marshal(args)
		if err != nil {
			return nil, err
		}
		res, err := s.call(w, r, p, name, given)
		if err != nil || !answer {
			return nil, err
		}
		return res.Fields, nil
	}
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
