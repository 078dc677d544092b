package auth

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/fault"
)

// Claims are what a valid JWT says of its user.
type Claims struct {
	Issuer  string
	Subject string // unique at its issuer
	Name    string // for people only; empty: the subject
	Expires time.Time
}

// Issuers verifies the JWTs of the issuers in the settings.
type Issuers interface {
	// Verify returns the claims of a valid JWT. The error is an Unauthorized fault for any other one, and a
	// Connection fault while the keys of its issuer are not available.
	Verify(ctx context.Context, token string) (Claims, error)
	// IsForServer reports whether a token says that it is of one of the issuers and for this server. It does not
	// verify that.
	IsForServer(token string) bool
}

// isJWT reports whether a bearer token has the form of a signed JWT. No stored token has a dot.
func isJWT(token string) bool { return strings.Count(token, ".") == 2 }

const (
	// oidcPrefix is the prefix of the ids of issuers' users.
	oidcPrefix = "oidc:"
	// maxDisplayName bounds the length of a display name in bytes.
	maxDisplayName = 100
	// maxSubject bounds the length of a subject within an id in bytes.
	maxSubject = 128
	// maxIssuerHost bounds the length of an issuer's host within an id in bytes.
	maxIssuerHost = 64
)

var (
	lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	// oidcIDPattern matches the ids that oidcID returns. The second group is the subject.
	oidcIDPattern = regexp.MustCompile(`^oidc:([a-z0-9.-]{0,64}-[a-z2-7]{16})/((?:[A-Za-z0-9._@+:|=-]|%[0-9A-F]{2}){1,128}|~[a-z2-7]{52})$`)
	hostUnsafe    = regexp.MustCompile(`[^a-z0-9.-]`)
)

// oidcID returns the id of an issuer's user: "oidc:HOST-HASH/SUBJECT". HOST, the host of the issuer, is for
// people. HASH, 80 bits of the hash of the issuer, tells issuers apart. In SUBJECT, special characters are
// escaped; a long one is replaced by "~" and its hash. So two ids are equal only if issuer and subject are, and
// none is the id of a token's user.
func oidcID(issuer, subject string) string {
	var escaped strings.Builder
	for i := range len(subject) {
		switch c := subject[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("._@+:|=-", c) >= 0:
			escaped.WriteByte(c)
		default:
			fmt.Fprintf(&escaped, "%%%02X", c)
		}
	}
	text := escaped.String()
	if len(text) > maxSubject {
		whole := sha256.Sum256([]byte(subject))
		text = "~" + lowerBase32.EncodeToString(whole[:])
	}
	return oidcPrefix + IssuerID(issuer) + "/" + text
}

// IssuerID returns the name of an issuer within the ids of its users, HOST-HASH.
func IssuerID(issuer string) string {
	host := ""
	if u, err := url.Parse(issuer); err == nil {
		host = hostUnsafe.ReplaceAllString(strings.ToLower(u.Hostname()), "-")
		host = host[:min(len(host), maxIssuerHost)]
	}
	hash := sha256.Sum256([]byte(issuer))
	return host + "-" + lowerBase32.EncodeToString(hash[:10])
}

// principal returns the user whom claims are about.
func (c Claims) principal() Principal {
	p := oidcUser(oidcID(c.Issuer, c.Subject))
	if c.Name != "" {
		p.Name = displayName(c.Name)
	}
	p.Expires = c.Expires
	return p
}

// displayName makes one line of text that an issuer wrote.
func displayName(text string) string {
	return fault.Printable(strings.Join(strings.Fields(text), " "), maxDisplayName)
}
