package vault

import (
	"context"
	"errors"
	"fmt"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// MaxLoginBytes is the maximum size of a stored log-in, in bytes.
const MaxLoginBytes = 64 << 10

// ErrNoLogin is returned by a LoginStore for a log-in that does not exist.
var ErrNoLogin = errors.New("there is no stored log-in")

// LoginStore stores sealed log-ins. When a method that changes something returns, the change is on the
// disk and survives a crash of the machine.
type LoginStore interface {
	// PutLogin stores the log-in of an owner at a connection, and replaces an earlier one.
	PutLogin(ctx context.Context, owner, connection string, sealed []byte) error
	// Login returns a sealed log-in, or ErrNoLogin.
	Login(ctx context.Context, owner, connection string) ([]byte, error)
	// RemoveLogin removes a log-in, if it exists.
	RemoveLogin(ctx context.Context, owner, connection string) error
	// Logins returns the owner and connection of each log-in.
	Logins(ctx context.Context) ([][2]string, error)
}

// Logins stores the results (such as tokens) of users' log-ins at third-party MCP servers. They are
// encrypted with the vault's key, for the principal, the connection and its address.
type Logins struct {
	Vault *Vault
	Store LoginStore
}

// loginAdditionalData returns the additional data of a sealed log-in. Neither an owner nor a connection can
// contain a NUL.
func loginAdditionalData(owner, connection, address string) []byte {
	return []byte("sandlot log-in\x00" + owner + "\x00" + connection + "\x00" + address)
}

// Save stores a log-in, and replaces an earlier one. It returns a fault of the kind Configuration if the
// key cannot be used.
func (l *Logins) Save(ctx context.Context, owner, connection, address string, login secret.Value) error {
	if len(login) > MaxLoginBytes {
		return fmt.Errorf("it has %d bytes, and at most %d are stored", len(login), MaxLoginBytes)
	}
	k, err := l.Vault.key(l.Vault.CreateKey)
	if err != nil {
		return err
	}
	return l.Store.PutLogin(ctx, owner, connection, k.Seal(nil, nil, []byte(login.Reveal()),
		loginAdditionalData(owner, connection, address)))
}

// Load returns a log-in; empty: there is none. It returns a fault of the kind Configuration if the log-in
// was stored for another principal, connection or address, or with another key.
func (l *Logins) Load(ctx context.Context, owner, connection, address string) (secret.Value, error) {
	sealed, err := l.Store.Login(ctx, owner, connection)
	if errors.Is(err, ErrNoLogin) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	login, lost, err := l.Vault.decrypt(sealed, loginAdditionalData(owner, connection, address))
	if !lost {
		return login, err
	}
	return "", fault.Wrap(fault.Configuration, err,
		"a stored log-in cannot be read (its key is gone, its address is another one, or the stored data was changed)")
}

// Forget removes a log-in, if it exists.
func (l *Logins) Forget(ctx context.Context, owner, connection string) error {
	return l.Store.RemoveLogin(ctx, owner, connection)
}

// All returns the owner and connection of each stored log-in.
func (l *Logins) All(ctx context.Context) ([][2]string, error) { return l.Store.Logins(ctx) }
