package wire

import "testing"

func TestMerge(t *testing.T) {
	for _, tt := range []struct {
		order          []int
		stdout, stderr string
		want           string
	}{
		{[]int{2, 3, 1}, "a\nb", "x\ny", "a\nx\nyb"},
		{[]int{0, 1, 2, 2}, "ab", "xyz", "xabyz"},
		{[]int{1, 1}, "ab", "x", ""},     // somebody else has written to stdout
		{[]int{3, 1}, "ab", "x", ""},     // or it was cut
		{[]int{-1, 1, 3}, "ab", "x", ""}, // or the driver lies
		{[]int{2}, "ab", "", ""},         // one stream needs no order
		{nil, "ab", "x", ""},
	} {
		if got := string(Merge(tt.order, []byte(tt.stdout), []byte(tt.stderr))); got != tt.want {
			t.Errorf("%v of %q and %q: %q, want %q", tt.order, tt.stdout, tt.stderr, got, tt.want)
		}
	}
}
