package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sandlot/internal/egress"
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
	callTimeout    = 2 * time.Minute // since the server's last sign of life, unless the settings have another one
	maxCallTimeout = time.Hour       // whatever the signs of life
	maxRounds      = 10              // how often one call may ask for input
	maxInputs      = 16              // in one round
)

// Request is one request of a client to a server.
type Request struct {
	Method   string
	Params   rawjson.Object
	Meta     rawjson.Object
	Schema   json.RawMessage // of the tool
	Client   tool.Client     // nil: the request was not made by an MCP client
	Inputs   tool.Inputs
	Progress func(text string)  // notifies a client that is no MCP client; nil: it wants no notifications
	Answer   *limit.Reservation // counts the answer until the client has read it
	Large    bool               // the answer may have up to limit.LargestAnswer bytes; it is for tools/call

	// Refused is what the server's program was not allowed to reach, until the call ended or before it.
	Refused []egress.Refusal

	received *limit.Reservation // counts the server's answer until Release; nil: nothing does
}

// setReceived replaces the reservation of the server's last answer.
func (r *Request) setReceived(reservation transport.Reservation) {
	r.Release()
	r.received, _ = reservation.(*limit.Reservation) // else it is transport.NoReservation
}

// Release releases the reservation of the server's answer.
func (r *Request) Release() {
	if r.received != nil {
		r.received.Release()
		r.received = nil
	}
}

// Result returns what the client, or code, gets of a tool's result: see catalog.Result. It gives up when the memory of
// the server's answer is lost.
func (r *Request) Result(ctx context.Context, raw json.RawMessage) (json.RawMessage, bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if lost := r.received.Lost(); lost != nil {
		giveUp := func() { cancel(context.Cause(lost)) }
		if lost.Err() != nil {
			giveUp()
		}
		defer context.AfterFunc(lost, giveUp)()
	}
	return catalog.Result(ctx, raw, r.Large)
}

// Deliver reserves memory for the answer to the client, which was made of the server's answer, and
// releases the reservation of the latter.
func (r *Request) Deliver(ctx context.Context, safe json.RawMessage) error {
	defer r.Release()
	if r.received != nil && r.Answer.TakeLarge(r.received) {
		return nil
	}
	return r.Answer.ReserveAnswer(ctx, len(safe))
}

// Starting notifies the client that the server starts.
func (r *Request) Starting(name string) {
	b, _ := json.Marshal(map[string]any{"progress": 0, "message": fmt.Sprintf("Starting the MCP server %q", name)})
	r.notifyProgress(b)
}

// notifyProgress sends the client a notification of the call's progress.
func (r *Request) notifyProgress(params json.RawMessage) {
	if r.Client != nil {
		r.Client.Notify("notifications/progress", params)
		return
	}
	var p struct{ Message string }
	if r.Progress != nil && json.Unmarshal(params, &p) == nil && p.Message != "" {
		r.Progress(spec.SafeText(p.Message, 1000))
	}
}

// Call makes a request, and returns how long the server took. If the server elicits, which it may
// do in the middle of any call, the calls of different clients wait for each other.
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

// CallLimit returns how long a call may take since the server's last sign of life.
func (i *Instance) CallLimit() time.Duration { return i.Settings.CallTimeout(callTimeout) }

// watch returns a context that ends with transport.ErrTimeout when the server has given no sign of
// life for CallLimit. While the call's user is asked, and until CallLimit after the answer, it does
// not end.
func (i *Instance) watch(ctx context.Context, c *call) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	limit := i.CallLimit()
	i.mu.Lock()
	defer i.mu.Unlock()
	c.lastSign = time.Now()
	var timer *time.Timer
	timer = time.AfterFunc(limit, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		left := limit
		if !c.asked {
			left = time.Until(c.lastSign.Add(limit))
		}
		switch {
		case ctx.Err() != nil: // stop was called
		case left > 0:
			timer.Reset(left)
		default:
			cancel(transport.ErrTimeout)
		}
	})
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// signOfLife restarts the time that the server has for a call.
func (i *Instance) signOfLife(c *call) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c.lastSign = time.Now()
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

// rounds makes a call. While a stateless server answers it by asking for input, and the client can be
// asked during a call, it calls again with the client's input. A client that retries calls gets the
// server's answer.
func (i *Instance) rounds(ctx context.Context, r *Request, c *call) (json.RawMessage, error) {
	ctx, stop := i.watch(ctx, c)
	defer stop()
	progress := func(params json.RawMessage) {
		i.signOfLife(c)
		r.notifyProgress(params)
	}
	q := mcpclient.Request{Method: r.Method, Params: r.Params, Meta: r.Meta, Schema: r.Schema, Timeout: maxCallTimeout,
		TotalTimeout: maxCallTimeout, Capabilities: json.RawMessage("{}"), Progress: progress,
		TakeReservation: r.setReceived, Large: r.Large}
	if r.Client != nil {
		q.Capabilities = r.Client.Capabilities()
	}
	if !r.Inputs.Empty() {
		q.Params = withInputs(r.Params, r.Inputs.Responses, r.Inputs.State)
	}
	for range maxRounds {
		raw, err := i.Session.Call(ctx, q)
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, transport.ErrTimeout) {
				err = cause
			}
			return nil, err
		}
		var asks inputRequired
		if len(raw) > catalog.MaxAsking || !strings.Contains(string(raw[:min(len(raw), 1<<20)]), "input_required") ||
			json.Unmarshal(raw, &asks) != nil || asks.ResultType != "input_required" {
			return raw, nil
		}
		if err := r.attribute(i.Name, asks.InputRequests); err != nil {
			return nil, err
		}
		if r.Client != nil && r.Client.Retries() {
			return withQuestions(raw, asks.InputRequests)
		}
		i.awaitUser(c, true)
		answers, err := r.askAll(ctx, asks.InputRequests)
		i.awaitUser(c, false)
		if err != nil {
			return nil, err
		}
		q.Params = withInputs(r.Params, answers, asks.RequestState)
	}
	return nil, fault.New(fault.Connection, "the server asked for input %d times in one call, which is the limit",
		maxRounds)
}

// inputMethods are the requests by which a server may ask for input.
var inputMethods = []string{"elicitation/create", "sampling/createMessage", "roots/list"}

// attribute makes the questions of a server say whose they are.
func (r *Request) attribute(server string, inputs map[string]input) error {
	if len(inputs) > maxInputs {
		return fault.New(fault.Connection, "the server asks for %d inputs at once; the limit is %d",
			len(inputs), maxInputs)
	}
	for name, n := range inputs {
		var err error
		if !slices.Contains(inputMethods, n.Method) { // clients refuse the whole result
			return fault.New(fault.Connection, "the server asks for input by %s, "+
				"which is not one of MCP's requests for input",
				spec.ClipName(n.Method))
		}
		if n.Params, err = question(r.Client, server, n.Method, n.Params); err != nil {
			return fault.New(fault.Connection, "the server asks for input with an invalid request: %v", err)
		}
		inputs[name] = n
	}
	return nil
}

// withQuestions returns a result with other requests for input.
func withQuestions(raw json.RawMessage, inputs map[string]input) (json.RawMessage, error) {
	var result rawjson.Object
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, err
	}
	if inputs == nil {
		return raw, nil
	}
	for name, n := range inputs {
		if n.Params == nil {
			n.Params = json.RawMessage("{}")
			inputs[name] = n
		}
	}
	for k := range result { // of names in other capitals, readers could take either
		if strings.EqualFold(k, "inputRequests") {
			delete(result, k)
		}
	}
	var err error
	result["inputRequests"], err = rawjson.Encode(inputs)
	if err != nil {
		return nil, err
	}
	return rawjson.Encode(result)
}

// askAll asks the client for all inputs, and returns them by name.
func (r *Request) askAll(ctx context.Context, inputs map[string]input) (json.RawMessage, error) {
	all := rawjson.Object{}
	for name, n := range inputs {
		if r.Client == nil {
			return nil, fault.New(fault.Connection, "the server wants to ask its user (%s), and this client "+
				"does not support that: use an MCP client that does", spec.ClipName(n.Method))
		}
		a, err := r.Client.Ask(ctx, n.Method, n.Params)
		if err != nil {
			return nil, err
		}
		all[name] = a
	}
	return json.Marshal(all)
}

// withInputs returns parameters with a client's input, for a retry.
func withInputs(params rawjson.Object, responses json.RawMessage, state string) rawjson.Object {
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
