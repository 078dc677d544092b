package hub

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// ProcessID names a process of a session, by its process_id or the part of it after the dot.
type ProcessID struct {
	SessionID
	Process string
}

// agentID returns the id that the agent knows.
func (p ProcessID) agentID() string {
	if _, id, ok := strings.Cut(p.Process, "."); ok {
		return id
	}
	return p.Process
}

// OutputQuery asks for the output of a process, from a byte on.
type OutputQuery struct {
	ProcessID
	Cursor int64
}

// ProcessOutput is a part of the output of a process.
type ProcessOutput struct {
	Bytes   []byte
	Cursor  int64       // the offset of the end of Bytes
	Skipped int64       // bytes before them that are not kept any more
	End     *ProcessEnd // nil: more may come
}

// ProcessEnd says how a process has ended.
type ProcessEnd struct {
	ExitCode *int   `json:"exit_code,omitempty"`
	KilledBy string `json:"killed_by,omitempty"`
	Reason   string `json:"reason,omitempty"` // without an exit code
}

// ProcessReader reads the output of a process as it comes, until Close. It wakes no session, and keeps none awake.
type ProcessReader struct {
	*ActiveRequest
	session, id string
	life        uint64
	cursor      int64
	events      *event.Subscription // nil: the server has none
	ended       *ProcessEnd
}

const (
	maxOutput   = 32 << 10 // bytes that are read at once
	outputWait  = 10 * time.Second
	outputPause = 20 * time.Millisecond
)

// ReadProcess begins to read the output of a process of a session that runs.
func (h *Hub) ReadProcess(ctx context.Context, p auth.Principal, q OutputQuery) (*ProcessReader, error) {
	request := h.sessionRequest(policy.ProcessRead, p, q.SessionID)
	return begin(ctx, h, request, func(a *ActiveRequest) (*ProcessReader, error) {
		if q.Cursor < 0 {
			return nil, fault.Argument("cursor", "cursor must not be negative")
		}
		session, err := h.Sessions.Find(p, a.request.Resource.ID)
		if err != nil {
			return nil, err
		}
		programs, err := h.Sessions.Programs(p.ID, session)
		if err != nil {
			return nil, err
		}
		if !programs.Kept {
			return nil, fault.New(fault.NotFound, "there is no such process: the programs of this session have ended")
		}
		r := &ProcessReader{ActiveRequest: a, session: session, id: q.agentID(), life: programs.Life, cursor: q.Cursor}
		a.session = session
		if programs.Agent != nil { // whether there is one
			if _, err := programs.Agent.ReadProcess(ctx, r.id, q.Cursor, 1, 0); err != nil {
				if refusal, ok := errors.AsType[*agent.Refusal](err); ok {
					return nil, fault.Wrap(fault.NotFound, err, "%s", refusal.Message)
				}
				return nil, fault.Wrap(fault.Connection, err, "the sandbox does not answer")
			}
		}
		if h.Events != nil {
			r.events = h.Events.Subscribe(event.Filter{Principal: p.ID, Session: session}, h.Events.Newest())
		}
		return r, nil
	})
}

// Next waits for more output, or the end of the process. The error is ErrStops when the server stops.
func (r *ProcessReader) Next(ctx context.Context) (ProcessOutput, error) {
	if r.ended != nil {
		return ProcessOutput{Cursor: r.cursor, End: r.ended}, nil
	}
	for pause := outputPause; ; {
		if err := r.mayGoOn(ctx); err != nil {
			return ProcessOutput{}, err
		}
		programs, err := r.hub.Sessions.Programs(r.request.Principal.ID, r.session)
		switch {
		case err != nil:
			return r.over("its session is gone"), nil
		case !programs.Kept || programs.Life != r.life:
			return r.over("it has ended with its session's sandbox"), nil
		case programs.Agent == nil:
			r.awaitEvent(ctx)
			continue
		}
		began := time.Now()
		out, err := programs.Agent.ReadProcess(ctx, r.id, r.cursor, maxOutput, outputWait)
		if refusal, ok := errors.AsType[*agent.Refusal](err); ok {
			return r.over(refusal.Message), nil
		}
		if err == nil && (len(out.Data) > 0 || !out.Running && out.Available <= 0) {
			o := ProcessOutput{Bytes: out.Data, Cursor: out.Cursor, Skipped: out.Skipped}
			r.cursor = out.Cursor
			if !out.Running && out.Available <= 0 {
				r.ended = &ProcessEnd{ExitCode: &out.ExitCode, KilledBy: out.KilledBy}
				o.End = r.ended
			}
			r.sent.Add(int64(len(o.Bytes)))
			rest(ctx, time.Until(began.Add(outputPause)))
			return o, nil
		}
		// Without an answer the session falls asleep, or its agent dials again. One that has nothing waits before it says so.
		if err != nil || time.Since(began) < outputWait/2 {
			rest(ctx, pause)
			pause = min(2*pause, folderRest)
			continue
		}
		pause = outputPause
	}
}

func (r *ProcessReader) over(why string) ProcessOutput {
	r.ended = &ProcessEnd{Reason: why}
	return ProcessOutput{Cursor: r.cursor, End: r.ended}
}

// mayGoOn asks policy again. Nobody is asked.
func (r *ProcessReader) mayGoOn(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.hub.Stops() {
		return ErrStops
	}
	if d := r.hub.decide(r.request); d.Effect == policy.Refuse {
		return r.Fail(d.Err())
	}
	return nil
}

func (r *ProcessReader) awaitEvent(ctx context.Context) {
	if r.events == nil {
		rest(ctx, folderRest)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, outputWait)
	defer cancel()
	_, _, _ = r.events.Next(ctx) // whatever comes, the session is looked at again
}

// ProcessInput is what a process is given to read.
type ProcessInput struct {
	ProcessID
	Data string
	EOF  bool
}

// ProcessSignal is a signal for a process; its name has no SIG. Empty: TERM, and KILL five seconds later.
type ProcessSignal struct {
	ProcessID
	Signal string
}

func (h *Hub) writeToProcess(ctx context.Context, p auth.Principal, in ProcessInput) (any, error) {
	return h.processTool(ctx, p, in.ProcessID, "write_process", map[string]any{"data": in.Data, "eof": in.EOF})
}

func (h *Hub) signalProcess(ctx context.Context, p auth.Principal, s ProcessSignal) (any, error) {
	args := map[string]any{}
	if s.Signal != "" {
		args["signal"] = s.Signal
	}
	return h.processTool(ctx, p, s.ProcessID, "stop_process", args)
}

// processTool carries out what one of Sandlot's tools does to a process. Policy was asked before.
func (h *Hub) processTool(ctx context.Context, p auth.Principal, id ProcessID, name string, args map[string]any) (any,
	error) {
	session, err := h.Sessions.Find(p, string(id.SessionID))
	if err != nil {
		return nil, err
	}
	args["process_id"] = session + "." + id.agentID()
	b, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	f, external, ok := h.findTool(p, name)
	if !ok || external {
		return nil, fault.New(fault.NotFound, "this server has no processes")
	}
	r, err := f.Call(ctx, tool.NewCall(p, name, b, nil))
	if err != nil {
		return nil, err
	}
	return r.Fields, nil
}

// PortRow is a port of a session: a program listens on it, it has a link, or both.
type PortRow struct {
	Port      int        `json:"port"`
	Listening bool       `json:"listening" jsonschema:"Whether a program listens; false while the session sleeps."`
	Program   string     `json:"program,omitempty" jsonschema:"The name of the program that listens."`
	Exposed   bool       `json:"exposed" jsonschema:"Whether it has a link."`
	Public    bool       `json:"public,omitempty" jsonschema:"Whether the link needs no token."`
	URL       string     `json:"url,omitempty" jsonschema:"The link, without a token."`
	Expires   *time.Time `json:"expires_at,omitempty"`
}

// PortRows is the ports of a session.
type PortRows struct {
	Ports []PortRow `json:"ports"`
}

// listPorts wakes no session.
func (h *Hub) listPorts(ctx context.Context, p auth.Principal, id SessionID) (PortRows, error) {
	session, err := h.Sessions.Find(p, string(id))
	if err != nil {
		return PortRows{}, err
	}
	rows := PortRows{Ports: []PortRow{}}
	at := map[int]int{}
	for _, r := range h.Ports.List(p.ID, session) {
		at[r.Port] = len(rows.Ports)
		rows.Ports = append(rows.Ports, PortRow{Port: r.Port, Exposed: true, Public: r.Public,
			URL: h.Ports.Links.URL(session, r.Port, ""), Expires: &r.Expires})
	}
	programs, err := h.Sessions.Programs(p.ID, session)
	if err != nil || programs.Agent == nil {
		return rows, err
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	listeners, err := programs.Agent.ListPorts(ctx)
	if err != nil && agent.ReasonOf(err) != agent.Unsupported {
		return rows, fault.Wrap(fault.Connection, err, "the sandbox does not say on which ports its programs listen")
	}
	for _, l := range listeners {
		i, known := at[l.Port]
		if !known {
			i = len(rows.Ports)
			at[l.Port] = i
			rows.Ports = append(rows.Ports, PortRow{Port: l.Port})
		}
		rows.Ports[i].Listening, rows.Ports[i].Program = true, l.Program
	}
	return rows, nil
}
