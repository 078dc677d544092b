package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// request is a bare JSON-RPC request: no initialize came before it.
type request struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

type rpcFault struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func rpcError(id json.RawMessage, code int, message string, data any) map[string]any {
	return map[string]any{"jsonrpc": "2.0", "id": orNull(id), "error": rpcFault{code, message, data}}
}

func orNull(id json.RawMessage) json.RawMessage {
	if len(id) == 0 {
		return json.RawMessage("null")
	}
	return id
}

// orNothing is data that may not be there.
func orNothing(data json.RawMessage) any {
	if len(data) == 0 {
		return nil
	}
	return data
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(plainJSON(v)) // the client went away
}

// plainJSON writes a value without what is for HTML.
func plainJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // it is ours
	return b.Bytes()
}

// bare answers one request with one JSON object and HTTP status 200, whatever
// the outcome, as the Microsandbox server did.
func (g *Gateway) bare(w http.ResponseWriter, r *http.Request, p auth.Principal, body []byte, a *answers) {
	q, wrong := parseBare(body)
	if wrong != nil {
		writeJSON(w, http.StatusOK, wrong)
		return
	}
	if len(q.ID) == 0 { // a notification is not run and not answered
		w.WriteHeader(http.StatusAccepted)
		return
	}
	held := a.held()
	result, err := g.answer(r, p, q, held)
	var b []byte
	if err == nil {
		b = plainJSON(map[string]any{"jsonrpc": "2.0", "id": q.ID, "result": result})
		err = held.Made(r.Context(), int64(len(b)))
	}
	if said, ok := errors.AsType[*tool.Refusal](err); ok { // a third-party server's own words
		writeJSON(w, http.StatusOK, rpcError(q.ID, int(said.Code), said.Message, orNothing(said.Data)))
		return
	}
	if err != nil {
		f := fault.From(err)
		g.report(r.Context(), q.Method, f)
		code := f.RPC()
		if f.Kind == fault.NotFound && f.Context["tool"] != nil || f.Context["method"] != nil {
			code = -32601
		}
		writeJSON(w, http.StatusOK, rpcError(q.ID, code, words(f), f.Data()))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(b) // the client went away
}

func parseBare(body []byte) (request, any) {
	var q request
	trimmed := bytes.TrimSpace(body)
	if wrong := unparsable(trimmed); wrong != nil {
		return q, wrong
	}
	if trimmed[0] == '[' {
		return q, rpcError(nil, -32600, "Invalid request: batches are not supported; send one request at a time", nil)
	}
	if trimmed[0] != '{' {
		return q, rpcError(nil, -32600, "Invalid request: the body must be one JSON-RPC request object", nil)
	}
	var loose struct {
		JSONRPC, Method any
		ID, Params      json.RawMessage
	}
	if err := json.Unmarshal(trimmed, &loose); err != nil {
		return q, rpcError(nil, -32600, "Invalid request", nil)
	}
	id := loose.ID
	if len(id) > 0 && (id[0] == '{' || id[0] == '[' || id[0] == 't' || id[0] == 'f') {
		return q, rpcError(nil, -32600, "Invalid request: id must be a string or a number", nil)
	}
	if string(id) == "null" { // an id that is null is an id, which JSON-RPC discourages
		id = json.RawMessage("null")
	}
	if loose.JSONRPC != "2.0" {
		return q, rpcError(id, -32600, `Invalid request: jsonrpc must be "2.0"`, nil)
	}
	name, _ := loose.Method.(string)
	if name == "" {
		return q, rpcError(id, -32600, "Invalid request: method is missing", nil)
	}
	if params := bytes.TrimSpace(loose.Params); len(params) > 0 && params[0] != '{' && string(params) != "null" {
		return q, rpcError(id, -32602, "Invalid params: params must be an object", nil)
	}
	return request{"2.0", id, name, loose.Params}, nil
}

func (g *Gateway) answer(r *http.Request, p auth.Principal, q request, held *limit.Held) (_ any, err error) {
	defer g.recovered(r.Context(), q.Method, &err)
	switch q.Method {
	case "ping":
		return map[string]any{}, nil
	case "tools/list":
		return hub.Do(r.Context(), g.Hub, hub.Request{Principal: p, Operation: policy.ToolList}, func(ctx context.Context) (any, error) {
			return map[string]any{"tools": g.bareTools(ctx, p)}, nil
		})
	case "tools/call":
		return g.bareCall(r, p, q, held)
	}
	return nil, fault.New(fault.NotFound, "Method not found: %q; a request without MCP headers can be tools/list, tools/call or ping", fault.Clip(q.Method)).With("method", fault.Clip(q.Method))
}

func (g *Gateway) bareTools(ctx context.Context, p auth.Principal) []any {
	list := []any{}
	for _, t := range g.Hub.Tools(ctx, p) {
		switch {
		case t.Raw != nil:
			list = append(list, t.Raw)
		case t.Alias == "":
			list = append(list, describe(t))
		}
	}
	return list
}

func (g *Gateway) bareCall(r *http.Request, p auth.Principal, q request, held *limit.Held) (any, error) {
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
		return nil, fault.New(fault.InvalidParameters, "params.name, the tool's name, is missing").With("argument", "name").With("allowed", "a tool's name, as tools/list gives it")
	}
	c := tool.Call{Principal: p, Name: name, Args: params.Arguments, Fresh: g.Fresh != nil && g.Fresh(p), Held: held}
	res, err := g.Hub.Call(r.Context(), c)
	if err != nil {
		return nil, err
	}
	return Plain(res), nil
}

// Plain is a result as one JSON object: it has the fields at the top level, beside content and isError, and
// in structuredContent too.
func Plain(r *tool.Result) map[string]any {
	out := map[string]any{}
	if r.Raw != nil {
		fields := object{}
		_ = json.Unmarshal(r.Raw, &fields) // it was read before
		delete(fields, "resultType")
		for k, v := range fields {
			out[k] = v
		}
		return out
	}
	if r.Fields != nil {
		all, _ := json.Marshal(r.Fields) // a struct of our own
		fields := object{}
		_ = json.Unmarshal(all, &fields)
		for k, v := range fields {
			out[k] = v
		}
		out["structuredContent"] = json.RawMessage(all)
	}
	blocks := []any{}
	for _, c := range r.Content {
		blocks = append(blocks, bareContent(c))
	}
	out["content"], out["isError"] = blocks, r.IsError
	return out
}

func bareContent(c tool.Content) map[string]any {
	switch {
	case c.Image != nil:
		return map[string]any{"type": "image", "mimeType": c.Image.MIME, "data": base64.StdEncoding.EncodeToString(c.Image.Data)}
	case c.Resource != nil:
		return map[string]any{"type": "resource", "resource": map[string]any{"uri": c.Resource.URI, "mimeType": c.Resource.MIME, "text": c.Resource.Text}}
	case c.Link != nil:
		return map[string]any{"type": "resource_link", "uri": c.Link.URI, "name": c.Link.Name, "description": c.Link.Description, "mimeType": c.Link.MIME, "size": c.Link.Size}
	}
	return map[string]any{"type": "text", "text": *c.Text}
}

func bytesText(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
