package hub

import (
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// The tools whose lists are pushed, too.
const (
	sessionsTool = "get_sessions"
	serversTool  = "list_external_mcp"
)

// The operations with typed inputs and outputs. Requests for third-party servers are
// Hub.Proxy. Operations that last, such as a shell, begin with a method of Hub that
// returns an ActiveRequest, or a type that embeds it.
var (
	CallTool = Op[tool.Call, *tool.Result]{(*Hub).callFor}

	ListSessions    = toolOp(sessionsTool)
	ForkSession     = toolOp("fork_session")
	CreateSnapshot  = toolOp("snapshot_session")
	ListSnapshots   = toolOp("list_snapshots")
	RestoreSnapshot = toolOp("restore_snapshot")
	RemoveSnapshot  = toolOp("remove_snapshot")
	ListServers     = toolOp(serversTool)

	CreateSession   = newOp(policy.SessionCreate, (*Hub).createSession)
	StopSession     = newOp(policy.SessionStop, (*Hub).stopSession)
	PauseSession    = newOp(policy.SessionPause, (*Hub).pauseSession)
	ResumeSession   = newOp(policy.SessionResume, (*Hub).resumeSession)
	ChangeSession   = newOp(policy.SessionChange, (*Hub).changeSession)
	StopAllSessions = newOp(policy.SessionStopAll, (*Hub).stopAllSessions)

	ListProcesses  = toolOp("list_processes")
	WriteToProcess = newOp(policy.ProcessWrite, (*Hub).writeToProcess)
	SignalProcess  = newOp(policy.ProcessStop, (*Hub).signalProcess)
	ListPorts      = newOp(policy.ProcessList, (*Hub).listPorts)

	ListTerminals = newOp(policy.ProcessList, (*Hub).listTerminals)
	EndTerminal   = newOp(policy.ProcessStop, (*Hub).endTerminal)

	RemoveFile = newOp(policy.FileRemove, (*Hub).removeFile)
	StatFile   = newOp(policy.FileList, (*Hub).statFile)
	MoveFile   = newOp(policy.FileWrite, (*Hub).moveFile)
	ListFolder = newOp(policy.FileList, (*Hub).listFolder)
	MakeFolder = newOp(policy.FileWrite, (*Hub).makeFolder)

	ListResults = newOp(policy.ResultRead, (*Hub).listResults)

	ReadNetwork        = newOp(policy.NetworkReadAll, (*Hub).readNetwork)
	ReadSessionNetwork = newOp(policy.NetworkRead, (*Hub).readSessionNetwork)
	ChangeNetwork      = newOp(policy.NetworkChange, (*Hub).changeNetwork)

	ListTokens  = newOp(policy.TokenList, (*Hub).listTokens)
	CreateToken = newOp(policy.TokenCreate, (*Hub).createToken)
	RevokeToken = newOp(policy.TokenRevoke, (*Hub).revokeToken)
	ListUsers   = newOp(policy.UserList, (*Hub).listUsers)

	ReadRules   = newOp(policy.PolicyRead, (*Hub).readRules)
	CheckPolicy = newOp(policy.PolicyCheck, (*Hub).checkPolicy)

	ReadUsage    = newOp(policy.UsageRead, (*Hub).readUsage)
	ReadAllUsage = newOp(policy.UsageReadAll, (*Hub).readAllUsage)

	ReadQuota = newOp(policy.QuotaRead, (*Hub).readQuota)

	ListQuestions  = newOp(policy.QuestionList, (*Hub).listQuestions)
	AnswerQuestion = newOp(policy.QuestionAnswer, (*Hub).answerQuestion)
	ForgetAnswer   = newOp(policy.QuestionForget, (*Hub).forgetAnswer)

	ListTemplates = newOp(policy.TemplateList, (*Hub).listTemplates)
	BuildTemplate = newOp(policy.TemplateBuild, (*Hub).buildTemplate)

	ListImages  = newOp(policy.ImageList, (*Hub).listImages)
	PullImage   = newOp(policy.ImagePull, (*Hub).pullImage)
	EndPull     = newOp(policy.ImagePull, (*Hub).endPull)
	RemoveImage = newOp(policy.ImageRemove, (*Hub).removeImage)

	RunDoctor  = newOp(policy.DoctorRun, (*Hub).runDoctor)
	ReadDoctor = newOp(policy.DoctorRead, (*Hub).readDoctor)

	ReadDatabase = newOp(policy.DatabaseRead, (*Hub).readDatabase)
	ListBackups  = newOp(policy.DatabaseRead, (*Hub).listBackups)
	MakeBackup   = newOp(policy.DatabaseBackup, (*Hub).makeBackup)

	ListSecrets  = newOp(policy.SecretList, (*Hub).listSecrets)
	SetSecret    = newOp(policy.SecretSet, (*Hub).setSecret)
	RemoveSecret = newOp(policy.SecretRemove, (*Hub).removeSecret)

	ListPrompts    = newOp(policy.PromptList, (*Hub).listPrompts)
	InspectServer  = newOp(policy.MCPInspect, (*Hub).inspectServer)
	ApproveServer  = newOp(policy.MCPApprove, (*Hub).approveServer)
	ServerPrompt   = newOp(policy.PromptGet, (*Hub).serverPrompt)
	ServerResource = newOp(policy.ResourceRead, (*Hub).serverResource)

	SearchRegistry = newOp(policy.RegistrySearch, (*Hub).searchRegistry)
	ReadRegistry   = newOp(policy.RegistryRead, (*Hub).readRegistry)
	PlanRegistry   = newOp(policy.RegistryPlan, (*Hub).planRegistry)

	LoginPage   = newOp(policy.LoginBegin, (*Hub).loginPage)
	BeginLogin  = newOp(policy.LoginBegin, (*Hub).beginLogin)
	FinishLogin = newOp(policy.LoginFinish, (*Hub).finishLogin)

	ReadResource = newOp(policy.ResourceRead, (*Hub).readResource)
	Subscribe    = newOp(policy.ResourceSubscribe, (*Hub).subscribe)
)
