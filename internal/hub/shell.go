package hub

import (
	"context"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
)

// Shell is an interactive process of a session, from before its command is known.
// Close ends it.
type Shell struct {
	*Act
	lease *session.Lease
}

// OpenShell opens the session for an interactive process.
func (h *Hub) OpenShell(ctx context.Context, p auth.Principal, a Ask) (*Shell, error) {
	act, l, err := h.openSession(ctx, policy.ShellExecute, p, a)
	if err != nil {
		return nil, err
	}
	act.started()
	return &Shell{Act: act, lease: l}, nil
}

// Run starts the command. The caller closes the stream.
func (s *Shell) Run(ctx context.Context, cmd agent.Command) (*agent.Interactive, error) {
	stream, err := s.lease.Agent().Interactive(ctx, cmd)
	if err != nil {
		return nil, s.Fail(s.lease.Fault(ctx, err, fault.CommandExecution))
	}
	return stream, nil
}

// Started is what a client is told of a process that runs.
func (s *Shell) Started(p *agent.Interactive) agent.Started {
	return agent.Started{ProcessID: p.ProcessID, SessionID: s.lease.ID(), SessionCreated: s.lease.Created}
}

// Hangup tells a process that its client is gone: the agent sees the end of the
// stream behind the input that the process does not take.
func (s *Shell) Hangup(ctx context.Context, p *agent.Interactive) {
	_, _, _ = s.lease.Agent().StopProcess(ctx, p.ProcessID, syscall.SIGHUP, time.Second) // most often it has ended
}
