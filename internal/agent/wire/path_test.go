package wire

import (
	"testing"
	"unicode/utf8"
)

func TestPaths(t *testing.T) {
	for _, p := range []string{"", "a b%20/é", "caf\xe9.txt", "\xff/\xfe%", "raw/\xc3"} {
		encoded := EncodePath(p)
		if !utf8.ValidString(encoded) || DecodePath(encoded) != p {
			t.Errorf("%q: %q, %q", p, encoded, DecodePath(encoded))
		}
	}
	if p := "a\x00%E9"; DecodePath(p) != p {
		t.Error("a zero byte within a path")
	}
}
