package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/fault"
)

// retryPolicy says how a transfer that breaks off is continued.
type retryPolicy struct {
	attempts int           // in a row that get nothing
	most     int           // in all, for a source that gives a byte each time
	pause    time.Duration // before the second one; it doubles
	stall    time.Duration // of an attempt, with fewer than stallBytes
	document time.Duration // for a manifest or a config, in all
}

var defaultRetry = retryPolicy{attempts: 5, most: 200, pause: 500 * time.Millisecond, stall: time.Minute,
	document: 2 * time.Minute}

// stallBytes is what an attempt has to get in each retryPolicy.stall, so that a source cannot hold it with a byte at a
// time.
const stallBytes = 64 << 10

// A transfer brings one blob into the store. One goroutine runs it; others read what there is so far.
//
// The file is partial/DIGEST until it is whole. It outlives a transfer that fails and a process that is killed:
// the next transfer continues after its last byte. Only the digest of the whole decides whether the blob is
// accepted.
type transfer struct {
	store *Store
	from  source
	blob  v1.Descriptor
	tell  func(Progress)

	started chan struct{} // closed when file can be read, or the transfer has failed
	file    *os.File
	partial bool // file is a partial file, and has not been removed

	mu        sync.Mutex
	changed   sync.Cond // of what follows
	written   int64
	ended     bool
	err       error
	resumed   bool // the file begins with what an earlier transfer has left, and nothing has verified
	restarted bool // what was read of the file before may not be what the blob is
}

func (s *Store) newTransfer(from source, blob v1.Descriptor, tell func(Progress)) *transfer {
	t := &transfer{store: s, from: from, blob: blob, tell: tell, started: make(chan struct{})}
	t.changed.L = &t.mu
	return t
}

// run gets the blob, unless the store has it.
func (t *transfer) run(ctx context.Context) error {
	begun := sync.OnceFunc(func() { close(t.started) })
	err := t.get(ctx, begun)
	t.mu.Lock()
	t.ended, t.err = true, err
	t.mu.Unlock()
	t.changed.Broadcast()
	begun()
	return err
}

// close closes the file, after the last read.
func (t *transfer) close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

func (t *transfer) get(ctx context.Context, begun func()) error {
	t.report(Waiting)
	if present, err := t.openPresent(ctx); present || err != nil {
		return err
	}
	select { // a slot is taken before the lock, so that who has the lock goes on
	case t.store.slots <- struct{}{}:
		defer func() { <-t.store.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	file, err := lock(ctx, t.store.partialPath(t.blob.Digest.Hex), exclusive)
	if err != nil {
		return t.store.diskError(err)
	}
	if present, err := t.openPresent(ctx); err != nil {
		return errors.Join(err, file.Close())
	} else if present { // somebody else has got it meanwhile
		return errors.Join(os.Remove(file.Name()), file.Close())
	}
	t.file, t.partial = file, true
	sum := sha256.New()
	if err := t.takeUp(sum); err != nil {
		return t.store.diskError(err)
	}
	begun()
	t.report(Loading)
	if err := t.load(ctx, sum); err != nil {
		return err
	}
	if err := t.commit(); err != nil {
		return t.store.diskError(err)
	}
	t.report(Loaded)
	return nil
}

// openPresent opens the blob where the store has it, undamaged.
func (t *transfer) openPresent(ctx context.Context) (bool, error) {
	f, err := t.store.openBlob(ctx, t.blob)
	if f == nil {
		return false, err
	}
	t.file = f
	t.advance(t.blob.Size)
	t.report(Present)
	return true, nil
}

// takeUp reads what an earlier transfer has left.
func (t *transfer) takeUp(sum hash.Hash) error {
	n, err := io.Copy(sum, io.LimitReader(t.file, t.blob.Size+1))
	if err == nil && n > t.blob.Size {
		return t.restart(sum)
	}
	t.mu.Lock()
	t.resumed = n > 0
	t.mu.Unlock()
	t.advance(n)
	return err
}

// restart throws away what has been written.
func (t *transfer) restart(sum hash.Hash) error {
	sum.Reset()
	t.mu.Lock()
	t.restarted = t.restarted || t.written > 0
	t.written = 0
	t.mu.Unlock()
	_, err := t.file.Seek(0, io.SeekStart)
	return errors.Join(err, t.file.Truncate(0))
}

// advance lets readers have n more bytes.
func (t *transfer) advance(n int64) {
	t.mu.Lock()
	t.written += n
	t.mu.Unlock()
	t.changed.Broadcast()
}

// load gets what is missing, in as many attempts as it takes, and compares the whole with its digest.
func (t *transfer) load(ctx context.Context, sum hash.Hash) error {
	takenUp := t.written > 0
	failed := 0
	for attempt := 1; ; attempt++ {
		before := t.written
		err := t.attempt(ctx, sum)
		if err == nil {
			got := hex.EncodeToString(sum.Sum(nil))
			switch {
			case got == t.blob.Digest.Hex:
				return nil
			case !takenUp:
				return errors.Join(malformed(t.from.String(), "the bytes of %s have the digest sha256:%s",
					t.blob.Digest, got),
					t.discard())
			}
			// What an earlier transfer left was not what it should be, or this one's end: once more, from the
			// beginning.
			t.store.log.Warn("a partial download was damaged, and is downloaded again", "digest",
				t.blob.Digest.String())
			if takenUp, err = false, t.restart(sum); err != nil {
				return t.store.diskError(err)
			}
			continue
		}
		if failed++; t.written > before {
			failed = 0
		}
		if ctx.Err() != nil || !isTemporary(err) || failed >= t.store.retry.attempts || attempt >= t.store.retry.most {
			return err
		}
		t.store.log.Debug("a download broke off, and is continued", "digest", t.blob.Digest.String(), "at", t.written,
			"error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(t.store.retry.pause << min(failed, 5)):
		}
	}
}

// attempt asks the source once for what is missing.
func (t *transfer) attempt(ctx context.Context, sum hash.Hash) error {
	if t.written == t.blob.Size && t.written > 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(t.store.retry.stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	body, start, err := t.from.blob(ctx, t.blob, t.written)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer body.Close()
	if start != t.written { // the source cannot begin in the middle
		if err := t.restart(sum); err != nil {
			return t.store.diskError(err)
		}
	}
	buffer, recent := make([]byte, 256<<10), 0
	for {
		n, err := body.Read(buffer)
		if recent += n; recent >= stallBytes {
			stalled.Reset(t.store.retry.stall)
			recent = 0
		}
		if int64(n) > t.blob.Size-t.written {
			return errors.Join(malformed(t.from.String(), "%s has more than the %d bytes that its manifest says",
				t.blob.Digest, t.blob.Size), t.discard())
		}
		if n > 0 {
			if _, err := t.file.Write(buffer[:n]); err != nil {
				return t.store.diskError(err)
			}
			sum.Write(buffer[:n])
			t.advance(int64(n))
			t.report(Loading)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && t.written == t.blob.Size:
			return nil
		case errors.Is(err, io.EOF):
			return errBrokeOff
		default:
			return causeOf(ctx, err)
		}
	}
}

// discard removes a partial file that no later transfer could use.
func (t *transfer) discard() error {
	t.partial = false
	return os.Remove(t.file.Name())
}

// commit makes the file part of the store.
func (t *transfer) commit() error {
	if err := t.file.Sync(); err != nil {
		return err
	}
	t.partial = false
	return os.Rename(t.file.Name(), t.store.blobPath(t.blob.Digest))
}

func (t *transfer) report(stage Stage) {
	t.mu.Lock()
	done := t.written
	t.mu.Unlock()
	t.tell(Progress{Layer: t.blob.Digest.String(), Stage: stage, Done: done, Total: t.blob.Size})
}

// errStalled and errBrokeOff end one attempt.
var (
	errStalled  = fault.New(fault.Connection, "too few bytes came for too long")
	errBrokeOff = fault.New(fault.Connection, "the connection ended before the layer did")
)

// causeOf returns why a context ended, where that is why an attempt failed.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// isTemporary reports whether another attempt may succeed.
func isTemporary(err error) bool {
	return fault.Is(err, fault.Connection)
}

// reader returns a reader of the blob, which waits for what has not been written yet.
func (t *transfer) reader(ctx context.Context) (io.ReadCloser, error) {
	select {
	case <-t.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.file == nil {
		return nil, fmt.Errorf("%s is not there: %w", t.blob.Digest, t.failure())
	}
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.changed.Broadcast()
	})
	return &blobReader{from: t, ctx: ctx, stop: stop}, nil
}

func (t *transfer) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// A blobReader reads the blob of a transfer while it is written.
type blobReader struct {
	from *transfer
	ctx  context.Context
	stop func() bool
	at   int64
}

func (r *blobReader) Read(b []byte) (int, error) {
	there, err := r.wait()
	if err != nil {
		return 0, err
	}
	n, err := r.from.file.ReadAt(b[:min(int64(len(b)), there)], r.at)
	r.at += int64(n)
	if errors.Is(err, io.EOF) { // the file was made shorter meanwhile
		err = nil
	}
	return n, err
}

// wait returns how many bytes can be read, once there are any.
func (r *blobReader) wait() (int64, error) {
	t := r.from
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.written <= r.at && !t.ended && r.ctx.Err() == nil {
		t.changed.Wait()
	}
	switch {
	case r.ctx.Err() != nil:
		return 0, r.ctx.Err()
	case t.written > r.at:
		return t.written - r.at, nil
	case t.err != nil:
		return 0, t.err
	}
	return 0, io.EOF
}

// Close ends the reader; the transfer goes on.
func (r *blobReader) Close() error {
	r.stop()
	return nil
}

// origin reports whether what was read was in part of an earlier transfer, and whether it was thrown away since.
func (t *transfer) origin() (resumed, restarted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.resumed, t.restarted
}
