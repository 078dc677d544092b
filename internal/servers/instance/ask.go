package instance

import (
	"context"
	"encoding/json"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// call is a call in flight. While its user is asked it does not stand in the way of
// others: people take their time.
type call struct {
	client tool.Client // nil: it is no client of MCP
	asked  bool        // its user is
	waits  bool        // for the calls of others
}

// start adds a call. One that is alone waits until the calls of other clients have
// ended, or await their users.
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

// wake has those that wait look again. The lock is held.
func (i *Instance) wake() {
	close(i.free)
	i.free = make(chan struct{})
}

// wait waits until no call of another client is in flight but those that await their
// users.
func (i *Instance) wait(ctx context.Context, c *call) error {
	for {
		i.mu.Lock()
		c.waits = i.hindered(c)
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

// hindered says whether calls of other clients are in flight that a question may be
// about. The lock is held.
func (i *Instance) hindered(c *call) bool {
	for o := range i.calls {
		if o != c && o.client != nil && !o.asked && !o.waits && o.client.ID() != c.client.ID() {
			return true
		}
	}
	return false
}

func (i *Instance) isAsked(c *call) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return c.asked
}

// awaitUser says whether a call's user is asked now.
func (i *Instance) awaitUser(c *call, yes bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c.asked = yes
	i.wake()
}

// clients are those of the calls in flight, each once.
func (i *Instance) clients() []tool.Client {
	i.mu.Lock()
	defer i.mu.Unlock()
	seen := map[string]bool{}
	var all []tool.Client
	for c := range i.calls {
		if c.client != nil && !seen[c.client.ID()] {
			seen[c.client.ID()] = true
			all = append(all, c.client)
		}
	}
	return all
}

// HandleRequest implements mcpclient.Handler. A stateful server does not say for which call it
// asks: there must be no doubt.
func (i *Instance) HandleRequest(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	i.Owner.Elicits()
	if err := catalog.CheckInputRequest(params); err != nil {
		return nil, &transport.Error{Code: -32602, Message: err.Error()}
	}
	c, err := i.addressee()
	if err != nil {
		return nil, err
	}
	r, err := c.client.Ask(ctx, method, params)
	// The call goes on at once: the server may do one thing after the other.
	i.awaitUser(c, false)
	if err != nil {
		return nil, refusal(err)
	}
	return r, nil
}

// addressee returns the one call that a question can be about, which awaits its user
// from then on. Where there is doubt, nobody is asked.
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
		return nil, &transport.Error{Code: -32601, Message: "no call is on its way"}
	case one == nil:
		return nil, &transport.Error{Code: -32601, Message: "the caller cannot be asked: it is no MCP client"}
	case len(clients) > 1:
		return nil, &transport.Error{Code: -32603, Message: "several clients have calls on their way, and it cannot " +
			"be told which of them is asked; from now on their calls wait for each other, so try again"}
	}
	one.asked = true
	i.wake()
	return one, nil
}

// refusal is a client's error as the server is told of it.
func refusal(err error) error {
	f := fault.From(err)
	if f.Kind == fault.Internal {
		return &transport.Error{Code: -32603, Message: spec.SafeText(err.Error(), 500)}
	}
	return &transport.Error{Code: int64(f.RPC()), Message: f.Error()}
}
