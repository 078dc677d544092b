package hub

import (
	"context"
	"encoding/json"
	"net/url"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/oauth"
)

// Server is all that there is to know of one third-party server.
type Server struct {
	servers.Info
	Tools     []ServerTool         `json:"tools"`
	Prompts   []catalog.Definition `json:"prompts"`
	Resources []catalog.Definition `json:"resources"`
	Templates []catalog.Definition `json:"resource_templates"`
	Odd       []string             `json:"left_out,omitempty"`
}

// ServerTool is one tool, and whether it is what was approved.
type ServerTool struct {
	catalog.Definition
	Approved string `json:"approved,omitempty"` // the hash that was
}

// ofServer is a request about a server of the principal's, by its id or name.
func ofServer(o policy.Operation, p auth.Principal, what string) Request {
	return Request{Principal: p, Operation: o, Resource: policy.Resource{Kind: "connection", ID: what, Owner: p.ID}}
}

// InspectServer returns all that there is to know of a server.
func (h *Hub) InspectServer(ctx context.Context, p auth.Principal, what string) (Server, error) {
	return Do(ctx, h, ofServer(policy.MCPInspect, p, what), func(context.Context) (Server, error) {
		i, c, err := h.Servers.Info(p, what)
		if err != nil {
			return Server{}, err
		}
		all := Server{Info: i, Prompts: c.Prompts, Resources: c.Resources, Templates: c.Templates, Odd: c.Odd}
		for _, d := range c.Tools {
			all.Tools = append(all.Tools, ServerTool{d, c.Pins[d.Remote]})
		}
		return all, nil
	})
}

// ApproveServer approves a server's tools as they are now, or those alone that still
// are what was seen: hashes by the server's own names.
func (h *Hub) ApproveServer(ctx context.Context, p auth.Principal, what string, seen map[string]string) (servers.Info, error) {
	return Do(ctx, h, ofServer(policy.MCPApprove, p, what), func(ctx context.Context) (servers.Info, error) {
		return h.Servers.Approve(ctx, p, what, seen)
	})
}

// ServerPrompt gets a prompt of one server, by the server's own name for it.
func (h *Hub) ServerPrompt(ctx context.Context, p auth.Principal, what, name string, args map[string]string) (json.RawMessage, error) {
	return Do(ctx, h, ofServer(policy.PromptGet, p, what), func(ctx context.Context) (json.RawMessage, error) {
		return h.Servers.Prompt(ctx, p, what, name, args)
	})
}

// ServerResource reads a resource of one server, by the server's own URI for it.
func (h *Hub) ServerResource(ctx context.Context, p auth.Principal, what, uri string) (json.RawMessage, error) {
	return Do(ctx, h, ofServer(policy.ResourceRead, p, what), func(ctx context.Context) (json.RawMessage, error) {
		return h.Servers.Resource(ctx, p, what, uri)
	})
}

// Why a log-in at a third-party server does not go on.
var (
	ErrLoginOver    = oauth.ErrOver
	ErrOtherBrowser = oauth.ErrOtherBrowser
)

// LoginLimit is how long a log-in may take.
const LoginLimit = oauth.Limit

// ConsentPage is what someone is told who opens the link to log in.
type ConsentPage = oauth.ConsentPage

// LoginCallback is where browsers come back to from a log-in; empty: there is none.
func (h *Hub) LoginCallback() string {
	if h.Servers == nil {
		return ""
	}
	return h.Servers.Callback
}

// LoginPage returns what the page of a log-in's link says. The browser has brought
// these cookies.
func (h *Hub) LoginPage(ctx context.Context, id string, cookies []string) (ConsentPage, error) {
	return Do(ctx, h, Request{Operation: policy.LoginBegin}, func(context.Context) (ConsentPage, error) {
		if h.Servers == nil {
			return ConsentPage{}, ErrLoginOver
		}
		return h.Servers.ConsentPage(id, cookies)
	})
}

// BeginLogin returns where the user logs in, when the browser has shown them what
// for.
func (h *Hub) BeginLogin(ctx context.Context, id string, cookies []string, proof string) (string, error) {
	return Do(ctx, h, Request{Operation: policy.LoginBegin}, func(context.Context) (string, error) {
		if h.Servers == nil {
			return "", ErrLoginOver
		}
		return h.Servers.Redirect(id, cookies, proof)
	})
}

// FinishLogin takes what a browser brings back from a log-in, and returns the
// log-in's id. Cookies are those that it brings for the one with that id.
func (h *Hub) FinishLogin(ctx context.Context, query url.Values, cookies func(id string) []string) (string, error) {
	return Do(ctx, h, Request{Operation: policy.LoginFinish}, func(context.Context) (string, error) {
		if h.Servers == nil {
			return "", ErrLoginOver
		}
		return h.Servers.Returned(query, cookies)
	})
}
