package toolcall

import (
	"context"
	"encoding/json"
	"fmt"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// nobody is the client of a program in the background, or of code that no MCP client runs. What a server asks becomes a
// question that waits for an answer, and its log messages go to the clients of the session's owner.
type nobody struct {
	sandbox            *sandbox
	call               context.Context // ends with the call
	what, server, tool string
	progress           func(string)
}

// ID implements tool.Client. Each call is a client of its own: a question names the program and the tool, and a server
// that asks does not say which of its calls it is about.
func (n *nobody) ID() string { return fmt.Sprintf("%p", n) }

// HeardBy implements tool.Hearing.
func (n *nobody) HeardBy() string { return "the clients of " + n.sandbox.owner.ID }

// Capabilities implements tool.Client.
func (n *nobody) Capabilities() json.RawMessage {
	return json.RawMessage(`{"elicitation":{"form":{}}}`)
}

// Retries implements tool.Client.
func (n *nobody) Retries() bool { return false }

// Waits implements tool.Waiting: what a rule asks is a question by itself, which can be answered for always.
func (n *nobody) Waits() bool { return true }

// Ask implements tool.Client.
func (n *nobody) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method != "elicitation/create" {
		return nil, fault.New(fault.Forbidden, "%s called the tool, so there is no client for %s", n.what,
			fault.Clip(method))
	}
	ctx, cancel := context.WithCancel(ctx) // a server may go on asking after its call was cancelled
	defer cancel()
	defer context.AfterFunc(n.call, cancel)()
	s := n.sandbox
	return s.calls.Door.Elicit(ctx, tool.Elicitation{Owner: s.owner.ID, Session: s.session, Caller: n.what,
		Server: n.server, Tool: n.tool, Params: params})
}

// Notify implements tool.Client.
func (n *nobody) Notify(method string, params json.RawMessage) {
	if method == "notifications/message" {
		n.sandbox.calls.Clients.ForwardLog(n.sandbox.owner.ID, params)
		return
	}
	client{progress: n.progress}.Notify(method, params)
}

// silent is the client of a run that cannot ask its user: what a server asks them waits as if nobody were there.
type silent struct {
	client
	away *nobody
}

// ID implements tool.Client, as that of nobody.
func (c silent) ID() string { return c.away.ID() }

// HeardBy implements tool.Hearing.
func (c silent) HeardBy() string { return c.client.ID() }

// Capabilities implements tool.Client.
func (c silent) Capabilities() json.RawMessage {
	all := map[string]json.RawMessage{}
	if json.Unmarshal(c.client.Capabilities(), &all) != nil || all == nil {
		all = map[string]json.RawMessage{}
	}
	all["elicitation"] = json.RawMessage(`{"form":{}}`)
	raw, err := json.Marshal(all)
	if err != nil {
		return c.away.Capabilities()
	}
	return raw
}

// Waits implements tool.Waiting.
func (c silent) Waits() bool { return true }

// Ask implements tool.Client.
func (c silent) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method == "elicitation/create" {
		return c.away.Ask(ctx, method, params)
	}
	return c.client.Ask(ctx, method, params)
}
