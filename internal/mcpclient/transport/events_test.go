package transport

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

// Lines may end with CR, LF or both. What they take of memory depends on their bytes, and not on how many there are.
func TestManyLines(t *testing.T) {
	const size = 16 << 20
	in := "data: a\rdata: b\r\r" + strings.Repeat("\r", size) + "data: c\rid: 1\r\n\r\n\rdata: d\r\r"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := newEventReader(strings.NewReader(in), reserver{limits: Limits{Message: 2 * size}})
	for _, want := range []string{"a\nb", "c", "d"} {
		if e, err := r.next(); err != nil || string(e.data) != want || e.hasID != (want == "c") {
			t.Errorf("got %.20q, %v, want %q", e.data, err, want)
		}
	}
	if e, err := r.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %.20q, %v", e.data, err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 8*size {
		t.Errorf("%d MiB were allocated for %d MiB", got>>20, size>>20)
	}
}
