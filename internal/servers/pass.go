package servers

import (
	"context"
	"encoding/json"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/mcpclient"
	"sandlot/internal/policy"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// Tools implements tool.Source.
func (b *Book) Tools(_ context.Context, p auth.Principal) []tool.Tool { return b.viewOf(p).list }

// Find implements tool.Source.
func (b *Book) Find(p auth.Principal, name string) (tool.Found, bool) {
	e, ok := b.viewOf(p).tools[name]
	if !ok {
		return tool.Found{}, false
	}
	return tool.Found{Operation: policy.MCPCall, Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		return e.call(ctx, c)
	}}, true
}

// Prompts implements tool.Foreign.
func (b *Book) Prompts(p auth.Principal) []tool.Item { return b.viewOf(p).promptList }

// Resources implements tool.Foreign.
func (b *Book) Resources(p auth.Principal) []tool.Item { return b.viewOf(p).resourceList }

// Templates implements tool.Foreign.
func (b *Book) Templates(p auth.Principal) []tool.Item { return b.viewOf(p).templateList }

// query is one request to a server.
type query struct {
	method   string
	params   object
	meta     object
	schema   json.RawMessage
	client   tool.Client
	inputs   tool.Inputs
	progress func(text string) // for those who are no clients of MCP
	held     *limit.Held
	arrived  *arrival // nil: what came need not be kept
}

// arrival holds the room of an answer from when it is read until what is made of it
// counts for its client.
type arrival struct {
	room mcpclient.Room // nil: none
}

// put keeps the room of another answer.
func (a *arrival) put(r mcpclient.Room) {
	if a == nil {
		r.Release()
		return
	}
	a.release()
	a.room = r
}

func (a *arrival) release() {
	if a != nil && a.room != nil {
		a.room.Release()
		a.room = nil
	}
}

// room makes rooms for large answers of an owner's servers; nil: nobody counts.
func (b *Book) room(owner string) func() mcpclient.Room {
	if b.Limits == nil {
		return nil
	}
	return func() mcpclient.Room { return b.Limits.Held(owner, limit.Reading) }
}

// passed counts what is handed to a client, and gives the room of what it was made
// of back.
func (q query) passed(ctx context.Context, answer json.RawMessage) error {
	defer q.arrived.release()
	if len(answer) <= limit.Large {
		return nil
	}
	return q.held.Wait(ctx, int64(len(answer)))
}

// call calls the tool.
func (e entry) call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	args := c.Args
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	if !isObject(args) {
		return nil, fault.New(fault.InvalidParameters, "arguments must be a JSON object").With("argument", "arguments")
	}
	q := query{method: "tools/call", params: object{"name": quoted(e.Remote), "arguments": args},
		meta: c.Meta, schema: e.Schema, client: c.Client, inputs: c.Inputs, progress: c.Progress, held: c.Held, arrived: &arrival{}}
	defer q.arrived.release()
	raw, err := e.server.request(ctx, q)
	if err != nil {
		return nil, err
	}
	safe, isError, err := safeResult(raw)
	if err != nil {
		return nil, e.server.advised(err)
	}
	if err := q.passed(ctx, safe); err != nil {
		return nil, err
	}
	return &tool.Result{Raw: safe, IsError: isError}, nil
}

// Pass implements tool.Foreign.
func (b *Book) Pass(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	v := b.viewOf(r.Principal)
	q := query{method: r.Method, params: object{}, meta: r.Meta, client: r.Client, inputs: r.Inputs, held: r.Held}
	for k, p := range r.Params {
		q.params[k] = p
	}
	var s *server
	switch r.Method {
	case "prompts/get":
		e, ok := v.prompts[asText(r.Params["name"])]
		if !ok {
			return nil, fault.New(fault.InvalidParameters, "unknown prompt %q", spec.Clip(asText(r.Params["name"])))
		}
		s, q.params["name"] = e.server, quoted(e.Remote)
	case "resources/read":
		uri := asText(r.Params["uri"])
		owner, remote := v.resource(uri)
		if owner == nil {
			return nil, fault.New(fault.NotFound, "resource not found: %s", spec.Clip(uri))
		}
		s, q.params["uri"] = owner, quoted(remote)
	case "completion/complete":
		var err error
		if s, err = v.complete(q.params); err != nil || s == nil {
			return json.RawMessage(`{"completion":{"values":[]}}`), err
		}
	default:
		return nil, fault.New(fault.NotFound, "no server answers %s", spec.Clip(r.Method))
	}
	return s.whole(ctx, q)
}

// safeObject makes a result that is no tool's fit for clients.
func safeObject(raw json.RawMessage) (json.RawMessage, error) {
	var r object
	if err := json.Unmarshal(raw, &r); err != nil || r == nil || deep(raw) {
		return nil, fault.New(fault.Connection, "the server's answer is no object, or nested too deep")
	}
	if len(raw) > maxResult {
		return nil, fault.New(fault.ResourceLimit, "the server's answer has %d bytes, and %d are passed on", len(raw), maxResult).
			With("resource_type", "result_bytes").With("current_usage", len(raw)).With("limit", maxResult)
	}
	cleaned(r)
	if string(r["resultType"]) != `"input_required"` {
		delete(r, "resultType")
	} else if err := askables(r["inputRequests"]); err != nil {
		return nil, err
	}
	var contents []object
	if json.Unmarshal(r["contents"], &contents) == nil {
		for _, c := range contents {
			if isString(c["blob"]) && notBase64(c["blob"]) != "" {
				delete(c, "blob")
				c["text"] = quoted("[data that is not base64 was left out]")
			}
			cleaned(c)
		}
		r["contents"], _ = json.Marshal(contents)
	}
	var messages []object
	if json.Unmarshal(r["messages"], &messages) == nil {
		for _, m := range messages {
			if isObject(m["content"]) {
				m["content"] = safeBlock(m["content"])
			}
		}
		r["messages"], _ = json.Marshal(messages)
	}
	return json.Marshal(r)
}

// resource finds who has a resource, and under which URI of its own.
func (v *view) resource(uri string) (*server, string) {
	if e, ok := v.resources[uri]; ok {
		return e.server, e.Remote
	}
	if rest, ok := strings.CutPrefix(uri, ownScheme); ok {
		if id, remote, ok := strings.Cut(rest, ":"); ok {
			for _, s := range v.servers() {
				if strings.EqualFold(s.id, id) {
					return s, remote
				}
			}
		}
	}
	for _, e := range v.templates {
		if matches(e.Key, uri) {
			return e.server, uri
		}
	}
	// A link in a result need not be listed.
	var only *server
	for _, s := range v.servers() {
		s.mu.Lock()
		can := s.live != nil && s.live.session.Can().Resources || len(s.rec.Catalog.Resources)+len(s.rec.Catalog.Templates) > 0
		s.mu.Unlock()
		if can {
			if only != nil {
				return nil, ""
			}
			only = s
		}
	}
	return only, uri
}

// servers are those who offer anything, each once.
func (v *view) servers() []*server {
	var all []*server
	seen := map[*server]bool{}
	add := func(s *server) {
		if !seen[s] {
			seen[s] = true
			all = append(all, s)
		}
	}
	for _, t := range v.list {
		add(v.tools[t.Name].server)
	}
	for _, i := range v.resourceList {
		add(v.resources[i.Key].server)
	}
	for _, e := range v.templates {
		add(e.server)
	}
	return all
}

// complete finds whose prompt or template a completion is about.
func (v *view) complete(params object) (*server, error) {
	var ref object
	if json.Unmarshal(params["ref"], &ref) != nil {
		return nil, fault.New(fault.InvalidParameters, "ref must be an object").With("argument", "ref")
	}
	var s *server
	switch name, uri := asText(ref["name"]), asText(ref["uri"]); {
	case name != "":
		e, ok := v.prompts[name]
		if !ok {
			return nil, fault.New(fault.InvalidParameters, "unknown prompt %q", spec.Clip(name))
		}
		s, ref["name"] = e.server, quoted(e.Remote)
	case uri != "":
		if e, ok := v.byTemplate[uri]; ok {
			s, ref["uri"] = e.server, quoted(e.Remote)
		}
		if s == nil {
			owner, remote := v.resource(uri)
			if owner == nil {
				return nil, fault.New(fault.InvalidParameters, "unknown resource %q", spec.Clip(uri))
			}
			s, ref["uri"] = owner, quoted(remote)
		}
	}
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	can := s.live == nil || s.live.session.Can().Completions
	s.mu.Unlock()
	if !can {
		return nil, nil
	}
	params["ref"], _ = json.Marshal(ref)
	return s, nil
}
