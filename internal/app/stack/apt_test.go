package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/image"
	"sandlot/internal/pkgregistry"
)

// TestReplace: files are replaced one by one, so that whoever has one open keeps it, and what is no more goes.
func TestReplace(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{dir + "/lists/a": "old", dir + "/lists/gone": "old", from + "/lists/a": "new",
		dir + "/" + aptState: "old", from + "/" + aptState: "new",
		from + "/lists/more/b": "new"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.Open(dir + "/lists/a")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := replace(dir, from); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/lists/a": "new", "/lists/more/b": "new", "/lists/gone": "", "/" + aptState: "new"} {
		if text, _ := os.ReadFile(dir + path); string(text) != want {
			t.Errorf("%s: %q", path, text)
		}
	}
	text := make([]byte, 3)
	if _, err := open.Read(text); err != nil || string(text) != "old" {
		t.Errorf("an open file: %q %v", text, err)
	}
}

// TestAptFolder: a folder of lists stays where it is from one day to the next, is stale when it was made of something else,
// and gives sandboxes the archive as their only source.
func TestAptFolder(t *testing.T) {
	s := New(t.TempDir(), Lists{Apt: []pkgregistry.AptSource{{URL: "http://mirror.example/debian", Suites: []string{"bookworm"},
		Components: []string{"main"}, Keyring: "/usr/share/keyrings/debian-archive-keyring.gpg"}}}, nil)
	k := s.kinds[0]
	dir := k.folder("apt-get")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{complete: "", aptState: aptNow(), aptSources: sourcesText(k.sources)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	host := &image.Template{Name: "host", Files: map[string][]byte{}, Env: map[string]string{}}
	s.Open(host)
	s.Add(host)
	if k.isStale(dir) || !host.HasArchive() || s.Version() == "" ||
		!strings.Contains(string(host.Files["etc/apt/sources.list.d/sandlot.sources"]), "URIs: http://mirror.example/debian\n") {
		t.Errorf("%v %+v", k.isStale(dir), host)
	}
	if err := os.WriteFile(filepath.Join(dir, aptState), []byte("another day"), 0o644); err != nil {
		t.Fatal(err)
	}
	if !k.isStale(dir) {
		t.Error("lists of another day are not stale")
	}
}
