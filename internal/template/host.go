package template

import (
	"context"
	"errors"
	"reflect"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// hostName is the name of the template of the machine's own programs.
const hostName = "host"

// hostQuestion is open while nobody knows whether sandboxes can be made of the template host: the daemon that makes
// them has not answered yet, and may be one that sees none of this machine's files.
type hostQuestion struct {
	ask   func(context.Context) (can bool, err error)
	first string // what stands for the template if it cannot be used; empty: nothing
}

// AskHost sets what tells whether sandboxes can be made of the template host; an error is of a runtime that does not
// answer. Until it is known, sessions can ask for the template and wait for the answer, and no sandbox is made of it
// before. If it cannot be used, it is gone, the ready-made templates are offered, and first, unless it is empty, is
// what sessions get that ask for it.
func (s *Set) AskHost(first string, ask func(context.Context) (bool, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entry(hostName) != nil {
		s.host = &hostQuestion{ask, first}
	}
}

// SettleHost finds out whether sandboxes can be made of the template host, if that is not known.
func (s *Set) SettleHost(ctx context.Context) error {
	s.mu.Lock()
	q := s.host
	s.mu.Unlock()
	if q == nil {
		return nil
	}
	can, err := q.ask(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.host != q { // another call was faster
		s.mu.Unlock()
		return nil
	}
	s.host = nil
	if !can {
		s.removeHost(q.first)
	}
	s.mu.Unlock()
	if !can {
		s.wakeBuilder()
		s.log.Info("the Docker daemon sees none of this machine's files: there is no template host", "in its place",
			q.first)
	}
	if s.changed != nil {
		s.changed()
	}
	return nil
}

// ReplaceHost gives the template host, if there is one, what has become of the machine. Sandboxes that are there keep
// what they have.
func (s *Set) ReplaceHost(t *image.Template) {
	s.mu.Lock()
	e := s.entry(hostName)
	replaced := e != nil && e.template != nil && !reflect.DeepEqual(e.template, t)
	if replaced {
		e.template = t
	}
	s.mu.Unlock()
	if replaced && s.changed != nil {
		s.changed()
	}
}

// removeHost removes the template host. The caller holds s.mu.
func (s *Set) removeHost(first string) {
	for i, e := range s.entries {
		if e.definition.Name == hostName {
			s.entries = append(s.entries[:i:i], s.entries[i+1:]...)
			close(e.news)
			break
		}
	}
	s.insteadOfHost = first
	s.offerReadyMade(first)
}

// settleFor is SettleHost for a session that asks for a template, if it is to get the template host.
func (s *Set) settleFor(ctx context.Context, name string) error {
	s.mu.Lock()
	e, err := s.choose(name)
	isOpen := s.host != nil && err == nil && e.definition.Name == hostName
	s.mu.Unlock()
	if !isOpen {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	if err := s.SettleHost(ctx); err != nil {
		advice := sandbox.Advice(err)
		if !errors.Is(err, sandbox.ErrUnavailable) {
			advice = "the runtime does not say how it makes sandboxes. Ask the operator of this server, who sees why " +
				"in its log"
			s.log.Warn("it is not known whether there is the template host", "error", err)
		}
		return fault.Wrap(fault.SandboxCreation, err, "%s", advice).With("template", hostName)
	}
	return nil
}
