package api

import (
	"net/http"
	"sync"
	"time"

	"sandlot/internal/api/openapi"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// pathParameters describes the parameters of paths. The name after a slash is the parameter's; the one
// before it is the part of the path before it, for parameters that have the same name.
var pathParameters = map[string]openapi.Parameter{
	"sessions/id": {Description: "The session's id or name, or `home`; `new` for a fresh one.",
		Schema: openapi.Text("")},
	"connections/id": {Description: "The connection's id or name.", Schema: openapi.Text("")},
	"start/id":       {Description: "The id of the log-in, which is in its link.", Schema: openapi.Text("")},
	"console/path":   {Description: "The name of a file; empty: the page.", Schema: openapi.Text("")},
	"oidc/provider":  {Description: "The provider's id.", Schema: openapi.Text("")},
	"servers/name": {Description: "The entry's name, with its slash, such as `io.github.someone/weather`.",
		Schema: openapi.Text("")},
	"files/path": {Description: "An absolute path in the sandbox without its first slash, with slashes in it.",
		Schema: openapi.Text("")},
	"stat/path":    {Description: "As for the routes of files.", Schema: openapi.Text("")},
	"folders/path": {Description: "As for the routes of files.", Schema: openapi.Text("")},
	"processes/process": {Description: "The `process_id`, or the part of it after the dot.",
		Schema: openapi.Text("")},
	"terminals/terminal": {Description: "The terminal's id, as in the list.", Schema: openapi.Text("")},
	"ports/port":         {Description: "The number of the port.", Schema: openapi.Between(1, 65535)},
	"tools/name":         {Description: "The tool's name, as in MCP's `tools/list`.", Schema: openapi.Text("")},
	"secrets/name":       {Description: "The secret's name.", Schema: openapi.Text("^[A-Za-z_][A-Za-z0-9_]{0,63}$")},
	"questions/id":       {Description: "The id of the question, or of the stored answer.", Schema: openapi.Text("")},
	"tokens/id":          {Description: "The token's id, as in the list.", Schema: openapi.Text("")},
	"snapshots/name":     {Description: "The snapshot's name.", Schema: openapi.Text("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")},
	"templates/name":     {Description: "The template's name.", Schema: openapi.Text("")},
	"images/name": {Description: "The image's name, with its slashes and its tag, or its digest.",
		Schema: openapi.Text("")},
	"pulls/id":       {Description: "The pull's id, as in the list of images.", Schema: openapi.Text("")},
	"install/client": {Description: "The MCP client's name, as in the list.", Schema: openapi.Text("")},
}

// Lists of statuses of errors.
var (
	badRequest = []int{http.StatusBadRequest}
	missing    = []int{http.StatusNotFound}
	badOrGone  = []int{http.StatusBadRequest, http.StatusNotFound}
	pausing    = []int{http.StatusNotFound, http.StatusConflict}
	remote     = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusBadGateway}
	inSession  = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusConflict} // which may be paused
	changing   = append([]int{http.StatusPreconditionFailed}, inSession...)
	upload     = append([]int{http.StatusLengthRequired}, changing...)
)

// conditions are the headers by which a file is changed only if it is still what the client knows.
var conditions = []openapi.Parameter{
	openapi.RequestHeader("If-Match", "Change it only if it has one of these ETags, or for `*` exists; else 412.",
		openapi.Text(`^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$`)),
	openapi.RequestHeader("If-None-Match", "`*`: only if there is nothing yet; else 412.", openapi.OneOf("*"))}

// noContent is the answer of routes that answer with nothing.
var noContent = map[int]openapi.Answer{http.StatusNoContent: {Text: "It is done."}}

// answers returns the answers of a route with one: status 200 and a body of type T.
func answers[T any](text string, example any) map[int]openapi.Answer {
	return map[int]openapi.Answer{http.StatusOK: openapi.Answers[T](text, example)}
}

// upgraded is the answer of routes after which the connection no longer speaks HTTP.
func upgraded(to, text string) map[int]openapi.Answer {
	return map[int]openapi.Answer{http.StatusSwitchingProtocols: {
		Text: text + " The connection speaks `" + to + "` from now on.", Headers: []string{"Upgrade: " + to}}}
}

// upgradeHeaders are the headers with which a request asks for an upgrade.
func upgradeHeaders(to string) []openapi.Parameter {
	upgrade := openapi.RequestHeader("Upgrade", "The request has `Connection: Upgrade`, too.", openapi.OneOf(to))
	upgrade.Required = true
	return []openapi.Parameter{upgrade}
}

// notJSON is an answer that is not JSON.
func notJSON(text, kind string, headers ...string) openapi.Answer {
	return openapi.Answer{Text: text, Headers: headers,
		Body: &openapi.Body{Type: kind, Schema: &openapi.Schema{Schema: openapi.Text("")}}}
}

// jsonBody is the body of a request with the fields of T alone, of which some are required.
func jsonBody[T any](example any, required ...string) *openapi.Body {
	return &openapi.Body{Type: openapi.JSON, Schema: openapi.Input[T](required...), Example: example}
}

var (
	sessionExample = hub.Session{ID: "62l7d54sk2mbrglvt7ii5ftyzc", Template: "host", Flavor: "medium"}
	restoreExample = hub.Restore{ID: "k3v7qx2m", State: hub.RestorePending,
		Time:   time.Date(2026, 11, 24, 9, 30, 0, 0, time.UTC),
		Before: "/var/lib/sandlot/backups/before-restore-20261124T093000Z-k3v7qx2m.db"}
	exampleProvider = protocol.ConsoleProvider{ID: "login.example.com-mfrggzdfmztwq2lk", Issuer: "https://login.example.com"}
	exampleSecret   = map[string]any{"name": "SEARCH_KEY", "created": "2026-11-21T20:19:43.778Z",
		"changed": "2026-11-21T20:19:51.552Z", "readable": true, "used_by": []string{"search"}}
)

// descriptions describes every route, by its pattern. A test fails for a route that is not here. Most commands need none.
var descriptions = sync.OnceValue(func() map[string]openapi.Description {
	return map[string]openapi.Description{
		"GET /{$}": {Summary: "Health, with the names of the tools", ID: "health.read", Answers: map[int]openapi.Answer{
			http.StatusOK:                 openapi.Answers[protocol.Health]("The runtime works.", nil),
			http.StatusServiceUnavailable: openapi.Answers[protocol.Health]("The runtime does not work.", nil)}},
		"GET /healthz": {Summary: "Whether the server runs", ID: "health.read.alive",
			Answers: answers[protocol.Readiness]("The server runs.", protocol.Readiness{Status: "ok"})},
		"GET /readyz": {Summary: "Whether sandboxes can be created", ID: "health.read.ready",
			Answers: map[int]openapi.Answer{
				http.StatusOK: openapi.Answers[protocol.Readiness]("They can.", protocol.Readiness{Status: "ready"}),
				http.StatusServiceUnavailable: openapi.Answers[protocol.Readiness]("They cannot.",
					protocol.Readiness{Status: "not ready", Reason: "the runtime does not work; run `sandlot doctor`"})}},
		"GET /v1/openapi.json": {Summary: "The description of this API, an OpenAPI document",
			Text:    "The tools in it are Sandlot's own.",
			Answers: answers[map[string]any]("The OpenAPI document.", nil)},
		"GET " + resourceMetadata: {Summary: "Where users log in, for OAuth clients (RFC 9728)",
			Text: "For the API. Only with issuers of tokens in the settings.", ID: "client.discover", Errors: missing,
			Answers: answers[protectedResource]("The metadata.", nil)},
		"GET " + resourceMetadata + "/mcp": {Summary: "Where users of MCP log in, for OAuth clients (RFC 9728)",
			Text: "Only with issuers of tokens in the settings.", ID: "client.discover.mcp", Errors: missing,
			Answers: answers[protectedResource]("The metadata.", nil)},
		"GET /oauth/start/{id}": {Summary: "The page where a log-in at a third-party server begins",
			Text:       "For browsers. `go` is in the link of that page, and leads to the authorization server.",
			Parameters: []openapi.Parameter{openapi.Query("go", "The proof that the page was seen.", openapi.Text(""))},
			Answers: pages(map[int]string{http.StatusOK: "What the log-in is for.",
				http.StatusNotFound:  "No such log-in is in progress.",
				http.StatusForbidden: "The log-in began in another browser."}, http.StatusFound)},
		"GET /oauth/callback": {Summary: "The OAuth redirect address", Text: "For browsers.",
			Parameters: []openapi.Parameter{openapi.Query("state", "Identifies the log-in.", openapi.Text("")),
				openapi.Query("code", "The authorization server's code.", openapi.Text(""))},
			Answers: pages(map[int]string{http.StatusOK: "The log-in goes on.",
				http.StatusNotFound:  "No such log-in is in progress.",
				http.StatusForbidden: "The log-in began in another browser."})},
		"GET /metrics": {Summary: "Prometheus metrics; needs the role `metrics`",
			Answers: map[int]openapi.Answer{http.StatusOK: notJSON("The metrics of all users.", openapi.Plain)}},
		"GET /v1/sessions": {Summary: "List your sessions", Errors: badRequest,
			Parameters: append([]openapi.Parameter{openapi.Query("label", "Only sessions with this label: `KEY=VALUE`, or "+
				"`KEY` for any value. May be repeated.", openapi.List(openapi.Text("")))}, pageParameters...),
			Answers: answers[protocol.SessionPage]("The sessions, with what each uses.", nil)},
		"POST /v1/sessions": {Summary: "Create a session",
			Request: jsonBody[protocol.SessionRequest](protocol.SessionRequest{Flavor: "medium"}), Optional: true,
			Answers: map[int]openapi.Answer{http.StatusCreated: openapi.Answers[hub.Session]("It exists.",
				sessionExample)}},
		"GET /v1/sessions/{id}": {Summary: "Get one session", ID: "session.list.one", Errors: missing,
			Answers: answers[hub.SessionList]("A list with that session.", nil)},
		"PATCH /v1/sessions/{id}": {Summary: "Change the name, the labels or the end of a session", Errors: badOrGone,
			Text: "What is left out stays. `labels` are merged: null removes one.",
			Request: jsonBody[hub.SessionUpdate](map[string]any{"name": "build", "labels": map[string]any{"team": "web"},
				"ends_in": "2h", "on_end": "pause"}),
			Answers: answers[hub.SessionState]("The session as it is now.", nil)},
		"POST /v1/sessions/{id}/pause": {Summary: "Pause a session", Errors: pausing,
			Text: "It stands still with all that it has, and nothing wakes it before it is resumed. An operator may pause " +
				"anyone's session.", Answers: answers[hub.SessionState]("It is paused.", nil)},
		"POST /v1/sessions/{id}/resume": {Summary: "Resume a session that is paused", Errors: pausing,
			Text:    "It goes on at once. What an operator has paused, an operator alone resumes.",
			Answers: answers[hub.SessionState]("It can be used again.", nil)},
		"DELETE /v1/sessions/{id}": {Summary: "End a session", Answers: noContent, Errors: pausing},
		"DELETE /v1/sessions": {Summary: "End the sessions of all principals; needs the role `operator`",
			Answers: noContent},
		"GET /v1/sessions/{id}/files/{path...}": {Summary: "Read a file", Errors: inSession,
			Text: "`HEAD` is answered too. When a transfer fails, the connection is cut, so that a part is not mistaken " +
				"for the whole. `new` is answered with 404: no session is made for reading.",
			Parameters: []openapi.Parameter{openapi.RequestHeader("Range", "One range, `bytes=from-to`.",
				openapi.Text("")), openapi.RequestHeader("If-None-Match", "ETags: a file with one of them is not sent.",
				openapi.Text(""))},
			Answers: map[int]openapi.Answer{
				http.StatusNotModified: {Text: "It has one of the ETags of `If-None-Match`."},
				http.StatusOK: notJSON("The bytes of the file.", openapi.Bytes,
					"Content-Disposition: `attachment`, with the file's name", "ETag: another one after each change"),
				http.StatusPartialContent: notJSON("The bytes of the range.", openapi.Bytes,
					"Content-Range: which bytes of how many")}},
		"PUT /v1/sessions/{id}/files/{path...}": {Summary: "Write a file", Errors: upload,
			Text: "Replaces the file at once when all bytes have come, and creates missing " +
				"parent folders. The `Content-Type` does not matter. A `Content-Length` is required.",
			Request: &openapi.Body{Type: openapi.Bytes}, Optional: true, Parameters: conditions,
			Answers: map[int]openapi.Answer{http.StatusCreated: openapi.Answers[protocol.Uploaded](
				"It is written. The header `ETag` has its new one.",
				protocol.Uploaded{Path: "/workspace/in/hello.txt", Size: 6})}},
		"DELETE /v1/sessions/{id}/files/{path...}": {Summary: "Remove a file or an empty folder", Errors: changing,
			Parameters: append([]openapi.Parameter{openapi.Query("recursive", "Remove a folder with everything in it.",
				openapi.OneOf("true", "false"))}, conditions...), Answers: noContent},
		"GET /v1/sessions/{id}/stat/{path...}": {Summary: "What is at a path, without reading it", ID: "file.list.stat",
			Errors: inSession, Text: "A symbolic link is not followed, but for its ETag, which is the one of its target.",
			Answers: answers[hub.FileState]("What is there.", nil)},
		"GET /v1/sessions/{id}/folders/{path...}": {Summary: "List a folder", Errors: inSession,
			Text:    "At most 2,000 entries. The channel `files` of `GET /v1/live` tells what changes.",
			Answers: answers[hub.FolderRows]("The entries, by their names.", nil)},
		"POST /v1/sessions/{id}/folders/{path...}": {Summary: "Make a folder", ID: "file.write.folder", Errors: changing,
			Text: "Missing folders above it are made. 412: there is something already.", Answers: noContent},
		"POST /v1/sessions/{id}/move": {Summary: "Move or rename a file or folder", ID: "file.write.move",
			Errors: changing, Parameters: conditions,
			Text: "Needs `file.read` and `file.remove` for the old path, too. `If-Match` is about the file that is moved, " +
				"`If-None-Match` about the new path. 412: there is something already.",
			Request: jsonBody[moveRequest](moveRequest{From: "/workspace/a.txt", To: "/workspace/b/a.txt"}, "from", "to"),
			Answers: noContent},
		"GET /v1/sessions/{id}/results": {Summary: "The last results of code and commands in a session", Errors: badOrGone,
			Text: "At most 20, and 8 MB of them, in memory alone: they go with the server, and when the session is ended. It wakes no session.",
			Parameters: []openapi.Parameter{openapi.Query("after", "Only results after the one with this id.",
				openapi.Text("^[0-9]{1,18}$"))},
			Answers: answers[hub.SessionResults]("The results, the oldest first.", nil)},
		"POST /v1/sessions/{id}/exec": {Summary: "Run an interactive process", ID: "shell.execute", Errors: inSession,
			Text: "The connection is upgraded; docs/guide/api.md describes the frames.",
			Parameters: append(upgradeHeaders(protocol.UpgradeExec),
				openapi.Query("template", "The template of a session that is created.", openapi.Text("")),
				openapi.Query("flavor", "The flavor of a session that is created.", openapi.Text(""))),
			Answers: upgraded(protocol.UpgradeExec, "The client sends the command.")},
		"GET /v1/sessions/{id}/processes": {Summary: "List the processes of a session", Errors: inSession,
			Text:    "A session that sleeps wakes for it.",
			Answers: answers[map[string]any]("The processes, as of `list_processes`.", nil)},
		"GET /v1/sessions/{id}/processes/{process}/output": {Summary: "The output of a process, as it comes",
			ID: "process.read.output", Errors: badOrGone,
			Text: "The answer ends when the process has ended. It wakes no session, and keeps none awake: of one that " +
				"sleeps, it goes on when the session wakes. When it is cut, ask again with `cursor`. The server keeps the " +
				"last part of the output of a process; where it leaves bytes out, it cuts the answer, and the next one begins " +
				"later. The channel `process` of `GET /v1/live` has the same.",
			Parameters: []openapi.Parameter{openapi.Query("cursor", "From which byte of the output on.",
				openapi.Text("^[0-9]{1,18}$"))},
			Answers: map[int]openapi.Answer{http.StatusOK: notJSON("The bytes.", openapi.Bytes,
				outputBegins+": which byte of the output is the first one", exitCode+": as a trailer, if it ended by itself")}},
		"POST /v1/sessions/{id}/processes/{process}/input": {Summary: "Write to the standard input of a process",
			ID: "process.write", Errors: inSession,
			Request: jsonBody[processInputRequest](processInputRequest{Data: "yes\n"}),
			Answers: answers[map[string]any]("How much was written, as of `write_process`.", nil)},
		"POST /v1/sessions/{id}/processes/{process}/signal": {Summary: "Send a signal to a process, or end it",
			ID: "process.stop", Errors: inSession, Optional: true,
			Request: jsonBody[processSignalRequest](processSignalRequest{Signal: "INT"}),
			Answers: answers[map[string]any]("Whether it runs still, as of `stop_process`.", nil)},
		"GET /v1/sessions/{id}/ports": {Summary: "The ports of a session: those with a link, and those on which a program " +
			"listens", ID: "process.list.ports", Errors: missing, Text: "It wakes no session.",
			Answers: answers[hub.PortRows]("The ports.", nil)},
		"GET /v1/sessions/{id}/terminals": {Summary: "List the terminals of a session", ID: "process.list.terminals",
			Errors: missing,
			Text: "It does not wake the session: of one that sleeps, those are listed that this server has seen. `GET " +
				"/v1/live` opens them.",
			Answers: answers[hub.TerminalList]("The terminals, the oldest first.", nil)},
		"DELETE /v1/sessions/{id}/terminals/{terminal}": {Summary: "End a terminal", ID: "process.stop.terminal",
			Text:   "Its program gets SIGHUP and, two seconds later, SIGKILL. A session that sleeps wakes for it.",
			Errors: inSession, Answers: noContent},
		"POST /v1/sessions/{id}/ports/{port}": {Summary: "Connect to a port of a session", Errors: inSession,
			Parameters: upgradeHeaders(protocol.UpgradeDial),
			Answers:    upgraded(protocol.UpgradeDial, "Bytes go both ways, and each direction is closed separately.")},
		"POST /v1/sessions/{id}/fork": {Summary: "Make live copies of a session", Errors: badOrGone, Optional: true,
			Request: jsonBody[forkRequest](forkRequest{Count: 3}),
			Answers: answers[hub.Forked]("The copies live.", nil)},
		"POST /v1/sessions/{id}/snapshots": {Summary: "Keep the state of a session", Errors: badOrGone, Optional: true,
			Request: jsonBody[snapshotRequest](snapshotRequest{Name: "good"}),
			Answers: answers[hub.SnapshotRow]("The snapshot.", nil)},
		"GET /v1/snapshots": {Summary: "List your snapshots", Text: "There are at most 20.",
			Answers: answers[hub.SnapshotList]("The snapshots, the oldest first.", nil)},
		"POST /v1/snapshots/{name}/restore": {Summary: "Restore a snapshot into a session", Errors: badOrGone,
			Optional: true, Request: jsonBody[restoreRequest](restoreRequest{Session: "new"}),
			Answers: answers[hub.SnapshotRestored]("The session that has it now.", nil)},
		"DELETE /v1/snapshots/{name}": {Summary: "Remove a snapshot", Errors: badOrGone, Answers: noContent},
		"GET /v1/sessions/{id}/network": {Summary: "What a session may reach, and what it did", Errors: missing,
			Answers: answers[hub.SessionNetwork]("The session's network.", nil)},
		"PATCH /v1/sessions/{id}/network": {Summary: "Change what a session may reach; needs the role `operator`",
			Errors:  badOrGone,
			Request: jsonBody[hub.NetworkChange](map[string]any{"allow": []string{"api.example.com:443"}}),
			Answers: answers[hub.SessionNetwork]("The session's network as it is now.", nil)},
		"GET /v1/network": {Summary: "The network settings of all sessions; needs the role `operator`",
			Answers: answers[hub.NetworkState]("The settings and the usage.", nil)},
		"GET /v1/quota": {Summary: "How much you may have, and use", Errors: badOrGone,
			Text: "`used` is left out where it is not counted, as the disk is without a limit, and `limit` where there " +
				"is none. Calls are counted where they have a limit.",
			Parameters: []openapi.Parameter{openapi.Query("principal",
				"The quotas of that user, by name or id; for operators.", openapi.Text(""))},
			Answers: answers[hub.Quotas]("The quotas, by their names in the settings.", nil)},
		"POST /v1/tools/{name}": {Summary: "Call a tool", ID: "mcp.call", Errors: remote,
			Text: "The tools of Sandlot itself have paths of their own in this document; here is the call of any other. " +
				"Each has the operation of what it does.",
			Request: jsonBody[map[string]any](map[string]any{"code": "6*7"}),
			Answers: map[int]openapi.Answer{http.StatusOK: toolAnswer(tool.Tool{})}},
		"GET /v1/connections": {Summary: "List your third-party MCP servers", Parameters: pageParameters,
			Errors: badRequest, Answers: answers[protocol.ServerPage]("The connections.", nil)},
		"GET /v1/connections/{id}": {Summary: "Get one with everything that it offers", Errors: missing,
			Answers: answers[hub.Server]("The connection.", nil)},
		"GET /v1/prompts": {Summary: "List the prompts of all of your third-party MCP servers", Parameters: pageParameters,
			Text:   "`POST /v1/connections/{id}/prompt` gets one, by its `connectionId` and `remoteName`.",
			Errors: badRequest, Answers: answers[protocol.PromptPage]("The prompts.", nil)},
		"POST /v1/connections/{id}/approve": {Summary: "Approve the tools of a connection", Errors: missing,
			Text: "`tools` are the hashes that the person saw, by the server's own names of the tools. Without a body " +
				"all present tools are approved.", Request: jsonBody[hub.Approval](map[string]any{
				"tools": map[string]string{"hello": "37ff7a745db2604e4d5b35586cf863ec"}}), Optional: true,
			Answers: answers[protocol.Approved]("What is approved, and what is still held back.", protocol.Approved{
				ConnectionID: "ht6e5u", Name: "hello", ToolCount: 1, State: "connected",
				HeldTools: []protocol.HeldTool{}})},
		"POST /v1/connections/{id}/prompt": {Summary: "Get a prompt of a connection", Errors: remote,
			Request: jsonBody[hub.PromptRequest](map[string]any{"name": "greet",
				"arguments": map[string]string{"to": "Ann"}}, "name"),
			Answers: answers[map[string]any]("The MCP result.", nil)},
		"POST /v1/connections/{id}/read": {Summary: "Read a resource of a connection", Errors: remote,
			Request: jsonBody[hub.ResourceRequest](map[string]any{"uri": "file:///notes.txt"}, "uri"),
			Answers: answers[map[string]any]("The MCP result.", nil)},
		"GET /v1/registry/servers": {Summary: "Search for MCP servers in registries", Errors: remote,
			Text: "The registries of the setting `mcp_registries`. All texts of an entry are its publisher's.",
			Parameters: []openapi.Parameter{
				openapi.Query("search", "Words that are in the name, title or description.", openapi.Text("")),
				openapi.Query("registry", "The name of a registry; else all.", openapi.Text("")),
				openapi.Query("limit", "How many; 20 without it.", openapi.Between(1, hub.MaxRegistryResults))},
			Answers: answers[hub.RegistryFound]("The best matches, and what was searched.", nil)},
		"GET /v1/registry/servers/{name...}": {Summary: "Get an entry of a registry, with what it needs", Errors: remote,
			Parameters: []openapi.Parameter{
				openapi.Query("version", "A version; else the latest.", openapi.Text("")),
				openapi.Query("registry", "The name of a registry; needed where several have the name.", openapi.Text(""))},
			Answers: answers[hub.RegistryEntry]("The entry.", nil)},
		"POST /v1/registry/plan": {Summary: "Get the tool call that adds a server of a registry", Errors: remote,
			Text: "Nothing is added yet: call the tool with the arguments. The value of a secret is a reference, " +
				"`${secret:NAME}`.",
			Request: jsonBody[hub.RegistryChoice](map[string]any{"name": "io.github.someone/weather", "version": "1.2.0",
				"values": map[string]string{"env:API_KEY": "${secret:WEATHER_API_KEY}"}}, "name"),
			Answers: answers[hub.RegistryPlan]("The tool, and its arguments.", nil)},
		"GET /console/{path...}": {Summary: "The web console", Errors: missing,
			Text:    "For browsers. The page is at `/console/`; the setting `console.enabled` turns it off.",
			Answers: map[int]openapi.Answer{http.StatusOK: notJSON("The page, or a file that it loads.", openapi.HTML)}},
		"GET /console/providers": {Summary: "List the OIDC providers at which a browser can log in",
			ID: "console.read.providers",
			Answers: answers[protocol.ConsoleProviders]("The providers.", protocol.ConsoleProviders{
				Providers: []protocol.ConsoleProvider{exampleProvider}})},
		"POST /console/begin": {Summary: "Begin a browser's log-in at an OIDC provider",
			Text: "For the console's page, with the header `Sandlot-Console: 1`. The answer sets a cookie, which counts for ten " +
				"minutes, and has the address at the provider. The provider sends the browser back to " +
				"`/console/oidc/{provider}`.",
			Errors: []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
				http.StatusServiceUnavailable},
			Request: jsonBody[protocol.ConsoleAttempt](protocol.ConsoleAttempt{Provider: exampleProvider.ID}, "provider"),
			Answers: answers[protocol.ConsoleBegun]("Where it goes on.", protocol.ConsoleBegun{
				URL: "https://login.example.com/authorize?response_type=code&client_id=sandlot", Key: "m3x7c2q5v4k6t2n5b7d3h4r6ya"})},
		"GET /console/oidc/{provider}": {Summary: "The address to which an OIDC provider sends a browser back",
			ID:   "console.read.callback",
			Text: "It leads to the console's page, which makes the log-in of the response.",
			Parameters: []openapi.Parameter{openapi.Query("state", "Identifies the log-in.", openapi.Text("")),
				openapi.Query("code", "The provider's code.", openapi.Text("")),
				openapi.Query("iss", "The issuer.", openapi.Text("")),
				openapi.Query("error", "Why there is no code.", openapi.Text(""))},
			Answers: map[int]openapi.Answer{http.StatusFound: {Text: "To the console, with the response in the fragment.",
				Headers: []string{"Location"}}}},
		"POST /console/login": {Summary: "Log a browser in at the web console",
			Text: "For the console's page, with the header `Sandlot-Console: 1`. The body has the code of a link, which " +
				"counts once, a token, or the response of an OIDC provider. The answer sets a cookie, which counts for requests of that page alone: with the " +
				"answer's key as the value of that header or, of a WebSocket, with the subprotocols `sandlot.live` and " +
				"`sandlot.key.KEY`. Log-ins whose cookies the request has end.",
			Errors:  []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests},
			Request: jsonBody[protocol.ConsoleLogin](protocol.ConsoleLogin{Code: "xkbd2wq7q3r5ydn4tq2v6hlgze"}),
			Answers: answers[protocol.ConsoleKey]("The key of the log-in.", protocol.ConsoleKey{
				Key: "m3x7c2q5v4k6t2n5b7d3h4r6ya"})},
		"POST /console/logout": {Summary: "End the log-in of the browser that asks", Errors: badRequest,
			Answers: answers[protocol.ConsoleEnded]("It has ended.", protocol.ConsoleEnded{})},
		"POST /v1/console/codes": {Summary: "Make a link with which a browser logs in at the web console",
			Text: "As who asks. It counts once, and for a minute.",
			Answers: answers[protocol.ConsoleLink]("The link.", protocol.ConsoleLink{
				URL:     "http://console.localhost:8000/console/#code=xkbd2wq7q3r5ydn4tq2v6hlgze",
				Expires: time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC)})},
		"GET /v1/principal": {Summary: "Who you are to this server",
			Answers: answers[protocol.Principal]("The principal of the request.", protocol.Principal{Principal: "user:ann",
				Name: "ann", Roles: []auth.Role{}, Version: "v1.2.3"})},
		"GET /v1/secrets": {Summary: "List your stored secrets, without their values", Parameters: pageParameters,
			Errors:  badRequest,
			Answers: answers[protocol.SecretList]("The secrets.", map[string]any{"secrets": []any{exampleSecret}})},
		"PUT /v1/secrets/{name}": {Summary: "Store a secret", Request: &openapi.Body{Type: openapi.Bytes,
			Schema: &openapi.Schema{Schema: openapi.Length(1, hub.MaxSecret)}},
			Text: "The body is the value, byte for byte: 1 byte to 64 KiB of text (UTF-8), without NUL. With `host` the " +
				"secret is bound: no sandbox has its value, and it goes into requests to these hosts alone.",
			Parameters: []openapi.Parameter{
				openapi.Query("host", "A host that the secret is bound to, `name` or `name:port`. May be repeated.",
					openapi.List(openapi.Text(""))),
				openapi.Query("header", "The one header in which the placeholder of a bound secret is replaced.",
					openapi.Text("")),
				openapi.Query("basic", "`true`: the value of a bound secret is `user:password`.", openapi.Text(""))},
			Answers: answers[hub.Secret]("It is stored.", exampleSecret)},
		"DELETE /v1/secrets/{name}": {Summary: "Delete a secret", Errors: badOrGone,
			Answers: answers[protocol.SecretRemoved]("It is deleted.",
				protocol.SecretRemoved{Name: "SEARCH_KEY", UsedBy: []string{"search"}})},
		"GET /v1/questions": {Summary: "List the questions that wait for an answer, and the stored answers",
			Text: "The principal's own; an operator gets everybody's. Pages have first the questions, then the " +
				"answers.", Parameters: pageParameters, Errors: badRequest,
			Answers: answers[protocol.QuestionPage]("The questions and answers.", nil)},
		"POST /v1/questions/{id}": {Summary: "Answer a question", Errors: badOrGone,
			Request: jsonBody[hub.QuestionAnswer](map[string]any{"answer": "yes", "for": "session"}, "answer"),
			Answers: noContent},
		"DELETE /v1/questions/{id}": {Summary: "Remove a stored answer: the rule asks again", Errors: badOrGone,
			Answers: noContent},
		"GET /v1/tokens": {Summary: "List your tokens, without their values",
			Parameters: []openapi.Parameter{openapi.Query("principal", "List another user's; for operators.",
				openapi.Text(""))}, Errors: missing,
			Answers: answers[hub.TokenList]("The tokens.", nil)},
		"POST /v1/tokens": {Summary: "Make a token that allows at most what yours allows", Errors: badOrGone,
			Text:    "The answer has its value, this once. A token that ends makes none that ends later.",
			Request: jsonBody[hub.NewToken](map[string]any{"scope": []string{"file.*"}, "expires_in": "12h"}), Optional: true,
			Answers: map[int]openapi.Answer{http.StatusCreated: openapi.Answers[hub.MadeToken]("It is made.", nil)}},
		"DELETE /v1/tokens/{id}": {Summary: "Revoke a token",
			Text:   "The tokens that its user has made with it end, too. Only operators revoke the server's last token.",
			Errors: missing, Answers: noContent},
		"GET /v1/usage": {Summary: "What you have used, by days and sessions", Errors: badOrGone,
			Text: "The newest day first, today included. Days end at midnight in UTC, and are stored for 90 days.",
			Parameters: []openapi.Parameter{openapi.Query("days", "For how many days; 30 if it is missing.",
				openapi.Between(1, hub.MaxUsageDays)),
				openapi.Query("principal", "Another user's usage; for operators.", openapi.Text(""))},
			Answers: answers[hub.Usage]("The usage.", nil)},
		"GET /v1/usage/all": {Summary: "What all users have used, by days; needs the role `operator`", Errors: badRequest,
			Text: "What users of a service have used is counted as the service's.",
			Parameters: []openapi.Parameter{openapi.Query("days", "For how many days; 30 if it is missing.",
				openapi.Between(1, hub.MaxUsageDays))},
			Answers: answers[hub.Usage]("The usage.", nil)},
		"GET /v1/users": {Summary: "List the users who have tokens or sessions; needs the role `operator`",
			Answers: answers[hub.UserList]("The users, with their tokens.", nil)},
		"GET /v1/policy": {Summary: "List the rules that are about you",
			Text: "In their order: the first one that matches decides.",
			Parameters: []openapi.Parameter{openapi.Query("principal", "List the rules about another user; for operators.",
				openapi.Text(""))}, Errors: missing,
			Answers: answers[hub.RuleList]("The rules.", nil)},
		"POST /v1/policy/check": {Summary: "Say what would happen, and do nothing", Errors: badOrGone,
			Text: "The rules in effect decide as they do when it is done; for `network.reach`, then the settings of the " +
				"network. Names of hosts are not looked up.",
			Request: jsonBody[hub.PolicyCheck](map[string]any{"operation": "network.reach",
				"detail": "api.github.com:443"}, "operation"),
			Answers: answers[hub.PolicyVerdict]("What would happen.", nil)},
		"GET " + templatesPath: {Summary: "List the templates", Parameters: pageParameters, Errors: badRequest,
			Answers: answers[protocol.TemplateList]("The templates.", nil)},
		"POST /v1/templates/{name}/build": {Summary: "Build a template; needs the role `operator`", Errors: badOrGone,
			Answers: map[int]openapi.Answer{http.StatusAccepted: openapi.Answers[protocol.TemplateRequested](
				"It is going to be built; the list shows how far it is.", nil)}},
		"GET /v1/images": {Summary: "List the images of the server's store; needs the role `operator`",
			Text: "And the pulls that run, with their progress, and the last ones that have ended. The channel `images` of " +
				"`GET /v1/live` tells what changes. Images of a Docker daemon are not in it.",
			Answers: answers[hub.ImageList]("The images and the pulls.", nil)},
		"POST /v1/images": {Summary: "Get an image from its registry; needs the role `operator`",
			Text: "With the server's credentials for that registry. Two at once; one of an image that is being pulled already " +
				"is that pull.",
			Errors:  []int{http.StatusBadRequest, http.StatusNotFound, http.StatusTooManyRequests},
			Request: jsonBody[hub.ImageRequest](hub.ImageRequest{Image: "python:3.12-slim"}, "image"),
			Answers: map[int]openapi.Answer{http.StatusAccepted: openapi.Answers[protocol.PullBegun](
				"It is being pulled; the list shows how far that is.", nil)}},
		"DELETE /v1/images/{name...}": {Summary: "Remove an image that no template uses; needs the role `operator`",
			Text:   "By its digest, all its names. Layers that other images have stay.",
			Errors: badOrGone, Answers: answers[hub.ImageRemoved]("It is removed.", nil)},
		"DELETE /v1/pulls/{id}": {Summary: "End a pull; needs the role `operator`", ID: "image.pull.end",
			Text:   "What has come is kept for the next one.",
			Errors: missing, Answers: noContent},
		"GET /v1/doctor": {Summary: "What the last checks of the server's machine have found; needs the role `operator`",
			Text: "Also of checks that run at the moment.", Errors: missing,
			Answers: answers[hub.DoctorReport]("The report.", nil)},
		"POST /v1/doctor": {Summary: "Check the server's machine; needs the role `operator`",
			Text: "As `sandlot doctor` does, with the settings of the server's file and start: a sandbox boots beside those " +
				"that run. It takes seconds, and three minutes at most. Who asks meanwhile gets the same report.", Errors: missing,
			Answers: answers[hub.DoctorReport]("The report.", nil)},
		"GET /v1/database": {Summary: "Which backup was restored last; needs the role `operator`",
			Answers: answers[hub.Database]("The last restore.", nil)},
		"GET /v1/backups": {Summary: "List the backups in the state folder; needs the role `operator`",
			ID: "database.read.backups", Answers: answers[hub.BackupList]("The backups.", nil)},
		"POST /v1/backups": {Summary: "Make a backup in the state folder; needs the role `operator`",
			Text:    "As `sandlot backup` does: the files of workspaces, and the keys, are not in it. There may be 50.",
			Answers: map[int]openapi.Answer{http.StatusCreated: openapi.Answers[hub.Backup]("It is made.", nil)}},
		"PUT /v1/database": {Summary: "Restore a backup; needs the role `operator`",
			Errors: []int{http.StatusBadRequest, http.StatusLengthRequired},
			Text: "The body is a file that `sandlot backup` has written, with a `Content-Length`. It is checked whole " +
				"first: a bad one changes nothing. Then the server restarts within its process, which takes seconds, and " +
				"has the content of the backup. `GET /v1/database` says how that ended.",
			Request: &openapi.Body{Type: openapi.Bytes},
			Answers: map[int]openapi.Answer{http.StatusAccepted: openapi.Answers[hub.Restore](
				"The backup is good and on the server's disk. The server restarts.", restoreExample)}},
		"GET /v1/events": {Summary: "The event stream", Errors: badRequest,
			Text: "Server-sent events. The type of each is its kind, and its data is an object (`Event`). An event of " +
				"the type `lost` says how many are missing. The stream does not end by itself, unless `follow` is `false`.",
			Parameters: []openapi.Parameter{openapi.Query("session", "Events of that session alone.", openapi.Text("")),
				openapi.Query("kind", "Events of these kinds alone, separated by commas.", kindList()),
				openapi.Query("principal", "Events of that principal alone; for operators.", openapi.Text("")),
				openapi.Query("since", "Events since a time (RFC 3339), or in the last `90s`, `30m`, `12h` or `7d`.",
					openapi.Text("")),
				openapi.Query("limit", "At most so many past events, the newest.", openapi.Between(1, maxEventLimit)),
				openapi.Query("follow", "`false`: end after the events that there are.", openapi.OneOf("true", "false")),
				openapi.RequestHeader("Last-Event-ID", "Continue after this event.", openapi.Text(""))},
			Answers: map[int]openapi.Answer{http.StatusOK: notJSON("The events.", openapi.Events)}},
		"GET /v1/live": {Summary: "The live channel: events, files, processes, questions, sessions, servers, their logs and " +
			"terminals, pushed",
			ID: "client.connect.live", Errors: badRequest,
			Text: "A WebSocket for each client, with numbered channels; docs/guide/api.md describes the messages. Each " +
				"channel has the operation of the route that answers once.",
			Parameters: upgradeHeaders("websocket"),
			Answers: map[int]openapi.Answer{http.StatusSwitchingProtocols: {
				Text: "The connection is a WebSocket from now on.", Headers: []string{"Upgrade: websocket"}}}},
		"POST /v1/stdio": {Summary: "MCP's stdio transport over the connection", ID: "client.connect",
			Errors: badRequest, Parameters: append(upgradeHeaders(protocol.UpgradeMCP), openapi.Query("tools",
				"What the client is shown of third-party tools.", openapi.OneOf(toolview.Modes...)), openapi.Query("results",
				"In which form results come: see docs/guide/clients.md.", openapi.OneOf(toolview.Forms...))),
			Answers: upgraded(protocol.UpgradeMCP, "One JSON message in each line.")},
		"GET /install": {Summary: "The known MCP clients", Answers: answers[protocol.GuidanceList]("The clients.", nil)},
		"GET /install/{client}": {Summary: "How to configure an MCP client for this server", ID: "client.guide.one",
			Errors: badOrGone,
			Parameters: []openapi.Parameter{
				openapi.Query("url", "The address of this server for the client.", openapi.Text("")),
				openapi.Query("name", "The name of this server in the client.",
					openapi.Text("^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$"))},
			Answers: answers[protocol.Guidance]("The file, and what goes into it.", nil)},
	}
})

// pages returns answers that are pages for browsers.
func pages(texts map[int]string, redirects ...int) map[int]openapi.Answer {
	all := map[int]openapi.Answer{}
	for status, text := range texts {
		all[status] = notJSON(text, openapi.HTML)
	}
	for _, status := range redirects {
		all[status] = openapi.Answer{Text: "To the authorization server.", Headers: []string{"Location: its page"}}
	}
	return all
}

// kindList is the schema of a list of kinds of events, separated by commas.
func kindList() *openapi.JSONSchema {
	one := ""
	for i, k := range event.Kinds {
		if i > 0 {
			one += "|"
		}
		one += string(k)
	}
	return openapi.Text("^(" + one + ")(,(" + one + "))*$")
}
