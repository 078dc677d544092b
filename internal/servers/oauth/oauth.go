// Package oauth logs users in at third-party MCP servers: it makes the authorization
// requests, stores the tokens and renews them. A log-in is for one address; its tokens
// are sent to no other. Authorization servers are hostile: secrets go only to endpoints
// that the user was shown, and their texts are shown to nobody.
//
// Locks, from outside in: an Account's saving, then its owner's own locks, then
// the Account's mu, then a Login's, then a token source's or a request's.
package oauth

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
)

// Store stores log-ins. Each can be read only for its owner, connection and address.
type Store interface {
	// Save stores the log-in of a connection, in the place of the one before. It returns
	// when the log-in is durable. A fault of the kind Configuration says that it cannot
	// be sealed.
	Save(ctx context.Context, owner, connection, address string, login secret.Value) error
	// Load returns a log-in; empty: there is none. A fault of the kind Configuration says
	// that it cannot be unsealed.
	Load(ctx context.Context, owner, connection, address string) (secret.Value, error)
	// Forget removes a log-in, if there is one.
	Forget(ctx context.Context, owner, connection string) error
	// All lists owner and connection of all log-ins.
	All(ctx context.Context) ([][2]string, error)
}

// StoreLimit is how long the store may take.
const StoreLimit = 10 * time.Second

// Limits are how long renewals may take; zero values mean the defaults.
type Limits struct {
	Renew time.Duration // for a renewal
	Wait  time.Duration // for a call that waits for a renewal, and for renewals when the server stops
	Again time.Duration // until a token that could not be stored is stored again
	Stuck time.Duration // of failing renewals, after which a restart ends the log-in
}

// Config is what all log-ins share.
type Config struct {
	// Callback is the address that browsers come back to; empty: there are no log-ins. The
	// links that begin a log-in are beside it: start/ and an id.
	Callback string
	// Store has the log-ins; nil: they are in memory alone.
	Store Store
	// Spawn runs do in a goroutine, with a context that ends with the server. It returns
	// false when the server is stopping.
	Spawn  func(do func(ctx context.Context)) bool
	Limits Limits
	Log    *slog.Logger
}

// Logins are all log-ins. Those that wait for a browser are found by the id in the user's
// link, and by the state that comes back, which only the browser and the authorization
// server know.
type Logins struct {
	Config
	memory, unread sync.Once // logged that log-ins cannot be stored, or loaded

	mu      sync.Mutex
	byID    map[string]*request
	byState map[string]*request
}

// New returns Logins without any.
func New(c Config) *Logins {
	l := &c.Limits
	l.Renew, l.Wait = cmp.Or(l.Renew, 2*time.Minute), cmp.Or(l.Wait, 15*time.Second)
	l.Again, l.Stuck = cmp.Or(l.Again, time.Minute), cmp.Or(l.Stuck, 10*time.Minute)
	return &Logins{Config: c, byID: map[string]*request{}, byState: map[string]*request{}}
}

// Server is what users log in at.
type Server struct {
	Owner      auth.Principal
	ID, Name   string
	Title      string // as faults name it
	Key        string // under which its log-in is stored
	Configured bool   // the operator's settings name it
}

// Events are what an Account announces of its log-ins. They are called with no lock held.
type Events interface {
	// Asked is called when the user has to log in at a link. It returns false when l is no
	// longer the server's log-in; the attempt ends then.
	Asked(ctx context.Context, l *Login, link string) bool
	// Ended is called when an attempt has ended for which Asked was called; a nil error
	// means that the user is logged in.
	Ended(l *Login, link string, err error)
}

// Orphans removes the stored log-ins of servers that are gone, by their owner and key.
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

// forget removes a stored log-in. An error is in the log.
func (l *Logins) forget(owner, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), StoreLimit)
	defer cancel()
	err := l.Store.Forget(ctx, owner, key)
	if err != nil {
		l.Log.Error("could not remove a stored log-in", "owner", owner, "connection", key, "error", err)
	}
	return err
}
