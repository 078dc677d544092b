package toolcall

import (
	"context"
	"encoding/json"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// nobody is the client of a program in the background. What a server asks becomes a question that waits for an answer,
// and its log messages go to the clients of the session's owner.
type nobody struct {
	sandbox            *sandbox
	call               context.Context // ends with the call
	what, server, tool string
	progress           func(string)
}

// ID implements tool.Client. All programs in the background of a session are one client: whoever answers is the same.
func (n nobody) ID() string { return "background of " + n.sandbox.session }

// Capabilities implements tool.Client.
func (n nobody) Capabilities() json.RawMessage { return json.RawMessage(`{"elicitation":{"form":{}}}`) }

// Retries implements tool.Client.
func (n nobody) Retries() bool { return false }

// Waits implements tool.Waiting: what a rule asks is a question by itself, which can be answered for always.
func (n nobody) Waits() bool { return true }

// Ask implements tool.Client.
func (n nobody) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method != "elicitation/create" {
		return nil, fault.New(fault.Forbidden, "a program in the background called the tool, so there is no client "+
			"for %s", fault.Clip(method))
	}
	ctx, cancel := context.WithCancel(ctx) // a server may go on asking after its call was cancelled
	defer cancel()
	defer context.AfterFunc(n.call, cancel)()
	s := n.sandbox
	return s.calls.Elicit(ctx, tool.Elicitation{Owner: s.owner.ID, Session: s.session, Caller: n.what,
		Server: n.server, Tool: n.tool, Params: params})
}

// Notify implements tool.Client.
func (n nobody) Notify(method string, params json.RawMessage) {
	if method == "notifications/message" {
		n.sandbox.calls.Logged(n.sandbox.owner.ID, params)
		return
	}
	client{progress: n.progress}.Notify(method, params)
}
