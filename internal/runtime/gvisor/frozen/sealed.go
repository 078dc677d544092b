package frozen

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"sandlot/internal/atomicfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// A sealed file is a header and chunks. The header is sealMagic and a random salt. Each chunk is sealed with AES-256-GCM
// by a key of the file, which is derived from the image's key, the salt and the name of the file. The nonce has the
// chunk's number, and says whether it is the last one: chunks that are missing, in another order, or another file's do
// not open.
const (
	sealMagic = "Sandlot sealed 1\n"
	saltSize  = 32
	chunkSize = 1 << 20
	tagSize   = 16
	sealHead  = len(sealMagic) + saltSize
	// keyFile has the image's key, sealed by Keys.
	keyFile    = "sealed.key"
	keySize    = 32
	maxKeyFile = 4096
)

// errSealed means that a file is not what sealing has written.
var errSealed = errors.New("it was changed or cut")

// chunks seals or opens the chunks of one file.
type chunks struct{ aead cipher.AEAD }

// newChunks returns the chunks of the file of that name and salt in the image with that key.
func newChunks(key, salt []byte, name string) (*chunks, error) {
	own, err := hkdf.Key(sha256.New, key, salt, "sandlot file of a frozen image\x00"+name, keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &chunks{aead}, err
}

// nonce returns the nonce of the chunk of that number.
func nonce(number uint64, last bool) []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n, number)
	if last {
		n[11] = 1
	}
	return n
}

// open opens the chunk of that number in place.
func (c *chunks) open(sealed []byte, number uint64, last bool) ([]byte, error) {
	clear, err := c.aead.Open(sealed[:0], nonce(number, last), sealed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w, in or after its MiB %d", errSealed, number+1)
	}
	return clear, nil
}

// sealer is a writer that seals what it gets. Close writes the last chunk, and does not close the file.
type sealer struct {
	*chunks
	to      io.Writer
	number  uint64 // of the next chunk
	pending []byte // at most a chunk, which is the last one if nothing follows
	sealed  []byte
}

// newSealer writes the header of the file of that name in the image with that key.
func newSealer(to io.Writer, key []byte, name string) (*sealer, error) {
	salt := secret.Bytes(saltSize)
	c, err := newChunks(key, salt, name)
	if err == nil {
		_, err = to.Write(append([]byte(sealMagic), salt...))
	}
	return &sealer{chunks: c, to: to, pending: make([]byte, 0, chunkSize)}, err
}

func (s *sealer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if len(s.pending) == chunkSize {
			if err := s.flush(false); err != nil {
				return n, err
			}
		}
		took := min(len(p), chunkSize-len(s.pending))
		s.pending = append(s.pending, p[:took]...)
		p, n = p[took:], n+took
	}
	return n, nil
}

func (s *sealer) flush(last bool) error {
	s.sealed = s.aead.Seal(s.sealed[:0], nonce(s.number, last), s.pending, nil)
	s.number++
	s.pending = s.pending[:0]
	_, err := s.to.Write(s.sealed)
	return err
}

func (s *sealer) Close() error { return s.flush(true) }

// opener is a reader of a sealed file.
type opener struct {
	*chunks
	from   *bufio.Reader
	number uint64 // of the next chunk
	sealed []byte
	clear  []byte // what was not read yet of the chunk
	ended  bool
}

// readHead reads the header of the file of that name in the image with that key.
func readHead(from io.Reader, key []byte, name string) (*chunks, error) {
	head := make([]byte, sealHead)
	if _, err := io.ReadFull(from, head); err != nil || !bytes.HasPrefix(head, []byte(sealMagic)) {
		return nil, errors.Join(errSealed, err)
	}
	return newChunks(key, head[len(sealMagic):], name)
}

func newOpener(from io.Reader, key []byte, name string) (*opener, error) {
	c, err := readHead(from, key, name)
	return &opener{chunks: c, from: bufio.NewReaderSize(from, 4096), sealed: make([]byte, chunkSize+tagSize)}, err
}

// next opens the next chunk. It returns io.EOF after the last one.
func (o *opener) next() error {
	if o.ended {
		return io.EOF
	}
	n, err := io.ReadFull(o.from, o.sealed)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if err == nil {
		if _, err := o.from.Peek(1); err != nil && !errors.Is(err, io.EOF) {
			return err
		} else if err != nil {
			o.ended = true
		}
	} else {
		o.ended = true
	}
	o.clear, err = o.open(o.sealed[:n], o.number, o.ended)
	o.number++
	return err
}

func (o *opener) Read(p []byte) (int, error) {
	for len(o.clear) == 0 {
		if err := o.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, o.clear)
	o.clear = o.clear[n:]
	return n, nil
}

// openers bounds how many chunks of a file are opened at a time.
const openers = 4

// openFile writes the clear content of the sealed file in to out. It is the file of that name in the image with that
// key. Several chunks are opened at a time, as somebody waits for it.
func openFile(ctx context.Context, in, out *os.File, key []byte, name string) error {
	c, err := readHead(in, key, name)
	if err != nil {
		return err
	}
	st, err := in.Stat()
	if err != nil {
		return err
	}
	count := max((st.Size()-int64(sealHead)+chunkSize+tagSize-1)/(chunkSize+tagSize), 1)
	var next atomic.Int64
	errs := make([]error, min(openers, runtime.GOMAXPROCS(0), int(count)))
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			sealed := make([]byte, chunkSize+tagSize)
			for n := next.Add(1) - 1; n < count && errs[i] == nil; n = next.Add(1) - 1 {
				errs[i] = c.openAt(ctx, in, out, n, n == count-1, sealed)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// openAt writes the clear content of one chunk to its place.
func (c *chunks) openAt(ctx context.Context, in, out *os.File, number int64, last bool, sealed []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, err := in.ReadAt(sealed, int64(sealHead)+number*(chunkSize+tagSize))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	clear, err := c.open(sealed[:n], uint64(number), last)
	if err == nil {
		_, err = out.WriteAt(clear, number*chunkSize)
	}
	return err
}

// clearSize returns how many bytes a sealed file of that size has in clear.
func clearSize(sealed int64) int64 {
	sealed = max(sealed-int64(sealHead), 0)
	return max(sealed-(sealed+chunkSize+tagSize-1)/(chunkSize+tagSize)*tagSize, 0)
}

// bundleSum identifies the bundle of an image, for which the image's key is sealed.
func bundleSum(bundle []byte) string {
	sum := sha256.Sum256(bundle)
	return hex.EncodeToString(sum[:])
}

// key returns the key of an image; nil: the image is not sealed. An error that is sandbox.ErrLater says that the key of
// secrets cannot be used now; any other, that what was sealed is lost.
func (s *Store) key(name string, info Info) ([]byte, error) {
	if !info.Sealed {
		return nil, nil
	}
	if s.Keys == nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrLater, errors.New("there is no key of secrets to open the image"))
	}
	k, err := readKey(s.Dir, name)
	if atomicfile.IsPassing(err) {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrLater, err)
	}
	if err != nil {
		return nil, broken(err)
	}
	key, lost, err := s.Keys.OpenImageKey(name, k.Bundle, k.Sealed)
	if err == nil && len(key) != keySize {
		lost, err = true, fmt.Errorf("its key has %d bytes", len(key))
	}
	if err == nil {
		return key, nil
	}
	if !lost {
		return nil, fmt.Errorf("%w: the image is sealed: %w", sandbox.ErrLater, err)
	}
	return nil, sandbox.Explain("its memory was sealed with a key that is gone (the server's key of secrets is another "+
		"one, or the image was changed)", err)
}

// CanOpen returns an error if the key of a sealed image does not open. It reads none of the image's files.
func (s *Store) CanOpen(name string, info Info) error {
	_, err := s.key(name, info)
	return err
}

// Key is the key of an image, as it is stored.
type Key struct {
	Image  string
	Bundle string // the SHA-256 of the image's bundle
	Sealed []byte // by sandbox.ImageKeys
}

func readKey(dir, name string) (k Key, err error) {
	k.Image = name
	bundle, err := os.ReadFile(filepath.Join(dir, name, bundleFile))
	if err != nil {
		return k, err
	}
	k.Bundle = bundleSum(bundle)
	k.Sealed, err = atomicfile.Read(filepath.Join(dir, name, keyFile), maxKeyFile)
	return k, err
}

// ReadKeys returns the keys of all sealed images in a folder of images. An image whose key cannot be read is left out:
// Wake says so. If that passes, such as a fault of the disk, it is in the error.
func ReadKeys(dir string) (all []Key, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !validName.MatchString(e.Name()) {
			continue
		}
		k, readErr := readKey(dir, e.Name())
		switch {
		case readErr == nil:
			all = append(all, k)
		case atomicfile.IsPassing(readErr):
			err = errors.Join(err, fmt.Errorf("reading the key of the image %s: %w", e.Name(), readErr))
		}
	}
	return all, err
}

// WriteKey replaces the stored key of an image in a folder of images, durably. Without one it removes the image.
func WriteKey(dir string, k Key) error {
	if k.Sealed == nil {
		return os.RemoveAll(filepath.Join(dir, k.Image))
	}
	return atomicfile.WriteThrough(filepath.Join(dir, k.Image, keyFile), k.Sealed)
}
