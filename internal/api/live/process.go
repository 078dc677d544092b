package live

import "sandlot/internal/hub"

const processKind = "process"

// processArgs are the arguments of a channel of a process's output.
type processArgs struct {
	Session string `json:"session_id"`
	Process string `json:"process_id"`
	Cursor  int64  `json:"cursor"`
}

// began says where the bytes that follow begin in the output.
type began struct {
	Cursor int64 `json:"cursor"`
}

// process serves the output of a process, until it ends.
func (ch *channel) process() (any, error) {
	var a processArgs
	if err := ch.arguments(&a); err != nil {
		return nil, err
	}
	c := ch.client
	r, err := c.server.Hub.ReadProcess(ch.ctx, c.principal, hub.OutputQuery{Cursor: a.Cursor,
		ProcessID: hub.ProcessID{SessionID: hub.SessionID(a.Session), Process: a.Process}})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := ch.tell("opened", struct{}{}); err != nil {
		return nil, err
	}
	at := int64(-1)
	for {
		if err := ch.await(ch.ctx); err != nil {
			return nil, err
		}
		out, err := r.Next(ch.ctx)
		if err != nil {
			return nil, err
		}
		if from := out.Cursor - int64(len(out.Bytes)); from != at {
			if err := ch.tell("data", began{from}); err != nil {
				return nil, err
			}
		}
		at = out.Cursor
		if err := ch.print(out.Bytes); err != nil {
			return nil, err
		}
		if out.End != nil {
			return out.End, nil
		}
	}
}
