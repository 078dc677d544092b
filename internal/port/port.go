// Package port owns which ports of sessions are exposed, to whom, and for how
// long.
package port

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Record is one exposed port.
type Record struct {
	Session string
	Port    int
	Owner   string // the principal's id
	Hash    string // of the link's token
	Public  bool   // no token is needed
	Created time.Time
	Expires time.Time
}

// Store keeps records, by session and port. It forgets those of a session that
// it forgets.
type Store interface {
	PutPort(ctx context.Context, r Record) error
	Ports(ctx context.Context) ([]Record, error)
	RemovePort(ctx context.Context, session string, port int) error
}

// Config is what Ports need.
type Config struct {
	Store Store
	// Has says whether that session is there and its owner's.
	Has   func(owner, session string) bool
	Links Links
	Log   *slog.Logger
}

const (
	// Life is how long a link works when nothing else is asked for, MaxLife the
	// longest.
	Life    = 24 * time.Hour
	MaxLife = 30 * 24 * time.Hour
	// MaxPorts bounds the exposed ports of a session, and MaxConns its
	// connections from outside at one time: each can make the server hold what
	// its client does not take.
	MaxPorts = 64
	MaxConns = 128

	sweepInterval = time.Minute
	drainTimeout  = 3 * time.Second
)

// Why a request for a port gets no further.
var (
	ErrNoToken = errors.New("no token was given")
	ErrUnknown = errors.New("the port is not exposed, or not to the bearer of that token")
	ErrFull    = errors.New("the session has too many connections")
)

type place struct {
	session string
	port    int
}

// Ports are all exposed ports.
type Ports struct {
	Config
	change sync.Mutex // held while the store changes; taken before mu

	mu    sync.Mutex
	ports map[place]*entry
	conns map[string]int  // by session
	life  context.Context // of all exposed ports
	end   context.CancelFunc

	unserved atomic.Bool
}

// entry is an exposed port, with what ends those who use it.
type entry struct {
	Record
	closed context.Context
	close  context.CancelFunc
	dials  *semaphore.Weighted // held by those who dial
}

func (p *Ports) entry(r Record) *entry {
	e := &entry{Record: r, dials: semaphore.NewWeighted(4)}
	e.closed, e.close = context.WithCancel(p.life)
	return e
}

// New returns Ports without any; Recover fills them.
func New(c Config) *Ports {
	p := &Ports{Config: c, ports: map[place]*entry{}, conns: map[string]int{}}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// Drain ends the connections to all ports after a moment, as the server stops.
// Browsers connect again when there is a server.
func (p *Ports) Drain() { time.AfterFunc(drainTimeout, p.end) }

// Recover reads what an earlier server exposed. It is called once, when the
// sessions are there.
func (p *Ports) Recover(ctx context.Context) error {
	all, err := p.Store.Ports(ctx)
	if err != nil {
		return fmt.Errorf("reading the exposed ports: %w", err)
	}
	p.mu.Lock()
	for _, r := range all {
		p.ports[place{r.Session, r.Port}] = p.entry(r)
	}
	p.mu.Unlock()
	p.tidy(ctx)
	return nil
}

// Unserve says that links cannot be followed for now, since the server has no
// address on the network; Unserved tells.
func (p *Ports) Unserve()       { p.unserved.Store(true) }
func (p *Ports) Unserved() bool { return p.unserved.Load() }

// Run forgets what has expired, or has no session any more, until ctx ends.
func (p *Ports) Run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.tidy(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (p *Ports) tidy(ctx context.Context) {
	p.mu.Lock()
	var stale []Record
	for _, e := range p.ports {
		if !p.valid(e.Record) {
			stale = append(stale, e.Record)
		}
	}
	p.mu.Unlock()
	for _, r := range stale {
		if _, err := p.drop(ctx, r.Session, r.Port, func(now Record) bool { return !p.valid(now) }); err != nil {
			p.Log.Error("could not forget an exposed port", "session", r.Session, "port", r.Port, "error", err)
		}
	}
}

func (p *Ports) valid(r Record) bool {
	return time.Now().Before(r.Expires) && p.Has(r.Owner, r.Session)
}

// Expose opens a port of the owner's session and returns the link's token, which
// is shown once: only its hash is kept. A port that is exposed gets a new token,
// and the old one is of no use any more.
func (p *Ports) Expose(ctx context.Context, owner, session string, port int, public bool,
	life time.Duration) (Record, secret.Value, error) {
	token := secret.Value("slp_" + secret.ID())
	now := time.Now().UTC().Truncate(time.Second)
	r := Record{Session: session, Port: port, Owner: owner, Hash: secret.Hash(token.Reveal()), Public: public,
		Created: now, Expires: now.Add(life)}
	p.change.Lock()
	defer p.change.Unlock()
	others := slices.DeleteFunc(p.List(owner, session), func(r Record) bool { return r.Port == port })
	if n := len(others); n >= MaxPorts {
		return Record{}, "", fault.New(fault.ResourceLimit,
			"%d ports of session %s are exposed, and %d are allowed; close one with close_port", n, session, MaxPorts).
			With("resource_type", "ports").With("current_usage", n).With("limit", MaxPorts)
	}
	if err := p.Store.PutPort(ctx, r); err != nil {
		return Record{}, "", fmt.Errorf("storing the exposed port: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := place{session, port}
	if old := p.ports[at]; old != nil {
		old.close()
	}
	p.ports[at] = p.entry(r)
	return r, token, nil
}

// Close takes back what Expose gave, and ends the connections that came by it. It
// returns false when the owner has not exposed that port.
func (p *Ports) Close(ctx context.Context, owner, session string, port int) (bool, error) {
	return p.drop(ctx, session, port, func(r Record) bool { return r.Owner == owner })
}

func (p *Ports) drop(ctx context.Context, session string, port int, meant func(Record) bool) (bool, error) {
	p.change.Lock()
	defer p.change.Unlock()
	at := place{session, port}
	p.mu.Lock()
	e := p.ports[at]
	p.mu.Unlock()
	if e == nil || !meant(e.Record) {
		return false, nil
	}
	if err := p.Store.RemovePort(context.WithoutCancel(ctx), session, port); err != nil {
		return false, fmt.Errorf("closing the port: %w", err)
	}
	e.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ports, at)
	return true, nil
}

// List returns the exposed ports of the owner's session, the lowest first.
func (p *Ports) List(owner, session string) []Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []Record{}
	for _, e := range p.ports {
		if e.Owner == owner && e.Session == session && p.valid(e.Record) {
			all = append(all, e.Record)
		}
	}
	slices.SortFunc(all, func(x, y Record) int { return x.Port - y.Port })
	return all
}

// Check says whether the bearer of the token, which may be empty, may use a port.
// Its errors tell nothing of which sessions and ports there are.
func (p *Ports) Check(session string, port int, token string) (Record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, err := p.check(session, port, token)
	if err != nil {
		return Record{}, err
	}
	return e.Record, nil
}

// check is called with the lock held.
func (p *Ports) check(session string, port int, token string) (*entry, error) {
	e := p.ports[place{session, port}]
	known := e != nil && p.valid(e.Record)
	switch {
	case known && (e.Public || e.Opens(token)):
		return e, nil
	case token == "":
		return nil, ErrNoToken
	}
	return nil, ErrUnknown
}

// Opens says whether the token is the link's.
func (r Record) Opens(token string) bool {
	return token != "" && subtle.ConstantTimeCompare([]byte(secret.Hash(token)), []byte(r.Hash)) == 1
}

// Use is one connection to an exposed port, from Acquire until Release.
type Use struct {
	Record
	// Context ends when the port is closed or expires.
	Context context.Context
	release func()
	dials   *semaphore.Weighted
}

// Release ends the use. It may be called twice.
func (u *Use) Release() { u.release() }

// Dial calls dial when at most a few others dial the same port: what servers have
// not accepted yet waits in a queue, which many keep short.
func (u *Use) Dial(dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	if err := u.dials.Acquire(u.Context, 1); err != nil {
		return nil, err
	}
	defer u.dials.Release(1)
	return dial(u.Context)
}

// Acquire checks as Check does, and takes one of the session's connections.
func (p *Ports) Acquire(ctx context.Context, session string, port int, token string) (*Use, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, err := p.check(session, port, token)
	if err != nil {
		return nil, err
	}
	out, err := p.take(session)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, e.Expires)
	stop := context.AfterFunc(e.closed, cancel)
	return &Use{Record: e.Record, Context: ctx, dials: e.dials, release: func() { stop(); cancel(); out() }}, nil
}

// Join takes one of the session's connections for its owner, who needs no link,
// until release is called.
func (p *Ports) Join(session string) (release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(session)
}

// take is called with the lock held.
func (p *Ports) take(session string) (func(), error) {
	if p.conns[session] >= MaxConns {
		return nil, ErrFull
	}
	p.conns[session]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns[session]--; p.conns[session] == 0 {
			delete(p.conns, session)
		}
	}), nil
}
