package guest

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"sandlot/proto/agentv1"
)

func testOutputFiles(t *testing.T) *outputFiles {
	s := newOutputFiles(nil)
	s.dir = filepath.Join(t.TempDir(), "output")
	return s
}

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// words is text in which characters have one to four bytes, with some that are
// broken; the last one may be.
func words(r *rand.Rand, n int) []byte {
	var b []byte
	for len(b) < n {
		b = append(b, []string{"a", "é", "語", "😀", "\xff", "\xe8\xaa", "\x80"}[r.IntN(7)]...)
	}
	return b[:n]
}

// ends are the first characters of data, and the last ones of the rest, as a
// conversion to characters counts them.
func ends(data []byte, head, tail int) ([]byte, []byte) {
	var at []int
	for i := range string(data) {
		at = append(at, i)
	}
	at = append(at, len(data))
	n := len(at) - 1
	h := min(head, n)
	return data[:at[h]], data[at[max(h, n-tail)]:]
}

// The first characters and the last ones, whatever the writes were like.
func TestCapture(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, data := range []func(*rand.Rand, int) []byte{noise, words} {
		for range 10 {
			testCapture(t, r, data)
		}
	}
}

func testCapture(t *testing.T, r *rand.Rand, text func(*rand.Rand, int) []byte) {
	t.Helper()
	for _, bounds := range []struct{ head, tail uint32 }{{10, 10}, {1, 100}, {100, 1}, {0, 10}, {10, 0}, {0, 0},
		{7, 13}} {
		for _, total := range []int{0, 1, 9, 10, 11, 19, 20, 21, 40, 101, 102, 1000} {
			for _, most := range []int{1, 3, 10, 1000} {
				data := text(r, total)
				c := newCapture("stdout", testOutputFiles(t), &agentv1.Bounds{HeadChars: bounds.head,
					TailChars: bounds.tail})
				for rest := data; len(rest) > 0; {
					n := min(len(rest), 1+r.IntN(most))
					if k, err := c.Write(rest[:n]); k != n || err != nil {
						t.Fatalf("Write = %d, %v", k, err)
					}
					rest = rest[n:]
				}
				got := c.done()
				head, tail := ends(data, int(bounds.head), int(bounds.tail))
				if !bytes.Equal(got.Head, head) || !bytes.Equal(got.Tail, tail) || got.Total != uint64(total) {
					t.Fatalf("bounds %v, %d bytes in pieces of up to %d: head %d, tail %d, total %d", bounds, total,
						most, len(got.Head), len(got.Tail), got.Total)
				}
				fits := utf8.RuneCount(data) <= int(bounds.head+bounds.tail)
				if fits && got.Path != "" && bytes.ContainsFunc(data, unicode.IsControl) { // noise may be anything
					fits = false
				}
				if fits != (got.Path == "") {
					t.Fatalf("bounds %v, %d bytes: path %q", bounds, total, got.Path)
				}
				if fits {
					continue
				}
				if whole, err := os.ReadFile(got.Path); err != nil || !bytes.Equal(whole, data) ||
					got.Kept != uint64(total) {
					t.Fatalf("bounds %v, %d bytes: the file has %d, kept %d, %v", bounds, total, len(whole), got.Kept,
						err)
				}
			}
		}
	}
}

// Text of several bytes a character keeps as many characters as plain text, and
// what is kept of it takes no more memory than that.
func TestCaptureCountsCharacters(t *testing.T) {
	for _, char := range []string{"a", "é", "語", "😀", "\xff"} {
		c := newCapture("stdout", testOutputFiles(t), &agentv1.Bounds{HeadChars: 40, TailChars: 60})
		c.Write([]byte(strings.Repeat(char, 100)))
		if got := c.done(); string(got.Head) != strings.Repeat(char, 40) || string(got.Tail) != strings.Repeat(char,
			60) || got.Path != "" {
			t.Errorf("100 of %q: %d and %d bytes, path %q", char, len(got.Head), len(got.Tail), got.Path)
		}
		c = newCapture("stdout", testOutputFiles(t), &agentv1.Bounds{HeadChars: 40, TailChars: 60})
		for i := range 10_000 * len(char) {
			c.Write([]byte{char[i%len(char)]})
		}
		if cap(c.head) > 2*40*utf8.UTFMax || cap(c.tail) > 2*60*utf8.UTFMax || len(c.partial) >= utf8.UTFMax {
			t.Errorf("10000 of %q take %d, %d and %d bytes", char, cap(c.head), cap(c.tail), cap(c.partial))
		}
		got := c.done()
		if string(got.Head) != strings.Repeat(char, 40) || string(got.Tail) != strings.Repeat(char, 60) ||
			got.Kept != uint64(10_000*len(char)) {
			t.Errorf("10000 of %q: %d and %d bytes, %d in the file", char, len(got.Head), len(got.Tail), got.Kept)
		}
	}
}

// A file has a bound too; head, tail and total are right beyond it.
func TestCaptureOfFarTooMuch(t *testing.T) {
	c := newCapture("stdout", testOutputFiles(t), &agentv1.Bounds{HeadChars: 4, TailChars: 4})
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for range maxFileSize/len(piece) + 1 {
		c.Write(piece)
	}
	c.Write([]byte("tail"))
	got := c.done()
	if got.Total != maxFileSize+1<<20+4 || got.Kept != maxFileSize || string(got.Head) != "xxxx" ||
		string(got.Tail) != "tail" {
		t.Errorf("total %d, kept %d, head %q, tail %q", got.Total, got.Kept, got.Head, got.Tail)
	}
	if st, err := os.Stat(got.Path); err != nil || st.Size() != maxFileSize {
		t.Errorf("the file: %v, %v", st, err)
	}
}

// Without a place for files the rest still works.
func TestCaptureWithoutAFolder(t *testing.T) {
	s := testOutputFiles(t)
	if err := os.WriteFile(s.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCapture("stdout", s, &agentv1.Bounds{HeadChars: 2, TailChars: 2})
	c.Write([]byte("abcdef"))
	if got := c.done(); string(got.Head) != "ab" || string(got.Tail) != "ef" || got.Total != 6 || got.Path != "" {
		t.Errorf("got %v", got)
	}
}

func TestCaptureBounds(t *testing.T) {
	if c := newCapture("x", nil, nil); c.maxHead+c.maxTail != 50_000 {
		t.Errorf("without bounds: %d and %d", c.maxHead, c.maxTail)
	}
	if c := newCapture("x", nil, &agentv1.Bounds{HeadChars: 1<<32 - 1, TailChars: 1<<32 - 1}); c.maxHead != maxInline ||
		c.maxTail != maxInline {
		t.Errorf("bounds without bounds: %d and %d", c.maxHead, c.maxTail)
	}
}

func TestSpoolRemovesTheOldest(t *testing.T) {
	s := testOutputFiles(t)
	var paths []string
	for range maxFiles + 3 {
		f, err := s.create("stdout")
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, f.Name())
		f.Close()
	}
	for i, p := range paths {
		if _, err := os.Stat(p); (err == nil) != (i >= 3) {
			t.Errorf("file %d of %d: %v", i, len(paths), err)
		}
	}
}

// What a terminal would show otherwise is kept as it came, though it fits.
func TestCaptureKeepsWhatIsRewritten(t *testing.T) {
	for text, want := range map[string]bool{"": false, "a\n\tb": false, "a\r\nb\r\n": false, "a\rb": true,
		"a\r\nb\r": true, "\x1b[31ma": true, "a\b": true, "a\x00b": true, "\a": true, "\x7f": true, "\x1fa": true, "a\u0081": true,
		"é \u00a0": false, "a\v": true} {
		for _, head := range []uint32{0, 2, 100} {
			c := newCapture("stdout", testOutputFiles(t), &agentv1.Bounds{HeadChars: head, TailChars: 100})
			c.Write([]byte(text))
			got := c.done()
			if !want && head != 2 && got.Path != "" || want && got.Path == "" {
				t.Errorf("%q: the file %q", text, got.Path)
			}
			if got.Path == "" {
				continue
			}
			if whole, err := os.ReadFile(got.Path); err != nil || string(whole) != text ||
				got.Kept != uint64(len(text)) || string(got.Head)+string(got.Tail) != text {
				t.Errorf("%q: the file has %q of %d, %v", text, whole, got.Kept, err)
			}
		}
	}
}
