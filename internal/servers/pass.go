package servers

import (
	"context"
	"encoding/json"
	"maps"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// Tools implements tool.Source.
func (servers *Servers) Tools(_ context.Context, p auth.Principal) []tool.Tool {
	return servers.listed(p).List
}

// Find implements tool.Source.
func (servers *Servers) Find(p auth.Principal, name string) (tool.Callable, bool) {
	e, ok := servers.viewOf(p).Tools[name]
	if !ok {
		return tool.Callable{}, false
	}
	return tool.Callable{Operation: policy.MCPCall,
		Detail: func(tool.Call) (tool.Detail, error) {
			return tool.Detail{Text: policy.ServerName(e.Server.Name) + "/" + e.Definition.Remote,
				Server: e.Server.Name}, nil
		},
		Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
			return e.Server.call(ctx, e.Definition, c)
		}}, true
}

// Prompts implements tool.External.
func (servers *Servers) Prompts(p auth.Principal) []tool.Item { return servers.listed(p).PromptList }

// PromptRow is a prompt in the list of all that a principal's servers offer.
type PromptRow struct {
	Server       string           `json:"server"` // its name
	ConnectionID string           `json:"connectionId"`
	Name         string           `json:"name"`       // the one that MCP clients see
	Remote       string           `json:"remoteName"` // the server's own
	Title        string           `json:"title,omitempty"`
	Description  string           `json:"description,omitempty"`
	Arguments    []PromptArgument `json:"arguments"`
}

// PromptArgument is an argument of a prompt. Its value is a text.
type PromptArgument struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// PromptRows lists the prompts of all of a principal's servers.
func (servers *Servers) PromptRows(p auth.Principal) []PromptRow {
	v := servers.listed(p)
	all := make([]PromptRow, 0, len(v.PromptList))
	for _, i := range v.PromptList {
		e := v.Prompts[i.Key]
		row := PromptRow{Arguments: []PromptArgument{}}
		// A field of another type than MCP's is left out, and not the prompt.
		var fields rawjson.Object
		_ = json.Unmarshal(i.Raw, &fields)
		row.Title, row.Description = rawjson.Text(fields["title"]), rawjson.Text(fields["description"])
		var arguments []json.RawMessage
		_ = json.Unmarshal(fields["arguments"], &arguments)
		for _, raw := range arguments {
			var a PromptArgument
			if json.Unmarshal(raw, &a) == nil && a.Name != "" {
				row.Arguments = append(row.Arguments, a)
			}
		}
		row.Server, row.ConnectionID, row.Name, row.Remote = e.Server.Name, e.Server.ID, i.Key, e.Remote
		all = append(all, row)
	}
	return all
}

// Resources implements tool.External.
func (servers *Servers) Resources(p auth.Principal) []tool.Item {
	return servers.listed(p).ResourceList
}

// Templates implements tool.External.
func (servers *Servers) Templates(p auth.Principal) []tool.Item {
	return servers.listed(p).TemplateList
}

// call calls one of the server's tools.
func (s *server) call(ctx context.Context, d catalog.Definition, c tool.Call) (*tool.Result, error) {
	args := c.Args
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	if !rawjson.IsObject(args) {
		return nil, fault.Argument("arguments", "arguments must be a JSON object")
	}
	args = catalog.TypedArguments(d.Raw, args)
	q := &instance.Request{Method: "tools/call",
		Params: rawjson.Object{"name": rawjson.Quote(d.Remote), "arguments": args}, Meta: c.Meta,
		Schema: d.HeaderSchema,
		Client: c.Client, Inputs: c.Inputs, Progress: c.Progress, Answer: c.Reservation, Large: c.FromSession != ""}
	defer q.Release()
	raw, err := s.request(ctx, q)
	if err != nil {
		return nil, withRefused(err, q.Refused)
	}
	safe, isError, err := q.Result(ctx, raw)
	if err != nil {
		return nil, withRefused(s.withAdvice(err), q.Refused)
	}
	if c.FromSession == "" {
		safe = catalog.WithoutData(d.Raw, safe)
	}
	safe = s.tellRefused(c, safe, q.Refused)
	if err := q.Deliver(ctx, safe); err != nil {
		return nil, err
	}
	return &tool.Result{Raw: safe, IsError: isError}, nil
}

// Proxy implements tool.External. If no server has what the request names, it starts the configured
// servers whose lists have never been read: the next request may find it.
func (servers *Servers) Proxy(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	s, q, empty, err := servers.destination(r)
	if err != nil || s == nil {
		_ = servers.configure(r.Principal)
		return empty, err
	}
	if r.Decided != nil && *r.Decided != detailOf(s, q) {
		return nil, fault.New(fault.Connection, "the MCP server of this request was replaced just now; try again")
	}
	return s.safeResult(ctx, q)
}

// Detail implements tool.External.
func (servers *Servers) Detail(r tool.Request) tool.Detail {
	s, q, _, err := servers.destination(r)
	if s == nil || err != nil {
		return tool.Detail{}
	}
	return detailOf(s, q)
}

// detailOf returns what policy has to know of a request for a server, with the server's own names.
func detailOf(s *server, q *instance.Request) tool.Detail {
	return tool.Detail{Text: policy.ServerName(s.Name) + "/" + rawjson.Text(q.Params["name"]) +
		rawjson.Text(q.Params["uri"]), Server: s.Name}
}

// destination returns the server that a request is for, and the request with the server's own names. If
// there is no server and no error, empty is the answer.
func (servers *Servers) destination(r tool.Request) (s *server, q *instance.Request, empty json.RawMessage,
	err error) {
	v := servers.viewOf(r.Principal)
	q = &instance.Request{Method: r.Method, Params: rawjson.Object{}, Meta: r.Meta, Client: r.Client,
		Inputs: r.Inputs, Answer: r.Reservation}
	maps.Copy(q.Params, r.Params)
	switch r.Method {
	case "prompts/get":
		e, ok := v.Prompts[rawjson.Text(r.Params["name"])]
		if !ok {
			return nil, q, nil, fault.New(fault.InvalidParameters, "unknown prompt %q",
				spec.ClipName(rawjson.Text(r.Params["name"])))
		}
		s, q.Params["name"] = e.Server, rawjson.Quote(e.Remote)
	case "resources/read":
		uri := rawjson.Text(r.Params["uri"])
		owner, remote := v.Resource(uri, (*server).offersResources)
		if owner == nil {
			return nil, q, nil, fault.New(fault.NotFound, "resource not found: %s", spec.ClipName(uri))
		}
		s, q.Params["uri"] = owner, rawjson.Quote(remote)
	case "completion/complete":
		s, err = complete(v, q.Params)
		return s, q, json.RawMessage(`{"completion":{"values":[]}}`), err
	default:
		return nil, q, nil, fault.New(fault.NotFound, "no server answers %s", spec.ClipName(r.Method))
	}
	return s, q, nil, nil
}

// complete returns the server whose prompt or template a completion is about; nil: no server completes it.
// It replaces the name in params by the server's own.
func complete(v *view, params rawjson.Object) (*server, error) {
	var ref rawjson.Object
	if json.Unmarshal(params["ref"], &ref) != nil {
		return nil, fault.Argument("ref", "ref must be an object")
	}
	var s *server
	switch name, uri := rawjson.Text(ref["name"]), rawjson.Text(ref["uri"]); {
	case name != "":
		e, ok := v.Prompts[name]
		if !ok {
			return nil, fault.New(fault.InvalidParameters, "unknown prompt %q", spec.ClipName(name))
		}
		s, ref["name"] = e.Server, rawjson.Quote(e.Remote)
	case uri != "":
		owner, remote := v.ByTemplate[uri].Server, v.ByTemplate[uri].Remote
		if owner == nil {
			owner, remote = v.Resource(uri, (*server).offersResources)
		}
		if owner == nil {
			return nil, fault.New(fault.InvalidParameters, "unknown resource %q", spec.ClipName(uri))
		}
		s, ref["uri"] = owner, rawjson.Quote(remote)
	default:
		return nil, nil
	}
	s.mu.Lock()
	completes := s.instance == nil || s.instance.Session.Capabilities().Completions
	s.mu.Unlock()
	if !completes {
		return nil, nil
	}
	params["ref"], _ = json.Marshal(ref)
	return s, nil
}
