// Package oauth logs users in at third-party MCP servers: it leads them there,
// keeps what log-ins bring, renews it, and has it stored. A log-in is for one
// address; what it brought is sent nowhere else. Who an authorization server is
// and what it says is hostile: what is secret goes to no endpoint that the user
// was not shown, and nothing of its words is told anybody.
//
// Locks, from outside in: an Account's saving, then its owner's own locks, then
// the Account's mu, then a Login's, then a token source's or a request's.
package oauth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
)

// Store keeps what log-ins brought, so that it can be read for the same owner,
// connection and address alone.
type Store interface {
	// Save stores it, in the place of what was there for that connection. It
	// returns when that cannot be lost any more. A fault of the kind Configuration
	// says that it cannot be sealed.
	Save(ctx context.Context, owner, connection, address string, login secret.Value) error
	// Load returns it; empty: there is none. A fault of the kind Configuration says
	// that what is there cannot be read.
	Load(ctx context.Context, owner, connection, address string) (secret.Value, error)
	// Forget removes it, if it is there.
	Forget(ctx context.Context, owner, connection string) error
	// All lists owner and connection of all that are there.
	All(ctx context.Context) ([][2]string, error)
}

// StoreLimit is how long the store may take.
const StoreLimit = 10 * time.Second

// Limits are how long renewals may take; zero values are the usual ones.
type Limits struct {
	Renew time.Duration // for a new token, whoever waits for it
	Wait  time.Duration // for those who wait, and after the end of Spawn's life
	Again time.Duration // until what could not be stored is stored again
	Stuck time.Duration // without a renewal that works, a restart gives the log-in up
}

// Config is what all log-ins share.
type Config struct {
	// Callback is where a browser comes back from a log-in; without it there is
	// none. The links to begin one are beside it: start/ and an id.
	Callback string
	// Store has what log-ins brought; nil: it is in memory alone.
	Store Store
	// Spawn runs something whose context ends with its owner; false: that is over.
	Spawn  func(do func(ctx context.Context)) bool
	Limits Limits
	Log    *slog.Logger
}

// Logins are all log-ins: those that wait for a browser are found by the id in the
// link that the user was given, and by the state that comes back with them, which
// only the browser and the authorization server know.
type Logins struct {
	Config
	memory, unread sync.Once // said that log-ins cannot be stored, or read

	mu      sync.Mutex
	byID    map[string]*request
	byState map[string]*request
}

// New returns one without log-ins.
func New(c Config) *Logins {
	or := func(d *time.Duration, usual time.Duration) {
		if *d <= 0 {
			*d = usual
		}
	}
	or(&c.Limits.Renew, 2*time.Minute)
	or(&c.Limits.Wait, 15*time.Second)
	or(&c.Limits.Again, time.Minute)
	or(&c.Limits.Stuck, 10*time.Minute)
	return &Logins{Config: c, byID: map[string]*request{}, byState: map[string]*request{}}
}

// Server is what users log in at.
type Server struct {
	Owner      auth.Principal
	ID, Name   string
	Title      string // in words
	Key        string // under which its log-in is stored
	Configured bool   // it is one of the operator's
}

// Events are what an Account tells of its log-ins. They are called with no lock held.
type Events interface {
	// Asked is called when the user has to log in: a link leads them there. It
	// returns false when l is the server's log-in no more, and nobody is asked then.
	Asked(ctx context.Context, l *Login, link string) bool
	// Ended is called when a log-in is over for which the user was asked; nil: it is
	// done.
	Ended(l *Login, link string, err error)
}

// Orphans removes what is stored of log-ins at what is not there any more: that of
// which gone says so, of an owner and a key.
func (l *Logins) Orphans(gone func(owner, key string) bool) {
	if l.Store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), StoreLimit)
	defer cancel()
	all, err := l.Store.All(ctx)
	if err != nil {
		l.Log.Error("could not read which log-ins are stored", "error", err)
		return
	}
	for _, row := range all {
		if _, known := auth.Known(row[0]); known && gone(row[0], row[1]) {
			_ = l.forget(row[0], row[1]) // an error is in the log
		}
	}
}

// forget removes what is stored of a log-in. An error is in the log.
func (l *Logins) forget(owner, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), StoreLimit)
	defer cancel()
	err := l.Store.Forget(ctx, owner, key)
	if err != nil {
		l.Log.Error("could not remove a stored log-in", "owner", owner, "connection", key, "error", err)
	}
	return err
}
