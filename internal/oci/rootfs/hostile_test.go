package rootfs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A mutator makes hostile archives out of good ones. The same seed gives the same archives.
type mutator struct {
	*rand.Rand
	names []string // hostile ones
}

// headers returns where the headers of an archive are, as far as its blocks look like some.
func headers(data []byte) []int {
	var found []int
	for at := 0; at+512 <= len(data); at += 512 {
		if string(data[at+257:at+262]) == "ustar" {
			found = append(found, at)
		}
	}
	return found
}

// checksum makes a header valid again.
func checksum(header []byte) {
	copy(header[148:], "        ")
	sum := 0
	for _, b := range header[:512] {
		sum += int(b)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// mutate returns a changed copy of an archive.
func (m *mutator) mutate(data []byte) []byte {
	data = bytes.Clone(data)
	for range 1 + m.IntN(3) {
		all := headers(data)
		if len(all) == 0 {
			return data
		}
		at := all[m.IntN(len(all))]
		header := data[at : at+512]
		field := func(from, to int, value string) {
			clear(header[from:to])
			copy(header[from:to], value)
			checksum(header)
		}
		switch m.IntN(12) {
		case 0:
			field(0, 100, m.names[m.IntN(len(m.names))])
		case 1:
			field(157, 257, m.names[m.IntN(len(m.names))])
		case 2:
			header[156] = "01234567gxLKSV\x00Z"[m.IntN(16)]
			checksum(header)
		case 3: // a size
			sizes := []string{"77777777777", "00000000001", "00000001000", "-0000000001",
				"\x80\x00\x00\x00\x00\x00\x00\xff",
				"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}
			field(124, 136, sizes[m.IntN(len(sizes))])
		case 4: // a byte of a number or of the long names
			header[100+m.IntN(300)] = byte(m.Uint32())
			checksum(header)
		case 5: // a byte anywhere, as it comes
			data[m.IntN(len(data))] ^= 1 << m.IntN(8)
		case 6:
			field(345, 500, m.names[m.IntN(len(m.names))]) // the prefix of the name
		case 7: // an entry twice
			from := all[m.IntN(len(all))]
			data = append(data[:at:at], append(bytes.Clone(data[from:min(len(data), from+1024)]), data[at:]...)...)
		case 8:
			data = data[:m.IntN(len(data))]
		case 9: // an entry's header is another one's
			copy(header, data[all[m.IntN(len(all))]:][:512])
		case 10: // a block of a PAX header, of a sparse map, or of content
			if at+1024 <= len(data) {
				block := data[at+512 : at+1024]
				for range 1 + m.IntN(4) {
					block[m.IntN(512)] = "0123456789\n= \x00\xff/."[m.IntN(17)]
				}
			}
		case 11:
			field(100, 108, fmt.Sprintf("%07o", m.IntN(1<<21)))
		}
		if len(data) < 512 {
			return data
		}
	}
	return data
}

// samples are archives to mutate: of every kind of entry, and made by the machine's own tar of
// real files, in all its formats.
func samples(t testing.TB, hosts ...[]byte) [][]byte {
	kinds := []entry{
		dir("d"), dir("d/e"), file("d/f", strings.Repeat("f", 700)), link("d/g", "d/f"), symlink("l", "d"),
		symlink("up", ".."), file("l/through", "t"), file("d/.wh.gone", ""), file("d/e/.wh..wh..opq", ""),
		entry{name: "null", kind: tar.TypeChar, more: func(h *tar.Header) { h.Devmajor, h.Devminor = 1, 3 }},
		entry{name: "pipe", kind: tar.TypeFifo}, file(strings.Repeat("long/", 50)+"name", "n"),
		entry{name: "attr", data: "a", more: func(h *tar.Header) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "b"}
		}},
		entry{name: "gnu" + strings.Repeat("g", 200), data: "g", more: func(h *tar.Header) {
			h.Format = tar.FormatGNU
		}},
	}
	return append(hosts, archive(t, kinds...))
}

// realSamples are what the machine's own tar makes.
func realSamples(t *testing.T) [][]byte {
	var made [][]byte
	for _, args := range []string{"--format=gnu", "--format=posix", "--format=ustar", "--sparse --format=gnu",
		"--sparse --format=posix --sparse-version=0.1", "--sparse --format=posix --sparse-version=1.0"} {
		made = append(made, hostTar(t, args, func(folder string) {
			for n := range 5 {
				name := filepath.Join(folder, fmt.Sprintf("file%d", n))
				if err := os.WriteFile(name, bytes.Repeat([]byte{byte('a' + n)}, 600*n), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Truncate(touch(t, filepath.Join(folder, "sparse")), 1<<20); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(filepath.Join(folder, "file1"), filepath.Join(folder, "linked")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("file1", filepath.Join(folder, "symlink")); err != nil {
				t.Fatal(err)
			}
		}))
	}
	return made
}

var hostileNames = []string{"..", "../..", "/", ".", "", "../../../../../../canary",
	"/etc/passwd", "d", "d/f", "d/e/../../..",
	"l/x", "up/up/x", ".wh..", ".wh.d", ".wh..wh..opq", "d/.wh.f", "a/../b", "file1", "file1/x", "symlink", "linked",
	strings.Repeat("n", 100), strings.Repeat("a/", 50), "\x00", "x\x00y", "\xff\xfe", "PaxHeaders/x"}

var hostileLimits = Limits{Entries: 2000, Bytes: 16 << 20}

// attempt writes an image of hostile layers into f, and checks what came of it.
func attempt(t testing.TB, f *os.File, archives ...[]byte) (accepted bool) {
	_, err := Write(t.Context(), f, layers(archives...), hostileLimits)
	st, statErr := f.Stat()
	if statErr != nil {
		t.Fatal(statErr)
	}
	if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > hostileLimits.Bytes+8<<20 {
		t.Fatalf("the image takes %d bytes", used)
	}
	if err != nil {
		return false
	}
	image, err := OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	err = fs.WalkDir(image, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !fs.ValidPath(name) {
			return nil // a name that is no UTF-8 cannot be opened by fs.FS
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := image.Open(name)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, file)
		if n != info.Size() {
			return fmt.Errorf("%s has %d bytes, not %d", name, n, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// TestHostileArchives: a thousand archives, made from real ones by a mutator with a seed, write
// to nothing but the image file; each gives an error, or an image that gVisor can read.
func TestHostileArchives(t *testing.T) {
	outside := t.TempDir()
	canary, work := filepath.Join(outside, "canary"), filepath.Join(outside, "1", "2")
	if err := os.MkdirAll(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(work)
	f, err := os.Create("image")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := &mutator{rand.New(rand.NewPCG(15, 43)), append(hostileNames, canary, "../../canary", work+"/new")}
	good := samples(t, realSamples(t)...)
	accepted := 0
	for range 1000 {
		var archives [][]byte
		for range 1 + m.IntN(3) {
			archives = append(archives, m.mutate(good[m.IntN(len(good))]))
		}
		if attempt(t, f, archives...) {
			accepted++
			checkByGVisor(t, "image")
		}
		if t.Failed() {
			t.Fatalf("these archives: %q", archives)
		}
	}
	t.Logf("%d of 1000 gave an image", accepted)
	if accepted < 100 || accepted > 900 {
		t.Errorf("%d of 1000 archives gave an image: the mutator does too much, or too little", accepted)
	}
	content, err := os.ReadFile(canary)
	if err != nil || string(content) != "alive" {
		t.Errorf("the canary: %q, %v", content, err)
	}
	var there []string
	filepath.WalkDir(outside, func(name string, _ fs.DirEntry, _ error) error {
		there = append(there, strings.TrimPrefix(name, outside))
		return nil
	})
	if got := strings.Join(there, " "); got != " /1 /1/2 /1/2/image /canary" {
		t.Errorf("there are files beside the image: %s", got)
	}
}

// FuzzWrite: no archive makes Write panic, or an image that cannot be read.
func FuzzWrite(f *testing.F) {
	for _, a := range samples(f) {
		f.Add(a, a)
	}
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		attempt(t, imageFile(t), lower, upper)
	})
}

// TestCorruptImages: an image whose bytes are changed is read with errors, never with a panic or
// without an end.
func TestCorruptImages(t *testing.T) {
	var entries []entry
	for n := range 300 {
		entries = append(entries, file(fmt.Sprintf("d/file-with-a-name-%d", n), "x"))
	}
	entries = append(entries, symlink("l", "d"), symlink("long", strings.Repeat("x/", 2047)), file("f", "content"))
	f := imageFile(t)
	s, err := Write(t.Context(), f, layers(archive(t, entries...)), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(15, 44))
	metadata := int(s.Size) - 40*1024
	failed := 0
	for range 150 {
		bad := bytes.Clone(good)
		for range 1 + random.IntN(20) {
			bad[max(4096, metadata+random.IntN(40*1024))] = byte(random.Uint32())
		}
		image, err := OpenImage(bytes.NewReader(bad))
		if err != nil {
			t.Fatalf("the superblock is as it was: %v", err)
		}
		seen, wrong := 0, false
		fs.WalkDir(image, ".", func(name string, d fs.DirEntry, err error) error {
			wrong = wrong || err != nil
			if seen++; seen > 1000 {
				return fs.SkipAll // a directory that is its own parent
			}
			if err == nil && d.Type() == fs.ModeSymlink {
				_, err = image.ReadLink(name)
			} else if err == nil && d.Type().IsRegular() {
				_, err = fs.ReadFile(image, name)
			}
			wrong = wrong || err != nil
			return nil
		})
		if _, err := image.Stat("l/file-with-a-name-7"); wrong || err != nil {
			failed++
		}
	}
	if failed < 40 {
		t.Errorf("only %d of 150 corrupt images gave an error", failed)
	}
	for _, cut := range []int{0, 1000, 4095, 4096, len(good) / 2} {
		image, err := OpenImage(bytes.NewReader(good[:cut]))
		if err == nil {
			_, err = image.Stat("f")
		}
		if err == nil {
			t.Errorf("an image of %d bytes gives no error", cut)
		}
	}
	good[2000]++
	if _, err := OpenImage(bytes.NewReader(good)); err == nil {
		t.Error("the checksum of the superblock is not compared")
	}
}
