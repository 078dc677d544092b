// Package oidc verifies JWTs of the OIDC issuers in the settings, and logs users in at them. It owns the issuers' keys
// and endpoints: it fetches them when they are needed, bounded in size, time and number, and keeps them while an issuer
// does not answer.
package oidc

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Issuer has the settings of an issuer.
type Issuer struct {
	URL        string   // its identifier: the claim iss
	Audiences  []string // a token needs one of them
	Algorithms []string // of signatures; out of Algorithms
	// NameClaim is the claim with the user's name for people; empty: the subject.
	NameClaim string
	// Required has claims, and the text that each must have, or have in its list.
	Required map[string]string
	// Client is this server as a client of the issuer, for log-ins in a browser.
	Client Client
}

const (
	// skew is how far the clocks of an issuer and of this machine may differ.
	skew = time.Minute
	// maxToken bounds the length of a token in bytes, and maxSubject that of its subject.
	maxToken, maxSubject = 16 << 10, 255
	// maxName bounds the length of a name for people in bytes.
	maxName = 100
	// maxDecisions bounds how many tokens are remembered.
	maxDecisions = 4096
)

// Algorithms are the signature algorithms that an issuer may use. All are asymmetric: with a symmetric one,
// whoever knows an issuer's public key could sign.
var Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// accepted are the same, for go-jose.
var accepted = func() (all []jose.SignatureAlgorithm) {
	for _, name := range Algorithms {
		all = append(all, jose.SignatureAlgorithm(name))
	}
	return all
}()

// use is what a token is for.
type use struct {
	name string
	// types are the values of the header typ that such a token may have. Other JWTs of an issuer, such as those about
	// log-outs, have others.
	types []string
	// straight: it comes straight from the issuer.
	straight bool
}

var (
	accessToken = use{"an access token", []string{"", "jwt", "at+jwt", "application/at+jwt"}, false}
	idToken     = use{"an ID token", []string{"", "jwt"}, true}
)

// Verifier verifies JWTs. It implements auth.Issuers.
type Verifier struct {
	issuers map[string]*issuer
	now     func() time.Time
	stop    context.CancelFunc
	fetches sync.WaitGroup

	mu        sync.Mutex
	decisions map[[sha256.Size]byte]auth.Claims // of tokens that are valid until Expires, by their hash
	// keysVersion counts the changes of keys after which decisions are made anew.
	keysVersion int
}

// issuer is one issuer, with its keys.
type issuer struct {
	Issuer
	keys *keySet
	id   string
	// exchanges has a place for each request to the token endpoint that is in progress.
	exchanges chan struct{}
}

// New returns a verifier. It fetches nothing until a token comes. log gets the failures of fetches.
func New(issuers []Issuer, log *slog.Logger) *Verifier {
	ctx, stop := context.WithCancel(context.Background())
	v := &Verifier{issuers: map[string]*issuer{}, now: time.Now, stop: stop,
		decisions: map[[sha256.Size]byte]auth.Claims{}}
	for _, i := range issuers {
		v.issuers[i.URL] = &issuer{i, &keySet{ctx: ctx, issuer: i.URL, client: newClient(), log: log,
			removed: v.forget, goroutines: &v.fetches, now: func() time.Time { return v.now() }},
			auth.IssuerID(i.URL), make(chan struct{}, maxExchanges)}
	}
	return v
}

// Run fetches the keys again from time to time, of the issuers whose tokens have come, until ctx ends. So a key
// that an issuer has withdrawn does not stay valid.
func (v *Verifier) Run(ctx context.Context) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, i := range v.issuers {
			i.keys.refresh(ctx)
		}
	}
}

// Fetch fetches the keys of an issuer, and returns how many it has.
func (v *Verifier) Fetch(ctx context.Context, issuer string) (int, error) {
	return v.issuers[issuer].keys.fetchAll(ctx)
}

// Close ends the fetches in progress and waits for them.
func (v *Verifier) Close() error {
	v.stop()
	v.fetches.Wait()
	return nil
}

// Verify implements auth.Issuers.
func (v *Verifier) Verify(ctx context.Context, token string) (auth.Claims, error) {
	if len(token) > maxToken {
		return auth.Claims{}, refuse("the JWT is longer than %d bytes", maxToken)
	}
	hash := sha256.Sum256([]byte(token))
	now := v.now()
	v.mu.Lock()
	c, known := v.decisions[hash]
	version := v.keysVersion
	v.mu.Unlock()
	if known && now.Before(c.Expires) {
		return c, nil
	}
	c, err := v.verify(ctx, token, now)
	if err != nil {
		return auth.Claims{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if version == v.keysVersion {
		v.makeRoom(now)
		v.decisions[hash] = c
	}
	return c, nil
}

// makeRoom removes what has expired, or else any decision, when there are too many. The caller holds mu.
func (v *Verifier) makeRoom(now time.Time) {
	if len(v.decisions) < maxDecisions {
		return
	}
	for hash, c := range v.decisions {
		if !now.Before(c.Expires) {
			delete(v.decisions, hash)
		}
	}
	for hash := range v.decisions {
		if len(v.decisions) < maxDecisions {
			return
		}
		delete(v.decisions, hash)
	}
}

// forget removes all decisions, after an issuer has withdrawn a key.
func (v *Verifier) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.decisions)
	v.keysVersion++
}

// IsForServer implements auth.Issuers.
func (v *Verifier) IsForServer(token string) bool {
	if len(token) > maxToken {
		return false
	}
	t, err := jwt.ParseSigned(token, accepted)
	var c claims
	if err != nil || t.UnsafeClaimsWithoutVerification(&c) != nil {
		return false
	}
	i := v.issuers[c.Issuer]
	return i != nil && i.isAudience(c.Audience)
}

// isAudience reports whether this server is among the audiences of a token.
func (i *issuer) isAudience(audiences jwt.Audience) bool {
	return slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(i.Audiences, a) })
}

// claims are the claims that decide.
type claims struct {
	Issuer       string           `json:"iss"`
	Subject      string           `json:"sub"`
	Audience     jwt.Audience     `json:"aud"`
	Expires      *jwt.NumericDate `json:"exp"`
	NotBefore    *jwt.NumericDate `json:"nbf"`
	Issued       *jwt.NumericDate `json:"iat"`
	Confirmation any              `json:"cnf"`
}

// verify verifies an access token that is not remembered.
func (v *Verifier) verify(ctx context.Context, token string, now time.Time) (auth.Claims, error) {
	i, c, more, err := v.open(ctx, token, accessToken)
	if err != nil {
		return auth.Claims{}, err
	}
	if !i.isAudience(c.Audience) {
		return auth.Claims{}, refuse("the audience of the JWT is %q, and not this server (%s)",
			fault.Printable(strings.Join(c.Audience, " "), 200), strings.Join(i.Audiences, ", "))
	}
	made, err := i.check(c, more, now)
	if err != nil {
		return auth.Claims{}, err
	}
	if name, want := i.missing(more); name != "" {
		return auth.Claims{}, refuse("the JWT needs the claim %s=%q", name, want)
	}
	return made, nil
}

// open returns the claims of a token for a use, with a valid signature, and its issuer. The decoder that reads the claims
// tells upper case from lower, and refuses an object with two members of one name.
func (v *Verifier) open(ctx context.Context, token string, u use) (i *issuer, c claims, more map[string]any, err error) {
	fail := func(format string, args ...any) (*issuer, claims, map[string]any, error) {
		return nil, claims{}, nil, refuse(format, args...)
	}
	t, err := jwt.ParseSigned(token, accepted)
	if err != nil || len(t.Headers) != 1 || !isCanonical(token) {
		return fail("the token is not a JWT with a signature that this server accepts")
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	if err := t.UnsafeClaimsWithoutVerification(&unverified); err != nil {
		return fail("the claims of the JWT cannot be read")
	}
	if i = v.issuers[unverified.Issuer]; i == nil {
		return fail("the issuer of the JWT, %q, is none of this server", fault.Printable(unverified.Issuer, 200))
	}
	header := t.Headers[0]
	if !slices.Contains(i.Algorithms, header.Algorithm) {
		return fail("the JWT is signed with %s, which this server does not accept from its issuer", header.Algorithm)
	}
	kind, isText := header.ExtraHeaders[jose.HeaderType].(string)
	if _, given := header.ExtraHeaders[jose.HeaderType]; given && !isText {
		return fail("the typ of the JWT is not text")
	}
	if !slices.Contains(u.types, strings.ToLower(kind)) {
		return fail("the JWT has the type %q: it is not %s", fault.Printable(kind, 50), u.name)
	}
	key, err := i.keys.find(ctx, header.KeyID, header.Algorithm, u.straight)
	if err != nil {
		return nil, claims{}, nil, err
	}
	if err := t.Claims(key, &c, &more); errors.Is(err, jose.ErrCryptoFailure) {
		return fail("the signature of the JWT is wrong")
	} else if err != nil {
		return fail("the claims of the JWT cannot be read")
	}
	if c.Issuer != i.URL {
		return fail("the JWT is of another issuer")
	}
	return i, c, more, nil
}

// isCanonical reports whether the parts of a token are base64 as an encoder writes it. Decoders take other last
// characters for the same bytes, and line breaks: one signature would make many tokens.
func isCanonical(token string) bool {
	for part := range strings.SplitSeq(token, ".") {
		b, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil || base64.RawURLEncoding.EncodeToString(b) != part {
			return false
		}
	}
	return true
}

// maxTime is the latest time that a JWT may name, in Unix seconds.
const maxTime = 253402300799 // the end of the year 9999

// check checks the claims of a token with a valid signature, but for whom it is and what the settings require.
func (i *issuer) check(c claims, more map[string]any, now time.Time) (auth.Claims, error) {
	switch {
	case c.Subject == "" || len(c.Subject) > maxSubject:
		return auth.Claims{}, refuse("the subject of the JWT must have 1 to %d bytes", maxSubject)
	case c.Expires == nil:
		return auth.Claims{}, refuse("the JWT has no exp: a token without an end is not accepted")
	case c.Confirmation != nil:
		return auth.Claims{}, refuse("the JWT is bound to a key (cnf): this server accepts bearer tokens only")
	case c.NotBefore != nil && now.Add(skew).Before(c.NotBefore.Time()),
		c.Issued != nil && now.Add(skew).Before(c.Issued.Time()):
		return auth.Claims{}, errEarly
	}
	expires := time.Unix(min(int64(*c.Expires), maxTime), 0).UTC().Add(skew)
	if !now.Before(expires) {
		return auth.Claims{}, errLate
	}
	name, _ := more[i.NameClaim].(string)
	name = strings.Clone(fault.Printable(name, maxName)) // it is remembered
	return auth.Claims{Issuer: i.URL, Subject: c.Subject, Name: name, Expires: expires}, nil
}

var errEarly, errLate = refuse("the JWT is not valid yet"), refuse("the JWT has expired")

// missing returns a claim that the settings require and a token does not have, and its text; empty: none.
func (i *issuer) missing(more map[string]any) (name, want string) {
	for _, name := range slices.Sorted(maps.Keys(i.Required)) {
		if want := i.Required[name]; !has(more[name], want) {
			return name, want
		}
	}
	return "", ""
}

// has reports whether a claim is a text, or has it in its list.
func has(claim any, text string) bool {
	switch claim := claim.(type) {
	case string:
		return claim == text
	case bool:
		return fmt.Sprint(claim) == text
	case []any:
		return slices.Contains(claim, any(text))
	}
	return false
}
