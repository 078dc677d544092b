package hub

import (
	"cmp"
	"context"
	"errors"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/command"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/tty"
)

// TerminalSpec says which terminal a client wants to look at.
type TerminalSpec struct {
	Session  string   // its id or name, or home
	Terminal string   // empty: a new one
	Command  []string // of a new one; empty: the shell
	Size     command.Size
}

// Terminal is a terminal that a client looks at, until Close. The terminal itself lives on.
type Terminal struct {
	*ActiveRequest
	ID, Session string
	viewer      *tty.Viewer
	agreed      bool // a rule asked a person when it was opened
}

// TerminalOutput is what a terminal shows next.
type TerminalOutput = tty.Output

// TerminalList is the terminals of a session.
type TerminalList struct {
	Terminals []tty.Info `json:"terminals"`
}

// TerminalID names a terminal.
type TerminalID struct {
	SessionID
	Terminal string
}

// maxCommand is how many words, and maxCommandBytes how many bytes, the command of a new terminal has.
const maxCommand, maxCommandBytes = 64, 16 << 10

// The size of a new terminal whose client says none.
const defaultRows, defaultCols = 24, 80

// terminalEnv are the variables of programs in a terminal.
var terminalEnv = map[string]string{"TERM": "xterm-256color"}

// OpenTerminal opens a terminal of a session, a new one or one that is there. A new one wakes its session, and one that
// is there does not. Policy decides about both as about an interactive command: who looks at a terminal can type any.
func (h *Hub) OpenTerminal(ctx context.Context, p auth.Principal, spec TerminalSpec) (*Terminal, error) {
	r := h.sessionRequest(policy.ShellExecute, p, SessionID(spec.Session))
	r.DetailFollows = true
	return begin(ctx, h, r, func(a *ActiveRequest) (t *Terminal, err error) {
		switch {
		case h.Terminals == nil:
			return nil, fault.New(fault.NotFound, "this server has no terminals")
		case spec.Terminal == "":
			return a.startTerminal(ctx, spec)
		}
		return a.viewTerminal(ctx, spec)
	})
}

// startTerminal starts a program in a terminal.
func (a *ActiveRequest) startTerminal(ctx context.Context, spec TerminalSpec) (*Terminal, error) {
	h, p := a.hub, a.request.Principal
	if err := checkCommand(spec.Command); err != nil {
		return nil, err
	}
	id := spec.Session
	if isName(id, a.request.Resource.ID) {
		id = a.request.Resource.ID
	}
	l, err := a.openSession(ctx, SessionSpec{ID: id})
	if err != nil {
		return nil, err
	}
	defer l.Release() // from now on the terminal is what keeps the session awake, as any program in the background is
	cmd := agent.Command{Args: spec.Command}
	if len(cmd.Args) == 0 {
		cmd.Args = []string{"/bin/sh", "-i"}
		if shell, ok := l.Booted.Template.Language("bash"); ok && len(shell.Command) > 0 {
			cmd.Args[0] = shell.Command[0]
		}
	}
	if _, err := a.prepare(ctx, l, cmd.Args, nil); err != nil {
		return nil, err
	}
	release, err := h.Terminals.Reserve(p.ID, l.ID())
	if err != nil {
		return nil, err
	}
	h.Sessions.Narrow(l.ID(), p.Scope) // it may leave something behind
	size := tty.Bounded(command.Size{Rows: cmp.Or(spec.Size.Rows, defaultRows),
		Cols: cmp.Or(spec.Size.Cols, defaultCols)})
	cmd.Env, cmd.Terminal = terminalEnv, &size
	life := l.Life()
	process, err := startProgram(ctx, l.Agent(), cmd)
	if err != nil {
		release()
		return nil, l.Fault(ctx, err, fault.CommandExecution)
	}
	t, err := h.Terminals.Add(tty.Start{Owner: p.ID, Session: l.ID(), ID: process, Life: life, Command: cmd.Args,
		Size: size, Began: time.Now(), Release: release, Mortal: true})
	if err != nil {
		return nil, err
	}
	return a.view(t, spec.Size)
}

// starter is what starts and stops programs: agent.Client.
type starter interface {
	StartProcess(ctx context.Context, b agent.Background) (id string, err error)
	StopProcess(ctx context.Context, id string, signal syscall.Signal, grace time.Duration) (running bool, exitCode int,
		err error)
}

// startWait is how long a sandbox has to start a terminal's program, or to stop it.
const startWait = 15 * time.Second

// startProgram starts the program of a terminal. The call goes on when ctx ends, so that no program is left of which
// nobody knows.
func startProgram(ctx context.Context, a starter, cmd agent.Command) (id string, err error) {
	start, cancel := context.WithTimeout(context.WithoutCancel(ctx), startWait)
	defer cancel()
	id, err = a.StartProcess(start, agent.Background{Command: cmd, KeepStdin: true, Unread: tty.Unread})
	if err != nil || ctx.Err() == nil {
		return id, err
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), startWait)
	defer cancel()
	_, _, _ = a.StopProcess(stop, id, syscall.SIGKILL, 0) // else it ends when nobody has read for long
	return "", context.Cause(ctx)
}

func checkCommand(args []string) error {
	n := 0
	for _, arg := range args {
		n += len(arg)
	}
	if len(args) > maxCommand || n > maxCommandBytes {
		return fault.Argument("command", "command has more than %d words or %d bytes", maxCommand, maxCommandBytes)
	}
	return nil
}

// viewTerminal opens a terminal that is there.
func (a *ActiveRequest) viewTerminal(ctx context.Context, spec TerminalSpec) (*Terminal, error) {
	h, p := a.hub, a.request.Principal
	if len(spec.Command) > 0 {
		return nil, fault.Argument("command", "a terminal that is there has its command: leave command or terminal_id out")
	}
	session, err := h.Sessions.Find(p, a.request.Resource.ID) // not by its name, which may be another's by now
	if err != nil {
		return nil, err
	}
	t, err := h.Terminals.TakeOver(ctx, p.ID, session, spec.Terminal)
	if err != nil {
		return nil, err
	}
	own, err := h.Sessions.VariablesOf(p.ID, session)
	if err != nil {
		return nil, err
	}
	if err := a.decide(ctx, policy.WithVariables(policy.CommandLine(t.Command, nil), own)); err != nil {
		return nil, err
	}
	return a.view(t, spec.Size)
}

func (a *ActiveRequest) view(t *tty.Terminal, size command.Size) (*Terminal, error) {
	v, err := t.View(size)
	if err != nil {
		return nil, err
	}
	a.session = t.Session
	a.cleanups = append(a.cleanups, v.Close)
	agreed := a.hub.decide(a.request).Effect == policy.Ask // a person has just agreed
	return &Terminal{ActiveRequest: a, ID: t.ID, Session: t.Session, viewer: v, agreed: agreed}, nil
}

// Next waits for what the terminal shows next. The error is ErrStops when the server stops: the terminal does not end
// with it.
func (t *Terminal) Next(ctx context.Context) (TerminalOutput, error) {
	out, err := t.viewer.Next(ctx)
	if errors.Is(err, tty.ErrStops) || out.End != nil && t.hub.Stops() {
		return TerminalOutput{}, ErrStops
	}
	t.sent.Add(int64(len(out.Bytes)))
	return out, err
}

// Resize says what size the client's own terminal has.
func (t *Terminal) Resize(ctx context.Context, size command.Size) { t.viewer.Resize(ctx, size) }

// May returns no error as long as policy allows what the client does. Nobody is asked: what a rule asks about was agreed
// to when the terminal was opened.
func (t *Terminal) May() error {
	if d := t.hub.decide(t.request); d.Effect == policy.Refuse || d.Effect == policy.Ask && !t.agreed {
		return t.Fail(d.Err())
	}
	return nil
}

// Type gives the terminal what the client has typed. It wakes the session.
func (t *Terminal) Type(ctx context.Context, keys []byte) error {
	if err := t.viewer.Lives(); err != nil {
		return err
	}
	h, p := t.hub, t.request.Principal
	l, err := h.Sessions.Wake(ctx, p, t.Session)
	if err != nil {
		return err
	}
	defer l.Release()
	h.Sessions.Narrow(l.ID(), p.Scope)
	t.received.Add(int64(len(keys)))
	if err := t.viewer.Type(ctx, l.Agent(), l.Life(), keys); err != nil {
		return l.Fault(ctx, err, fault.CommandExecution)
	}
	return nil
}

func (h *Hub) listTerminals(ctx context.Context, p auth.Principal, id SessionID) (TerminalList, error) {
	session, err := h.Sessions.Find(p, string(id))
	if err != nil || h.Terminals == nil {
		return TerminalList{Terminals: []tty.Info{}}, err
	}
	list, err := h.Terminals.List(ctx, p.ID, session)
	return TerminalList{list}, err
}

// endTerminal ends a terminal. It wakes the session, unless the terminal is known to be gone.
func (h *Hub) endTerminal(ctx context.Context, p auth.Principal, id TerminalID) (None, error) {
	none := fault.New(fault.NotFound, "there is no such terminal in this session")
	session, err := h.Sessions.Find(p, string(id.SessionID))
	if err != nil {
		return None{}, err
	}
	if h.Terminals == nil {
		return None{}, none
	}
	t, err := h.Terminals.TakeOver(ctx, p.ID, session, id.Terminal)
	if err != nil {
		return None{}, err
	}
	if err := t.Lives(); err != nil { // what has ended with its sandbox is no reason to start another
		return None{}, err
	}
	l, err := h.Sessions.Wake(ctx, p, session)
	if err != nil {
		return None{}, err
	}
	defer l.Release()
	if err := t.Stop(ctx, l.Agent(), l.Life()); err != nil {
		return None{}, l.Fault(ctx, err, fault.CommandExecution)
	}
	return None{}, nil
}
