package vault

import (
	"context"
	"errors"
	"fmt"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// MaxLogin is how large what is stored of one log-in may be, in bytes.
const MaxLogin = 64 << 10

// ErrNoLogin is a store's answer when nothing is stored of a log-in.
var ErrNoLogin = errors.New("there is no stored log-in")

// LoginStore stores sealed log-ins. A change is on the disk when a method returns, and
// survives a crash of the machine.
type LoginStore interface {
	// PutLogin stores the log-in of an owner at a connection, in the place of the
	// one that was there.
	PutLogin(ctx context.Context, owner, connection string, sealed []byte) error
	// Login returns what is stored, or ErrNoLogin.
	Login(ctx context.Context, owner, connection string) ([]byte, error)
	// RemoveLogin removes one, if it is there.
	RemoveLogin(ctx context.Context, owner, connection string) error
	// Logins lists those that there are: owner and connection of each.
	Logins(ctx context.Context) ([][2]string, error)
}

// Logins keep what came of users' log-ins at third-party MCP servers, sealed by
// the vault's key for the principal, the connection and its address.
type Logins struct {
	Vault *Vault
	Store LoginStore
}

// loginPurpose is what a sealed log-in is good for. Neither an owner nor a
// connection has a NUL in it.
func loginPurpose(owner, connection, address string) []byte {
	return []byte("sandlot log-in\x00" + owner + "\x00" + connection + "\x00" + address)
}

// Save stores a log-in, in the place of the one that was there. A fault of the
// kind Configuration says that there is no key to do it with.
func (l *Logins) Save(ctx context.Context, owner, connection, address string, login secret.Value) error {
	if len(login) > MaxLogin {
		return fmt.Errorf("it has %d bytes, and at most %d are stored", len(login), MaxLogin)
	}
	k, err := l.Vault.key(l.Vault.Make)
	if err != nil {
		return err
	}
	return l.Store.PutLogin(ctx, owner, connection, k.Seal(nil, nil, []byte(login.Reveal()),
		loginPurpose(owner, connection, address)))
}

// Load returns a log-in; empty: there is none. One that was kept for another principal,
// connection or address, or with another key, does not open: that is a fault of
// the kind Configuration.
func (l *Logins) Load(ctx context.Context, owner, connection, address string) (secret.Value, error) {
	sealed, err := l.Store.Login(ctx, owner, connection)
	if errors.Is(err, ErrNoLogin) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	login, lost, err := l.Vault.open(sealed, loginPurpose(owner, connection, address))
	if !lost {
		return login, err
	}
	return "", fault.Wrap(fault.Configuration, err,
		"a stored log-in cannot be read (its key is gone, or it is for another address, or what is stored was changed)")
}

// Forget removes a log-in, if it is there.
func (l *Logins) Forget(ctx context.Context, owner, connection string) error {
	return l.Store.RemoveLogin(ctx, owner, connection)
}

// All lists the log-ins that are stored: owner and connection of each.
func (l *Logins) All(ctx context.Context) ([][2]string, error) { return l.Store.Logins(ctx) }
