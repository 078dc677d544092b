package interp

import (
	"bytes"
	"testing"
)

// However a stream is divided, a sign takes back what was before it, at once or when more follows, and anything else
// stays as it is.
func TestClearing(t *testing.T) {
	const now, wait = clearSign + signEnd, clearSign + clearWait + signEnd
	for in, want := range map[string]string{
		"a" + now + "b":                            "b",
		"a" + now:                                  "",
		"a" + wait + "b":                           "b",
		"a" + wait:                                 "a",
		"a" + wait + now:                           "",
		"a" + wait + "b" + wait + "c" + wait:       "c",
		"a" + wait + wait + "b":                    "b",
		now + now + "a":                            "a",
		"a" + clearSign + "-other" + signEnd:       "a" + clearSign + "-other" + signEnd,
		"a" + clearSign:                            "a" + clearSign,
		"a" + clearSign[:5] + "b\x1b":              "a" + clearSign[:5] + "b\x1b",
		"a\x1b" + now + "b" + clearSign[:1] + wait: "b\x1b",
	} {
		for size := 1; size <= len(in); size++ {
			var b bytes.Buffer
			c := &clearing{to: &b}
			for p := range slicesOf([]byte(in), size) {
				c.Write(p)
			}
			c.end()
			if b.String() != want {
				t.Errorf("%q in pieces of %d: %q, want %q", in, size, b.String(), want)
			}
		}
	}
}

func slicesOf(p []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(p) > 0 {
			n := min(size, len(p))
			if !yield(p[:n]) {
				return
			}
			p = p[n:]
		}
	}
}
