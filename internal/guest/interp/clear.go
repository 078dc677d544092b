package interp

import (
	"bytes"
	"io"
)

// clearSign is what Python's driver writes to both streams for clear_output: what the stream had is not shown. With
// clearWait in it, that begins when more follows. It ends with signEnd.
const (
	clearSign = "\x1b_sandlot-clear"
	clearWait = "-wait"
	signEnd   = "\x1b\\"
)

// clearing is the output of a cell without clearSign, and without what was before it. It resets the writer behind it if
// that has a method Reset, as a buffer has.
type clearing struct {
	to    io.Writer
	held  []byte // the beginning of what may be a sign
	waits bool   // the next bytes replace what was before
}

func (c *clearing) Write(p []byte) (int, error) {
	n := len(p)
	if len(c.held) > 0 {
		p = append(c.held, p...)
		c.held = nil
	}
	for {
		at := bytes.Index(p, []byte(clearSign))
		if at < 0 {
			break
		}
		kind, rest, whole := bytes.Cut(p[at+len(clearSign):], []byte(signEnd))
		if !whole && len(p)-at <= len(clearSign+clearWait+signEnd) {
			c.pass(p[:at])
			c.held = bytes.Clone(p[at:])
			return n, nil
		}
		switch string(kind) {
		case "":
			c.reset()
		case clearWait:
			c.pass(p[:at])
			c.waits = true
		default: // a program's own
			c.pass(p[:at+len(clearSign)])
			rest = p[at+len(clearSign):]
		}
		p = rest
	}
	end := len(p) - begins(p, clearSign)
	c.pass(p[:end])
	c.held = bytes.Clone(p[end:])
	return n, nil
}

// begins returns how many bytes at the end of p are the beginning of sign.
func begins(p []byte, sign string) int {
	for n := min(len(p), len(sign)-1); n > 0; n-- {
		if string(p[len(p)-n:]) == sign[:n] {
			return n
		}
	}
	return 0
}

func (c *clearing) pass(p []byte) {
	if len(p) == 0 {
		return
	}
	if c.waits {
		c.reset()
	}
	_, _ = c.to.Write(p) // captures do not fail
}

func (c *clearing) reset() {
	c.waits = false
	if r, ok := c.to.(interface{ Reset() }); ok {
		r.Reset()
	}
}

// end passes on what may have been the beginning of a sign.
func (c *clearing) end() {
	held := c.held
	c.held = nil
	c.pass(held)
}
