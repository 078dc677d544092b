// Package protocol has what the server and the client of the HTTP API share: the Go types
// of responses that package hub has no types for, and the names of upgrades.
package protocol

import (
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// The protocols to which a connection can be upgraded.
const (
	UpgradeExec = "sandlot-exec" // a command, in the messages of package command
	UpgradeMCP  = "sandlot-mcp"  // MCP's stdio transport
	UpgradeDial = "sandlot-dial" // a TCP connection to a port
)

// The headers of requests that may be sent again.
const (
	IdempotencyKey = "Idempotency-Key"
	IdempotencyAge = "Idempotency-Age" // milliseconds since the first request with the key was sent
)

// Titles of problems with idempotency keys.
const (
	KeyReused = "IDEMPOTENCY_KEY_REUSED" // with another request
	KeyInUse  = "IDEMPOTENCY_KEY_IN_USE" // the first request is running
	KeyLost   = "IDEMPOTENCY_KEY_LOST"   // nobody can tell whether the first request ran
)

// MaxKeyed is how large the body of a request with a key can be, in bytes.
const MaxKeyed = 1 << 20

// Problem is a fault over HTTP: problem details (RFC 9457) with the fields of the fault.
type Problem struct {
	Type   string `json:"type" jsonschema:"The title as a URN: urn:sandlot:problem:session-not-found."`
	Title  string `json:"title" jsonschema:"What kind of problem it is: a code that does not change."`
	Status int    `json:"status" jsonschema:"The HTTP status."`
	Detail string `json:"detail" jsonschema:"What went wrong here, for people."`
	fault.Data
}

// NewProblem returns the problem details of a fault.
func NewProblem(f *fault.Error) Problem { return ProblemAs(f.HTTP(), f.Code(), f) }

// ProblemAs returns the problem details of a fault with another status and title than its kind has.
func ProblemAs(status int, title string, f *fault.Error) Problem {
	return Problem{Type: "urn:sandlot:problem:" + strings.ReplaceAll(strings.ToLower(title), "_", "-"), Title: title,
		Status: status, Detail: f.Error(), Data: f.Data()}
}

// Error returns the detail, and each recovery suggestion on a line of its own.
func (p *Problem) Error() string {
	s := p.Detail
	for _, a := range p.RecoverySuggestions {
		s += "\n  - " + a
	}
	return s
}

// Health is the response to GET /.
type Health struct {
	Status  string   `json:"status"` // healthy or unhealthy
	Server  string   `json:"server"`
	Version string   `json:"version"`
	Wrapper string   `json:"wrapper_status"` // connected or disconnected, as Microsandbox's server said
	Count   int      `json:"tools_count"`
	Tools   []string `json:"available_tools"`
}

// Readiness is the response to GET /readyz and /healthz.
type Readiness struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
	// Address is in the response to GET /healthz over the server's socket alone.
	Address string `json:"address,omitempty" jsonschema:"The MCP address for clients of the server's machine, over the server's socket alone."`
}

// Lost stands in a stream of events where events are missing: how many, and whether there
// may be more.
type Lost struct {
	Count   uint64 `json:"count"`
	Unknown bool   `json:"more,omitempty"`
}

// SessionRequest is the body of POST /v1/sessions.
type SessionRequest struct {
	Template string `json:"template,omitempty"`
	Flavor   string `json:"flavor,omitempty"`
	// Env are variables of the session, for all that runs in it.
	Env map[string]string `json:"env,omitempty" jsonschema:"Variables for all that runs in the session. ${secret:NAME} in a value refers to a stored secret."`
	hub.SessionSettings
}

// Uploaded is the response to the upload of a file.
type Uploaded struct {
	Path string `json:"path"`
	Size int64  `json:"size"` // bytes
}

// Page is in the response to a request for a list with pages.
type Page struct {
	// NextCursor is the cursor of the request for the next page; empty: there is none.
	NextCursor string `json:"next_cursor,omitempty" jsonschema:"The cursor of the next page; missing on the last one."`
}

// SessionPage is the response to GET /v1/sessions.
type SessionPage struct {
	hub.SessionList
	Page
}

// ServerPage is the response to GET /v1/connections.
type ServerPage struct {
	hub.ServerList
	Page
}

// PromptPage is the response to GET /v1/prompts.
type PromptPage struct {
	Prompts []hub.ServerPromptRow `json:"prompts"`
	Page
}

// SecretList is the response to GET /v1/secrets.
type SecretList struct {
	Secrets []hub.Secret `json:"secrets"`
	Page
}

// QuestionPage is the response to GET /v1/questions.
type QuestionPage struct {
	hub.QuestionList
	Page
}

// TemplateList is the response to GET /v1/templates.
type TemplateList struct {
	Templates []hub.Template `json:"templates"`
	Page
}

// TemplateRequested is the response to POST /v1/templates/{name}/build.
type TemplateRequested struct {
	Template hub.Template `json:"template"`
	Progress string       `json:"progress"` // the path of the list that says how far it is
}

// PullBegun is the response to POST /v1/images.
type PullBegun struct {
	Pull     hub.ImagePull `json:"pull"`
	Progress string        `json:"progress"` // the path of the list that says how far it is
}

// SecretRemoved is the response to DELETE /v1/secrets/{name}.
type SecretRemoved struct {
	Name   string   `json:"name"`
	UsedBy []string `json:"used_by"` // names of servers that still refer to it
}

// Approved is the response to POST /v1/connections/{id}/approve.
type Approved struct {
	ConnectionID string     `json:"connectionId"`
	Name         string     `json:"name"`
	ToolCount    int        `json:"toolCount"`
	State        string     `json:"state"`
	HeldTools    []HeldTool `json:"heldTools"` // the tools that are still held back
}

// HeldTool is a tool that is held back until the user approves it.
type HeldTool struct {
	Remote string `json:"remoteName"`
	Reason string `json:"reason"`
}

// Guidance describes how to add this server to the configuration of one MCP client.
type Guidance struct {
	Client  string            `json:"client"`
	Title   string            `json:"title"`
	Name    string            `json:"name"` // of the server, in the client
	File    map[string]string `json:"file"` // by operating system
	Config  map[string]any    `json:"config"`
	Text    string            `json:"text,omitempty"` // config in the syntax of the client's file, if that is not JSON
	Command string            `json:"command,omitempty"`
	Steps   []string          `json:"instructions"`
}

// GuidanceList is the response to GET /install.
type GuidanceList struct {
	Clients []GuidanceRow `json:"clients"`
}

// GuidanceRow is one client in a GuidanceList.
type GuidanceRow struct {
	Client string            `json:"client"`
	Title  string            `json:"title"`
	File   map[string]string `json:"file"` // by operating system
	Path   string            `json:"path"` // of the guidance
}

// ConsoleLogin is the body of a browser's log-in: it has one of the three.
type ConsoleLogin struct {
	Code     string            `json:"code,omitempty" jsonschema:"The code of a link, which counts once."`
	Token    string            `json:"token,omitempty" jsonschema:"A token of this server."`
	Response *ProviderResponse `json:"response,omitempty" jsonschema:"What an OIDC provider has sent back with the browser."`
}

// ProviderResponse is what an OIDC provider has sent back with a browser, as it was in the address.
type ProviderResponse struct {
	Provider string `json:"provider" jsonschema:"The provider's id."`
	Key      string `json:"key" jsonschema:"The key of the answer with which the log-in has begun."`
	State    string `json:"state"`
	Code     string `json:"code,omitempty"`
	Issuer   string `json:"iss,omitempty"`
	Error    string `json:"error,omitempty"`
}

// ConsoleProvider is an OIDC provider at which a browser can log in.
type ConsoleProvider struct {
	ID     string `json:"id"`
	Issuer string `json:"issuer"`
}

// ConsoleProviders are the OIDC providers at which a browser can log in.
type ConsoleProviders struct {
	Providers []ConsoleProvider `json:"providers"`
}

// ConsoleAttempt is the body of a request that begins a log-in at an OIDC provider.
type ConsoleAttempt struct {
	Provider string `json:"provider" jsonschema:"The provider's id."`
}

// ConsoleBegun is a log-in at an OIDC provider that has begun.
type ConsoleBegun struct {
	URL string `json:"url" jsonschema:"Where it goes on, at the provider."`
	Key string `json:"key" jsonschema:"The half of the log-in's secret that is not in the cookie."`
}

// ConsoleEnded is the answer to a log-out.
type ConsoleEnded struct {
	URL string `json:"url" jsonschema:"Where the user logs out at the OIDC provider as well; empty: nowhere."`
}

// ConsoleKey is the answer to a browser's log-in: the half of its secret that is not in the cookie.
type ConsoleKey struct {
	Key string `json:"key"`
}

// ConsoleLink is a link to the web console, with which a browser logs in once.
type ConsoleLink struct {
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

// Principal is who asks.
type Principal struct {
	Principal string      `json:"principal" jsonschema:"The id."`
	Name      string      `json:"name" jsonschema:"For people; it is not unique."`
	Roles     []auth.Role `json:"roles"`
	Version   string      `json:"version" jsonschema:"Of the server."`
	Login     bool        `json:"login" jsonschema:"Whether a browser asks that is logged in at the web console."`
}
