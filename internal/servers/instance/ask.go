package instance

import (
	"context"
	"encoding/json"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// call is a call in flight. While its user is asked, the calls of other clients do not wait for it,
// since an answer may take minutes. The instance's mu guards the fields but client.
type call struct {
	client   tool.Client // nil: the call was not made by an MCP client
	asked    bool        // the client's user is being asked
	waits    bool        // the call has not been sent, and waits for the calls of other clients
	lastSign time.Time   // of life: the server's last message, or the user's last answer
}

// start adds a call. A call that has to be alone waits until each call of another client has
// ended, or awaits its user.
func (i *Instance) start(ctx context.Context, client tool.Client, alone bool) (*call, error) {
	c := &call{client: client, waits: alone && client != nil}
	i.mu.Lock()
	i.calls[c] = true
	wait := c.waits
	i.mu.Unlock()
	if wait {
		if err := i.wait(ctx, c); err != nil {
			i.end(c)
			return nil, err
		}
	}
	return c, nil
}

func (i *Instance) end(c *call) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.calls, c)
	i.wake()
}

// wake makes waiting calls check again whether they may go on. The caller holds i.mu.
func (i *Instance) wake() {
	close(i.free)
	i.free = make(chan struct{})
}

// wait waits until each call of another client has ended, or awaits its user.
func (i *Instance) wait(ctx context.Context, c *call) error {
	for {
		i.mu.Lock()
		c.waits = i.mustWait(c)
		waits, free := c.waits, i.free
		i.mu.Unlock()
		if !waits {
			return nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-i.Session.Done():
			return transport.ErrClosed
		}
	}
}

// mustWait reports whether a call of another client is in flight that a question of the server may
// be about. The caller holds i.mu.
func (i *Instance) mustWait(c *call) bool {
	for o := range i.calls {
		if o != c && o.client != nil && !o.asked && !o.waits && o.client.ID() != c.client.ID() {
			return true
		}
	}
	return false
}

// awaitUser records whether a call's user is being asked from now on. In both cases the server has
// its whole time again after the user's answer.
func (i *Instance) awaitUser(c *call, asked bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c.asked, c.lastSign = asked, time.Now()
	i.wake()
}

// listeners returns clients of the calls in flight through which all of them get a log message, and none gets two.
func (i *Instance) listeners() []tool.Client {
	i.mu.Lock()
	defer i.mu.Unlock()
	seen := map[string]bool{}
	var all []tool.Client
	for c := range i.calls {
		if c.client == nil {
			continue
		}
		by := c.client.ID()
		if h, ok := c.client.(tool.Hearing); ok {
			by = h.HeardBy()
		}
		if !seen[by] {
			seen[by] = true
			all = append(all, c.client)
		}
	}
	return all
}

// HandleRequest implements mcpclient.Handler. In the stateful protocol, a server's request does not
// name the call that it belongs to. So only the client of an only call is asked.
func (i *Instance) HandleRequest(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	i.Owner.Elicits()
	if err := catalog.CheckInputRequest(params); err != nil {
		return nil, &transport.Error{Code: -32602, Message: err.Error()}
	}
	c, err := i.addressee()
	if err != nil {
		return nil, err
	}
	// In the end the call can delay others again. It does not wait for them: the server is working on it.
	defer i.awaitUser(c, false)
	if params, err = question(c.client, i.Name, method, params); err != nil {
		return nil, &transport.Error{Code: -32602, Message: err.Error()}
	}
	r, err := c.client.Ask(ctx, method, params)
	if err != nil {
		return nil, refusal(err)
	}
	return r, nil
}

// question returns the parameters with which a client is asked. Of a client whose questions wait for a person, others
// say whose each is and about which call, and what of it cannot be shown.
func question(c tool.Client, server, method string, params json.RawMessage) (json.RawMessage, error) {
	if w, ok := c.(tool.Waiting); ok && w.Waits() {
		return params, catalog.CheckInputRequest(params)
	}
	return catalog.Question(server, method, params)
}

// addressee returns the only call that a question can be about, and marks it as asked. If there are
// several such calls, of different clients, it returns an error: nobody is asked.
func (i *Instance) addressee() (*call, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var one *call
	clients := map[string]bool{}
	for c := range i.calls {
		switch {
		case c.waits:
			continue
		case c.client == nil:
			clients[""] = true
			continue
		}
		clients[c.client.ID()] = true
		if one == nil || one.asked {
			one = c
		}
	}
	switch {
	case len(clients) == 0:
		return nil, &transport.Error{Code: -32601, Message: "no call is in flight"}
	case one == nil:
		return nil, &transport.Error{Code: -32601, Message: "the call was not made by an MCP client, so its " +
			"user cannot be asked"}
	case len(clients) > 1:
		return nil, &transport.Error{Code: -32603, Message: "several clients have calls in flight, and the request " +
			"does not say which of them it is for; from now on their calls wait for each other, so try again"}
	}
	one.asked = true
	i.wake()
	return one, nil
}

// refusal returns the error that the server gets for a client's error.
func refusal(err error) error {
	f := fault.From(err)
	if f.Kind == fault.Internal {
		return &transport.Error{Code: -32603, Message: spec.SafeText(err.Error(), 500)}
	}
	return &transport.Error{Code: int64(f.RPC()), Message: f.Error()}
}
