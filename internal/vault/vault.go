// Package vault owns stored secrets: values that a principal stores under a
// name, for their third-party MCP servers, and what came of their log-ins there.
// What is kept of one is sealed for its principal and name, or connection and
// address, by a key that stands in a file beside the store.
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
	"sandlot/internal/secret"
)

// Limits of what one principal may store. MaxValue is in bytes.
const (
	MaxSecrets = 100
	MaxValue   = 64 << 10
)

// Record is what is stored of a secret.
type Record struct {
	Owner   string // the principal's id
	Name    string
	Sealed  []byte
	Created time.Time
	Changed time.Time
}

// Store keeps records.
type Store interface {
	// PutSecret stores a record, or its Sealed and Changed in the place of what is
	// stored of the same owner and name.
	PutSecret(ctx context.Context, r Record) error
	// Secret returns one, or ErrNone.
	Secret(ctx context.Context, owner, name string) (Record, error)
	// Secrets returns those of an owner, by name.
	Secrets(ctx context.Context, owner string) ([]Record, error)
	// RemoveSecret removes one, or returns ErrNone.
	RemoveSecret(ctx context.Context, owner, name string) error
}

// ErrNone is a store's answer when there is no such secret.
var ErrNone = errors.New("there is no such secret")

// Info is what there is to know of a secret: never its value.
type Info struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Changed time.Time `json:"changed"`
	// Readable is false when the key that it was stored with is gone, or what is
	// stored was changed.
	Readable bool `json:"readable"`
}

// Vault keeps all principals' secrets.
type Vault struct {
	Store Store
	// KeyFile holds the key: 32 bytes. With Make it is made when it is needed and
	// not there.
	KeyFile string
	Make    bool

	storing sync.Mutex // held from counting secrets until one more is stored
}

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

func checkName(name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return fault.New(fault.InvalidParameters,
		"the name of a secret has 1 to 64 letters, digits and _, and does not begin with a digit").
		With("argument", "name")
}

// Set stores a value under a name, in the place of the one that was there. It is
// text of 1 to MaxValue bytes, without NUL. Faults never hold any part of it.
func (v *Vault) Set(ctx context.Context, owner, name string, value secret.Value) (Info, error) {
	if err := checkName(name); err != nil {
		return Info{}, err
	}
	text := value.Reveal()
	if text == "" || len(text) > MaxValue || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return Info{}, fault.New(fault.InvalidParameters,
			"the value of a secret is text (UTF-8) of 1 to %d bytes, without NUL", MaxValue).With("argument", "value")
	}
	v.storing.Lock()
	defer v.storing.Unlock()
	all, err := v.Store.Secrets(ctx, owner)
	if err != nil {
		return Info{}, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	r := Record{Owner: owner, Name: name, Created: now, Changed: now}
	there := false
	for _, o := range all {
		if o.Name == name {
			there, r.Created = true, o.Created
		}
	}
	if !there && len(all) >= MaxSecrets {
		f := fault.New(fault.ResourceLimit, "you have %d secrets, which is the limit", len(all)).
			With("resource_type", "secrets").With("current_usage", len(all)).With("limit", MaxSecrets)
		f.Advice = []string{"Remove one that is not needed any more: `sandlot secret list`, `sandlot secret remove " +
			"NAME`"}
		return Info{}, f
	}
	k, err := v.key(v.Make)
	if err != nil {
		return Info{}, err
	}
	r.Sealed = k.Seal(nil, nil, []byte(text), purpose(owner, name))
	if err := v.Store.PutSecret(ctx, r); err != nil {
		return Info{}, err
	}
	return Info{Name: name, Created: r.Created, Changed: r.Changed, Readable: true}, nil
}

// Reveal returns the value of a principal's secret. A fault says what its user
// does about it.
func (v *Vault) Reveal(ctx context.Context, owner, name string) (secret.Value, error) {
	r, err := v.Store.Secret(ctx, owner, name)
	if errors.Is(err, ErrNone) {
		return "", None(name)
	}
	if err != nil {
		return "", err
	}
	value, lost, err := v.open(r.Sealed, purpose(owner, name))
	if !lost {
		return value, err
	}
	f := fault.Wrap(fault.Configuration, err,
		"the secret %s cannot be read any more (its key is gone, or what is stored was changed): store it again with "+
			"`sandlot secret set %s`", name, name).With("secret", name)
	f.Advice = []string{"Store it again: `sandlot secret set " + name + "`"}
	return "", f
}

// open opens what was sealed for a purpose. Lost: it cannot be read any more, as
// the key is gone or what is stored was changed; err is why.
func (v *Vault) open(sealed, purpose []byte) (value secret.Value, lost bool, err error) {
	k, err := v.key(false)
	if err != nil {
		return "", errors.Is(err, fs.ErrNotExist), err
	}
	text, err := k.Open(nil, nil, sealed, purpose)
	return secret.Value(text), err != nil, err
}

// None is the fault for a name that no secret of the principal has.
func None(name string) error {
	if checkName(name) != nil {
		return fault.New(fault.NotFound, "there is no such secret")
	}
	f := fault.New(fault.NotFound, "there is no secret %s: its user stores it with `sandlot secret set %s`", name,
		name).With("secret", name)
	f.Advice = []string{"The user stores it, so that its value is in no chat: `sandlot secret set " + name + "`",
		"See which there are: `sandlot secret list`"}
	return f
}

// List returns a principal's secrets, by name.
func (v *Vault) List(ctx context.Context, owner string) ([]Info, error) {
	all, err := v.Store.Secrets(ctx, owner)
	if err != nil {
		return nil, err
	}
	k, kerr := v.key(false)
	list := []Info{}
	for _, r := range all {
		i := Info{Name: r.Name, Created: r.Created, Changed: r.Changed}
		if kerr == nil {
			_, err := k.Open(nil, nil, r.Sealed, purpose(owner, r.Name))
			i.Readable = err == nil
		}
		list = append(list, i)
	}
	return list, nil
}

// Remove forgets a principal's secret.
func (v *Vault) Remove(ctx context.Context, owner, name string) error {
	v.storing.Lock()
	defer v.storing.Unlock()
	err := v.Store.RemoveSecret(ctx, owner, name)
	if errors.Is(err, ErrNone) {
		return None(name)
	}
	return err
}
