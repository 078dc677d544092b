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

// UTF8 returns a text as valid UTF-8, which the strings of messages have to be.
func UTF8(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// Milliseconds returns the duration of a message's number of milliseconds.
func Milliseconds(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Millisecond }
