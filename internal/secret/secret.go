// Package secret generates random tokens and ids, and has a type for secret values that
// never prints them.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
)

// Value is a secret. Formatting, logging or encoding it gives "[secret]".
type Value string

const redacted = "[secret]"

func (Value) String() string               { return redacted }
func (Value) GoString() string             { return redacted }
func (Value) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Reveal returns the secret itself.
func (v Value) Reveal() string { return string(v) }

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ID returns an unguessable id of 26 characters of [a-z2-7]: 130 bits, fit for
// a DNS label, a folder and a URL.
func ID() string { return lowerBase32.EncodeToString(Bytes(17))[:26] }

// IsID reports whether s has the form of an ID.
func IsID(s string) bool {
	return len(s) == 26 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Bytes returns n random bytes.
func Bytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// NewCipher returns the cipher, AES-GCM, that seals values with a key of 32 bytes. It makes nonces itself.
func NewCipher(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// ParseKey parses a key of 32 bytes, in hexadecimal or base64. Its error has no part of the text.
func ParseKey(text string) ([]byte, error) {
	text = strings.TrimRight(strings.TrimSpace(text), "=")
	for _, decode := range []func(string) ([]byte, error){hex.DecodeString, base64.RawStdEncoding.DecodeString,
		base64.RawURLEncoding.DecodeString} {
		if b, err := decode(text); err == nil && len(b) == 32 {
			return b, nil
		}
	}
	return nil, errors.New("must be 32 random bytes in hexadecimal or base64, such as `openssl rand -hex 32` makes")
}

// tokenPrefix is the prefix of bearer tokens.
const tokenPrefix = "slt_"

// IsToken reports whether a text has the form of a result of NewToken.
func IsToken(text string) bool { return strings.HasPrefix(text, tokenPrefix) }

// NewToken returns a bearer token: "slt_" and 40 characters, 200 bits.
func NewToken() Value { return Value(tokenPrefix + lowerBase32.EncodeToString(Bytes(25))) }

// Hash returns the hash under which a token is stored. A token is random enough to need
// neither a salt nor a slow hash.
func Hash(token string) string {
	h := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return hex.EncodeToString(h[:])
}
