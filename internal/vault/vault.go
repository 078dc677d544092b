// Package vault stores secrets: values that principals store under names for their third-party MCP
// servers, and the results of their log-ins there. A value is sealed (AES-GCM) for its principal and
// name, or connection and address. The key is in a file beside the store, in a keyring, or
// given.
package vault

import (
	"context"
	"errors"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"sandlot/internal/fault"
	"sandlot/internal/quota"
	"sandlot/internal/secret"
)

// Limits for the secrets of a principal: their number, and the size of a value in bytes.
const (
	MaxSecrets    = 100
	MaxValueBytes = 64 << 10
)

// Record is a stored secret.
type Record struct {
	Owner   string // the principal's id
	Name    string
	Sealed  []byte
	Binding string // of a bound secret, as JSON; empty: it is not bound
	Created time.Time
	Changed time.Time
}

// Store stores records.
type Store interface {
	// PutSecret stores a record. If there is one of the same owner and name, it replaces its Sealed,
	// Binding and Changed.
	PutSecret(ctx context.Context, r Record) error
	// Secret returns a record, or ErrNotFound.
	Secret(ctx context.Context, owner, name string) (Record, error)
	// Secrets returns the records of an owner, sorted by name.
	Secrets(ctx context.Context, owner string) ([]Record, error)
	// RemoveSecret removes a record, or returns ErrNotFound.
	RemoveSecret(ctx context.Context, owner, name string) error
}

// ErrNotFound is returned by a Store for a secret that does not exist.
var ErrNotFound = errors.New("there is no such secret")

// Info describes a secret without its value.
type Info struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Changed time.Time `json:"changed"`
	// Readable is false if the value cannot be decrypted: its key is gone, or the record was changed.
	Readable bool `json:"readable"`
	// Binding says where a bound secret goes; nil: it is not bound.
	Binding *Binding `json:"bound,omitempty"`
}

// Vault stores the secrets of all principals.
type Vault struct {
	Store Store
	// KeyFile is the path of the file with the key, of 32 bytes. With Make, the file is created when
	// a key is needed and it does not exist.
	KeyFile   string
	CreateKey bool
	// Key is the key itself, in place of the file; nil: that of the file. NewKey is the one to which Rekey changes Key.
	Key, NewKey []byte
	// Keyring has the key under KeyName, in place of the file; nil: the key is in no keyring. OpenKeyring makes it Key.
	Keyring Keyring
	KeyName string
	// Quotas has how many secrets each principal may have; nil: MaxSecrets.
	Quotas *quota.Quotas

	storeMu sync.Mutex // held from counting secrets until one more is stored
}

var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

func checkName(name string) error {
	if namePattern.MatchString(name) {
		return nil
	}
	return fault.Argument("name",
		"the name of a secret has 1 to 64 letters, digits and _, and does not begin with a digit")
}

// Set stores a value under a name, and replaces an earlier value. A value is a text of 1 to MaxValueBytes
// bytes, without NUL. Faults never contain any part of it. From now on the secret is bound as to says, whose
// placeholder is made here; nil: one that is bound stays so.
func (v *Vault) Set(ctx context.Context, owner, name string, value secret.Value, to *Binding) (Info, error) {
	if err := checkName(name); err != nil {
		return Info{}, err
	}
	text := value.Reveal()
	if text == "" || len(text) > MaxValueBytes || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return Info{}, fault.Argument("value",
			"the value of a secret is text (UTF-8) of 1 to %d bytes, without NUL", MaxValueBytes)
	}
	v.storeMu.Lock()
	defer v.storeMu.Unlock()
	all, err := v.Store.Secrets(ctx, owner)
	if err != nil {
		return Info{}, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	r := Record{Owner: owner, Name: name, Created: now, Changed: now}
	exists := false
	for _, o := range all {
		if o.Name == name {
			exists, r.Created, r.Binding = true, o.Created, o.Binding
		}
	}
	if limit := v.Quotas.Of(owner).Secrets; !exists && limit > 0 && len(all) >= limit {
		return Info{}, quota.Reached("secrets", len(all), limit, "you have %d secrets, and your quota is %d", len(all),
			limit).Advise("Remove one that you no longer need: `sandlot secret list`, `sandlot secret remove NAME`")
	}
	if !exists && len(all) >= MaxSecrets {
		return Info{}, fault.Limit("secrets", len(all), MaxSecrets, "you have %d secrets, which is the limit",
			len(all)).Advise("Remove one that you no longer need: `sandlot secret list`, `sandlot secret remove " +
			"NAME`")
	}
	b, binding, err := bind(name, text, readBinding(r.Binding), to)
	if err != nil {
		return Info{}, err
	}
	k, err := v.key(v.CreateKey)
	if err != nil {
		return Info{}, err
	}
	r.Binding = binding
	r.Sealed = k.Seal(nil, nil, []byte(text), secretAdditionalData(owner, name, r.Binding))
	if err := v.Store.PutSecret(ctx, r); err != nil {
		return Info{}, err
	}
	return Info{Name: name, Created: r.Created, Changed: r.Changed, Readable: true, Binding: b}, nil
}

// Reveal returns the value of a principal's secret, or the placeholder of one that is bound, whose value programs
// never get. Its faults tell the user what to do.
func (v *Vault) Reveal(ctx context.Context, owner, name string) (secret.Value, error) {
	r, err := v.Store.Secret(ctx, owner, name)
	if errors.Is(err, ErrNotFound) {
		return "", NotFound(name)
	}
	if err != nil {
		return "", err
	}
	if b := readBinding(r.Binding); b != nil {
		return secret.Value(b.Placeholder), nil
	}
	value, lost, err := v.decrypt(r.Sealed, secretAdditionalData(owner, name, ""))
	if !lost {
		return value, err
	}
	return "", fault.Wrap(fault.Configuration, err,
		"the secret %s can no longer be read (its key is gone, or the stored data was changed): store it again with "+
			"`sandlot secret set %s`", name, name).With("secret", name).
		Advise("Store it again: `sandlot secret set " + name + "`")
}

// decrypt decrypts a value that was sealed with that additional data. lost: the value can never be
// decrypted again, as the key is gone or the stored data was changed; err is the cause.
func (v *Vault) decrypt(sealed, additionalData []byte) (value secret.Value, unreadable bool, err error) {
	k, err := v.key(false)
	if err != nil {
		return "", errors.Is(err, fs.ErrNotExist), err
	}
	text, err := k.Open(nil, nil, sealed, additionalData)
	return secret.Value(text), err != nil, err
}

// NotFound returns the fault for a secret that does not exist.
func NotFound(name string) error {
	if checkName(name) != nil {
		return fault.New(fault.NotFound, "there is no such secret")
	}
	return fault.New(fault.NotFound, "there is no secret %s: its user stores it with `sandlot secret set %s`", name,
		name).With("secret", name).
		Advise("The user stores it, so that its value is in no chat: `sandlot secret set "+name+"`",
			"List them: `sandlot secret list`")
}

// List describes a principal's secrets, sorted by name.
func (v *Vault) List(ctx context.Context, owner string) ([]Info, error) {
	all, err := v.Store.Secrets(ctx, owner)
	if err != nil {
		return nil, err
	}
	k, keyErr := v.key(false)
	list := []Info{}
	for _, r := range all {
		i := Info{Name: r.Name, Created: r.Created, Changed: r.Changed, Binding: readBinding(r.Binding)}
		if keyErr == nil {
			_, err := k.Open(nil, nil, r.Sealed, secretAdditionalData(owner, r.Name, r.Binding))
			i.Readable = err == nil
		}
		list = append(list, i)
	}
	return list, nil
}

// Remove removes a principal's secret.
func (v *Vault) Remove(ctx context.Context, owner, name string) error {
	v.storeMu.Lock()
	defer v.storeMu.Unlock()
	err := v.Store.RemoveSecret(ctx, owner, name)
	if errors.Is(err, ErrNotFound) {
		return NotFound(name)
	}
	return err
}
