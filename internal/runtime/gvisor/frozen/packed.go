package frozen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// packedSuffix is that of the names of packed files, which tell whether they are whole.
const packedSuffix = ".zst"

// maxWindow bounds the memory that unpacking takes. pack uses less.
const maxWindow = 16 << 20

// pack writes the packed form of the file from into the new file to, and makes it durable. After an error there is no
// file to.
func pack(ctx context.Context, from, to string) error {
	return rewrite(from, to, func(in *os.File, out *os.File) error {
		// One processor is enough: others have calls to answer.
		w, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(1<<20))
		if err != nil {
			return err
		}
		_, err = io.Copy(w, reader{ctx, in})
		return errors.Join(err, w.Close())
	})
}

// unpack writes the content of a packed file into the new file to, of at most max bytes. It need not survive a crash.
// After an error there is no file to.
func unpack(ctx context.Context, from, to string, max int64) error {
	return rewrite(from, to, func(in *os.File, out *os.File) error {
		r, err := zstd.NewReader(reader{ctx, in}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return err
		}
		defer r.Close()
		n, err := io.Copy(out, io.LimitReader(r, max+1))
		if err == nil && n > max {
			err = fmt.Errorf("it has more than %d bytes", max)
		}
		return err
	})
}

func rewrite(from, to string, write func(in, out *os.File) error) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = write(in, out); err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", from, err), os.Remove(to))
	}
	return nil
}

// reader reads until ctx ends.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
