package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/fault"
	"sandlot/internal/oci/rootfs"
)

// A layer is one layer of an image that is being unpacked.
type layer struct {
	open     func(context.Context) (io.ReadCloser, error) // the bytes of the blob, as they come
	diffID   v1.Hash                                      // of the uncompressed bytes
	verified atomic.Bool
}

// unpack merges layers into the root file system in file, and compares each with its digest.
func unpack(ctx context.Context, file *os.File, layers []*layer, what string) error {
	opened := make([]rootfs.Layer, len(layers))
	for i, l := range layers {
		opened[i] = func(ctx context.Context) (io.ReadCloser, error) { return l.uncompressed(ctx, what) }
	}
	if _, err := rootfs.Write(ctx, file, opened, rootfs.Limits{}); err != nil {
		return err
	}
	for _, l := range layers {
		if !l.verified.Load() {
			return malformed(what, "the layer with the content %s was not read to its end", l.diffID)
		}
	}
	return nil
}

// uncompressed opens the layer's tar archive.
func (l *layer) uncompressed(ctx context.Context, what string) (io.ReadCloser, error) {
	l.verified.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	blob, err := l.open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	plain, err := rootfs.Uncompressed(blob) // a wrong media type does no harm: the digest is compared
	if err != nil {
		cancel()
		return nil, errors.Join(decompressError(what, err), blob.Close())
	}
	return &layerReader{layer: l, what: what, sum: sha256.New(),
		cancel: cancel, blob: blob, plain: plain, ahead: rootfs.StartReadAhead(ctx, plain)}, nil
}

// decompressError gives an error of a decoder its kind; errors of the transfer have one.
func decompressError(what string, err error) error {
	if fault.From(err).Kind != fault.Internal {
		return err
	}
	return malformed(what, "a layer cannot be decompressed: %v", err)
}

// A layerReader compares the bytes that pass with the layer's digest.
type layerReader struct {
	layer  *layer
	what   string
	sum    hash.Hash
	failed error

	cancel      context.CancelFunc // ends reads of blob
	blob, plain io.Closer
	ahead       *rootfs.ReadAhead
}

func (r *layerReader) Read(b []byte) (int, error) {
	if r.failed != nil {
		return 0, r.failed
	}
	n, err := r.ahead.Read(b)
	r.sum.Write(b[:n])
	switch {
	case errors.Is(err, io.EOF):
		if got := hex.EncodeToString(r.sum.Sum(nil)); got != r.layer.diffID.Hex {
			err = malformed(r.what, "a layer has the content sha256:%s, and its config says %s", got, r.layer.diffID)
			break
		}
		r.layer.verified.Store(true)
	case err != nil:
		err = decompressError(r.what, err)
	}
	r.failed = err
	return n, err
}

// Close ends what reads ahead, and waits for it.
func (r *layerReader) Close() error {
	r.cancel()
	r.ahead.Close()
	return errors.Join(r.plain.Close(), r.blob.Close())
}
