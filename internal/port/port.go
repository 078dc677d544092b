// Package port owns the exposed ports of sessions: which ports are exposed, to whom, and for how long.
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
	Hash    string // hash of the link's token
	Public  bool   // no token is needed
	Created time.Time
	Expires time.Time
}

// Store stores records by session and port. It removes the records of a session together with the
// session.
type Store interface {
	PutPort(ctx context.Context, r Record) error
	Ports(ctx context.Context) ([]Record, error)
	RemovePort(ctx context.Context, session string, port int) error
}

// Config is what Ports need.
type Config struct {
	Store Store
	// SessionExists reports whether the session exists and belongs to owner.
	SessionExists func(owner, session string) bool
	Links         Links
	Log           *slog.Logger
}

const (
	// DefaultLifetime is the default lifetime of a link, MaxLifetime the maximum.
	DefaultLifetime = 24 * time.Hour
	MaxLifetime     = 30 * 24 * time.Hour
	// MaxPorts is the maximum number of exposed ports of a session. MaxConns is the maximum number of
	// connections to them at the same time: each may use memory of the server, for data that its client
	// has not read yet.
	MaxPorts = 64
	MaxConns = 128

	sweepInterval = time.Minute
	// DrainTimeout is how long connections to ports may go on when the server stops.
	DrainTimeout = 3 * time.Second
)

// Errors of Check and Acquire.
var (
	ErrNoToken = errors.New("no token was given")
	ErrUnknown = errors.New("the port is not exposed, or not to the bearer of that token")
	ErrFull    = errors.New("the session has too many connections")
)

// portKey identifies an exposed port.
type portKey struct {
	session string
	port    int
}

// Ports manages all exposed ports.
type Ports struct {
	Config
	storeMu sync.Mutex // held during changes of the store; locked before mu

	mu     sync.Mutex
	ports  map[portKey]*newExposedPort
	conns  map[string]int  // number of connections by session
	ctx    context.Context // parent of the ports' contexts
	cancel context.CancelFunc

	offline atomic.Bool
}

// newExposedPort is an exposed port. Its context ends when the port is closed.
type newExposedPort struct {
	Record
	ctx    context.Context
	cancel context.CancelFunc
	dials  *semaphore.Weighted // limits concurrent dials; see Use.Dial
}

func (p *Ports) newExposedPort(r Record) *newExposedPort {
	e := &newExposedPort{Record: r, dials: semaphore.NewWeighted(4)}
	e.ctx, e.cancel = context.WithCancel(p.ctx)
	return e
}

// New returns Ports without any exposed port; Recover reads the stored ones.
func New(c Config) *Ports {
	p := &Ports{Config: c, ports: map[portKey]*newExposedPort{}, conns: map[string]int{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Drain ends the connections to all ports after DrainTimeout. It is called when the server stops.
// Browsers reconnect to the next server.
func (p *Ports) Drain() { time.AfterFunc(DrainTimeout, p.cancel) }

// Recover reads the stored ports, which an earlier server has exposed. It must be called once, after the
// sessions have been recovered.
func (p *Ports) Recover(ctx context.Context) error {
	all, err := p.Store.Ports(ctx)
	if err != nil {
		return fmt.Errorf("reading the exposed ports: %w", err)
	}
	p.mu.Lock()
	for _, r := range all {
		p.ports[portKey{r.Session, r.Port}] = p.newExposedPort(r)
	}
	p.mu.Unlock()
	p.removeStale(ctx)
	return nil
}

// SetOffline records that links do not work, since the server does not listen on the network.
func (p *Ports) SetOffline() { p.offline.Store(true) }

// Offline reports whether Unserve was called.
func (p *Ports) Offline() bool { return p.offline.Load() }

// Run periodically removes ports that have expired or whose session is gone, until ctx ends.
func (p *Ports) Run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.removeStale(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (p *Ports) removeStale(ctx context.Context) {
	p.mu.Lock()
	var stale []Record
	for _, e := range p.ports {
		if !p.valid(e.Record) {
			stale = append(stale, e.Record)
		}
	}
	p.mu.Unlock()
	for _, r := range stale {
		if _, err := p.remove(ctx, r.Session, r.Port, func(now Record) bool { return !p.valid(now) }); err != nil {
			p.Log.Error("could not forget an exposed port", "session", r.Session, "port", r.Port, "error", err)
		}
	}
}

func (p *Ports) valid(r Record) bool {
	return time.Now().Before(r.Expires) && p.SessionExists(r.Owner, r.Session)
}

// Expose exposes a port of the owner's session and returns the link's token. Only the token's hash is
// stored, so it cannot be shown again. A port that is exposed already gets a new token, which replaces the
// old one.
func (p *Ports) Expose(ctx context.Context, owner, session string, port int, public bool,
	lifetime time.Duration) (Record, secret.Value, error) {
	token := secret.Value("slp_" + secret.ID())
	now := time.Now().UTC().Truncate(time.Second)
	r := Record{Session: session, Port: port, Owner: owner, Hash: secret.Hash(token.Reveal()), Public: public,
		Created: now, Expires: now.Add(lifetime)}
	p.storeMu.Lock()
	defer p.storeMu.Unlock()
	others := slices.DeleteFunc(p.List(owner, session), func(r Record) bool { return r.Port == port })
	if n := len(others); n >= MaxPorts {
		return Record{}, "", fault.Limit("ports", n, MaxPorts,
			"%d ports of session %s are exposed, and %d are allowed; close one with close_port", n, session, MaxPorts)
	}
	if err := p.Store.PutPort(ctx, r); err != nil {
		return Record{}, "", fmt.Errorf("storing the exposed port: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := portKey{session, port}
	if old := p.ports[key]; old != nil {
		old.cancel()
	}
	p.ports[key] = p.newExposedPort(r)
	return r, token, nil
}

// Close ends the exposure of a port and the connections to it. It returns false if the owner has not
// exposed that port.
func (p *Ports) Close(ctx context.Context, owner, session string, port int) (bool, error) {
	return p.remove(ctx, session, port, func(r Record) bool { return r.Owner == owner })
}

// remove removes a port if meant returns true for its record. It returns whether it did.
func (p *Ports) remove(ctx context.Context, session string, port int, matches func(Record) bool) (bool, error) {
	p.storeMu.Lock()
	defer p.storeMu.Unlock()
	key := portKey{session, port}
	p.mu.Lock()
	e := p.ports[key]
	p.mu.Unlock()
	if e == nil || !matches(e.Record) {
		return false, nil
	}
	if err := p.Store.RemovePort(context.WithoutCancel(ctx), session, port); err != nil {
		return false, fmt.Errorf("closing the port: %w", err)
	}
	e.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ports, key)
	return true, nil
}

// List returns the exposed ports of the owner's session, sorted by port.
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

// Check returns the record of an exposed port if the token, which may be empty, gives access to it. Its
// errors do not reveal which sessions and ports exist.
func (p *Ports) Check(session string, port int, token string) (Record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, err := p.check(session, port, token)
	if err != nil {
		return Record{}, err
	}
	return e.Record, nil
}

// check is Check; the caller holds p.mu.
func (p *Ports) check(session string, port int, token string) (*newExposedPort, error) {
	e := p.ports[portKey{session, port}]
	known := e != nil && p.valid(e.Record)
	switch {
	case known && (e.Public || e.HasToken(token)):
		return e, nil
	case token == "":
		return nil, ErrNoToken
	}
	return nil, ErrUnknown
}

// HasToken reports whether the token is the link's.
func (r Record) HasToken(token string) bool {
	return token != "" && subtle.ConstantTimeCompare([]byte(secret.Hash(token)), []byte(r.Hash)) == 1
}

// Conn is an admitted connection to an exposed port, from Acquire until Release. It counts towards MaxConns.
type Conn struct {
	Record
	// Context ends when the port is closed or expires.
	Context context.Context
	release func()
	dials   *semaphore.Weighted
}

// Release ends the connection's context, and no longer counts it. It may be called twice.
func (u *Conn) Release() { u.release() }

// Dial calls dial, at most a few times at once for the same port: many servers have short queues for
// connections that they have not accepted yet.
func (u *Conn) Dial(dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	if err := u.dials.Acquire(u.Context, 1); err != nil {
		return nil, err
	}
	defer u.dials.Release(1)
	return dial(u.Context)
}

// Acquire checks the token as Check does, and counts a connection to the session.
func (p *Ports) Acquire(ctx context.Context, session string, port int, token string) (*Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, err := p.check(session, port, token)
	if err != nil {
		return nil, err
	}
	releaseConn, err := p.countConn(session)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, e.Expires)
	stop := context.AfterFunc(e.ctx, cancel)
	return &Conn{Record: e.Record, Context: ctx, dials: e.dials, release: func() { stop(); cancel(); releaseConn() }},
		nil
}

// AcquireForOwner counts a connection to the session for its owner, who needs no link, until release is called.
func (p *Ports) AcquireForOwner(session string) (release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.countConn(session)
}

// countConn counts a connection to the session, or returns ErrFull. The caller holds p.mu.
func (p *Ports) countConn(session string) (func(), error) {
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
