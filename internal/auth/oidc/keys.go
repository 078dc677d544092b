package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

const (
	// fetchTimeout is how long fetching the keys of an issuer may take, its metadata included.
	fetchTimeout = 10 * time.Second
	// fetchInterval is the shortest time between two fetches. Whoever sends tokens with keys that do not exist
	// causes no more.
	fetchInterval = 15 * time.Second
	// refreshInterval is the time after which Run fetches the keys again.
	refreshInterval = 10 * time.Minute
	// maxDocument bounds the length of a document of an issuer in bytes, and maxKeys the number of its keys.
	maxDocument, maxKeys = 512 << 10, 100
	// minRSABits is the length of the shortest RSA key that is accepted.
	minRSABits = 2048
)

// keySet has the keys of one issuer.
type keySet struct {
	ctx        context.Context // of fetches, which serve many requests
	issuer     string
	client     *http.Client
	log        *slog.Logger
	removed    func() // called after a key was withdrawn
	goroutines *sync.WaitGroup
	now        func() time.Time

	mu        sync.Mutex
	keys      []jose.JSONWebKey
	endpoints endpoints     // of log-ins
	tried     time.Time     // when the latest fetch ended; zero: there was none
	err       error         // of the latest fetch
	fetch     chan struct{} // closed when the fetch in progress ends; nil: there is none
}

// newClient returns the client for requests to an issuer. It follows no redirect: an issuer is where it says.
func newClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives, t.MaxResponseHeaderBytes = true, 64<<10
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// find returns the key with an id for an algorithm. When there is none, it fetches the keys, or waits for the fetch
// in progress, unless the latest fetch was within fetchInterval. The key of a token that comes straight from the issuer is
// fetched even then: nobody else chooses it, and the issuer may have made it just now.
func (s *keySet) find(ctx context.Context, id, algorithm string, straight bool) (*jose.JSONWebKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for fetched := false; ; fetched = true {
		if k := s.lookUp(id, algorithm); k != nil {
			return k, nil
		}
		if fetched || !straight && s.fetch == nil && !s.tried.IsZero() && s.now().Sub(s.tried) < fetchInterval {
			break
		}
		done := s.start()
		s.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	if s.err != nil {
		return nil, fault.Wrap(fault.Connection, s.err,
			"the keys of the issuer %s cannot be fetched, so its tokens cannot be checked now", s.issuer).
			Advise("Try again in a moment", "The operator finds the cause in the server's log")
	}
	if straight {
		return nil, fault.New(fault.Connection, "%s has signed with a key that it does not publish", s.issuer).
			Advise("Try again in a moment: the key may be a new one")
	}
	return nil, refuse("the JWT is signed with a key that its issuer does not have, or has had for less than %v",
		fetchInterval)
}

// lookUp returns the key with an id for an algorithm; nil: there is none, or, without an id, more than one. The
// caller holds mu.
func (s *keySet) lookUp(id, algorithm string) (found *jose.JSONWebKey) {
	for i := range s.keys {
		k := &s.keys[i]
		if !fits(k, algorithm) || id != "" && k.KeyID != id {
			continue
		}
		if found != nil {
			return nil
		}
		found = k
	}
	return found
}

// start begins a fetch, unless one is in progress, and returns the channel that is closed when it ends. The caller
// holds mu.
func (s *keySet) start() <-chan struct{} {
	if s.fetch != nil {
		return s.fetch
	}
	done := make(chan struct{})
	s.fetch = done
	s.goroutines.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, fetchTimeout)
		defer cancel()
		keys, ends, err := s.load(ctx)
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("cannot fetch the keys of an issuer", "issuer", s.issuer, "error", err)
		}
		s.mu.Lock()
		withdrawn := false
		if err == nil {
			for _, k := range s.keys {
				withdrawn = withdrawn || !slices.ContainsFunc(keys, func(o jose.JSONWebKey) bool { return same(k, o) })
			}
			s.keys, s.endpoints = keys, ends
		}
		s.err, s.tried, s.fetch = err, s.now(), nil
		s.mu.Unlock()
		if withdrawn {
			s.removed()
		}
		close(done)
	})
	return done
}

// refresh fetches the keys again, if they were fetched before.
func (s *keySet) refresh(ctx context.Context) {
	s.mu.Lock()
	known := !s.tried.IsZero()
	s.mu.Unlock()
	if known {
		_, _ = s.fetchAll(ctx) // start logs the error
	}
}

// fetchAll fetches the keys, and returns how many there are.
func (s *keySet) fetchAll(ctx context.Context) (int, error) {
	s.mu.Lock()
	done := s.start()
	s.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys), s.err
}

// load fetches the issuer's metadata and its keys.
func (s *keySet) load(ctx context.Context) ([]jose.JSONWebKey, endpoints, error) {
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
		endpoints
	}
	at := strings.TrimSuffix(s.issuer, "/") + "/.well-known/openid-configuration"
	if err := s.get(ctx, at, &metadata); err != nil {
		return nil, endpoints{}, err
	}
	if metadata.Issuer != s.issuer {
		return nil, endpoints{}, fmt.Errorf("%s is the metadata of the issuer %q", at,
			fault.Printable(metadata.Issuer, 200))
	}
	if err := CheckURL(metadata.Keys); err != nil {
		// An issuer with TLS could otherwise name keys that are fetched without.
		return nil, endpoints{}, fmt.Errorf("%s: jwks_uri %q %w", at, fault.Printable(metadata.Keys, 200), err)
	}
	if strings.HasPrefix(s.issuer, "https://") && !strings.HasPrefix(metadata.Keys, "https://") {
		return nil, endpoints{}, fmt.Errorf("%s: jwks_uri %q is without TLS", at, fault.Printable(metadata.Keys, 200))
	}
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := s.get(ctx, metadata.Keys, &document); err != nil {
		return nil, endpoints{}, err
	}
	var keys []jose.JSONWebKey
	for _, text := range document.Keys[:min(len(document.Keys), maxKeys)] {
		var k jose.JSONWebKey
		// Keys of kinds that go-jose does not know are for others.
		if json.Unmarshal(text, &k) == nil && k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, endpoints{}, fmt.Errorf("%s has no public key for signatures", metadata.Keys)
	}
	return keys, metadata.endpoints, nil
}

// get fetches a JSON document.
func (s *keySet) get(ctx context.Context, address string, document any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json")
	resp, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s was answered with status %d", address, resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(text) > maxDocument {
		err = fmt.Errorf("it has more than %d bytes", maxDocument)
	}
	if err == nil {
		err = json.Unmarshal(text, document)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

// curves are the names of the curves of the algorithms with ECDSA.
var curves = map[string]string{"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

// fits reports whether a key is for an algorithm.
func fits(k *jose.JSONWebKey, algorithm string) bool {
	if k.Algorithm != "" && k.Algorithm != algorithm {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return (strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")) &&
			key.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey:
		return curves[algorithm] == key.Curve.Params().Name
	case ed25519.PublicKey:
		return algorithm == "EdDSA"
	}
	return false
}

// same reports whether two keys are the same key with the same id.
func same(a, b jose.JSONWebKey) bool {
	key, ok := a.Key.(interface{ Equal(x crypto.PublicKey) bool })
	if ok {
		return a.KeyID == b.KeyID && key.Equal(b.Key)
	}
	return false
}

// CheckURL returns an error if the URL cannot be an issuer's. Without TLS, an issuer must be on loopback.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("must be the URL of an issuer, such as https://login.example.com")
	case u.Scheme == "https" || u.Scheme == "http" && auth.Loopback(u.Hostname()):
		return nil
	}
	return errors.New("must begin with https://, or be on loopback")
}

func refuse(format string, args ...any) error { return fault.New(fault.Unauthorized, format, args...) }
