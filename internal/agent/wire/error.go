package wire

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
)

// Errorf makes the error of a request that the agent refuses, as fmt.Errorf does.
func Errorf(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

// UTF8 makes a text valid UTF-8, as messages must hold no other.
func UTF8(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// Millis is a time limit that a message gives in milliseconds.
func Millis(n uint64) time.Duration { return time.Duration(min(n, 1<<40)) * time.Millisecond }
