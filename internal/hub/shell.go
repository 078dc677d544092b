package hub

import (
	"context"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/command"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
)

// Shell is an interactive process of a session, from before its command is known until
// Close.
type Shell struct {
	*Act
	lease *session.Lease
}

// OpenShell opens the session for an interactive process.
func (h *Hub) OpenShell(ctx context.Context, p auth.Principal, ask Ask) (*Shell, error) {
	return begin(h, h.onSession(policy.ShellExecute, p, SessionID(ask.ID)), func(a *Act) (*Shell, error) {
		l, err := a.open(ctx, ask)
		return &Shell{a, l}, err
	})
}

// Run starts the command, and describes its process to the client. The caller closes the
// stream, which carries the frames of package command.
func (s *Shell) Run(ctx context.Context, c command.Command) (*agent.Interactive, command.Started, error) {
	stream, err := s.lease.Agent().Interactive(ctx, c)
	if err != nil {
		return nil, command.Started{}, s.Fail(s.lease.Fault(ctx, err, fault.CommandExecution))
	}
	return stream, command.Started{ProcessID: stream.ProcessID, SessionID: s.lease.ID(),
		SessionCreated: s.lease.Created}, nil
}

// Hangup sends SIGHUP to a process whose client is gone. The agent would see the end of
// the stream only behind input that the process may never read.
func (s *Shell) Hangup(ctx context.Context, p *agent.Interactive) {
	_, _, _ = s.lease.Agent().StopProcess(ctx, p.ProcessID, syscall.SIGHUP, time.Second) // most often it has ended
}
