package rootfs

import (
	"context"
	"io"
)

// A ReadAhead reads in a goroutine of its own what its reader will need next, so that decompressing and unpacking
// run at the same time.
type ReadAhead struct {
	full, empty chan []byte
	err         error // set before full is closed
	current     []byte
	rest        []byte
	stop        context.CancelFunc
}

// How much a ReadAhead is ahead.
const (
	aheadBuffers = 4
	aheadBytes   = 256 << 10
)

// StartReadAhead starts to read from a reader. The caller closes what it returns.
func StartReadAhead(ctx context.Context, from io.Reader) *ReadAhead {
	ctx, stop := context.WithCancel(ctx)
	r := &ReadAhead{full: make(chan []byte, aheadBuffers), empty: make(chan []byte, aheadBuffers), stop: stop}
	for range aheadBuffers {
		r.empty <- make([]byte, aheadBytes)
	}
	go r.run(ctx, from) // Close waits for it
	return r
}

func (r *ReadAhead) run(ctx context.Context, from io.Reader) {
	defer close(r.full)
	for {
		var b []byte
		select {
		case b = <-r.empty:
		case <-ctx.Done():
			r.err = ctx.Err()
			return
		}
		n, err := fill(from, b[:aheadBytes])
		r.full <- b[:n] // there is room for every buffer
		if err != nil {
			r.err = err
			return
		}
	}
}

// fill reads until b is full or there is an error.
func fill(from io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = from.Read(b[n:])
		n += more
	}
	return n, err
}

// Read returns what has been read ahead.
func (r *ReadAhead) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.current != nil {
			r.empty <- r.current
			r.current = nil
		}
		next, ok := <-r.full
		if !ok {
			return 0, r.err
		}
		r.current, r.rest = next, next
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close ends the goroutine, and waits for it.
func (r *ReadAhead) Close() {
	r.stop()
	for range r.full {
	}
}
