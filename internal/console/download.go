package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"sandlot/internal/secret"
)

// A browser streams a large file to its disk only if it loads the file by an address, with which it sends no header. The
// page signs such an address with its key.
const (
	// UntilParameter and SignatureParameter are the parameters of a signed address: the time in seconds since 1970 until
	// which it counts, and the signature in hexadecimal digits.
	UntilParameter, SignatureParameter = "console-until", "console-signature"
	// maxDownloadAge is how far in the future that time may be.
	maxDownloadAge = 2 * time.Minute
)

// downloads are the paths that a signature opens: those of files.
var downloads = regexp.MustCompile(`(?s)^/v1/sessions/[^/]+/files/.`)

// Sign returns the signature by which a page with a key loads a file until a time.
func Sign(key secret.Value, path string, until int64) string {
	return sign(secret.Hash(key.Reveal()), path, until)
}

// sign signs with the hash of a key: that is what the server has of it.
func sign(hash, path string, until int64) string {
	m := hmac.New(sha256.New, []byte(hash))
	m.Write([]byte(strconv.FormatInt(until, 10) + "\n" + path))
	return hex.EncodeToString(m.Sum(nil))
}

// signed returns the log-in one of whose cookies a request has, and with whose key its address is signed; nil: there is
// none. It reads a file, and its address counts for a minute or two, in this browser alone.
func (l *Logins) signed(r *http.Request, cookies []*http.Cookie) *Login {
	if r.Method != http.MethodGet || !downloads.MatchString(r.URL.Path) {
		return nil
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return nil
	}
	q := r.URL.Query()
	until, err := strconv.ParseInt(q.Get(UntilParameter), 10, 64)
	left := time.Unix(until, 0).Sub(l.now())
	if err != nil || left <= 0 || left > maxDownloadAge {
		return nil
	}
	given := q.Get(SignatureParameter)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropIdle()
	for _, c := range cookies {
		x := l.logins[secret.Hash(c.Value)]
		if x != nil && hmac.Equal([]byte(sign(x.key, r.URL.Path, until)), []byte(given)) {
			x.used = l.now()
			return x
		}
	}
	return nil
}
