package agent

import (
	"path"
	"time"
	"unicode/utf8"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// Bounds of the numbers that a sandbox sends.
const (
	maxSize   = 1 << 60 // bytes
	maxCursor = 1 << 53 // what a JSON number holds exactly
	maxSpan   = 100 * 365 * 24 * time.Hour
	maxMillis = 253402300799000 // in the year 9999, the last that RFC 3339 can write
)

// Output is the output of a program on one stream: its first characters and, when it has more
// than the bounds allow, its last ones.
type Output struct {
	Head, Tail []byte
	Total      int64  // bytes that the program wrote
	Path       string // of a file in the sandbox with the first Kept bytes; empty: none
	Kept       int64
}

// Inline returns how many bytes Head and Tail have together.
func (o *Output) Inline() int64 { return int64(len(o.Head) + len(o.Tail)) }

// checkOutput checks a captured stream against the bounds that the host requested.
func (i InlineBounds) checkOutput(c *agentv1.Captured) (Output, error) {
	o := Output{Head: c.GetHead(), Tail: c.GetTail(), Total: int64(c.GetTotal()), Path: c.GetPath(),
		Kept: int64(c.GetKept())}
	switch {
	case c.GetTotal() > maxSize, c.GetKept() > c.GetTotal(), o.Inline() > o.Total,
		utf8.RuneCount(o.Head)+utf8.RuneCount(o.Tail) > i.Head+i.Tail,
		o.Path != "" && (path.Dir(o.Path) != wire.OutputDir || len(o.Path) >= 512):
		return Output{}, ErrProtocol
	}
	return o, nil
}

// duration returns the duration of n units. A sandbox sent n, so it is bounded.
func duration(n uint64, unit time.Duration) time.Duration {
	return time.Duration(min(n, uint64(maxSpan/unit))) * unit
}

// unixMillis returns the time that is millis milliseconds after 1970. A sandbox sent millis, so it is
// bounded.
func unixMillis(millis uint64) time.Time { return time.UnixMilli(int64(min(millis, maxMillis))).UTC() }
