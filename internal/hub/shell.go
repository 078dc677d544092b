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
	env, err := s.prepare(ctx, s.lease, c.Args, c.Env)
	if err != nil {
		return nil, command.Started{}, err
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

// prepare decides about a command in a session, with the variables that it gets, gives the session its own, and returns
// env with the secrets to which it refers. The error is the outcome of the request.
func (a *ActiveRequest) prepare(ctx context.Context, l *session.Lease, args []string, env map[string]string) (
	revealed map[string]string, err error) {
	own, err := l.Variables()
	if err != nil {
		return nil, a.Fail(err)
	}
	if err := a.decide(ctx, policy.WithVariables(policy.CommandLine(args, env), own)); err != nil {
		return nil, err
	}
	p := a.request.Principal
	if revealed, err = a.hub.reveal(ctx, p, env); err == nil {
		err = l.UseVariables(ctx, a.hub.revealFor(p), env)
	}
	return revealed, a.Fail(err)
}

// Hangup sends SIGHUP to a process whose client is gone. Closing the stream is not enough: the
// agent sees its end only after the unread input, which the process may never read.
func (s *Shell) Hangup(ctx context.Context, p *agent.Interactive) {
	// An error usually means that the process has ended.
	_, _, _ = s.lease.Agent().StopProcess(ctx, p.ProcessID, syscall.SIGHUP, time.Second)
}
