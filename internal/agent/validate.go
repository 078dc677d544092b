package agent

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/proto/agentv1"
)

// Bounds of the numbers that a sandbox sends.
const (
	maxSize   = 1 << 60 // bytes of a file
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
	case c.GetTotal() > maxUsedBytes, c.GetKept() > c.GetTotal(), o.Inline() > o.Total,
		utf8.RuneCount(o.Head)+utf8.RuneCount(o.Tail) > i.Head+i.Tail,
		o.Path != "" && !IsOutputFile(o.Path):
		return Output{}, ErrProtocol
	}
	return o, nil
}

// IsOutputFile reports whether a path is one that the agent and its drivers give to files of outputs. Results name it.
func IsOutputFile(name string) bool {
	return path.Dir(name) == wire.OutputDir && outputFile.MatchString(path.Base(name)) && path.Clean(name) == name
}

var outputFile = regexp.MustCompile(`^[0-9a-z-]{1,64}\.txt$`)

// Bounds of the numbers of a sandbox that are shown.
const (
	maxProcesses = 1 << 22 // Linux has no more
	maxUsedBytes = 1 << 50
)

// line returns a text of a sandbox that stands in a line of Sandlot's own: printable, and itself one line.
func line(text string, limit int) string {
	return strings.Join(strings.Fields(fault.Printable(text, limit)), " ")
}

// known returns a word of a sandbox if it is one of those that agents have, and says otherwise that it is none.
func known(word string, words ...string) string {
	if word == "" || slices.Contains(words, word) {
		return word
	}
	return "unknown"
}

// knownLimit is known for the limit that a process was killed for.
func knownLimit(word string) string { return known(word, "memory", "processes", "disk", "time") }

// shorten returns the head and the tail of a text of code, with as many characters as an output may have inline, and
// not fewer than of an ordinary traceback.
func (i InlineBounds) shorten(text string) string {
	head, tail := max(i.Head, 2000), max(i.Tail, 6000)
	if len(text) <= head+tail {
		return text
	}
	r := []rune(strings.ToValidUTF8(text, "\uFFFD"))
	if len(r) <= head+tail {
		return string(r)
	}
	return fmt.Sprintf("%s\n[… %d characters are left out …]\n%s", string(r[:head]), len(r)-head-tail,
		string(r[len(r)-tail:]))
}

// duration returns the duration of n units. A sandbox sent n, so it is bounded.
func duration(n uint64, unit time.Duration) time.Duration {
	return time.Duration(min(n, uint64(maxSpan/unit))) * unit
}

// unixMillis returns the time that is millis milliseconds after 1970. A sandbox sent millis, so it is
// bounded.
func unixMillis(millis uint64) time.Time { return time.UnixMilli(int64(min(millis, maxMillis))).UTC() }

// checkMerged checks both streams of a run as one. It has no file, and room for both; nil: there is none.
func (i InlineBounds) checkMerged(c *agentv1.Captured) (*Output, error) {
	if c == nil {
		return nil, nil
	}
	o, err := InlineBounds{2 * i.Head, 2 * i.Tail}.checkOutput(c)
	o.Path, o.Kept = "", 0
	return &o, err
}
