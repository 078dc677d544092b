// Package bound puts bound secrets into requests: it ends the TLS of sandboxes for the hosts that their principals'
// secrets are bound to, replaces placeholders by values in headers, and speaks TLS with the real host. No value reaches
// a sandbox, and none another host.
//
// One TLS connection of a program has one connection to one host, which the caller has dialed. Nothing is pooled or
// shared, redirects are not followed, and no request goes to another host than the one that TLS named: so whatever a
// program or a host sends, it affects its own connection alone.
package bound

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandlot/internal/egress"
	"sandlot/internal/vault"
)

// Terminator ends TLS for hosts that secrets are bound to.
type Terminator struct {
	secrets   Secrets
	log       *slog.Logger
	roots     *x509.CertPool // with which hosts are verified; nil: the system's
	transport *http.Transport

	mu          sync.Mutex
	owners      map[string]*ownerSecrets
	authorities map[string]*authority // by session
}

// ownerSecrets are the bound secrets of one principal, as they were read last.
type ownerSecrets struct {
	version uint64 // changes when the secrets do
	loaded  bool
	err     error     // why they could not be read last
	retry   time.Time // when to read again what could not be read
	list    []vault.BoundSecret
}

var _ egress.Terminator = (*Terminator)(nil)

// New returns a Terminator.
func New(secrets Secrets, log *slog.Logger) *Terminator {
	return &Terminator{secrets: secrets, log: log, transport: newTransport(), owners: map[string]*ownerSecrets{},
		authorities: map[string]*authority{}}
}

// Changed is called when a principal's secrets have changed. The next request uses the new ones.
func (t *Terminator) Changed(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[owner]
	if o == nil {
		o = &ownerSecrets{version: 1}
		t.owners[owner] = o
	}
	o.version, o.loaded, o.retry = o.version+1, false, time.Time{}
}

const (
	readTimeout = 5 * time.Second
	// retryDelay is how long what could not be read is not read again.
	retryDelay = 5 * time.Second
)

// of returns the bound secrets of a principal, and their version. When they cannot be read, there are none, and the
// version is that of an unknown list: once they can be read, they have another one. The caller must not change the
// list.
func (t *Terminator) of(owner string) ([]vault.BoundSecret, uint64, error) {
	t.mu.Lock()
	o := t.owners[owner]
	if o == nil {
		o = &ownerSecrets{version: 1}
		t.owners[owner] = o
	}
	list, version, err := o.list, o.version, o.err
	if o.loaded || time.Now().Before(o.retry) {
		t.mu.Unlock()
		return list, version, err
	}
	t.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	list, err = t.secrets.Bound(ctx, owner)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.log.Error("bound secrets cannot be read: requests go without them", "principal", owner, "error", err)
		o.list, o.err, o.retry = nil, err, time.Now().Add(retryDelay)
		return nil, o.version, err
	case o.version == version:
		if o.err != nil {
			o.version++
		}
		o.list, o.loaded, o.err = list, true, nil
		version = o.version
	}
	return list, version, nil
}

// forHost returns the owner's secrets that are bound to a host.
func (t *Terminator) forHost(owner, host string, port uint16) []vault.BoundSecret {
	list, _, _ := t.of(owner)
	if len(list) == 0 {
		return nil
	}
	target := host + ":" + strconv.Itoa(int(port))
	return slices.DeleteFunc(slices.Clone(list), func(s vault.BoundSecret) bool {
		return !slices.Contains(s.Hosts,
			target)
	})
}

// Terminates implements egress.Terminator.
func (t *Terminator) Terminates(o egress.Owner, host string, port uint16) bool {
	return o.Session != "" && len(t.forHost(o.Principal, host, port)) > 0
}

// Settings are what the programs of a sandbox need for the bound secrets of its principal.
type Settings struct {
	// Env are the variables with placeholders, and the ones by which Git finds user and password.
	Env map[string]string
	// CA is the certificate that the sandbox has to trust, in PEM.
	CA []byte
}

// Version returns a number that changes when Settings does; 0: there are no bound secrets, and never were any since the
// server started.
func (t *Terminator) Version(owner string) uint64 {
	list, version, _ := t.of(owner)
	if len(list) == 0 && version <= 1 {
		return 0
	}
	return version
}

// Settings returns the settings of a session's sandbox; empty ones if the principal has no bound secrets. It returns an
// error when they cannot be read: the sandbox then keeps what it has.
func (t *Terminator) Settings(owner, session string) (Settings, error) {
	list, _, err := t.of(owner)
	if err != nil {
		return Settings{}, fmt.Errorf("the bound secrets cannot be read: %w", err)
	}
	if len(list) == 0 {
		return Settings{}, nil
	}
	a, err := t.authority(owner, session)
	if err != nil {
		return Settings{}, fmt.Errorf("the certificate of a session for bound secrets cannot be made: %w", err)
	}
	s := Settings{Env: map[string]string{}, CA: a.pem}
	git := 0
	set := func(key, value string) {
		s.Env["GIT_CONFIG_KEY_"+strconv.Itoa(git)], s.Env["GIT_CONFIG_VALUE_"+strconv.Itoa(git)] = key, value
		git++
	}
	for _, b := range list {
		s.Env[vault.Variable(b.Name)] = b.Placeholder
		if !b.Basic {
			continue
		}
		for _, h := range b.Hosts {
			// Git asks this program for user and password. The broker replaces both by the real ones.
			set("credential.https://"+strings.TrimSuffix(h, ":443")+".helper",
				"!f() { echo username=sandlot; echo password="+b.Placeholder+"; }; f")
		}
	}
	if git > 0 {
		s.Env["GIT_CONFIG_COUNT"] = strconv.Itoa(git)
	}
	return s, nil
}

// authority returns the CA of a session.
func (t *Terminator) authority(owner, session string) (*authority, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := owner + "\x00" + session
	if a := t.authorities[key]; a != nil {
		return a, nil
	}
	a, err := newAuthority(t.secrets, key)
	if err != nil {
		return nil, err
	}
	if len(t.authorities) >= maxAuthorities {
		clear(t.authorities) // each is made again, the same, when it is needed
	}
	t.authorities[key] = a
	return a, nil
}

// maxAuthorities bounds the CAs in memory.
const maxAuthorities = 10_000

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
