package api

import (
	"encoding/json"
	"io"
	"net/http"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

func (s *Server) listConnections(w http.ResponseWriter, r *http.Request) {
	s.tool(w, r, "list_external_mcp", json.RawMessage(`{}`))
}

func (s *Server) inspectConnection(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	i, err := hub.InspectServer.Do(r.Context(), s.Hub, p, hub.ServerName(r.PathValue("id")))
	respond(w, r, http.StatusOK, i, err)
}

// Approved is the answer to an approval.
type Approved struct {
	ConnectionID string     `json:"connectionId"`
	Name         string     `json:"name"`
	ToolCount    int        `json:"toolCount"`
	State        string     `json:"state"`
	HeldTools    []HeldTool `json:"heldTools"` // that are held back still
}

// HeldTool is a tool that is held back.
type HeldTool struct {
	Remote string `json:"remoteName"`
	Reason string `json:"reason"`
}

// approveConnection approves tools as they are now, or, with a body of
// {"tools": {name: hash}}, those alone that still are what was seen.
func (s *Server) approveConnection(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	q := hub.Approval{ServerName: hub.ServerName(r.PathValue("id"))}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20))
	body.DisallowUnknownFields()
	if err := body.Decode(&q); err != nil && err != io.EOF { // nothing: all of them
		unread(w, r, err, fault.New(fault.InvalidParameters, "the body must be a JSON object with nothing but tools, the hashes of what was seen by the server's names: %v", err))
		return
	}
	i, err := hub.ApproveServer.Do(r.Context(), s.Hub, p, q)
	if err != nil {
		problem(w, r, err)
		return
	}
	a := Approved{ConnectionID: i.ID, Name: i.Name, ToolCount: len(i.Tools), State: string(i.State), HeldTools: []HeldTool{}}
	for _, n := range i.Held {
		a.HeldTools = append(a.HeldTools, HeldTool{Remote: n.Remote, Reason: n.Why})
	}
	writeJSON(w, http.StatusOK, a)
}

// getPrompt gets a prompt of a third-party server: {"name": …, "arguments": {…}},
// and the result as MCP has it.
func (s *Server) getPrompt(w http.ResponseWriter, r *http.Request) {
	askServer(w, r, s, hub.ServerPrompt, &hub.PromptRequest{ServerName: hub.ServerName(r.PathValue("id"))},
		"name and arguments, whose values are texts")
}

// readResource reads a resource of a third-party server: {"uri": …}, and the
// result as MCP has it.
func (s *Server) readResource(w http.ResponseWriter, r *http.Request) {
	askServer(w, r, s, hub.ServerResource, &hub.ResourceRequest{ServerName: hub.ServerName(r.PathValue("id"))}, "uri")
}

// askServer reads a body with nothing but these fields into q, and answers with the
// outcome of the operation.
func askServer[In any](w http.ResponseWriter, r *http.Request, s *Server, o hub.Op[In, json.RawMessage], q *In,
	fields string) {
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20))
	body.DisallowUnknownFields()
	if err := body.Decode(q); err != nil {
		unread(w, r, err, fault.New(fault.InvalidParameters, "the body must be a JSON object with nothing but %s: %v",
			fields, err))
		return
	}
	p, _ := auth.From(r.Context())
	res, err := o.Do(r.Context(), s.Hub, p, *q)
	respond(w, r, http.StatusOK, res, err)
}
