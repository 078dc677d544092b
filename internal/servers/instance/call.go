package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// Limits of one call.
const (
	callLimit = 2 * time.Minute // since the last sign of life, where the settings say nothing
	callMost  = time.Hour
	maxRounds = 10
	maxInputs = 16 // in one round
)

// Request is one request of a client to a server.
type Request struct {
	Method   string
	Params   rawjson.Object
	Meta     rawjson.Object
	Schema   json.RawMessage // of the tool
	Client   tool.Client     // nil: it is no client of MCP
	Inputs   tool.Inputs
	Progress func(text string)  // for those that are no clients of MCP; nil: they get none
	Held     *limit.Reservation // for the answer, once it is handed to the client

	room transport.Reservation // of the answer as it came; nil: none
}

// hold keeps the reservation of an answer until Release, in place of the last one.
func (r *Request) hold(room transport.Reservation) {
	r.Release()
	r.room = room
}

// Release gives up the reservation of the answer as it came.
func (r *Request) Release() {
	if r.room != nil {
		r.room.Release()
		r.room = nil
	}
}

// Deliver reserves for what is handed to the client, made of the answer, whose own
// reservation ends.
func (r *Request) Deliver(ctx context.Context, safe json.RawMessage) error {
	defer r.Release()
	return r.Held.ReserveAnswer(ctx, len(safe))
}

// Starting tells the client that the server starts.
func (r *Request) Starting(name string) {
	b, _ := json.Marshal(map[string]any{"progress": 0, "message": fmt.Sprintf("Starting the MCP server %q", name)})
	r.relay(b)
}

// relay passes progress on.
func (r *Request) relay(params json.RawMessage) {
	if r.Client != nil {
		r.Client.Notify("notifications/progress", params)
		return
	}
	var p struct{ Message string }
	if r.Progress != nil && json.Unmarshal(params, &p) == nil && p.Message != "" {
		r.Progress(spec.SafeText(p.Message, 1000))
	}
}

// Call makes a request, and says how long the server took. Where the server elicits in
// the middle of calls, those of different clients wait for each other.
func (i *Instance) Call(ctx context.Context, r *Request, elicits bool) (json.RawMessage, time.Duration, error) {
	c, err := i.start(ctx, r.Client, elicits && !i.Session.Stateless())
	if err != nil {
		return nil, 0, err
	}
	defer i.end(c)
	began := time.Now()
	raw, err := i.rounds(ctx, r, c)
	return raw, time.Since(began), err
}

// CallLimit is how long a call may take since the server's last sign of life.
func (i *Instance) CallLimit() time.Duration { return i.Settings.CallTimeout(callLimit) }

// watchdog ends a context with transport.ErrTimeout when alive is not called for the
// limit, unless the user is being asked.
func watchdog(ctx context.Context, limit time.Duration, asked func() bool) (_ context.Context, alive, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var timer *time.Timer
	alive = func() { timer.Reset(limit) }
	timer = time.AfterFunc(callMost, func() {
		if asked() {
			alive()
			return
		}
		cancel(transport.ErrTimeout)
	})
	alive()
	return ctx, alive, func() {
		timer.Stop()
		cancel(nil)
	}
}

// inputRequired is a result of a stateless server that asks for input.
type inputRequired struct {
	ResultType    string           `json:"resultType"`
	InputRequests map[string]input `json:"inputRequests"`
	RequestState  string           `json:"requestState"`
}

type input struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// rounds makes the call, and those that follow when a stateless server asks for input
// and the client is one that is asked while it waits.
func (i *Instance) rounds(ctx context.Context, r *Request, c *call) (json.RawMessage, error) {
	ctx, alive, stop := watchdog(ctx, i.CallLimit(), func() bool { return i.isAsked(c) })
	defer stop()
	relay := func(params json.RawMessage) {
		alive()
		r.relay(params)
	}
	q := mcpclient.Request{Method: r.Method, Params: r.Params, Meta: r.Meta, Schema: r.Schema, Timeout: callMost,
		TotalTimeout: callMost, Capabilities: json.RawMessage("{}"), Progress: relay, TakeReservation: r.hold}
	if r.Client != nil {
		q.Capabilities = r.Client.Capabilities()
	}
	if !r.Inputs.Empty() {
		q.Params = with(r.Params, r.Inputs.Responses, r.Inputs.State)
	}
	for range maxRounds {
		raw, err := i.Session.Call(ctx, q)
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, transport.ErrTimeout) {
				err = cause
			}
			return nil, err
		}
		var more inputRequired
		if !strings.Contains(string(raw[:min(len(raw), 1<<20)]), "input_required") ||
			json.Unmarshal(raw, &more) != nil || more.ResultType != "input_required" {
			return raw, nil
		}
		if r.Client != nil && r.Client.Retries() {
			return raw, nil
		}
		i.awaitUser(c, true)
		answers, err := r.answers(ctx, more.InputRequests)
		i.awaitUser(c, false)
		alive()
		if err != nil {
			return nil, err
		}
		q.Params = with(r.Params, answers, more.RequestState)
	}
	return nil, fault.New(fault.Connection, "the server asked for input %d times, and that is enough", maxRounds)
}

// answers asks the client for all inputs.
func (r *Request) answers(ctx context.Context, inputs map[string]input) (json.RawMessage, error) {
	if len(inputs) > maxInputs {
		return nil, fault.New(fault.Connection, "the server asks for %d things at once", len(inputs))
	}
	all := rawjson.Object{}
	for name, n := range inputs {
		if r.Client == nil {
			return nil, fault.New(fault.Connection, "the server wants to ask something (%s), and this client "+
				"cannot be asked: use an MCP client that can", spec.ClipName(n.Method))
		}
		if err := catalog.CheckInputRequest(n.Params); err != nil {
			return nil, fault.New(fault.Connection, "the server asks for input in a form that is not passed on: %v",
				err)
		}
		a, err := r.Client.Ask(ctx, n.Method, n.Params)
		if err != nil {
			return nil, err
		}
		all[name] = a
	}
	return json.Marshal(all)
}

// with returns parameters with the answers to inputs.
func with(params rawjson.Object, responses json.RawMessage, state string) rawjson.Object {
	out := maps.Clone(params)
	if out == nil {
		out = rawjson.Object{}
	}
	if len(responses) > 0 {
		out["inputResponses"] = responses
	}
	if state != "" {
		out["requestState"] = rawjson.Quote(state)
	}
	return out
}
