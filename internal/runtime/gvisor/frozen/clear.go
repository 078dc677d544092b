package frozen

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/atomicfile"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/sandbox"
)

// gVisor writes and reads files in clear, in a folder. For a sealed image that folder is in memory (tmpfs), as long as a
// freeze or a wake takes. Where the machine has no memory for it, it is beside the images, and nothing syncs its files.

const (
	// MemoryDir is where Linux has a file system in memory for all users.
	MemoryDir = "/dev/shm"
	// memoryReserve is how much memory stays free beside clear files, in bytes.
	memoryReserve = 256 << 20
)

// clearPrefix begins the names of this store's folders in MemoryDir.
func (s *Store) clearPrefix() string {
	sum := sha256.Sum256([]byte(s.Dir))
	return "sandlot-frozen-" + hex.EncodeToString(sum[:8]) + "-"
}

// clearFolder makes a folder for need bytes of clear files, in memory if there is room. Nobody else may enter it. remove
// removes it.
func (s *Store) clearFolder(need int64) (dir string, remove func(), err error) {
	s.mu.Lock()
	inMemory := s.Memory != "" && hasMemory(s.Memory, s.clear+need)
	if inMemory {
		s.clear += need
	}
	s.mu.Unlock()
	release := func() {
		if inMemory {
			s.mu.Lock()
			s.clear -= need
			s.mu.Unlock()
		}
	}
	if inMemory {
		if dir, err = os.MkdirTemp(s.Memory, s.clearPrefix()); err == nil {
			return dir, func() { os.RemoveAll(dir); release() }, nil
		}
		release()
		inMemory = false
	}
	if err := s.HasRoom(need); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp(s.Dir, unpacked); err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir) }, nil
}

// removeClear removes the folders in memory that an earlier server has left.
func (s *Store) removeClear() {
	if s.Memory == "" {
		return
	}
	left, _ := filepath.Glob(filepath.Join(s.Memory, s.clearPrefix()+"*"))
	for _, dir := range left {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && int(st.Uid) == os.Geteuid() && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			os.RemoveAll(dir)
		}
	}
}

// hasMemory reports whether a folder is in memory that has room for need bytes, and for the sandbox that has them too.
func hasMemory(dir string, need int64) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || int64(fs.Bavail)*fs.Bsize < need+Reserve {
		return false
	}
	return cgroup.AvailableMemory() >= 2*need+memoryReserve
}

// WriteFiles calls write with a folder for gVisor's files of the image that is being made in dir, of about need bytes,
// and seals them into dir.
func (s *Store) WriteFiles(ctx context.Context, dir string, info *Info, need int64, write func(dir string) error) error {
	if info.key == nil {
		return write(dir)
	}
	clear, remove, err := s.clearFolder(need)
	if err != nil {
		return err
	}
	defer remove()
	if err := write(clear); err != nil {
		return err
	}
	entries, err := os.ReadDir(clear)
	for _, e := range entries {
		if err == nil {
			err = sealFile(ctx, filepath.Join(clear, e.Name()), filepath.Join(dir, e.Name()), info.key)
		}
	}
	return err
}

// sealFile writes the sealed form of the file from into the new file to. Make makes it durable.
func sealFile(ctx context.Context, from, to string, key []byte) error {
	return create(from, to, func(in, out *os.File) error {
		w, err := newSealer(out, key, filepath.Base(to))
		if err == nil {
			_, err = io.CopyBuffer(w, reader{ctx, in}, make([]byte, chunkSize))
		}
		if err != nil {
			return err
		}
		return w.Close()
	})
}

// files returns the names of gVisor's files of an image, as they are on the disk.
func (s *Store) files(name string) (names []string, err error) {
	entries, err := os.ReadDir(s.path(name))
	for _, e := range entries {
		if n := e.Name(); !e.IsDir() && n != infoFile && n != bundleFile && n != keyFile && !strings.HasSuffix(n, ".new") {
			names = append(names, n)
		}
	}
	return names, err
}

// open calls do with a folder in which the files of a packed or sealed image are, as gVisor wrote them.
func (s *Store) open(ctx context.Context, name string, info Info, do func(dir string) error) error {
	key, err := s.key(name, info)
	if err != nil {
		return err
	}
	sizes := info.Packed
	if sizes == nil {
		names, err := s.files(name)
		if err != nil {
			return err
		}
		sizes = map[string]int64{}
		for _, n := range names {
			st, err := os.Stat(filepath.Join(s.path(name), n))
			if err != nil {
				return err
			}
			sizes[n] = clearSize(st.Size())
		}
	}
	var need int64
	for _, n := range sizes {
		need += n
	}
	dir, remove, err := s.folderFor(info, need)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrLater, err)
	}
	defer remove()
	for file, size := range sizes {
		from := filepath.Join(s.path(name), file)
		if info.Packed != nil {
			from += packedSuffix
		}
		err := unpack(ctx, from, filepath.Join(dir, file), size, key)
		switch {
		case atomicfile.IsPassing(err) || err != nil && ctx.Err() != nil:
			return fmt.Errorf("%w: %w", sandbox.ErrLater, err)
		case errors.Is(err, errSealed):
			return sandbox.Explain("its image was changed or damaged on the server's disk", err)
		case errors.Is(err, fs.ErrNotExist):
			return sandbox.Explain("its image is incomplete", err)
		case err != nil:
			return err
		}
	}
	return do(dir)
}

// folderFor makes a folder for the clear files of an image. Those of an image that is not sealed need no memory.
func (s *Store) folderFor(info Info, need int64) (dir string, remove func(), err error) {
	if info.Sealed {
		return s.clearFolder(need)
	}
	if err := s.HasRoom(need); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(s.Dir, unpacked)
	return dir, func() { os.RemoveAll(dir) }, err
}
