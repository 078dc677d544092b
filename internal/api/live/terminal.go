package live

import (
	"context"
	"sync"

	"sandlot/internal/agent/command"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// terminalArgs are the arguments of a channel of a terminal.
type terminalArgs struct {
	Session  string   `json:"session_id"`
	Terminal string   `json:"terminal_id"`
	Rows     int      `json:"rows"`
	Cols     int      `json:"cols"`
	Command  []string `json:"command"`
}

// opened is the data of an opened terminal.
type opened struct {
	Terminal string `json:"terminal_id"`
	Session  string `json:"session_id"`
}

// shown is the data about the size of a terminal.
type shown struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// maxSize is how many rows or columns a client's terminal may say that it has.
const maxSize = 10000

// sizeOf checks a size; 0 means any.
func sizeOf(rows, cols int) (command.Size, error) {
	if rows < 0 || cols < 0 || rows > maxSize || cols > maxSize {
		return command.Size{}, fault.Argument("rows", "rows and cols must be numbers from 0 to %d", maxSize)
	}
	return command.Size{Rows: rows, Cols: cols}, nil
}

// serveTerminal serves a terminal, until it ends.
func (ch *channel) serveTerminal() (any, error) {
	var a terminalArgs
	if err := ch.arguments(&a); err != nil {
		return nil, err
	}
	size, err := sizeOf(a.Rows, a.Cols)
	if err != nil {
		return nil, err
	}
	c := ch.client
	t, err := c.server.Hub.OpenTerminal(ch.ctx, c.principal, hub.TerminalSpec{Session: a.Session, Terminal: a.Terminal,
		Command: a.Command, Size: size})
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if err := ch.tell("opened", opened{t.ID, t.Session}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ch.ctx)
	var typing sync.WaitGroup
	typing.Go(func() { cancel(ch.guard(func() error { return ch.typeKeys(ctx, t) })) })
	defer typing.Wait()
	defer cancel(nil)
	for {
		// Not before there is room: a viewer that is behind gets the screen, and not all that was printed.
		if err := ch.await(ctx); err != nil {
			return nil, err
		}
		out, err := t.Next(ctx)
		if err != nil {
			return nil, err
		}
		if out.Size != nil {
			if err := ch.tell("data", shown{out.Size.Rows, out.Size.Cols}); err != nil {
				return nil, err
			}
		}
		if err := ch.print(out.Bytes); err != nil {
			return nil, err
		}
		if out.End != nil {
			return out.End, nil
		}
	}
}

// typeKeys gives the terminal what comes from the client, until ctx ends, or policy does not allow it any more.
func (ch *channel) typeKeys(ctx context.Context, t *hub.Terminal) error {
	for {
		select {
		case <-ch.news:
		case <-ctx.Done():
			return nil
		}
		if err := ch.passOn(ctx, t); err != nil {
			return err
		}
	}
}

// passOn gives the terminal the input that waits.
func (ch *channel) passOn(ctx context.Context, t *hub.Terminal) error {
	keys, wanted, done := ch.takeInput()
	defer done()
	if wanted != nil {
		t.Resize(ctx, *wanted)
	}
	if len(keys) == 0 {
		return nil
	}
	if err := t.May(); err != nil {
		return err
	}
	if err := t.Type(ctx, keys); err != nil && ctx.Err() == nil {
		ch.client.misunderstood(about(ch.number, err)) // the terminal can be looked at still
	}
	return nil
}
