package frozen

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
	"sandlot/internal/vault"
)

// TestSealedFile: what was sealed comes back, whole and as a stream.
func TestSealedFile(t *testing.T) {
	dir, key := t.TempDir(), bytes.Repeat([]byte{7}, keySize)
	clear, sealed, opened := filepath.Join(dir, "clear"), filepath.Join(dir, "sealed"), filepath.Join(dir, "opened")
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 7 * chunkSize, 3*chunkSize + 5} {
		content := make([]byte, size)
		rand.Read(content)
		if err := os.WriteFile(clear, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sealFile(t.Context(), clear, sealed, key); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(sealed)
		if err != nil || clearSize(int64(len(text))) != int64(size) {
			t.Errorf("%d bytes are %d, sealed %d: %v", size, clearSize(int64(len(text))), len(text), err)
		}
		r, err := newOpener(bytes.NewReader(text), key, "sealed")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes as a stream: %d, %v", size, len(got), err)
		}
		if err := unpack(t.Context(), sealed, opened, int64(size), key); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if got, err := os.ReadFile(opened); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
		for _, path := range []string{sealed, opened} {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSealedFileChanged: nothing is opened of a file that was changed, cut or mixed with others.
func TestSealedFileChanged(t *testing.T) {
	dir, key, other := t.TempDir(), bytes.Repeat([]byte{7}, keySize), bytes.Repeat([]byte{8}, keySize)
	content := make([]byte, 3*chunkSize+5)
	rand.Read(content)
	seal := func(name string, key []byte) []byte {
		clear, sealed := filepath.Join(dir, "clear"), filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(clear, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sealFile(t.Context(), clear, sealed, key); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(sealed)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := seal("pages", key)
	const whole = chunkSize + tagSize
	// with returns the good file with the n-th chunk of another file in the m-th place.
	with := func(m int, from []byte, n int) []byte {
		text := bytes.Clone(good)
		copy(text[sealHead+m*whole:min(sealHead+(m+1)*whole, len(text))], from[sealHead+n*whole:])
		return text
	}
	swapped := with(0, good, 1)
	copy(swapped[sealHead+whole:], good[sealHead:sealHead+whole])
	cases := map[string][]byte{
		"empty": nil, "the header alone": good[:sealHead], "half a header": good[:sealHead/2],
		"all but a byte": good[:len(good)-1], "all but the last chunk": good[:sealHead+3*whole],
		"all but a chunk": slices.Concat(good[:sealHead+whole], good[sealHead+2*whole:]), "one chunk": good[:sealHead+whole],
		"a byte more": append(bytes.Clone(good), 0), "more chunks": append(bytes.Clone(good), good[sealHead:]...),
		"the last chunk twice": append(bytes.Clone(good), good[sealHead+3*whole:]...),
		"chunks swapped":       swapped, "a chunk twice": with(1, good, 0),
		"another image's chunk": with(1, seal("pages", other), 1), "another file's chunk": with(1, seal("state", key), 1),
		"an earlier form's chunk": with(1, seal("pages", key), 1), "an earlier form's header": append(
			bytes.Clone(seal("pages", key)[:sealHead]), good[sealHead:]...),
		"another image's file": seal("pages", other), "another file": seal("state", key), "clear": content,
	}
	for n, at := range []int{0, len(sealMagic), sealHead, sealHead + chunkSize, sealHead + whole, sealHead + 2*whole + 99,
		sealHead + 3*whole, len(good) - 1} {
		text := bytes.Clone(good)
		text[at] ^= 1
		cases["a bit, case "+string(rune('0'+n))] = text
	}
	sealed, opened := filepath.Join(dir, "pages"), filepath.Join(dir, "opened")
	for what, text := range cases {
		if err := os.WriteFile(sealed, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unpack(t.Context(), sealed, opened, int64(len(content)), key); !errors.Is(err, errSealed) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(opened); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a file is left: %v", what, err)
		}
		r, err := newOpener(bytes.NewReader(text), key, "pages")
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if !errors.Is(err, errSealed) {
			t.Errorf("%s, as a stream: %v", what, err)
		}
	}
	if err := os.WriteFile(sealed, good, 0o600); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := unpack(over, sealed, opened, 1<<30, key); !errors.Is(err, context.Canceled) {
		t.Errorf("too late: %v", err)
	}
	if err := unpack(t.Context(), sealed, opened, 1<<30, key); err != nil {
		t.Errorf("as it was: %v", err)
	}
}

const canary = "what a user had in memory"

// sealing is a store of sealed images.
type sealing struct {
	*Store
	t     *testing.T
	vault *vault.Vault
}

func newSealing(t *testing.T) sealing {
	state := t.TempDir()
	v := &vault.Vault{KeyFile: filepath.Join(state, "secrets.key"), CreateKey: true}
	s := New(state)
	s.Keys, s.Seal = v, true
	return sealing{s, t, v}
}

// image makes an image with the canary and that text.
func (s sealing) image(name, text string) Info {
	s.t.Helper()
	info, err := s.Make(name, keepProgram(s.t, s.Store, "program"), func(dir string, info *Info) ([]byte, error) {
		err := s.WriteFiles(s.t.Context(), dir, info, 1<<20, func(to string) error {
			if info.Sealed && to == dir {
				s.t.Error("gVisor writes into the image's folder")
			}
			return errors.Join(os.WriteFile(filepath.Join(to, "pages"), []byte(strings.Repeat(canary, 99)+text), 0o600),
				os.WriteFile(filepath.Join(to, "state"), []byte(canary), 0o600))
		})
		return append(testBundle(s.t), strings.Repeat(" ", len(text))...), errors.Join(err, info.Measure(dir))
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return info
}

// opens returns the text of an image, or why there is none. Nothing is left in memory or beside the images.
func (s sealing) opens(name string) (text string, err error) {
	s.t.Helper()
	info, _, err := s.Read(name)
	if err != nil {
		return "", err
	}
	err = s.Unpacked(s.t.Context(), name, info, func(dir string) error {
		all, err := os.ReadFile(filepath.Join(dir, "pages"))
		text = strings.TrimPrefix(string(all), strings.Repeat(canary, 99))
		return err
	})
	for _, pattern := range []string{filepath.Join(s.Memory, s.clearPrefix()+"*"), filepath.Join(s.Dir, unpacked+"*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			s.t.Errorf("this is left: %q", left)
		}
	}
	return text, err
}

// wantSealed looks for the canary in all files of the state folder.
func (s sealing) wantSealed(what string) {
	s.t.Helper()
	if err := filepath.WalkDir(filepath.Dir(s.Dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(canary)) {
			s.t.Errorf("%s: %s has what was in memory", what, path)
		}
		return err
	}); err != nil {
		s.t.Error(err)
	}
}

// TestSealedImage: an image, its copies and its packed form are sealed, and open again.
func TestSealedImage(t *testing.T) {
	s := newSealing(t)
	info := s.image("one", "")
	s.wantSealed("an image")
	if st, err := os.Stat(filepath.Join(s.path("one"), keyFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("its key: %v, %v", st, err)
	}
	if !info.Sealed || info.Bytes == 0 {
		t.Errorf("%+v", info)
	}
	first, err := s.Copy("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Pack(t.Context(), first.Name); err != nil {
		t.Fatal(err)
	}
	second, err := s.Copy(first.Name)
	if err != nil {
		t.Fatal(err)
	}
	s.wantSealed("copies and packed ones")
	if packed, _, err := s.Read(second.Name); err != nil || packed.Packed["pages"] != int64(99*len(canary)) {
		t.Errorf("%+v, %v", packed, err)
	}
	for _, name := range []string{"one", first.Name, second.Name} {
		if text, err := s.opens(name); text != "" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	s.Memory = "" // a machine without room in memory
	if text, err := s.opens("one"); text != "" || err != nil {
		t.Errorf("beside the images: %q, %v", text, err)
	}
	s.image("two", "two")
	s.wantSealed("made without room in memory")
	s.Seal = false
	s.image("old", "old")
	if text, err := s.opens("old"); text != "old" || err != nil {
		t.Errorf("one of an older version: %q, %v", text, err)
	}
}

// TestSealedImageChanged: images that were changed or mixed with others do not open, and say why.
func TestSealedImageChanged(t *testing.T) {
	damaged, gone := "changed or damaged", "key that is gone"
	for what, c := range map[string]struct {
		change func(s sealing) error
		says   string
		later  bool
	}{
		"a bit": {func(s sealing) error {
			path := filepath.Join(s.path("one"), "pages")
			text, err := os.ReadFile(path)
			text[len(text)/2] ^= 1
			return errors.Join(err, os.WriteFile(path, text, 0o600))
		}, damaged, false},
		"cut": {func(s sealing) error {
			path := filepath.Join(s.path("one"), "pages")
			st, err := os.Stat(path)
			return errors.Join(err, os.Truncate(path, st.Size()-1))
		}, damaged, false},
		"files swapped": {func(s sealing) error {
			one := s.path("one")
			return errors.Join(os.Rename(one+"/pages", one+"/x"), os.Rename(one+"/state", one+"/pages"),
				os.Rename(one+"/x", one+"/state"))
		}, damaged, false},
		"another image's file": {func(s sealing) error {
			return os.Rename(s.path("two")+"/pages", s.path("one")+"/pages")
		}, damaged, false},
		"another image": {func(s sealing) error {
			return errors.Join(os.RemoveAll(s.path("one")), os.Rename(s.path("two"), s.path("one")))
		}, gone, false},
		"another image's key": {func(s sealing) error {
			return os.Rename(s.path("two")+"/"+keyFile, s.path("one")+"/"+keyFile)
		}, gone, false},
		"another bundle": {func(s sealing) error {
			return os.WriteFile(s.path("one")+"/"+bundleFile, append(testBundle(s.t), ' '), 0o600)
		}, gone, false},
		"no key of the image": {func(s sealing) error { return os.Remove(s.path("one") + "/" + keyFile) }, "broken", false},
		"no key":              {func(s sealing) error { return os.Remove(s.vault.KeyFile) }, gone, false},
		"another key": {func(s sealing) error {
			return os.WriteFile(s.vault.KeyFile, bytes.Repeat([]byte{1}, 32), 0o600)
		}, gone, false},
		"a key that can be mended": {func(s sealing) error { return os.WriteFile(s.vault.KeyFile, nil, 0o600) },
			"cannot be used", true},
	} {
		s := newSealing(t)
		s.image("one", "")
		s.image("two", "")
		if err := c.change(s); err != nil {
			t.Fatal(what, err)
		}
		_, err := s.opens("one")
		if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, sandbox.ErrLater) != c.later ||
			!c.later && !errors.As(err, new(*sandbox.Explained)) {
			t.Errorf("%s: %v", what, err)
		}
		info, _, err := s.Read("one")
		if err != nil {
			t.Fatal(what, err)
		}
		if err := s.CanOpen("one", info); (err == nil) != (c.says == damaged) {
			t.Errorf("%s, before it is woken: %v", what, err)
		}
	}
}

// TestClearFolders: what a killed server has left in memory, the next one removes, and nothing of others.
func TestClearFolders(t *testing.T) {
	s, other := newSealing(t), newSealing(t)
	s.Memory = t.TempDir()
	other.Memory = s.Memory
	want := map[string]bool{}
	for path, stays := range map[string]bool{s.clearPrefix() + "1": false, other.clearPrefix() + "1": true,
		"sandlot-frozen-": true, "mine": true} {
		if err := os.MkdirAll(filepath.Join(s.Memory, path, "in"), 0o700); err != nil {
			t.Fatal(err)
		}
		if stays {
			want[path] = true
		}
	}
	link := s.clearPrefix() + "2" // somebody else may make any name there
	want[link] = true
	if err := os.Symlink(filepath.Join(s.Memory, "mine"), filepath.Join(s.Memory, link)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	entries, err := os.ReadDir(s.Memory)
	for _, e := range entries {
		got[e.Name()] = true
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("there are %v instead of %v: %v", got, want, err)
	}
}

// TestUnreadKeys: who changes the key of secrets is told of an image whose key cannot be read now, which would be lost.
// The keys of the others are read.
func TestUnreadKeys(t *testing.T) {
	s := newSealing(t)
	s.image("one", "")
	s.image("two", "")
	bundle := filepath.Join(s.path("one"), bundleFile)
	if err := errors.Join(os.Rename(bundle, bundle+".aside"), os.Symlink("/proc/self/mem", bundle)); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadKeys(s.Dir)
	if len(keys) != 1 || keys[0].Image != "two" || !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "one") {
		t.Errorf("%v, %v", keys, err)
	}
	info := Info{Sealed: true}
	if err := s.CanOpen("one", info); !errors.Is(err, sandbox.ErrLater) {
		t.Errorf("whether it opens: %v", err)
	}
	if err := errors.Join(os.Rename(bundle+".aside", bundle), s.CanOpen("one", info)); err != nil {
		t.Errorf("later: %v", err)
	}
	if keys, err := ReadKeys(s.Dir); len(keys) != 2 || err != nil {
		t.Errorf("later: %v, %v", keys, err)
	}
}
