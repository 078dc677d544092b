package wire

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
)

// Errorf returns the error for a request that the agent refuses, with a Connect code and a text
// as of fmt.Errorf, which is cut at maxError bytes: what the caller sent may be in it.
func Errorf(code connect.Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if text := err.Error(); len(text) > maxError {
		err = errors.New(strings.ToValidUTF8(text[:maxError], "") + "…")
	}
	return connect.NewError(code, err)
}

// maxError is how long the text of a refusal may be: it is in a header of HTTP.
const maxError = 4096

// UTF8 returns a text with its invalid bytes replaced: strings of messages must be valid UTF-8.
func UTF8(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// Milliseconds returns a duration that a message has in milliseconds. It bounds the number, which may come
// from the sandbox, so that the duration does not overflow.
func Milliseconds(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Millisecond }
