package transport

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

// enlarged is a reservation that is always given.
type enlarged struct{ NoReservation }

func (enlarged) Enlarge(ctx context.Context) (context.Context, error) { return ctx, nil }

// TestLargeLinesOfCR: a large event is a line that ends with LF. Events in lines that end with CR would share its
// memory.
func TestLargeLinesOfCR(t *testing.T) {
	const most = 1 << 20
	limits := Limits{Message: most, Large: 4 * most, Reserve: func() Reservation { return enlarged{} }}
	for in, want := range map[string]bool{
		"data: " + strings.Repeat("x", 2*most) + "\n\n":            true,
		"data: " + strings.Repeat("x", 2*most) + "\r\n\r\n":        true,
		"data: a\r\rdata: " + strings.Repeat("x", 2*most) + "\n\n": false,
	} {
		r := newEventReader(strings.NewReader(in), reserver{ctx: t.Context(), limits: limits, size: most,
			abort: func() {}, takesLarge: func() bool { return true }})
		e, err := r.next()
		if err == nil {
			e.reservation.Release()
		}
		if ok := err == nil && len(e.data) == 2*most; ok != want || !want && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%.20q: %d bytes, %v", in, len(e.data), err)
		}
	}
}

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
