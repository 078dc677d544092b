package rootfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"sandlot/internal/fault"
)

// streamed is a layer that is written while it is read.
func streamed(write func(*tar.Writer) error) Layer {
	return func(context.Context) (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() {
			buffered := bufio.NewWriterSize(w, 1<<20)
			archive := tar.NewWriter(buffered)
			err := write(archive)
			w.CloseWithError(errors.Join(err, archive.Close(), buffered.Flush()))
		}()
		return r, nil
	}
}

// bomb is an archive that never ends.
func bomb(head []byte) Layer {
	return func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(head), zeroReader{})), nil
	}
}

// TestLimits: each limit is refused with its own fault, and before the image file is much larger
// than the limit.
func TestLimits(t *testing.T) {
	var many []entry
	for n := range 200 {
		many = append(many, file(fmt.Sprint("f", n), "x"))
	}
	header := func(h *tar.Header) []byte {
		var b bytes.Buffer
		if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	xattrs := entry{name: "x", more: func(h *tar.Header) {
		h.PAXRecords = map[string]string{"SCHILY.xattr.user.a": strings.Repeat("v", 70<<10)}
	}}
	for name, c := range map[string]struct {
		limits Limits
		layers []Layer
		kind   fault.Kind
	}{
		"entries": {Limits{Entries: 199}, layers(archive(t, many...)), fault.ResourceLimit},
		"entries of layers": {
			Limits{Entries: 399}, layers(archive(t, many...), archive(t, many...)),
			fault.ResourceLimit},
		"implicit directories": {
			Limits{Entries: 199}, layers(archive(t, file(strings.Repeat("d/", 200)+"f", ""))),
			fault.ResourceLimit},
		"the same entry": {
			Limits{Entries: 199}, layers(archive(t, append(many[:1:1], many...)...)),
			fault.ResourceLimit},
		"names": {Limits{NameBytes: 1 << 16}, layers(archive(t, func() (all []entry) {
			for n := range 200 {
				all = append(all, symlink(fmt.Sprint("l", n), strings.Repeat("t", 4000)))
			}
			return all
		}()...)), fault.ResourceLimit},
		"bytes of archives": {
			Limits{Bytes: 1 << 20}, layers(bytes.Repeat(archive(t, file("f", ""))[:512], 3000)),
			fault.ResourceLimit},
		"what follows the end": {Limits{Bytes: 1 << 20}, []Layer{bomb(archive(t, file("f", "")))}, fault.ResourceLimit},
		"a bomb": {
			Limits{Bytes: 1 << 24}, []Layer{bomb(header(&tar.Header{Name: "f", Size: 1 << 24}))},
			fault.ResourceLimit},
		"a giant": {
			Limits{Bytes: 1 << 24}, []Layer{bomb(header(&tar.Header{Name: "f", Size: 1 << 50}))},
			fault.ResourceLimit},
		"a sparse giant": {Limits{Bytes: 1 << 24}, layers(sparseGiant(t)), fault.ResourceLimit},
		"endless PAX headers": {
			Limits{Bytes: 1 << 24}, layers(bytes.Repeat(header(&tar.Header{
				Name: strings.Repeat("n", 200), Format: tar.FormatPAX})[:1024], 20000)),
			fault.ResourceLimit},
		"extended attributes": {Limits{}, layers(archive(t, xattrs)), fault.InvalidParameters},
		"a path": {
			Limits{PathBytes: 10}, layers(archive(t, file("a/long/path", ""))),
			fault.InvalidParameters},
	} {
		t.Run(name, func(t *testing.T) {
			f := imageFile(t)
			_, err := Write(t.Context(), f, c.layers, c.limits)
			var got *fault.Error
			if !errors.As(err, &got) || got.Kind != c.kind {
				t.Fatalf("got %v", err)
			}
			st, _ := f.Stat()
			if used := st.Sys().(*syscall.Stat_t).Blocks * 512; c.limits.Bytes > 0 && used > c.limits.Bytes+writeSize {
				t.Errorf("the image file has %d bytes, the limit is %d", used, c.limits.Bytes)
			}
		})
	}
}

// sparseGiant is an archive of GNU tar's whose one file has a terabyte, and no content.
func sparseGiant(t *testing.T) []byte {
	t.Helper()
	return hostTar(t, "--sparse", func(folder string) {
		if err := os.Truncate(touch(t, filepath.Join(folder, "giant")), 1<<40); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSparse: a sparse file is read in each form that there is, has its holes, and takes no more
// of the disk than its content.
func TestSparse(t *testing.T) {
	const size, at = 300 << 20, 100<<20 + 12345
	for _, format := range []string{"gnu", "posix"} {
		for _, version := range []string{"0.0", "0.1", "1.0"} {
			if format == "gnu" && version != "0.0" {
				continue
			}
			t.Run(format+version, func(t *testing.T) {
				args := "--sparse --format=" + format
				if format == "posix" {
					args += " --sparse-version=" + version
				}
				data := hostTar(t, args, func(folder string) {
					f, err := os.Create(filepath.Join(folder, "sparse"))
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					if _, err := f.WriteAt([]byte("in the middle"), at); err != nil {
						t.Fatal(err)
					}
					if err := f.Truncate(size); err != nil {
						t.Fatal(err)
					}
				})
				if len(data) > 1<<20 {
					t.Fatalf("tar has made an archive of %d bytes: it is not sparse", len(data))
				}
				f := imageFile(t)
				if _, err := Write(t.Context(), f, layers(data), Limits{}); err != nil {
					t.Fatal(err)
				}
				image, err := OpenImage(f)
				if err != nil {
					t.Fatal(err)
				}
				sparse, err := image.Open("sparse")
				if err != nil {
					t.Fatal(err)
				}
				content := make([]byte, 4096)
				if _, err := sparse.(io.ReaderAt).ReadAt(content, at-100); err != nil {
					t.Fatal(err)
				}
				want := make([]byte, 4096)
				copy(want[100:], "in the middle")
				if info, _ := sparse.Stat(); info.Size() != size || !bytes.Equal(content, want) {
					t.Errorf("%d bytes, %q", info.Size(), bytes.Trim(content, "\x00"))
				}
				st, _ := f.Stat()
				if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > 4<<20 {
					t.Errorf("the image takes %d bytes of the disk", used)
				}
			})
		}
	}
}

// TestManyEntries: a million entries are read with little memory for each.
func TestManyEntries(t *testing.T) {
	const entries = 1 << 20
	const files = entries * 19 / 20 // beside them: their directories
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	layer := streamed(func(w *tar.Writer) error {
		for n := range files {
			name := fmt.Sprintf("usr/lib/node_modules/d%d/file-%d.js", n/20, n)
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 0}); err != nil {
				return err
			}
			if n%(files/4) == files/4-1 {
				runtime.GC()
				runtime.ReadMemStats(&after)
				most = max(most, after.HeapAlloc)
			}
		}
		return nil
	})
	s, err := Write(t.Context(), imageFile(t), []Layer{layer}, Limits{Entries: entries})
	if err != nil {
		t.Fatal(err)
	}
	each := int64(most-before.HeapAlloc) / int64(s.Entries)
	t.Logf("%d entries, %d bytes of memory each, %d bytes of the image each", s.Entries, each, s.Size/int64(s.Entries))
	if s.Entries < files || each > 300 {
		t.Errorf("%d entries take %d bytes of memory each", s.Entries, each)
	}
}
