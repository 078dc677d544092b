package hub

import "sandlot/internal/policy"

// The operations that have an input and an output of their own. Calls of tools, and
// requests that third-party servers answer, are Call and Proxy; what lasts, such as a
// shell, begins with a method of Hub that returns its Act.
var (
	CreateSession   = op(policy.SessionCreate, (*Hub).createSession)
	StopSession     = op(policy.SessionStop, (*Hub).stopSession)
	StopAllSessions = op(policy.SessionStopAll, (*Hub).stopAllSessions)

	RemoveFile = op(policy.FileRemove, (*Hub).removeFile)

	ReadNetwork        = op(policy.NetworkReadAll, (*Hub).readNetwork)
	ReadSessionNetwork = op(policy.NetworkRead, (*Hub).readSessionNetwork)
	ChangeNetwork      = op(policy.NetworkChange, (*Hub).changeNetwork)

	ListSecrets  = op(policy.SecretList, (*Hub).listSecrets)
	SetSecret    = op(policy.SecretSet, (*Hub).setSecret)
	RemoveSecret = op(policy.SecretRemove, (*Hub).removeSecret)

	InspectServer  = op(policy.MCPInspect, (*Hub).inspectServer)
	ApproveServer  = op(policy.MCPApprove, (*Hub).approveServer)
	ServerPrompt   = op(policy.PromptGet, (*Hub).serverPrompt)
	ServerResource = op(policy.ResourceRead, (*Hub).serverResource)

	LoginPage   = op(policy.LoginBegin, (*Hub).loginPage)
	BeginLogin  = op(policy.LoginBegin, (*Hub).beginLogin)
	FinishLogin = op(policy.LoginFinish, (*Hub).finishLogin)

	ReadResource = op(policy.ResourceRead, (*Hub).readResource)
	Subscribe    = op(policy.ResourceSubscribe, (*Hub).subscribe)
)
