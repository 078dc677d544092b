package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// request makes one call of a client, and starts the server when it does not
// run. A session that the server has forgotten is begun anew, once.
func (s *server) request(ctx context.Context, q query) (json.RawMessage, error) {
	for attempt := 0; ; attempt++ {
		raw, err := s.once(ctx, q)
		if errors.Is(err, transport.ErrLost) && attempt == 0 {
			continue
		}
		return raw, err
	}
}

func (s *server) once(ctx context.Context, q query) (json.RawMessage, error) {
	stop := q.patience(s)
	l, release, err := s.use(ctx)
	stop()
	if err != nil {
		return nil, err
	}
	defer release()
	stateful := !l.session.Stateless()
	f, err := l.begin(ctx, q.client, stateful && s.record().Elicits)
	if err != nil {
		return nil, s.callFault(l, q, err)
	}
	defer l.end(f)
	began := time.Now()
	raw, err := l.rounds(ctx, q, f)
	if err != nil {
		return nil, s.callFault(l, q, err)
	}
	s.worked(time.Since(began))
	return raw, nil
}

// patience tells a client that waits for a server to start, after a second.
func (q query) patience(s *server) (stop func()) {
	say := func(text string) {
		if q.client != nil {
			b, _ := json.Marshal(map[string]any{"progress": 0, "message": text})
			q.client.Tell("notifications/progress", b)
		} else if q.progress != nil {
			q.progress(text)
		}
	}
	t := time.AfterFunc(time.Second, func() { say(fmt.Sprintf("Starting the MCP server %q", s.name)) })
	return func() { t.Stop() }
}

// watchdog ends a call that gives no sign of life: no answer and no progress,
// while its client is not asked.
type watchdog struct {
	limit time.Duration
	asked func() bool
	stop  context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
}

func watch(ctx context.Context, limit time.Duration, asked func() bool) (context.Context, *watchdog) {
	ctx, stop := context.WithCancelCause(ctx)
	w := &watchdog{limit: limit, asked: asked, stop: stop}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(limit, func() {
		if asked() {
			w.alive()
			return
		}
		stop(transport.ErrTimeout)
	})
	return ctx, w
}

func (w *watchdog) alive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Reset(w.limit)
}

func (w *watchdog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.stop(nil)
}

const maxRounds = 10

// rounds makes the call, and those that follow when a server of the newer era
// asks for input and the client is one that is asked while it waits.
func (l *instance) rounds(ctx context.Context, q query, f *inFlight) (json.RawMessage, error) {
	ctx, dog := watch(ctx, l.settings.CallLimit(callLimit), func() bool { return l.isAsked(f) })
	defer dog.end()
	relay := func(params json.RawMessage) {
		dog.alive()
		q.relay(params)
	}
	r := mcpclient.Request{Method: q.method, Params: q.params, Meta: q.meta, Schema: q.schema, Timeout: callMost,
		Most:         callMost,
		Capabilities: json.RawMessage("{}"), Progress: relay, Held: q.arrived.put}
	if q.client != nil {
		r.Capabilities = q.client.Capabilities()
	}
	if !q.inputs.Empty() {
		r.Params = with(r.Params, q.inputs.Responses, q.inputs.State)
	}
	for range maxRounds {
		raw, err := l.session.Call(ctx, r)
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, transport.ErrTimeout) {
				err = cause
			}
			return nil, err
		}
		var asks struct {
			ResultType    string          `json:"resultType"`
			InputRequests map[string]need `json:"inputRequests"`
			RequestState  string          `json:"requestState"`
		}
		if !strings.Contains(string(raw[:min(len(raw), 1<<20)]), "input_required") || json.Unmarshal(raw,
			&asks) != nil || asks.ResultType != "input_required" {
			return raw, nil
		}
		if q.client != nil && q.client.Retries() {
			return raw, nil
		}
		l.awaitUser(f, true)
		answers, err := q.answers(ctx, asks.InputRequests)
		l.awaitUser(f, false)
		dog.alive()
		if err != nil {
			return nil, err
		}
		r.Params = with(q.params, answers, asks.RequestState)
	}
	return nil, fault.New(fault.Connection, "the server asked for input %d times, and that is enough", maxRounds)
}

// need is something that a server of the newer era wants to know.
type need struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// answers asks the client for all of it.
func (q query) answers(ctx context.Context, needs map[string]need) (json.RawMessage, error) {
	if len(needs) > 16 {
		return nil, fault.New(fault.Connection, "the server asks for %d things at once", len(needs))
	}
	all := rawjson.Object{}
	for name, n := range needs {
		if q.client == nil {
			return nil, fault.New(fault.Connection,
				"the server wants to ask something (%s), and this client cannot be asked: use an MCP client that can", spec.Clip(n.Method))
		}
		if err := catalog.CheckQuestion(n.Params); err != nil {
			return nil, fault.New(fault.Connection, "the server asks for input in a form that is not passed on: %v",
				err)
		}
		a, err := q.client.Ask(ctx, n.Method, n.Params)
		if err != nil {
			return nil, err
		}
		all[name] = a
	}
	return json.Marshal(all)
}

// with returns parameters and what a client brings beside.
func with(params rawjson.Object, responses json.RawMessage, state string) rawjson.Object {
	out := rawjson.Object{}
	for k, v := range params {
		out[k] = v
	}
	if len(responses) > 0 {
		out["inputResponses"] = responses
	}
	if state != "" {
		out["requestState"] = rawjson.Quote(state)
	}
	return out
}

// relay passes progress on.
func (q query) relay(params json.RawMessage) {
	if q.client != nil {
		q.client.Tell("notifications/progress", params)
		return
	}
	var p struct{ Message string }
	if q.progress != nil && json.Unmarshal(params, &p) == nil && p.Message != "" {
		q.progress(spec.Text(p.Message, 1000))
	}
}

// callFault says in words why a call was not answered.
func (s *server) callFault(l *instance, q query, err error) error {
	var f *fault.Error
	var said *transport.Error
	switch {
	case errors.As(err, &said):
		data := said.Data
		if len(data) > limit.Large { // errors count for nobody, as large answers do
			data = nil
		}
		return &tool.Refusal{Code: said.Code, Message: spec.Text(said.Message, 4000), Data: data}
	case errors.As(err, &f):
		return s.advised(f)
	case errors.Is(err, transport.ErrLost):
		<-l.session.Done()
		s.ended(l)
		return fmt.Errorf("%w: %w", transport.ErrLost, s.fault(fault.Connection, err, "has forgotten its session"))
	case errors.Is(err, context.Canceled):
		return fault.From(context.Canceled)
	case errors.Is(err, transport.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return s.fault(fault.Connection, err,
			"did not answer within %s of its last sign of life; it was told to stop", l.settings.CallLimit(callLimit))
	case errors.Is(err, transport.ErrTooLarge):
		return s.fault(fault.Connection, err, "answered with more than is taken")
	}
	select {
	case <-l.session.Done():
		how, itself := l.how(process.Farewell)
		if itself {
			return s.fault(fault.Connection, err, "died during the call: %s. It is started again when it is used", how)
		}
		return s.fault(fault.Connection, err,
			"is gone: the connection to it ended during the call. It is made again when it is used")
	default:
	}
	return s.fault(fault.Connection, err, "could not be asked: %s", spec.Text(err.Error(), 500))
}
