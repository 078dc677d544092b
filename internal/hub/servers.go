package hub

import (
	"context"
	"encoding/json"
	"net/url"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/oauth"
)

// Server describes one third-party server.
type Server struct {
	servers.Info
	Tools     []ServerTool         `json:"tools"`
	Prompts   []catalog.Definition `json:"prompts"`
	Resources []catalog.Definition `json:"resources"`
	Templates []catalog.Definition `json:"resource_templates"`
	LeftOut   []string             `json:"left_out,omitempty"`
}

// ServerInfo is what is known of a third-party server without what it offers.
type ServerInfo = servers.Info

// ServerTool is one tool of a server, with the hash of its approved definition.
type ServerTool struct {
	catalog.Definition
	Approved string `json:"approved,omitempty"`
}

// ServerName is the id or the name of one of the principal's third-party servers.
type ServerName string

// connectionKind is the Kind of a policy.Resource that is a third-party server. Its ID is the server's name.
const connectionKind = "connection"

// resource implements resourceInput.
func (n ServerName) resource(h *Hub, p auth.Principal) policy.Resource {
	return policy.Resource{Kind: connectionKind, ID: h.serverName(p, n), Owner: p.ID}
}

// serverName returns the name of a server.
func (h *Hub) serverName(p auth.Principal, n ServerName) string {
	if h.Servers == nil {
		return string(n)
	}
	return h.Servers.NameOf(p, string(n))
}

func (h *Hub) inspectServer(_ context.Context, p auth.Principal, name ServerName) (Server, error) {
	i, c, err := h.Servers.Info(p, string(name))
	if err != nil {
		return Server{}, err
	}
	server := Server{Info: i, Prompts: c.Prompts, Resources: c.Resources, Templates: c.Templates, LeftOut: c.Omissions}
	for _, d := range c.Tools {
		server.Tools = append(server.Tools, ServerTool{d, c.Pins[d.Remote]})
	}
	return server, nil
}

// Approval approves the tools of a server. Tools has hashes by the server's own names of the
// tools: only tools whose definitions still have that hash are approved. Without Tools, all
// tools are approved with their current definitions.
type Approval struct {
	ServerName `json:"-"`
	Tools      map[string]string `json:"tools"`
}

func (h *Hub) approveServer(ctx context.Context, p auth.Principal, a Approval) (servers.Info, error) {
	return h.Servers.Approve(ctx, p, string(a.ServerName), a.Tools)
}

// PromptRequest is a request for a prompt of one server, by the server's own name for it.
type PromptRequest struct {
	ServerName `json:"-"`
	Name       string            `json:"name"`
	Arguments  map[string]string `json:"arguments"`
}

// detail implements detailInput.
func (r PromptRequest) detail(h *Hub, p auth.Principal) string {
	return h.serverDetail(p, r.ServerName, r.Name)
}

// serverDetail returns the detail of a request for something of one server: the name of the
// server, and that of the thing. It is the same as that of Hub.Proxy.
func (h *Hub) serverDetail(p auth.Principal, server ServerName, name string) string {
	return policy.ServerName(h.serverName(p, server)) + "/" + name
}

// ServerPromptRow is a prompt in the list of all that a principal's servers offer.
type ServerPromptRow = servers.PromptRow

// listPrompts lists the prompts of all servers of a principal that the principal's token has the scope to get.
func (h *Hub) listPrompts(_ context.Context, p auth.Principal, _ None) ([]ServerPromptRow, error) {
	if h.Servers == nil || !policy.InScope(p, policy.PromptGet) {
		return []ServerPromptRow{}, nil
	}
	return h.Servers.PromptRows(p), nil
}

// ServerLog is the log of a third-party server, as it grows, until Close. It may say what lists do not, such as secrets
// that a server prints: to read it is an event.
type ServerLog struct {
	*ActiveRequest
	log *servers.LogReader
}

// FollowServerLog begins to read the log of a server, after the part that has the cursor.
func (h *Hub) FollowServerLog(ctx context.Context, p auth.Principal, name ServerName, cursor string) (*ServerLog, error) {
	r := Request{Principal: p, Operation: policy.MCPLogs, Resource: name.resource(h, p)}
	return begin(ctx, h, r, func(a *ActiveRequest) (*ServerLog, error) {
		if h.Servers == nil {
			return nil, fault.New(fault.NotFound, "this server has none")
		}
		log, err := h.Servers.FollowLog(p, string(name), cursor)
		if err != nil {
			return nil, err
		}
		a.cleanups = append(a.cleanups, log.Close)
		return &ServerLog{a, log}, nil
	})
}

// LogPart is a part of a server's log.
type LogPart = servers.LogPart

// ConnectionID returns the id of the server.
func (l *ServerLog) ConnectionID() string { return l.log.ConnectionID() }

// Anew reports whether the log began again after the cursor.
func (l *ServerLog) Anew() bool { return l.log.Anew() }

// Next returns the next part of the log, and its cursor. Policy is asked again, as rules may have changed. Nobody is
// asked.
func (l *ServerLog) Next(ctx context.Context) (part LogPart, cursor string, err error) {
	part, cursor, err = l.log.Next(ctx)
	if err != nil {
		return part, cursor, err
	}
	if d := l.hub.decide(l.request); d.Effect == policy.Refuse {
		return LogPart{}, "", l.Fail(d.Err())
	}
	l.sent.Add(int64(len(part.Text)))
	return part, cursor, nil
}

func (h *Hub) serverPrompt(ctx context.Context, p auth.Principal, r PromptRequest) (json.RawMessage, error) {
	return h.Servers.Prompt(ctx, p, string(r.ServerName), r.Name, r.Arguments)
}

// ResourceRequest is a request for a resource of one server, by the server's own URI for it.
type ResourceRequest struct {
	ServerName `json:"-"`
	URI        string `json:"uri"`
}

// detail implements detailInput.
func (r ResourceRequest) detail(h *Hub, p auth.Principal) string {
	return h.serverDetail(p, r.ServerName, r.URI)
}

func (h *Hub) serverResource(ctx context.Context, p auth.Principal, r ResourceRequest) (json.RawMessage, error) {
	return h.Servers.Resource(ctx, p, string(r.ServerName), r.URI)
}

// Errors of a log-in at a third-party server that cannot continue.
var (
	ErrLoginEnded   = oauth.ErrNotWaiting
	ErrOtherBrowser = oauth.ErrOtherBrowser
)

// LoginTimeout is how long a log-in may take.
const LoginTimeout = oauth.LinkLifetime

// ConsentPage is the content of the page that the link of a log-in opens.
type ConsentPage = oauth.ConsentPage

// CallbackURL returns the OAuth redirect URL, to which browsers return from a log-in; empty:
// the server has none.
func (h *Hub) CallbackURL() string {
	if h.Servers == nil {
		return ""
	}
	return h.Servers.Callback
}

// Login is a browser's request for a log-in, with the cookies and the proof that it sent.
type Login struct {
	ID      string
	Cookies []string
	Proof   string // from the link on the consent page; empty: the browser requests the page
}

// loginPage returns the content of the page that the link of a log-in opens.
func (h *Hub) loginPage(_ context.Context, _ auth.Principal, l Login) (ConsentPage, error) {
	if h.Servers == nil {
		return ConsentPage{}, ErrLoginEnded
	}
	return h.Servers.Logins.ConsentPage(l.ID, l.Cookies)
}

// beginLogin returns the address where the user logs in. The proof shows that the browser
// had the consent page.
func (h *Hub) beginLogin(_ context.Context, _ auth.Principal, l Login) (string, error) {
	if h.Servers == nil {
		return "", ErrLoginEnded
	}
	return h.Servers.Logins.Redirect(l.ID, l.Cookies, l.Proof)
}

// LoginCallback is the request with which a browser returns from a log-in to CallbackURL.
type LoginCallback struct {
	Query   url.Values
	Cookies func(id string) []string // of the log-in with that id
}

// finishLogin completes a log-in, and returns its id.
func (h *Hub) finishLogin(_ context.Context, _ auth.Principal, c LoginCallback) (string, error) {
	if h.Servers == nil {
		return "", ErrLoginEnded
	}
	return h.Servers.Logins.HandleCallback(c.Query, c.Cookies)
}
