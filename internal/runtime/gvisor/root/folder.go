package root

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"sandlot/internal/image"
	"sandlot/internal/oci/rootfs"
)

// copyFolder copies the folder with a template's root file system into an image in dir, and returns its file. The
// copy of an earlier server is used again while nothing in the folder has changed. Sandlot writes nothing into the
// folder, which is the operator's.
func copyFolder(ctx context.Context, dir string, t *image.Template, inUse func() (map[string]bool, error)) (string,
	error) {
	key, err := fingerprint(ctx, t.Rootfs)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, t.Name+"-"+key+".erofs")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, ".making-*.erofs")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	defer f.Close()
	archive := func(ctx context.Context) (io.ReadCloser, error) { return archiveFolder(ctx, t.Rootfs), nil }
	_, err = rootfs.Write(ctx, f, []rootfs.Layer{archive}, rootfs.Limits{})
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return "", err
	}
	removeOlder(dir, t.Name, file, inUse)
	return file, nil
}

// removeOlder removes earlier copies of a template's folder that no sandbox needs: one that has lost its copy could not
// be put to sleep, or woken.
func removeOlder(dir, name, newest string, inUse func() (map[string]bool, error)) {
	used, err := inUse()
	if err != nil {
		return // the next time
	}
	older := regexp.MustCompile("^" + regexp.QuoteMeta(name) + "-[0-9a-f]{32}\\.erofs$")
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if older.MatchString(e.Name()) && path != newest && !used[path] {
			os.Remove(path)
		}
	}
}

// fingerprint returns a hash of what the kernel says of all files of a folder. It changes with each of them, but not when
// one has got another name elsewhere.
func fingerprint(ctx context.Context, dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return skipUnreadable(d, err)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(sum, path[len(dir):], st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Rdev)
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)[:16]), err
}

// skipUnreadable returns nil for a folder that an unprivileged server may not read. In sandboxes it is empty.
func skipUnreadable(d fs.DirEntry, err error) error {
	if d != nil && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// archiveFolder returns a folder as a tar archive. Closing it ends the making of it.
func archiveFolder(ctx context.Context, dir string) io.ReadCloser {
	read, write := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a := archiver{tar.NewWriter(write), dir, map[[2]uint64]string{}}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return skipUnreadable(d, err)
			}
			return a.add(path, d)
		})
		if err == nil {
			err = a.Close()
		}
		write.CloseWithError(err)
	}()
	return archiveReader{read, done}
}

// archiveReader waits at its end for the goroutine that writes.
type archiveReader struct {
	*io.PipeReader
	done chan struct{}
}

func (r archiveReader) Close() error {
	err := r.PipeReader.Close()
	<-r.done
	return err
}

// An archiver writes the files of a folder into an archive.
type archiver struct {
	*tar.Writer
	dir   string
	links map[[2]uint64]string // names of files with several, by device and inode
}

func (a archiver) add(path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return nil // it is of no use without the program that listens
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(a.dir, path)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	h.Name, h.Uname, h.Gname = "./"+name, "", ""
	h.Uid, h.Gid = owner(st.Uid, os.Geteuid()), owner(st.Gid, os.Getegid())
	if info.IsDir() {
		h.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return a.WriteHeader(h)
	}
	if id := [2]uint64{st.Dev, st.Ino}; st.Nlink > 1 {
		if first := a.links[id]; first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return a.WriteHeader(h)
		}
		a.links[id] = h.Name
	}
	return a.addContent(h, path)
}

// addContent adds a regular file. One that an unprivileged server may not read is empty, and nobody's to read.
func (a archiver) addContent(h *tar.Header, path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		h.Size, h.Mode = 0, 0
		return a.WriteHeader(h)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := a.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(a, f, h.Size)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s became shorter while it was read", path)
	}
	return err
}

// owner is the owner of a file as sandboxes see it. Those of root have the owners of the host; an unprivileged
// server's own files are root's, and others' are nobody's.
func owner(id uint32, server int) int {
	switch {
	case server == 0:
		return int(id)
	case int(id) == server:
		return 0
	}
	return 65534
}
