package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func FuzzLines(f *testing.F) {
	f.Add("{}\n\n[1]\r\n\ufeff{}\nlast", 100)
	f.Add(strings.Repeat("x", 300)+"\n{}\n", 100)
	f.Add(strings.Repeat("x", 30000), 10)
	f.Fuzz(func(t *testing.T, in string, limit int) {
		if limit < 1 || limit > 1<<20 {
			return
		}
		var want []string
		for _, l := range strings.Split(in, "\n") {
			if raw := strings.TrimRight(l, "\r\n"); len(raw) > limit {
				want = append(want, "large")
			} else if l = string(bytes.TrimSpace(bytes.TrimPrefix([]byte(l), []byte("\ufeff")))); l != "" {
				want = append(want, l)
			}
		}
		r := lineReader{reader: bufio.NewReaderSize(iotest.HalfReader(strings.NewReader(in)), 16),
			reserver: reserver{limits: Limits{Message: limit}}}
		for i := 0; ; i++ {
			line, err := r.next()
			guessID(line)
			switch {
			case errors.Is(err, ErrTooLarge):
				if len(line) > 2*truncatedEnds || i >= len(want) || want[i] != "large" {
					t.Fatalf("line %d of %q: %d bytes were kept of one that is too long", i, in, len(line))
				}
			case err != nil && !errors.Is(err, io.EOF):
				t.Fatal(err)
			case len(line) > 0 && (i >= len(want) || want[i] != string(line) && want[i] != "large"):
				t.Fatalf("line %d of %q is %q, want %q", i, in, line, want)
			}
			if errors.Is(err, io.EOF) {
				return
			}
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add("\ufeffid: 1\ndata: a\ndata: b\n\n: c\n\nevent: x\r\ndata\r\n\r\nretry: 5\n\ndata: end")
	f.Add("data: a\rdata: b\r\rid: \x00\nid\n\n")
	f.Add(strings.Repeat("data: x\n", 10000))
	f.Fuzz(func(t *testing.T, in string) {
		const limit = 1 << 10
		r := newEventReader(iotest.HalfReader(strings.NewReader(in)), reserver{limits: Limits{Message: limit}})
		for n := 0; ; n++ {
			e, err := r.next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, ErrTooLarge) {
					t.Fatal(err)
				}
				return
			}
			if len(e.data) > limit+truncatedEnds || len(e.id) > maxEventID || len(e.name) > maxEventName ||
				r.retry > maxRetry || r.retry < 0 {
				t.Fatalf("an event is not bounded: %d bytes, %d of its id, %d of its name", len(e.data), len(e.id),
					len(e.name))
			}
			if n > len(in) || strings.ContainsAny(e.id, "\r\n\x00") {
				t.Fatalf("number %d, id %q", n, e.id)
			}
		}
	})
}
