package frozen

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/gvisor/kept"
	"sandlot/internal/sandbox"
)

// machine is a machine with files, and a store of frozen images whose kept files have at most 40 kB.
type machine struct {
	*testing.T
	*Store
	dir string
	n   int // of images
}

func newMachine(t *testing.T) *machine {
	m := &machine{T: t, Store: New(t.TempDir()), dir: t.TempDir()}
	m.Files = kept.NewBounded(filepath.Join(m.Dir, "..", "files"), 40_000, func(int64) error { return nil })
	return m
}

// file makes a file of the machine with a content of its own.
func (m *machine) file(name string, size int) string {
	m.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path, append([]byte(name), bytes.Repeat([]byte("x"), size-len(name))...), 0o644); err != nil {
		m.Fatal(err)
	}
	return path
}

// sleep makes an image of a session that has these files open, and returns how many of them are kept. The error is that
// of the image; atEnd is called when the files are kept.
func (m *machine) sleep(owner string, atEnd func() error, files ...string) (name string, count int, err error) {
	m.Helper()
	m.n++
	name = fmt.Sprint("image", m.n)
	program := keepProgram(m.T, m.Store, "program")
	_, err = m.Make(name, func() (Info, error) {
		info, err := program()
		info.Owner = owner
		return info, err
	}, func(dir string, i *Info) ([]byte, error) {
		for _, path := range files {
			st, err := hostfile.Stat(path, false)
			if err != nil {
				return nil, err
			}
			needed := hostfile.Needed{State: st, Target: path}
			if needed.Sum, err = i.KeepFile(path); err == nil {
				count++
			}
			i.Files = append(i.Files, needed)
		}
		return testBundle(m.T), errors.Join(os.WriteFile(filepath.Join(dir, "pages"), nil, 0o600), atEnd())
	})
	return name, count, err
}

func (m *machine) mustSleep(owner string, files ...string) (name string, count int) {
	m.Helper()
	name, count, err := m.sleep(owner, func() error { return nil }, files...)
	if err != nil {
		m.Fatal(err)
	}
	return name, count
}

func (m *machine) remove(name string) {
	m.Helper()
	if err := m.Remove(name, func() (map[string]bool, error) { return nil, nil }); err != nil {
		m.Fatal(err)
	}
}

// TestKeptFilesOfOwners: whoever has other large files open before each sleep, in one session or in many, has a part of
// the store of kept files, and the others can use the rest.
func TestKeptFilesOfOwners(t *testing.T) {
	m := newMachine(t)
	count, names := 0, []string{}
	for n := range 12 {
		name, kept := m.mustSleep("eve", m.file(fmt.Sprint("large", n), 5_000))
		count, names = count+kept, append(names, name)
	}
	if count != 2 { // of 10 kB
		t.Errorf("%d files of 5 kB are kept for one owner", count)
	}
	for n := range 4 { // a copy has the files of its original
		copied, err := m.Copy(names[n])
		if err != nil {
			t.Fatal(err)
		}
		m.remove(names[n])
		names[n] = copied.Name
	}
	m.pruneFiles(true)
	if _, kept := m.mustSleep("eve", m.file("large12", 5_000)); kept != 0 {
		t.Error("copies of images do not count")
	}
	if _, kept := m.mustSleep("eve", m.file("large0", 5_000)); kept != 1 {
		t.Error("a file that the owner's images need already is not kept for one more")
	}
	lib := m.file("libc", 2_000)
	for _, owner := range []string{"ann", "bob", "ann"} {
		if _, kept := m.mustSleep(owner, lib, m.file("data of "+owner, 3_000)); kept != 2 {
			t.Errorf("%d files of %s are kept", kept, owner)
		}
	}
	for _, name := range names { // whose images are gone has room again
		m.remove(name)
	}
	if _, kept := m.mustSleep("eve", m.file("large20", 5_000)); kept != 1 {
		t.Error("the owner has no room any more, though no image needs anything")
	}
}

// TestKeptFilesMeanwhile: what images that are being made need counts, and stays.
func TestKeptFilesMeanwhile(t *testing.T) {
	m := newMachine(t)
	first, more := m.file("first", 6_000), m.file("more", 6_000)
	name, kept, err := m.sleep("eve", func() error {
		_, kept := m.mustSleep("eve", more)
		if kept != 0 {
			t.Error("the file of an image that is being made does not count")
		}
		m.pruneFiles(true)
		return nil
	}, first)
	if err != nil || kept != 1 {
		t.Fatal(kept, err)
	}
	info, _, err := m.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := m.Files.Find(info.Files[0].Sum, KeptName); err != nil {
			t.Errorf("an image needs this: %v", err)
		}
		m.pruneFiles(true)
	}
	k := m.StartKeeping("ann")
	defer k.Done()
	other := m.StartKeeping("ann") // at the same time
	defer other.Done()
	if _, err := k.File(m.file("of ann", 6_000)); err != nil {
		t.Error(err)
	}
	if _, err := other.File(m.file("more of ann", 6_000)); !errors.Is(err, errShare) {
		t.Errorf("two images at the same time have 12 of 10 kB: %v", err)
	}
}

// TestKeptFilesOfNoImage: files that were kept for images which are gone, or which were never finished, take nobody's
// room, and go by themselves.
func TestKeptFilesOfNoImage(t *testing.T) {
	m := newMachine(t)
	failed := errors.New("too large")
	for n := range 40 { // of 8 that the store has room for
		name, kept, err := m.sleep(fmt.Sprint("user", n/2), func() error {
			if n%2 == 0 {
				return failed
			}
			return nil
		}, m.file(fmt.Sprint("large", n), 5_000))
		if kept != 1 || err != nil && !errors.Is(err, failed) {
			t.Fatalf("image %d: %d files are kept: %v", n, kept, err)
		}
		if err == nil {
			m.remove(name)
		}
	}
	m.pruned = time.Time{}
	if _, err := m.List(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(m.Dir, "..", "files", "*")); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, which no image needs: %v", len(left), err)
	}
	full := kept.NewBounded(t.TempDir(), 40_000, func(int64) error {
		return &sandbox.Explained{Limit: true, Words: "the disk is full"}
	})
	if _, err := full.Keep(m.file("one", 100), KeptName); !errors.Is(err, kept.ErrFull) {
		t.Errorf("on a full disk: %v", err)
	}
}
