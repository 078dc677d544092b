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

// Shell is an interactive process of a session, until Close. OpenShell creates it before the
// command is known.
type Shell struct {
	*ActiveRequest
	lease *session.Lease
}

// OpenShell opens the session for an interactive process.
func (h *Hub) OpenShell(ctx context.Context, p auth.Principal, spec SessionSpec) (*Shell, error) {
	r := h.sessionRequest(policy.ShellExecute, p, SessionID(spec.ID))
	r.DetailFollows = true
	return begin(ctx, h, r,
		func(a *ActiveRequest) (*Shell, error) {
			l, err := a.openSession(ctx, spec)
			return &Shell{a, l}, err
		})
}

// Run starts the command. It returns the stream of the process, with the frames of package
// command, and the message that describes the process to the client. The caller closes the
// stream.
func (s *Shell) Run(ctx context.Context, c command.Command) (*agent.Interactive, command.Started, error) {
	own, err := s.lease.Variables()
	if err != nil {
		return nil, command.Started{}, s.Fail(err)
	}
	if err := s.decide(ctx, policy.WithVariables(policy.CommandLine(c.Args, c.Env), own)); err != nil {
		return nil, command.Started{}, err
	}
	env, err := s.hub.reveal(ctx, s.request.Principal, c.Env)
	if err == nil {
		err = s.lease.UseVariables(ctx, s.hub.revealFor(s.request.Principal), c.Env)
	}
	if err != nil {
		return nil, command.Started{}, s.Fail(err)
	}
	c.Env = env
	s.hub.Sessions.Narrow(s.lease.ID(), s.request.Principal.Scope) // it may leave something behind
	stream, err := s.lease.Agent().Interactive(ctx, c)
	if err != nil {
		return nil, command.Started{}, s.Fail(s.lease.Fault(ctx, err, fault.CommandExecution))
	}
	return stream, command.Started{ProcessID: stream.ProcessID, SessionID: s.lease.ID(),
		SessionCreated: s.lease.Created}, nil
}

// Hangup sends SIGHUP to a process whose client is gone. Closing the stream is not enough: the
// agent sees its end only after the unread input, which the process may never read.
func (s *Shell) Hangup(ctx context.Context, p *agent.Interactive) {
	// An error usually means that the process has ended.
	_, _, _ = s.lease.Agent().StopProcess(ctx, p.ProcessID, syscall.SIGHUP, time.Second)
}
