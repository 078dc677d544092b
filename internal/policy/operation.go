package policy

import (
	"slices"

	"sandlot/internal/auth"
)

// Operation is the name of one act that a client can request: a noun and a verb.
type Operation string

// The operations. One act has one name, whichever tool, route or MCP method requests it.
const (
	ClientConnect  Operation = "client.connect"   // open an MCP session
	ClientSetLevel Operation = "client.set_level" // the log level of notifications
	ClientGuide    Operation = "client.guide"     // how to configure an MCP client for this server
	ClientDiscover Operation = "client.discover"  // where a client's user logs in

	ToolList           Operation = "tool.list"
	ToolFind           Operation = "tool.find" // a call of an unknown tool: nothing runs
	PromptList         Operation = "prompt.list"
	PromptGet          Operation = "prompt.get"
	ResourceList       Operation = "resource.list"
	ResourceRead       Operation = "resource.read"
	ResourceSubscribe  Operation = "resource.subscribe"
	CompletionComplete Operation = "completion.complete"

	CodeExecute  Operation = "code.execute"
	ShellExecute Operation = "shell.execute"
	// CodeBackground is a call of a third-party server's tool by a program that runs in the background of a session.
	CodeBackground Operation = "code.background"

	FileRead   Operation = "file.read"
	FileWrite  Operation = "file.write"
	FileList   Operation = "file.list"
	FileRemove Operation = "file.remove"

	ResultRead Operation = "result.read" // the last results of code and commands in a session

	ProcessList  Operation = "process.list"
	ProcessRead  Operation = "process.read"
	ProcessWrite Operation = "process.write"
	ProcessStop  Operation = "process.stop"

	PortExpose Operation = "port.expose"
	PortClose  Operation = "port.close"
	PortDial   Operation = "port.dial"  // by the session's owner
	PortVisit  Operation = "port.visit" // by the bearer of a link

	SessionList    Operation = "session.list"
	SessionCreate  Operation = "session.create"
	SessionStop    Operation = "session.stop"
	SessionChange  Operation = "session.change" // its name, its labels, its end
	SessionPause   Operation = "session.pause"
	SessionResume  Operation = "session.resume"
	SessionStopAll Operation = "session.stop_all" // of all principals

	SessionFork Operation = "session.fork" // copies are created, too

	SnapshotCreate  Operation = "snapshot.create"
	SnapshotList    Operation = "snapshot.list"
	SnapshotRestore Operation = "snapshot.restore"
	SnapshotRemove  Operation = "snapshot.remove"

	VolumeList Operation = "volume.list"

	MCPConnect    Operation = "mcp.connect"
	MCPInstall    Operation = "mcp.install"
	MCPList       Operation = "mcp.list"
	MCPInspect    Operation = "mcp.inspect"
	MCPApprove    Operation = "mcp.approve"
	MCPRestart    Operation = "mcp.restart"
	MCPDisconnect Operation = "mcp.disconnect"
	MCPLogs       Operation = "mcp.logs"
	MCPCall       Operation = "mcp.call" // a tool of a third-party server

	RegistrySearch Operation = "registry.search" // find third-party servers in MCP registries
	RegistryRead   Operation = "registry.read"   // one entry of a registry, and what it needs
	RegistryPlan   Operation = "registry.plan"   // the call that adds it, with the user's values

	LoginBegin  Operation = "login.begin"  // open the link of a log-in, and continue to the authorization server
	LoginFinish Operation = "login.finish" // the OAuth redirect

	ConsoleRead   Operation = "console.read"   // the files of the web console
	ConsoleLink   Operation = "console.link"   // a one-time link, with which a browser logs in
	ConsoleBegin  Operation = "console.begin"  // begin a browser's log-in at an OIDC provider
	ConsoleLogin  Operation = "console.login"  // log a browser in: with such a link, a token, or at a provider
	ConsoleLogout Operation = "console.logout" // end the log-in of a browser

	PrincipalRead Operation = "principal.read" // who asks, and with which roles

	SecretList   Operation = "secret.list"
	SecretSet    Operation = "secret.set"
	SecretRemove Operation = "secret.remove"
	SecretUse    Operation = "secret.use" // by a reference in a variable of a command

	NetworkRead    Operation = "network.read"     // of one session
	NetworkReadAll Operation = "network.read_all" // the settings, which apply to all sessions
	NetworkChange  Operation = "network.change"
	NetworkReach   Operation = "network.reach" // by a program in a sandbox

	TokenList   Operation = "token.list"
	TokenCreate Operation = "token.create"
	TokenRevoke Operation = "token.revoke"

	UserList Operation = "user.list" // all users, with their tokens and what they have

	PolicyRead  Operation = "policy.read"  // the rules that are about a principal
	PolicyCheck Operation = "policy.check" // what the rules decide about an operation

	UsageRead    Operation = "usage.read"     // what a principal has used on past days
	UsageReadAll Operation = "usage.read_all" // what all have

	QuotaRead Operation = "quota.read" // what a principal may have, and uses

	QuestionList   Operation = "question.list"
	QuestionAnswer Operation = "question.answer"
	QuestionForget Operation = "question.forget" // a stored answer

	TemplateList  Operation = "template.list"
	TemplateBuild Operation = "template.build"

	ImageList   Operation = "image.list"   // the images of the server's store, and the pulls
	ImagePull   Operation = "image.pull"   // get one from its registry, or end that
	ImageRemove Operation = "image.remove" // one that no template uses

	DoctorRead Operation = "doctor.read" // what the last checks of the server's machine have found
	DoctorRun  Operation = "doctor.run"  // check it; for that a sandbox boots

	DatabaseRead    Operation = "database.read"    // which backup was restored last
	DatabaseBackup  Operation = "database.backup"  // write all that is stored to a file on the server
	DatabaseRestore Operation = "database.restore" // replace all that is stored by a backup

	EventRead   Operation = "event.read"
	MetricsRead Operation = "metrics.read"
	HealthRead  Operation = "health.read"
	APIDescribe Operation = "api.describe" // the description of the HTTP API
)

// rule is one row of the table.
type rule struct {
	changes bool
	// role is the role that a principal needs; empty: none. what completes the error
	// text "you may not …".
	role      auth.Role
	deniedAct string
	// operatorsMayForOthers: operators may do it with resources of other principals.
	operatorsMayForOthers bool
	// anyone: no principal is needed; the token of a link or the state of a log-in is
	// checked in its place, or the act is public.
	anyone bool
}

// reads and changes are the rules of acts that every principal may do with their own
// resources.
var reads, changes = rule{}, rule{changes: true}

var table = map[Operation]rule{
	ClientConnect: reads, ClientSetLevel: changes, ClientGuide: reads, ClientDiscover: {anyone: true},
	ToolList: reads, ToolFind: reads, PromptList: reads, PromptGet: reads,
	ResourceList: reads, ResourceRead: reads, ResourceSubscribe: changes, CompletionComplete: reads,
	CodeExecute: changes, ShellExecute: changes, CodeBackground: changes,
	FileRead: reads, FileWrite: changes, FileList: reads, FileRemove: changes,
	ResultRead:  reads,
	ProcessList: reads, ProcessRead: reads, ProcessWrite: changes, ProcessStop: changes,
	PortExpose: changes, PortClose: changes, PortDial: changes, PortVisit: {anyone: true, changes: true},
	SessionList: reads, SessionCreate: changes, SessionStop: changes,
	SessionStopAll: {role: auth.Operator, deniedAct: "end the sessions of all users", changes: true},
	SessionChange:  changes,
	SessionPause:   {changes: true, operatorsMayForOthers: true},
	SessionResume:  {changes: true, operatorsMayForOthers: true},
	SessionFork:    changes,
	SnapshotCreate: changes, SnapshotList: reads, SnapshotRestore: changes, SnapshotRemove: changes,
	VolumeList: reads,
	MCPConnect: changes, MCPInstall: changes, MCPList: reads, MCPInspect: reads, MCPApprove: changes,
	MCPRestart: changes, MCPDisconnect: changes, MCPLogs: reads, MCPCall: changes,
	RegistrySearch: reads, RegistryRead: reads, RegistryPlan: reads,
	LoginBegin: {anyone: true, changes: true}, LoginFinish: {anyone: true, changes: true},
	ConsoleRead: {anyone: true}, ConsoleBegin: {anyone: true, changes: true}, ConsoleLink: changes,
	ConsoleLogin: changes, ConsoleLogout: changes,
	PrincipalRead: reads,
	SecretList:    reads, SecretSet: changes, SecretRemove: changes, SecretUse: reads,
	NetworkRead:    {operatorsMayForOthers: true},
	NetworkReadAll: {role: auth.Operator, deniedAct: "see what holds for the network of all users"},
	NetworkChange: {role: auth.Operator, deniedAct: "change what a session may reach", changes: true,
		operatorsMayForOthers: true},

	NetworkReach: changes,

	QuotaRead: {operatorsMayForOthers: true},

	TokenList:    {operatorsMayForOthers: true},
	TokenCreate:  {changes: true, operatorsMayForOthers: true},
	TokenRevoke:  {changes: true, operatorsMayForOthers: true},
	UsageRead:    {operatorsMayForOthers: true},
	UsageReadAll: {role: auth.Operator, deniedAct: "see what all users have used"},
	UserList:     {role: auth.Operator, deniedAct: "see all users"},
	PolicyRead:   {operatorsMayForOthers: true}, PolicyCheck: {operatorsMayForOthers: true},

	QuestionList:   reads,
	QuestionAnswer: {changes: true, operatorsMayForOthers: true},
	QuestionForget: {changes: true, operatorsMayForOthers: true},

	TemplateList:  reads,
	TemplateBuild: {role: auth.Operator, deniedAct: "build the templates of all users", changes: true},

	ImageList:   {role: auth.Operator, deniedAct: "see the images of the server"},
	ImagePull:   {role: auth.Operator, deniedAct: "get images for all users", changes: true},
	ImageRemove: {role: auth.Operator, deniedAct: "remove images of the server", changes: true},

	DoctorRead: {role: auth.Operator, deniedAct: "see how the server's machine is"},
	DoctorRun:  {role: auth.Operator, deniedAct: "check the server's machine", changes: true},

	DatabaseRead:   {role: auth.Operator, deniedAct: "see which backup was restored"},
	DatabaseBackup: {role: auth.Operator, deniedAct: "make a backup, which has the data of all users", changes: true},
	DatabaseRestore: {role: auth.Operator, deniedAct: "restore a backup, which has the data of all users",
		changes: true},

	EventRead: reads, MetricsRead: {role: auth.Metrics, deniedAct: "read the metrics, which are of all users"},
	HealthRead: {anyone: true}, APIDescribe: {anyone: true},
}

// Operations lists the names of all operations, sorted.
func Operations() []string {
	names := make([]string, 0, len(table))
	for o := range table {
		names = append(names, string(o))
	}
	slices.Sort(names)
	return names
}

// Known reports whether the table has the operation.
func (o Operation) Known() bool {
	_, ok := table[o]
	return ok
}

// Changes reports whether the operation may change anything, as code and tools of
// third-party servers may.
func (o Operation) Changes() bool { return table[o].changes }

// polled are the reads of what the server itself knows: faces for people, and monitoring, repeat them for as long as they
// are open.
var polled = map[Operation]bool{
	SessionList: true, SnapshotList: true, VolumeList: true, ProcessList: true, MCPList: true, MCPInspect: true,
	SecretList: true, NetworkRead: true, NetworkReadAll: true, QuotaRead: true, QuestionList: true, TemplateList: true,
	DatabaseRead: true, MetricsRead: true, EventRead: true, PrincipalRead: true, TokenList: true, UserList: true,
	PolicyRead: true, PolicyCheck: true, UsageRead: true, UsageReadAll: true, ResultRead: true, PromptList: true,
	ImageList: true, DoctorRead: true,
}

// Polled reports whether faces repeat the operation. It changes nothing, and says nothing that a sandbox or a third-party
// server would have to be asked for.
func (o Operation) Polled() bool { return polled[o] }

// unasked are the operations without a question: the ones that every client needs,
// and those that no principal requests.
var unasked = map[Operation]bool{
	ClientConnect: true, ClientSetLevel: true, ClientGuide: true, ToolList: true, ToolFind: true, PromptList: true,
	ResourceList: true, ResourceSubscribe: true, CompletionComplete: true, PortVisit: true, LoginBegin: true,
	LoginFinish: true, QuestionList: true, QuestionAnswer: true, QuestionForget: true, EventRead: true,
	MetricsRead: true, HealthRead: true, ConsoleRead: true, ConsoleBegin: true, ConsoleLink: true, ConsoleLogin: true,
	ConsoleLogout: true, PrincipalRead: true, PolicyRead: true, PolicyCheck: true,
}

// ofNobody reports whether the operation has no principal, ever.
func (o Operation) ofNobody() bool { return table[o].anyone && o != PortVisit }

// withoutToken reports whether the operation is decided for the owner of a sandbox, whose token is not known.
func (o Operation) withoutToken() bool { return o == NetworkReach || o == PortVisit }

// askable reports whether a rule may ask about the operation.
func (o Operation) askable() bool { return o.Known() && !unasked[o] }
