package machine

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// export writes an archive of what the sandbox has written into its root to the port for it, as the overlay has it: a
// file that was removed is a character device 0:0, and a folder that hides that of the image has an attribute.
func export() error {
	port, err := openPort(wire.ExportPort)
	if err != nil {
		return err
	}
	defer port.Close()
	if err := awaitHost(port); err != nil {
		return err
	}
	chunks := &chunkWriter{to: port}
	archive := tar.NewWriter(chunks)
	links := map[[2]uint64]string{}
	err = filepath.WalkDir(upperDir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return add(archive, path, links)
	})
	if err = errors.Join(err, archive.Close()); err != nil {
		return err
	}
	return chunks.end()
}

// add adds a file or folder to an archive. links has the first name of each file with several.
func add(archive *tar.Writer, path string, links map[[2]uint64]string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	name := "./" + strings.TrimPrefix(strings.TrimPrefix(path, upperDir), "/")
	st := info.Sys().(*syscall.Stat_t)
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, int(st.Uid), int(st.Gid), "", ""
	if info.IsDir() {
		h.Name = strings.TrimSuffix(name, "/") + "/"
		if isOpaque(path) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
		}
	} else if st.Nlink > 1 && !(h.Typeflag == tar.TypeChar && st.Rdev == 0) {
		key := [2]uint64{st.Dev, st.Ino}
		if first := links[key]; first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			links[key] = name
		}
	}
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := io.CopyN(archive, f, h.Size); err != nil { // it was cut meanwhile
		return fmt.Errorf("%s has %d bytes, and had %d: %w", name, n, h.Size, err)
	}
	return nil
}

func isOpaque(path string) bool {
	var value [2]byte
	n, err := unix.Lgetxattr(path, "trusted.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

// chunkWriter writes chunks, each after its length.
type chunkWriter struct{ to io.Writer }

// maxExportChunk bounds one chunk, in bytes.
const maxExportChunk = 64 << 10

// Write implements io.Writer.
func (w *chunkWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), maxExportChunk)]
		if err := w.chunk(part); err != nil {
			return written, err
		}
		written, p = written+len(part), p[len(part):]
	}
	return written, nil
}

func (w *chunkWriter) end() error { return w.chunk(nil) }

func (w *chunkWriter) chunk(p []byte) error {
	_, err := w.to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...))
	return err
}
