// Package reason owns the words in which users are told why a session's sandbox did not start, has ended, or refused a
// call.
package reason

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// Start returns why a sandbox did not start, and what to do.
func Start(err error) string {
	if failed, ok := errors.AsType[*pool.StartError](err); ok {
		return failed.Error()
	}
	if w, ok := errors.AsType[*pool.WorkdirError](err); ok {
		return w.Error()
	}
	if e, ok := errors.AsType[*sandbox.Explained](err); ok { // of the template, or of its image
		return e.Words
	}
	switch {
	case errors.Is(err, pool.ErrElsewhere):
		return pool.ErrElsewhere.Error() + ". Nothing of them is lost; the server's log says where they are"
	case errors.Is(err, pool.ErrMissing):
		return pool.ErrMissing.Error() + "; begin a new session. The server's log says where it was"
	case errors.Is(err, sandbox.ErrUnavailable):
		return sandbox.Advice(err)
	case errors.Is(err, sandbox.ErrNoProcess):
		return sandbox.ErrNoProcess.Error() + "; try again when other sessions have ended or sleep. The operator " +
			"raises the machine's limit (sysctl kernel.pid_max), or allows fewer sessions at once (max_sessions)"
	case errors.Is(err, context.DeadlineExceeded):
		return "the sandbox did not start in time"
	}
	return "the runtime could not start it; the server's log says why"
}

// State returns why the state of a session could not be written to the disk, or a sandbox could not be made of it, in
// words that can end a sentence.
func State(err error) string {
	if e, ok := errors.AsType[*sandbox.Explained](err); ok {
		return e.Words
	}
	switch {
	case errors.Is(err, sandbox.ErrReplaced):
		return "its programs have files of the machine open that were replaced meanwhile, such as by an upgrade of the " +
			"machine's packages"
	case errors.Is(err, sandbox.ErrNoProcess):
		return sandbox.ErrNoProcess.Error()
	case atomicfile.IsDiskFull(err):
		return "the server's disk is full"
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, sandbox.ErrGone):
		return "it had died"
	case atomicfile.IsPassing(err):
		return "the server cannot read or write its own files at the moment; its log says more"
	}
	return "the server's log says why"
}

// Passes reports whether an error of writing or using a state says nothing about the state: the same may work later.
func Passes(err error) bool { return errors.Is(err, sandbox.ErrLater) || atomicfile.IsPassing(err) }

// StateFault returns the fault for a state that could not be written, or used; the message says what, and why.
func StateFault(err error, what string) *fault.Error {
	kind, e := fault.SessionState, (*sandbox.Explained)(nil)
	switch {
	case errors.As(err, &e) && e.Limit, errors.Is(err, sandbox.ErrNoProcess), atomicfile.IsDiskFull(err):
		kind = fault.ResourceLimit
	case errors.Is(err, context.Canceled):
		kind = fault.Canceled
	}
	f := fault.Wrap(kind, err, "%s: %s", what, State(err))
	if errors.Is(err, sandbox.ErrReplaced) {
		f = f.Advise("End the programs that were running before the upgrade, such as by restarting the session "+
			"(stop_session): its files are kept", "Keep what matters in files in /workspace")
	}
	return f
}

// mostNamed bounds the files that a text names.
const mostNamed = 5

// Unkept returns the sentence for files of the machine that a session had open while it slept, and of which there was no
// copy; empty without such. It begins with a space.
func Unkept(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	named := make([]string, 0, mostNamed)
	for _, path := range paths[:min(len(paths), mostNamed)] {
		named = append(named, fault.Name(path, 100))
	}
	more := ""
	if n := len(paths) - len(named); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf(" Of these files of the machine, which its programs have open, there was no copy, as they are too "+
		"many or too large: %s%s. If the machine replaces one while the session sleeps, variables and processes are lost.",
		strings.Join(named, ", "), more)
}

// Files returns why files of a session could not be measured or copied, in words that can end a sentence.
func Files(err error) string {
	switch {
	case atomicfile.IsDiskFull(err):
		return "the server's disk is full"
	case errors.Is(err, fs.ErrPermission):
		return "the server may not read one of them"
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	}
	if e, ok := errors.AsType[*sandbox.Explained](err); ok {
		return e.Words
	}
	return "the server's log says why"
}

// Death returns why a sandbox is dead.
func Death(b *pool.Booted) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := b.Box.Status(ctx)
	if err != nil {
		return "it died"
	}
	return Of(st, b)
}

// Of returns why a sandbox is dead whose status is known.
func Of(st sandbox.Status, b *pool.Booted) string {
	switch st.Reason {
	case "memory":
		return fmt.Sprintf("all of it had reached its memory limit of %d MB", b.Flavor.MemoryMB)
	case "disk":
		return "it had written more than its disk limit"
	case "volume":
		return "it went on writing into a shared folder that is full"
	case "killed":
		return "it was killed"
	}
	return "it died"
}

// Refused returns the fault for a call that the agent refused, or nil.
func Refused(err error) *fault.Error {
	r, ok := errors.AsType[*agent.Refusal](err)
	if !ok {
		return nil
	}
	switch r.Reason {
	case agent.NotFound:
		return fault.Wrap(fault.NotFound, err, "%s", r.Message)
	case agent.Conflict, agent.OutsideRoot, agent.Denied:
		return fault.Wrap(fault.FileAccess, err, "%s", r.Message)
	case agent.Changed:
		return fault.Wrap(fault.FileChanged, err, "%s", r.Message)
	case agent.Invalid:
		return fault.Wrap(fault.InvalidParameters, err, "%s", r.Message)
	case agent.Exhausted:
		return fault.Wrap(fault.ResourceLimit, err, "%s", r.Message)
	}
	return nil
}
