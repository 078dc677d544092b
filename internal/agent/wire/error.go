package wire

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
)

// Errorf returns the error for a request that the agent refuses, with a Connect code and a text
// as of fmt.Errorf.
func Errorf(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

// UTF8 returns a text with its invalid bytes replaced: strings of messages must be valid UTF-8.
func UTF8(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// Milliseconds returns a duration that a message has in milliseconds. It bounds the number, which may come
// from the sandbox, so that the duration does not overflow.
func Milliseconds(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Millisecond }
