package frozen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// packedSuffix is that of the names of packed files, which tell whether they are whole.
const packedSuffix = ".zst"

// maxWindow bounds the memory that unpacking takes. pack uses less.
const maxWindow = 16 << 20

// pack writes the packed form of the file from into the new file to, and makes it durable. With a key, both are sealed.
// After an error there is no file to.
func pack(ctx context.Context, from, to string, key []byte) error {
	return rewrite(from, to, func(in, out *os.File) (err error) {
		r, w := io.Reader(reader{ctx, in}), io.WriteCloser(unclosed{out})
		if key != nil {
			if r, err = newOpener(r, key, filepath.Base(from)); err != nil {
				return err
			}
			if w, err = newSealer(out, key, filepath.Base(to)); err != nil {
				return err
			}
		}
		// One processor is enough: others have calls to answer.
		z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(1<<20))
		if err != nil {
			return err
		}
		_, err = io.Copy(z, r)
		if err = errors.Join(err, z.Close()); err != nil {
			return err
		}
		return w.Close()
	})
}

// unclosed is a writer that Close leaves open.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// unpack writes the clear content of a file into the new file to, of at most max bytes: from is packed if its name says
// so, and sealed if there is a key. The new file need not survive a crash. After an error there is no file to.
func unpack(ctx context.Context, from, to string, max int64, key []byte) error {
	write := func(in, out *os.File) (err error) {
		packed := strings.HasSuffix(from, packedSuffix)
		if key != nil && !packed {
			return openFile(ctx, in, out, key, filepath.Base(from))
		}
		r := io.Reader(reader{ctx, in})
		if key != nil {
			if r, err = newOpener(r, key, filepath.Base(from)); err != nil {
				return err
			}
		}
		if packed {
			z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return err
			}
			defer z.Close()
			r = z
		}
		n, err := io.Copy(out, io.LimitReader(r, max+1))
		if err == nil && n > max {
			err = fmt.Errorf("it has more than %d bytes", max)
		}
		return err
	}
	return create(from, to, write)
}

// rewrite is create, and makes the new file durable.
func rewrite(from, to string, write func(in, out *os.File) error) error {
	return create(from, to, func(in, out *os.File) error {
		if err := write(in, out); err != nil {
			return err
		}
		return out.Sync()
	})
}

// create makes the file to with what write makes of the file from. After an error there is no file to.
func create(from, to string, write func(in, out *os.File) error) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(write(in, out), out.Close()); err != nil {
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
