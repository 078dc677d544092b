package relay

import (
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// state is what the requestState of a result contains. A client of the stateless protocol
// returns the requestState when it retries the call.
type state struct {
	Upstream string `json:"u,omitempty"` // the third-party server's requestState
	Call     string `json:"c,omitempty"` // the id of a suspended call
	Expires  int64  `json:"e"`           // Unix seconds
}

// seal encrypts states, so that only the same principal can use a state, and only for the same
// call.
type seal struct{ aead cipher.AEAD }

// StatePrefix begins every encrypted state.
const StatePrefix = "slt1."

// newSeal returns a seal with a key of 32 bytes; a key of another length is replaced by a
// random one.
func newSeal(key []byte) seal {
	if len(key) != 32 {
		key = secret.Bytes(32)
	}
	aead, err := secret.NewCipher(key)
	if err != nil {
		panic(err) // the key has a valid length
	}
	return seal{aead}
}

// callHash returns a hash of the principal, the method, the key and the parameters of a call:
// the authenticated data of a state's encryption.
func callHash(p auth.Principal, q *Request) []byte {
	var canonical any
	b, _ := json.Marshal(q.Params)
	_ = json.Unmarshal(b, &canonical)
	b, _ = json.Marshal([]any{p.ID, p.Service, q.Method, q.Key, canonical})
	sum := sha256.Sum256(b)
	return sum[:]
}

// encode encrypts a state for a call.
func (s seal) encode(p auth.Principal, q *Request, st state) (string, error) {
	st.Expires = time.Now().Add(suspendTimeout).Unix()
	plain, err := json.Marshal(st)
	if err != nil {
		return "", err
	}
	return StatePrefix + base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, plain, callHash(p, q))), nil
}

// decode decrypts the state of a request; a request without one has an empty state.
func (s seal) decode(p auth.Principal, q *Request) (state, error) {
	var st state
	if q.Inputs.State == "" {
		return st, nil
	}
	invalid := fault.Wrap(fault.InvalidParameters, errInvalidState, "%v", errInvalidState).
		With("argument", "requestState")
	text, sealed := strings.CutPrefix(q.Inputs.State, StatePrefix)
	body, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || !sealed {
		return st, invalid
	}
	plain, err := s.aead.Open(nil, nil, body, callHash(p, q))
	if err != nil || json.Unmarshal(plain, &st) != nil || time.Now().Unix() > st.Expires {
		return state{}, invalid
	}
	return st, nil
}
