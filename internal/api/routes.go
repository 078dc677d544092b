package api

import (
	"net/http"

	"sandlot/internal/policy"
)

// audience is who reaches a route. What they may do there, policy says.
type audience int

const (
	everyone   audience = iota // without a token
	principals                 // whom a token, or the owner's socket, names
)

// route is one route, and the operation that it asks the hub for.
type route struct {
	pattern   string
	to        audience
	operation policy.Operation
	handle    http.HandlerFunc
}

// routes are all but /mcp, whose methods have operations of their own, and those of
// exposed ports. An operation that is empty is that of the tool in the path.
func (s *Server) routes() []route {
	return []route{
		{"GET /{$}", everyone, policy.HealthRead, s.look(s.health)},
		{"GET /healthz", everyone, policy.HealthRead, s.look(s.alive)},
		{"GET /readyz", everyone, policy.HealthRead, s.look(s.ready)},
		{"GET /oauth/start/{id}", everyone, policy.LoginBegin, s.startLogin},
		{"GET /oauth/callback", everyone, policy.LoginFinish, s.loggedIn},
		{"GET /metrics", principals, policy.MetricsRead, s.metrics()},
		{"GET /v1/sessions", principals, policy.SessionList, s.listSessions},
		{"POST /v1/sessions", principals, policy.SessionCreate, s.createSession},
		{"GET /v1/sessions/{id}", principals, policy.SessionList, s.getSession},
		{"DELETE /v1/sessions/{id}", principals, policy.SessionStop, s.deleteSession},
		{"DELETE /v1/sessions", principals, policy.SessionStopAll, s.deleteSessions},
		{"GET /v1/sessions/{id}/files/{path...}", principals, policy.FileRead, s.download}, // and HEAD
		{"PUT /v1/sessions/{id}/files/{path...}", principals, policy.FileWrite, s.upload},
		{"DELETE /v1/sessions/{id}/files/{path...}", principals, policy.FileRemove, s.removeFile},
		{"POST /v1/sessions/{id}/exec", principals, policy.ShellExecute, s.exec},
		{"POST /v1/sessions/{id}/ports/{port}", principals, policy.PortDial, s.dial},
		{"GET /v1/sessions/{id}/network", principals, policy.NetworkRead, s.sessionNetwork},
		{"PATCH /v1/sessions/{id}/network", principals, policy.NetworkChange, s.changeNetwork},
		{"GET /v1/network", principals, policy.NetworkReadAll, s.network},
		{"POST /v1/tools/{name}", principals, "", s.call},
		{"GET /v1/connections", principals, policy.MCPList, s.listConnections},
		{"GET /v1/connections/{id}", principals, policy.MCPInspect, s.inspectConnection},
		{"POST /v1/connections/{id}/approve", principals, policy.MCPApprove, s.approveConnection},
		{"POST /v1/connections/{id}/prompt", principals, policy.PromptGet, s.getPrompt},
		{"POST /v1/connections/{id}/read", principals, policy.ResourceRead, s.readResource},
		{"GET /v1/secrets", principals, policy.SecretList, s.listSecrets},
		{"PUT /v1/secrets/{name}", principals, policy.SecretSet, s.setSecret},
		{"DELETE /v1/secrets/{name}", principals, policy.SecretRemove, s.removeSecret},
		{"GET /v1/events", principals, policy.EventRead, s.events},
		{"POST /v1/stdio", principals, policy.ClientConnect, s.stdio},
		{"GET /install", principals, policy.ClientGuide, s.installList},
		{"GET /install/{client}", principals, policy.ClientGuide, s.installGuidance},
	}
}

func (s *Server) alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, Readiness{Status: "ok"})
}
