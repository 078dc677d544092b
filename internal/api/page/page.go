// Package page cuts lists into pages, and makes the cursors that lead from one page to the next.
package page

import (
	"crypto/cipher"
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// MaxLimit is the most entries of a page that a request may ask for.
const MaxLimit = 1000

// Cursors seals and opens cursors. A cursor is the key of the last entry of a page, encrypted with a key that lives
// as long as the server: nobody can read a cursor or make one, and each is for one list of one principal.
type Cursors struct{ cipher cipher.AEAD }

// NewCursors returns Cursors with a new key.
func NewCursors() Cursors {
	c, err := secret.NewCipher(secret.Bytes(32))
	if err != nil {
		panic(err) // the length of the key is wrong
	}
	return Cursors{c}
}

// Request says which part of a list a request asks for.
type Request struct {
	limit   int    // 0: no limit
	after   string // the key of the entry before the page; empty: the page is the first
	cursors Cursors
	owner   []byte // whose cursors, and of which list
}

// Request reads limit and cursor from the query of a principal's request for a list.
func (c Cursors) Request(r *http.Request, principal string) (q Request, err error) {
	q = Request{cursors: c, owner: []byte(principal + "\x00" + r.URL.Path)}
	query := r.URL.Query()
	if query.Has("limit") {
		q.limit, err = strconv.Atoi(query.Get("limit"))
		if err != nil || q.limit < 1 || q.limit > MaxLimit {
			return q, fault.Argument("limit", "limit is %q, but must be a number from 1 to %d",
				fault.Clip(query.Get("limit")), MaxLimit)
		}
	}
	if query.Has("cursor") {
		sealed, err := base64.RawURLEncoding.DecodeString(query.Get("cursor"))
		var key []byte
		if err == nil {
			key, err = c.cipher.Open(nil, nil, sealed, q.owner)
		}
		if err != nil { // the reason says nothing that helps
			return q, fault.Argument("cursor", "the cursor is none that this list gave you since the server started; "+
				"begin with the first page, without a cursor")
		}
		q.after = string(key)
	}
	return q, nil
}

// Cut returns the page of a list that a request asks for, and the cursor of the next one. Pages have the order of the
// keys, of which no two are the same: an entry that is there all the time is on exactly one page, whatever comes and
// goes meanwhile. Without limit and cursor the list is returned as it is.
func Cut[T any](q Request, list []T, key func(T) string) (page []T, next string) {
	if q.limit == 0 && q.after == "" {
		return list, ""
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(e T) bool { return key(e) <= q.after })
	slices.SortFunc(rest, func(x, y T) int { return strings.Compare(key(x), key(y)) })
	if q.limit == 0 || len(rest) <= q.limit {
		return rest, ""
	}
	rest = rest[:q.limit]
	sealed := q.cursors.cipher.Seal(nil, nil, []byte(key(rest[q.limit-1])), q.owner)
	return rest, base64.RawURLEncoding.EncodeToString(sealed)
}
