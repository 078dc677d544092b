// Package bare answers JSON-RPC requests without an MCP handshake and without MCP headers, as
// curl and older clients send them.
package bare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/revision"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// Handler answers bare requests.
type Handler struct {
	Hub *hub.Hub
	// NewSession reports whether a principal's call without a session id gets a new session,
	// and not the principal's home session; nil: always the home session.
	NewSession func(auth.Principal) bool
	// Views decides what clients are shown; nil: the default settings do.
	Views *toolview.Views
	Log   *slog.Logger
}

// request is a bare JSON-RPC request: no initialize came before it.
type request struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	wanted  toolview.Mode   // of the address
}

// Serve answers one request with one JSON object. The HTTP status is always 200, also for an
// error, as that of the Microsandbox server was. Wanted is the view that the address names.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, p auth.Principal, wanted toolview.Mode, body []byte,
	answers *limit.Answers) {
	q, errorAnswer := parse(body)
	if errorAnswer != nil {
		rpc.Write(w, http.StatusOK, errorAnswer)
		return
	}
	if len(q.ID) == 0 { // a notification is not run and not answered
		w.WriteHeader(http.StatusAccepted)
		return
	}
	reservation := answers.NewReservation()
	q.wanted = wanted
	result, err := h.answer(r, p, q, reservation)
	var b []byte
	if err == nil {
		b = rpc.JSON(map[string]any{"jsonrpc": "2.0", "id": q.ID, "result": result})
		err = reservation.CountAnswer(r.Context(), int64(len(b)))
	}
	if err != nil {
		rpcErr := rpc.LoggedError(r.Context(), h.Log, q.Method, err)
		_, isExternal := errors.AsType[*tool.ExternalError](err)
		f := fault.From(err)
		if !isExternal && (f.Kind == fault.NotFound && f.Context["tool"] != nil || f.Context["method"] != nil) {
			rpcErr.Code = jsonrpc.CodeMethodNotFound
		}
		rpc.Write(w, http.StatusOK, rpc.ErrorResponseTo(q.ID, rpcErr))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(b) // the client went away
}

// parse reads a request. If it is invalid, parse returns the answer to it too.
func parse(body []byte) (request, any) {
	var q request
	trimmed := bytes.TrimSpace(body)
	if errorAnswer := rpc.ParseError(trimmed); errorAnswer != nil {
		return q, errorAnswer
	}
	if trimmed[0] == '[' {
		return q, rpc.InvalidRequest("Invalid request: batches are not supported; send one request at a time")
	}
	if trimmed[0] != '{' {
		return q, rpc.InvalidRequest("Invalid request: the body must be one JSON-RPC request object")
	}
	var raw struct {
		JSONRPC, Method any
		ID, Params      json.RawMessage
	}
	if err := json.Unmarshal(trimmed, &raw); err != nil {
		return q, rpc.InvalidRequest("Invalid request")
	}
	id := raw.ID
	if len(id) > 0 && (id[0] == '{' || id[0] == '[' || id[0] == 't' || id[0] == 'f') {
		return q, rpc.InvalidRequest("Invalid request: id must be a string or a number")
	}
	if string(id) == "null" { // in JSON-RPC, a request with the id null is not a notification
		id = json.RawMessage("null")
	}
	if raw.JSONRPC != "2.0" {
		return q, rpc.ErrorResponse(id, -32600, `Invalid request: jsonrpc must be "2.0"`, nil)
	}
	name, _ := raw.Method.(string)
	if name == "" {
		return q, rpc.ErrorResponse(id, -32600, "Invalid request: method is missing", nil)
	}
	if params := bytes.TrimSpace(raw.Params); len(params) > 0 && params[0] != '{' && string(params) != "null" {
		return q, rpc.ErrorResponse(id, -32602, "Invalid params: params must be an object", nil)
	}
	return request{JSONRPC: "2.0", ID: id, Method: name, Params: raw.Params}, nil
}

func (h *Handler) answer(r *http.Request, p auth.Principal, q request,
	reservation *limit.Reservation) (_ any, err error) {
	defer fault.Recover(r.Context(), h.Log, q.Method, &err)
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(q.Params, &params) // call returns the error
	r = r.WithContext(event.WithMCP(r.Context(), q.Method, "", rpc.Traceparent(params.Meta)))
	switch q.Method {
	case "ping":
		return map[string]any{}, nil
	case "tools/list":
		list := hub.Request{Principal: p, Operation: policy.ToolList}
		return hub.Do(r.Context(), h.Hub, list, func(ctx context.Context) (any, error) {
			return map[string]any{"tools": h.tools(ctx, p, q.wanted)}, nil
		})
	case "tools/call":
		return h.call(r, p, q, reservation)
	}
	return nil, fault.New(fault.NotFound, "Method not found: %q; a request without MCP headers can be tools/list, "+
		"tools/call or ping", fault.Clip(q.Method)).With("method", fault.Clip(q.Method))
}

func (h *Handler) tools(ctx context.Context, p auth.Principal, wanted toolview.Mode) []any {
	list := []any{}
	views := h.Views
	if views == nil {
		views = toolview.New()
	}
	shown := views.Shown(p, wanted, h.Hub.External(ctx, p).Tools)
	for _, t := range h.Hub.Tools(ctx, p) {
		switch {
		case t.Raw != nil && shown.ListsTool(t.Name):
			list = append(list, rpc.ConformTool(t.Raw, revision.Stateful))
		case t.Raw == nil && t.Alias == "" && shown.Lists(t.Name):
			list = append(list, rpc.Definition(t))
		}
	}
	return list
}

func (h *Handler) call(r *http.Request, p auth.Principal, q request, reservation *limit.Reservation) (any, error) {
	var params struct {
		Name      any             `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if len(q.Params) > 0 {
		if err := json.Unmarshal(q.Params, &params); err != nil {
			return nil, fault.New(fault.InvalidParameters, "params could not be read")
		}
	}
	name, ok := params.Name.(string)
	if !ok || name == "" {
		return nil, fault.Argument("name", "params.name, the tool's name, is missing").
			With("allowed", "a tool's name, as tools/list gives it")
	}
	c := tool.NewCall(p, name, params.Arguments, reservation)
	c.NewSession = h.NewSession != nil && h.NewSession(p)
	res, err := h.Hub.Call(r.Context(), c)
	if err != nil {
		return nil, err
	}
	return rpc.FlatResult(res), nil
}
