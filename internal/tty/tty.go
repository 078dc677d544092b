// Package tty owns the terminals of sessions that outlive their viewers: what each shows, who looks at it, and when it
// ends. A terminal's program is a background process of its session. What it prints is kept by the agent; this package
// keeps the screen that it makes of that, and gives it to whoever comes. Nothing here wakes a session.
package tty

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/terminal"
)

// Limits. A terminal keeps two screens, and each viewer maxPending bytes.
const (
	maxOfSession = 8
	maxOfOwner   = 16
	maxViewers   = 8        // of one terminal
	maxOfViewers = 16       // of all terminals of a principal: each may get a screen that it does not take
	maxPending   = 64 << 10 // bytes that wait for a viewer; one that is later gets the screen
	maxRead      = 64 << 10 // bytes of output that are read at once
	// unwatched is how long a terminal lives that a viewer has started and nobody looks at. Where sessions cannot sleep, its
	// program would keep its session awake for ever.
	unwatched = Unread
)

// Unread is agent.Background.Unread of a program that a viewer starts: it ends without a server that knows it.
const Unread = 12 * time.Hour

// Machine is what runs the programs of a session: agent.Client.
type Machine interface {
	ReadProcess(ctx context.Context, id string, cursor int64, maxBytes int, wait time.Duration) (agent.ProcessOutput,
		error)
	TypeKeys(ctx context.Context, id string, keys []byte) (written int, err error)
	ResizeTerminal(ctx context.Context, id string, to agent.Size) error
	StopProcess(ctx context.Context, id string, signal syscall.Signal, grace time.Duration) (running bool, exitCode int,
		err error)
	ListProcesses(ctx context.Context) ([]agent.Process, error)
}

// Programs is session.Programs.
type Programs struct {
	Machine Machine // nil: they do not run now
	Kept    bool
	Life    uint64
}

// Config has what a Registry works with.
type Config struct {
	// Programs returns how the programs of a session are, and does not wake it.
	Programs func(owner, session string) (Programs, error)
	// Events tells when a session wakes.
	Events *event.Stream
	Log    *slog.Logger
}

// Of returns Config.Programs of sessions.
func Of(s *session.Sessions) func(owner, id string) (Programs, error) {
	return func(owner, id string) (Programs, error) {
		p, err := s.Programs(owner, id)
		all := Programs{Kept: p.Kept, Life: p.Life}
		if p.Agent != nil {
			all.Machine = p.Agent
		}
		return all, err
	}
}

// Registry has the terminals of all principals. Order of locks: an owner's busy, a terminal's sizing, its mu. The
// registry's mu is held with none of them.
type Registry struct {
	Config
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	all    map[key]*Terminal
	owners map[string]*owner
}

type key struct{ session, id string }

// owner is what the registry knows of a principal with terminals.
type owner struct {
	terminals int
	viewers   int            // of all terminals, also of those that have ended
	sessions  map[string]int // how many terminals each session has
	// busy is held while output of a terminal is worked on, and for a while after that: all terminals of a principal
	// together use a part of one processor.
	busy sync.Mutex
}

// New returns a registry without terminals.
func New(c Config) *Registry {
	ctx, cancel := context.WithCancel(context.Background())
	return &Registry{Config: c, ctx: ctx, cancel: cancel, all: map[key]*Terminal{}, owners: map[string]*owner{}}
}

// Close forgets all terminals. Their programs go on.
func (r *Registry) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.work.Wait()
}

// Reserve makes room for one more terminal of a session. Either Add or release follows.
func (r *Registry) Reserve(principal, session string) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[principal]
	if o == nil {
		o = &owner{sessions: map[string]int{}}
	}
	switch {
	case r.closed:
		return nil, fault.New(fault.Internal, "the server stops")
	case o.terminals >= maxOfOwner:
		return nil, tooMany(o.terminals, maxOfOwner, "")
	case o.sessions[session] >= maxOfSession:
		return nil, tooMany(o.sessions[session], maxOfSession, " in this session")
	}
	o.terminals++
	o.sessions[session]++
	r.owners[principal] = o
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		o.terminals--
		r.drop(principal, o)
		if o.sessions[session]--; o.sessions[session] == 0 {
			delete(o.sessions, session)
		}
	}), nil
}

// drop forgets an owner without terminals and viewers. The caller holds mu.
func (r *Registry) drop(principal string, o *owner) {
	if o.terminals == 0 && o.viewers == 0 && r.owners[principal] == o {
		delete(r.owners, principal)
	}
}

// enter counts one more viewer of a principal's terminals, until leave.
func (r *Registry) enter(o *owner) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.viewers >= maxOfViewers {
		return fault.Limit("viewers", int64(o.viewers), maxOfViewers,
			"%d viewers look at your terminals, which is the limit: close one first", o.viewers)
	}
	o.viewers++
	return nil
}

func (r *Registry) leave(principal string, o *owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.viewers--
	r.drop(principal, o)
}

func tooMany(used, limit int, where string) error {
	return fault.Limit("terminals", int64(used), limit, "%d terminals are open%s, which is the limit", used, where).
		Advise("End one that is not needed: DELETE /v1/sessions/{id}/terminals/{terminal}")
}

// Start is a terminal that begins to be known.
type Start struct {
	Owner, Session string
	ID             string // of the process
	Life           uint64 // of the session's programs
	Command        []string
	Size           agent.Size
	Began          time.Time
	Release        func() // of Reserve
	// Old: it has printed something already, which nobody has seen.
	Old bool
	// Mortal: it ends once nobody has looked at it for a long time. A viewer has started it, and not an agent, which need
	// not look at what it has started.
	Mortal bool
}

// Add makes a terminal known, and begins to read what its program prints. If it is known already, it returns that one.
func (r *Registry) Add(s Start) (*Terminal, error) {
	t, added, err := r.add(s)
	if !added {
		s.Release() // which needs mu
	}
	return t, err
}

func (r *Registry) add(s Start) (t *Terminal, added bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key{s.Session, s.ID}
	if t := r.all[k]; t != nil && t.Life == s.Life {
		return t, false, nil
	}
	if r.closed {
		return nil, false, fault.New(fault.Internal, "the server stops")
	}
	rows, cols := terminal.Bounded(s.Size.Rows, s.Size.Cols)
	ctx, cancel := context.WithCancel(r.ctx)
	t = &Terminal{Start: s, registry: r, of: r.owners[s.Owner], ctx: ctx, cancel: cancel,
		screen: terminal.NewEmulator(rows, cols), applied: s.Size, viewers: map[*Viewer]bool{}, ready: !s.Old, old: -1}
	if s.Mortal {
		t.idle = time.AfterFunc(unwatched, t.endUnwatched)
	}
	r.all[k] = t
	r.work.Go(t.run)
	return t, true, nil
}

// Find returns a terminal that is known and has not ended; nil: there is none.
func (r *Registry) Find(principal, session, id string) *Terminal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.all[key{session, id}]; t != nil && t.Owner == principal {
		return t
	}
	return nil
}

// forget removes a terminal that has ended.
func (r *Registry) forget(t *Terminal) {
	r.mu.Lock()
	k := key{t.Session, t.ID}
	if r.all[k] == t {
		delete(r.all, k)
	}
	r.mu.Unlock()
	t.Release()
}

// TakeOver returns a terminal of a session, also one that an earlier server, or a call, has started, as long as the
// session is awake.
func (r *Registry) TakeOver(ctx context.Context, principal, session, id string) (*Terminal, error) {
	if t := r.Find(principal, session, id); t != nil {
		return t, nil
	}
	none := fault.New(fault.NotFound, "there is no terminal %s in this session: it has ended", fault.Printable(id, 80)).
		Advise("List the terminals: GET /v1/sessions/{id}/terminals", "Open a new one")
	p, err := r.Programs(principal, session)
	switch {
	case err != nil:
		return nil, err
	case !p.Kept:
		return nil, none
	case p.Machine == nil:
		return nil, fault.New(fault.NotFound, "the session does not run now, and this server has not seen the terminal %s: "+
			"nobody knows whether it is there", fault.Printable(id, 80)).
			Advise("Wake the session, such as by a command in it, and open the terminal again")
	}
	list, err := p.Machine.ListProcesses(ctx)
	if err != nil {
		return nil, fault.Wrap(fault.CommandExecution, err, "the session's terminals could not be listed: %v", err)
	}
	i := slices.IndexFunc(list, func(q agent.Process) bool { return q.ID == id && isTerminal(q) })
	if i < 0 {
		return nil, none
	}
	out, err := p.Machine.ReadProcess(ctx, id, 0, 1, 0)
	if err != nil || out.Terminal == nil {
		return nil, none
	}
	release, err := r.Reserve(principal, session)
	if err != nil {
		return nil, err
	}
	return r.Add(Start{Owner: principal, Session: session, ID: id, Life: p.Life, Command: list[i].Args,
		Size: *out.Terminal, Began: list[i].Started, Release: release, Old: true, Mortal: list[i].Unread > 0})
}

func isTerminal(p agent.Process) bool { return p.Terminal && p.Running && p.Kind == "background" }

// Info describes a terminal.
type Info struct {
	ID      string    `json:"terminal_id" jsonschema:"It is also the process, whose process_id is SESSION.TERMINAL."`
	Session string    `json:"session_id"`
	Command string    `json:"command"`
	Started time.Time `json:"started_at"`
	Rows    int       `json:"rows,omitempty" jsonschema:"Missing if nobody has opened it since the server's start."`
	Cols    int       `json:"cols,omitempty"`
	Viewers int       `json:"viewers"`
}

// List lists the terminals of a session, the oldest first: those that this server knows and, if the session is awake,
// those that calls or an earlier server have started.
func (r *Registry) List(ctx context.Context, principal, session string) ([]Info, error) {
	p, err := r.Programs(principal, session)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	list := []Info{}
	for _, t := range r.of(principal, session) {
		known[t.ID] = true
		list = append(list, t.info())
	}
	if p.Machine != nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		all, err := p.Machine.ListProcesses(ctx)
		if err != nil {
			return nil, fault.Wrap(fault.CommandExecution, err, "the session's terminals could not be listed: %v", err)
		}
		for _, q := range all {
			if isTerminal(q) && !known[q.ID] {
				list = append(list, Info{ID: q.ID, Session: session, Command: commandText(q.Args), Started: q.Started.UTC()})
			}
		}
	}
	slices.SortFunc(list, func(a, b Info) int {
		if c := a.Started.Compare(b.Started); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list, nil
}

// of returns the terminals of a session that this server knows.
func (r *Registry) of(principal, session string) (all []*Terminal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, t := range r.all {
		if k.session == session && t.Owner == principal {
			all = append(all, t)
		}
	}
	return all
}

func commandText(args []string) string { return fault.Printable(strings.Join(args, " "), 500) }

// End is how a terminal ended.
type End struct {
	ExitCode *int   `json:"exit_code,omitempty"` // nil: nobody knows
	Why      string `json:"reason,omitempty"`    // empty: its program has ended
	stops    bool   // only the server has: the program goes on
}

// ErrStops is the error of Viewer.Next when the server stops.
var ErrStops = errors.New("the server stops")

func gone(format string, args ...any) End { return End{Why: fmt.Sprintf(format, args...)} }

// Bounded returns the nearest size that a terminal can have.
func Bounded(s agent.Size) agent.Size {
	rows, cols := terminal.Bounded(s.Rows, s.Cols)
	return agent.Size{Rows: rows, Cols: cols}
}
