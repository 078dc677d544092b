package hub

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/tty"
)

// programs starts programs for a client that may leave meanwhile.
type programs struct {
	leave   context.CancelFunc
	started agent.Background
	stopped string
	alive   bool // whether the calls could still do something
}

func (p *programs) StartProcess(ctx context.Context, b agent.Background) (string, error) {
	if p.leave != nil {
		p.leave()
	}
	p.started, p.alive = b, ctx.Err() == nil
	return "p1", ctx.Err()
}

func (p *programs) StopProcess(ctx context.Context, id string, _ syscall.Signal, _ time.Duration) (bool, int, error) {
	p.stopped, p.alive = id, p.alive && ctx.Err() == nil
	return false, 137, nil
}

// The program of a terminal whose client leaves while it starts does not stay, and one of which no server knows any more
// ends by itself.
func TestClientLeavesDuringStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &programs{leave: cancel}
	if id, err := startProgram(ctx, p, agent.Command{}); !errors.Is(err, context.Canceled) || p.stopped != "p1" || !p.alive {
		t.Errorf("the client has left: %q, %v, and %q was stopped", id, err, p.stopped)
	}
	p = &programs{}
	if id, err := startProgram(t.Context(), p, agent.Command{}); id != "p1" || err != nil || p.stopped != "" ||
		p.started.Unread != tty.Unread || !p.started.KeepStdin {
		t.Errorf("the client is there: %q, %v, %+v", id, err, p)
	}
}
