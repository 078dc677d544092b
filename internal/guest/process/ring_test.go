package process

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func (w *ring) all(t *testing.T, cursor uint64, max int) (data []byte, skipped uint64) {
	t.Helper()
	for {
		part, next, lost, _, _ := w.read(cursor, max)
		skipped += lost
		data = append(data, part...)
		if len(part) == 0 {
			return data, skipped
		}
		if len(part) > max || next != cursor+lost+uint64(len(part)) {
			t.Fatalf("read(%d, %d) = %d bytes, next %d, skipped %d", cursor, max, len(part), next, lost)
		}
		cursor = next
	}
}

// A ring gives what a list of everything would, as far back as it reaches.
func TestRing(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, most := range []int{100, 70_000, RingSize + 5000, 3 * RingSize} {
		w := newRing()
		var model []byte
		for len(model) < 4*RingSize {
			p := bytes.Repeat([]byte{byte(len(model))}, r.IntN(most)+1)
			for i := range p {
				p[i] += byte(i)
			}
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Fatalf("Write = %d, %v", n, err)
			}
			model = append(model, p...)
			if r.IntN(1+8*RingSize/most) > 20 {
				continue
			}
			from := uint64(r.IntN(len(model) + 1))
			oldest := uint64(max(0, len(model)-RingSize))
			got, skipped := w.all(t, from, 30_000+r.IntN(RingSize))
			want := model[max(from, oldest):]
			if !bytes.Equal(got, want) || skipped != max(from, oldest)-from {
				t.Fatalf("pieces of up to %d, %d bytes in all, from %d: %d bytes, skipped %d; want %d, %d", most,
					len(model), from, len(got), skipped, len(want), max(from, oldest)-from)
			}
		}
	}
}

func TestRingEnds(t *testing.T) {
	w := newRing()
	if data, next, skipped, closed, _ := w.read(0, 10); len(data) != 0 || next != 0 || skipped != 0 || closed {
		t.Errorf("empty: %q, %d, %d, %v", data, next, skipped, closed)
	}
	_, _, _, _, changed := w.read(0, 10)
	w.Write([]byte("abc"))
	select {
	case <-changed:
	default:
		t.Error("who waits is not told of new output")
	}
	// A cursor beyond the end, which a client made up, is the end.
	if data, next, skipped, _, _ := w.read(1<<40, 10); len(data) != 0 || next != 3 || skipped != 0 {
		t.Errorf("beyond the end: %q, %d, %d", data, next, skipped)
	}
	if data, next, _, _, _ := w.read(1, 1); string(data) != "b" || next != 2 {
		t.Errorf("one byte: %q, %d", data, next)
	}
	_, _, _, _, changed = w.read(3, 10)
	w.close()
	select {
	case <-changed:
	default:
		t.Error("who waits is not told of the end")
	}
	if data, _, _, closed, _ := w.read(0, 10); string(data) != "abc" || !closed {
		t.Errorf("after the end: %q, %v", data, closed)
	}
}
