package api

import (
	"net/http"

	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

// audience is who reaches a route. The policy decides what they may do there.
type audience int

const (
	everyone   audience = iota // without a token
	principals                 // authenticated by a token, or by the owner's socket
)

// route is one route and its operation of the hub.
type route struct {
	pattern   string
	audience  audience
	operation policy.Operation
	handle    http.HandlerFunc
}

// routes returns all routes but /mcp, where each MCP method has an operation, and but those
// of exposed ports. An empty operation: the tool in the path has one.
func (s *Server) routes() []route {
	return []route{
		{"GET /{$}", everyone, policy.HealthRead, s.forEveryone(policy.HealthRead, s.home)},
		{"GET /healthz", everyone, policy.HealthRead, s.forEveryone(policy.HealthRead, s.alive)},
		{"GET /readyz", everyone, policy.HealthRead, s.forEveryone(policy.HealthRead, s.ready)},
		{"GET " + resourceMetadata, everyone, policy.ClientDiscover, s.describeResource},
		{"GET " + resourceMetadata + "/mcp", everyone, policy.ClientDiscover, s.describeResource},
		{"GET " + documentPath, everyone, policy.APIDescribe, s.forEveryone(policy.APIDescribe, s.describe)},
		{"GET /oauth/start/{id}", everyone, policy.LoginBegin, s.startLogin},
		{"GET /oauth/callback", everyone, policy.LoginFinish, s.finishLogin},
		{"GET /metrics", principals, policy.MetricsRead, s.metrics()},
		{"GET /v1/sessions", principals, policy.SessionList, list(s, hub.ListSessions, labelled, sessionPage)},
		{"POST /v1/sessions", principals, policy.SessionCreate, operation(s, hub.CreateSession, sessionRequest)},
		{"GET /v1/sessions/{id}", principals, policy.SessionList,
			operation(s, hub.ListSessions, arguments("session_id", "id"))},
		{"PATCH /v1/sessions/{id}", principals, policy.SessionChange, operation(s, hub.ChangeSession, sessionChange)},
		{"POST /v1/sessions/{id}/pause", principals, policy.SessionPause, operation(s, hub.PauseSession, sessionID)},
		{"POST /v1/sessions/{id}/resume", principals, policy.SessionResume, operation(s, hub.ResumeSession, sessionID)},
		{"DELETE /v1/sessions/{id}", principals, policy.SessionStop, operation(s, hub.StopSession, sessionID)},
		{"DELETE /v1/sessions", principals, policy.SessionStopAll, operation(s, hub.StopAllSessions, noInput)},
		{"GET /v1/sessions/{id}/files/{path...}", principals, policy.FileRead, s.stream(s.download)}, // and HEAD
		{"PUT /v1/sessions/{id}/files/{path...}", principals, policy.FileWrite, s.upload},
		{"DELETE /v1/sessions/{id}/files/{path...}", principals, policy.FileRemove,
			operation(s, hub.RemoveFile, fileRemoval)},
		{"GET /v1/sessions/{id}/stat/{path...}", principals, policy.FileList,
			operation(s, hub.StatFile, statPath)},
		{"GET /v1/sessions/{id}/folders/{path...}", principals, policy.FileList,
			operation(s, hub.ListFolder, folderPath)},
		{"POST /v1/sessions/{id}/folders/{path...}", principals, policy.FileWrite,
			operation(s, hub.MakeFolder, folderPath)},
		{"POST /v1/sessions/{id}/move", principals, policy.FileWrite, operation(s, hub.MoveFile, fileMove)},
		{"GET /v1/sessions/{id}/results", principals, policy.ResultRead, operation(s, hub.ListResults, resultsQuery)},
		{"POST /v1/sessions/{id}/exec", principals, policy.ShellExecute, s.stream(s.exec)},
		{"GET /v1/sessions/{id}/processes", principals, policy.ProcessList,
			operation(s, hub.ListProcesses, arguments("session_id", "id"))},
		{"GET /v1/sessions/{id}/processes/{process}/output", principals, policy.ProcessRead, s.stream(s.processOutput)},
		{"POST /v1/sessions/{id}/processes/{process}/input", principals, policy.ProcessWrite,
			operation(s, hub.WriteToProcess, processInput)},
		{"POST /v1/sessions/{id}/processes/{process}/signal", principals, policy.ProcessStop,
			operation(s, hub.SignalProcess, processSignal)},
		{"GET /v1/sessions/{id}/ports", principals, policy.ProcessList, operation(s, hub.ListPorts, sessionID)},
		{"GET /v1/sessions/{id}/terminals", principals, policy.ProcessList, operation(s, hub.ListTerminals, sessionID)},
		{"DELETE /v1/sessions/{id}/terminals/{terminal}", principals, policy.ProcessStop,
			operation(s, hub.EndTerminal, terminalID)},
		{"POST /v1/sessions/{id}/ports/{port}", principals, policy.PortDial, s.stream(s.dial)},
		{"POST /v1/sessions/{id}/fork", principals, policy.SessionFork,
			operation(s, hub.ForkSession, arguments("session_id", "id"))},
		{"POST /v1/sessions/{id}/snapshots", principals, policy.SnapshotCreate,
			operation(s, hub.CreateSnapshot, arguments("session_id", "id"))},
		{"GET /v1/snapshots", principals, policy.SnapshotList, operation(s, hub.ListSnapshots, arguments("", ""))},
		{"POST /v1/snapshots/{name}/restore", principals, policy.SnapshotRestore,
			operation(s, hub.RestoreSnapshot, arguments("name", "name"))},
		{"DELETE /v1/snapshots/{name}", principals, policy.SnapshotRemove,
			operation(s, hub.RemoveSnapshot, arguments("name", "name"), noOutput[any])},
		{"GET /v1/sessions/{id}/network", principals, policy.NetworkRead,
			operation(s, hub.ReadSessionNetwork, sessionID)},
		{"PATCH /v1/sessions/{id}/network", principals, policy.NetworkChange,
			operation(s, hub.ChangeNetwork, networkChange)},
		{"GET /v1/network", principals, policy.NetworkReadAll, operation(s, hub.ReadNetwork, noInput)},
		{"GET /v1/quota", principals, policy.QuotaRead, operation(s, hub.ReadQuota, quotaOwner)},
		{"GET /v1/tokens", principals, policy.TokenList, operation(s, hub.ListTokens, tokenOwner)},
		{"POST /v1/tokens", principals, policy.TokenCreate, operation(s, hub.CreateToken, newToken)},
		{"DELETE /v1/tokens/{id}", principals, policy.TokenRevoke, operation(s, hub.RevokeToken, tokenID)},
		{"GET /v1/usage", principals, policy.UsageRead, operation(s, hub.ReadUsage, usageQuery)},
		{"GET /v1/usage/all", principals, policy.UsageReadAll, operation(s, hub.ReadAllUsage, usageDays)},
		{"GET /v1/users", principals, policy.UserList, operation(s, hub.ListUsers, noInput)},
		{"GET /v1/policy", principals, policy.PolicyRead, operation(s, hub.ReadRules, rulesOwner)},
		{"POST /v1/policy/check", principals, policy.PolicyCheck, operation(s, hub.CheckPolicy, policyCheck)},
		{"POST /v1/tools/{name}", principals, "", operation(s, hub.CallTool, toolCall, flatResult)},
		{"GET /v1/connections", principals, policy.MCPList, list(s, hub.ListServers, arguments("", ""), serverPage)},
		{"GET /v1/connections/{id}", principals, policy.MCPInspect, operation(s, hub.InspectServer, serverName)},
		{"GET /v1/prompts", principals, policy.PromptList, list(s, hub.ListPrompts, noInput, promptPage)},
		{"POST /v1/connections/{id}/approve", principals, policy.MCPApprove,
			operation(s, hub.ApproveServer, approval, approved)},
		{"POST /v1/connections/{id}/prompt", principals, policy.PromptGet,
			operation(s, hub.ServerPrompt, promptRequest)},
		{"POST /v1/connections/{id}/read", principals, policy.ResourceRead,
			operation(s, hub.ServerResource, resourceRequest)},
		{"GET /v1/registry/servers", principals, policy.RegistrySearch,
			operation(s, hub.SearchRegistry, registrySearch)},
		{"GET /v1/registry/servers/{name...}", principals, policy.RegistryRead,
			operation(s, hub.ReadRegistry, registryReference)},
		{"POST /v1/registry/plan", principals, policy.RegistryPlan, operation(s, hub.PlanRegistry, registryChoice)},
		{"GET /console/{path...}", everyone, policy.ConsoleRead, s.forEveryone(policy.ConsoleRead, s.consoleFile)},
		{"GET /console/providers", everyone, policy.ConsoleRead,
			s.forEveryone(policy.ConsoleRead, s.consoleProviders)},
		{"POST /console/begin", everyone, policy.ConsoleBegin, s.consoleBegin},
		{"GET /console/oidc/{provider}", everyone, policy.ConsoleRead, s.forEveryone(policy.ConsoleRead, s.consoleCallback)},
		{"POST /console/login", everyone, policy.ConsoleLogin, s.consoleLogin},
		{"POST /console/logout", principals, policy.ConsoleLogout,
			operation(s, hub.EdgeOp(policy.ConsoleLogout, s.consoleLogout), wholeRequest)},
		{"POST /v1/console/codes", principals, policy.ConsoleLink,
			operation(s, hub.EdgeOp(policy.ConsoleLink, s.consoleLink), wholeRequest)},
		{"GET /v1/principal", principals, policy.PrincipalRead,
			operation(s, hub.EdgeOp(policy.PrincipalRead, s.whoAsks), wholeRequest)},
		{"GET /v1/secrets", principals, policy.SecretList, list(s, hub.ListSecrets, noInput, secretPage)},
		{"PUT /v1/secrets/{name}", principals, policy.SecretSet, operation(s, hub.SetSecret, newSecret)},
		{"DELETE /v1/secrets/{name}", principals, policy.SecretRemove,
			operation(s, hub.RemoveSecret, secretName, secretRemoved)},
		{"GET /v1/questions", principals, policy.QuestionList, list(s, hub.ListQuestions, noInput, questionPage)},
		{"POST /v1/questions/{id}", principals, policy.QuestionAnswer,
			operation(s, hub.AnswerQuestion, questionAnswer)},
		{"DELETE /v1/questions/{id}", principals, policy.QuestionForget, operation(s, hub.ForgetAnswer, questionID)},
		{"GET " + templatesPath, principals, policy.TemplateList, list(s, hub.ListTemplates, noInput, templatePage)},
		{"POST /v1/templates/{name}/build", principals, policy.TemplateBuild,
			operation(s, hub.BuildTemplate, templateName, templateRequested)},
		{"GET /v1/images", principals, policy.ImageList, operation(s, hub.ListImages, noInput)},
		{"POST /v1/images", principals, policy.ImagePull, operation(s, hub.PullImage, imageRequest, pullBegun)},
		{"DELETE /v1/images/{name...}", principals, policy.ImageRemove, operation(s, hub.RemoveImage, imageName)},
		{"DELETE /v1/pulls/{id}", principals, policy.ImagePull, operation(s, hub.EndPull, pullID)},
		{"GET /v1/doctor", principals, policy.DoctorRead, operation(s, hub.ReadDoctor, noInput)},
		{"POST /v1/doctor", principals, policy.DoctorRun, operation(s, hub.RunDoctor, noInput)},
		{"GET /v1/database", principals, policy.DatabaseRead, operation(s, hub.ReadDatabase, noInput)},
		{"GET /v1/backups", principals, policy.DatabaseRead, operation(s, hub.ListBackups, noInput)},
		{"POST /v1/backups", principals, policy.DatabaseBackup, operation(s, hub.MakeBackup, noInput)},
		{"PUT /v1/database", principals, policy.DatabaseRestore, s.restore},
		{"GET /v1/live", principals, policy.ClientConnect, s.stream(s.serveLive)},
		{"GET /v1/events", principals, policy.EventRead, s.stream(s.events)},
		{"POST /v1/stdio", principals, policy.ClientConnect, s.stream(s.stdio)},
		{"GET /install", principals, policy.ClientGuide,
			operation(s, hub.EdgeOp(policy.ClientGuide, guidanceList), noInput)},
		{"GET /install/{client}", principals, policy.ClientGuide,
			operation(s, hub.EdgeOp(policy.ClientGuide, s.guidance), wholeRequest)},
	}
}
