// Package oauth logs users in at third-party MCP servers: it makes the authorization
// requests, stores the tokens and renews them. A log-in is for one server URL; its tokens
// are sent to no other. Authorization servers may be hostile: secrets are sent only to
// endpoints that the user was shown, and error texts of these servers are not passed on.
//
// Lock order: Account.storeMu, then the locks of the account's user (package servers),
// then Account.mu, then Login.mu, then tokenSource.mu or Logins.mu.
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

// Store stores log-ins. Each can be loaded only with its owner, connection and address.
type Store interface {
	// Save stores the log-in of a connection, and replaces the previous one. It returns
	// when the log-in is durable. A fault of the kind Configuration means that the log-in
	// cannot be sealed.
	Save(ctx context.Context, owner, connection, address string, login secret.Value) error
	// Load returns a log-in; empty: there is none. A fault of the kind Configuration
	// means that the log-in cannot be unsealed.
	Load(ctx context.Context, owner, connection, address string) (secret.Value, error)
	// Forget removes a log-in, if there is one.
	Forget(ctx context.Context, owner, connection string) error
	// All returns owner and connection of all log-ins.
	All(ctx context.Context) ([][2]string, error)
}

// StoreTimeout bounds each call of the Store.
const StoreTimeout = 10 * time.Second

// Limits are the timeouts of renewals; zero values mean the defaults.
type Limits struct {
	RenewTimeout time.Duration // for a renewal
	WaitTimeout  time.Duration // of a call that waits for a renewal, and of renewals when Sandlot's server stops
	StoreRetry   time.Duration // pause before another attempt to store a token
	StuckAfter   time.Duration // how long renewals have to fail before EndStuckLogin ends the log-in
}

// Config is what all log-ins share.
type Config struct {
	// Callback is the redirect URI, to which browsers return after a log-in; empty: no
	// log-ins are possible. The links that begin a log-in are beside it: start/ and an id.
	Callback string
	// Store stores the log-ins; nil: they are only in memory.
	Store Store
	// Spawn runs do in a goroutine, with a context that ends when Sandlot's server stops. It
	// returns false if the server is stopping.
	Spawn  func(do func(ctx context.Context)) bool
	Limits Limits
	Log    *slog.Logger
}

// Logins has what all log-ins share, and the authorization requests that wait for a
// browser: by the id in the user's link, and by the state parameter of OAuth, which only
// the browser and the authorization server know.
type Logins struct {
	Config
	warnMemory, warnUnread sync.Once // warn once that log-ins cannot be stored, or loaded

	mu      sync.Mutex
	byID    map[string]*newRequest
	byState map[string]*newRequest
}

// New returns Logins without a log-in.
func New(c Config) *Logins {
	l := &c.Limits
	l.RenewTimeout, l.WaitTimeout = cmp.Or(l.RenewTimeout, 2*time.Minute), cmp.Or(l.WaitTimeout, 15*time.Second)
	l.StoreRetry, l.StuckAfter = cmp.Or(l.StoreRetry, time.Minute), cmp.Or(l.StuckAfter, 10*time.Minute)
	return &Logins{Config: c, byID: map[string]*newRequest{}, byState: map[string]*newRequest{}}
}

// Server is a server at which a user logs in.
type Server struct {
	Owner      auth.Principal
	ID, Name   string
	Title      string // how faults name the server
	Key        string // the connection under which the Store has its log-in
	Configured bool   // it is in the operator's settings
}

// Events are the callbacks of an Account. No lock is held when they are called.
type Events interface {
	// Asked is called when the user has to open a link to log in. It returns false if
	// l is no longer the server's log-in; the attempt ends then.
	LoginNeeded(ctx context.Context, l *Login, link string) bool
	// Ended is called when an attempt has ended for which LoginNeeded was called; a nil
	// error means that the user is logged in.
	LoginEnded(l *Login, link string, err error)
}

// DeleteOrphans removes the stored log-ins of the servers for which gone returns true.
func (l *Logins) DeleteOrphans(gone func(owner, key string) bool) {
	if l.Store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	all, err := l.Store.All(ctx)
	if err != nil {
		l.Log.Error("could not read which log-ins are stored", "error", err)
		return
	}
	for _, row := range all {
		if _, known := auth.FromID(row[0]); known && gone(row[0], row[1]) {
			_ = l.deleteStored(row[0], row[1]) // it logs an error
		}
	}
}

// deleteStored removes a stored log-in, and logs an error.
func (l *Logins) deleteStored(owner, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	err := l.Store.Forget(ctx, owner, key)
	if err != nil {
		l.Log.Error("could not remove a stored log-in", "owner", owner, "connection", key, "error", err)
	}
	return err
}
