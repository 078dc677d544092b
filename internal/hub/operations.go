package hub

import "sandlot/internal/policy"

// The operations with typed inputs and outputs. Calls of tools and requests for third-party
// servers are Hub.Call and Hub.Proxy. Operations that last, such as a shell, begin with a
// method of Hub that returns an ActiveRequest, or a type that embeds it.
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
