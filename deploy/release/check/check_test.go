package check

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"sandlot/internal/release"
)

const dir = "../../../dist/release"

// opened returns the release.
func opened(t *testing.T) *release.Release {
	t.Helper()
	r, err := release.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatalf("%v; run `make release`", err)
	}
	return r
}

// one returns the path of the only file of the release that matches.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v; run `make release`", pattern, found, err)
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a program that must succeed, and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestFiles: the release has all that it should have, and what describes it names each file.
func TestFiles(t *testing.T) {
	r := opened(t)
	cmd := exec.Command("sha256sum", "--strict", "--check", "--quiet", release.SumsName)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	var all, described []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	var kinds []string
	for _, f := range r.Files {
		described = append(described, f.Name)
		kinds = append(kinds, strings.TrimSuffix(f.Kind+" "+f.OS+"/"+f.Arch, " /"))
	}
	described = append(described, release.SumsName, release.ManifestName, release.ProvenanceName)
	slices.Sort(described)
	if !slices.Equal(all, described) {
		t.Errorf("there are\n%s, and described are\n%s", all, described)
	}
	for _, system := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64",
		"windows/arm64"} {
		for _, kind := range []string{"archive", "sbom"} {
			if !slices.Contains(kinds, kind+" "+system) {
				t.Errorf("there is no %s for %s", kind, system)
			}
		}
		others := func(kind string) bool { return kind != "package "+system }
		if n := len(slices.DeleteFunc(slices.Clone(kinds), others)); n != 2 && strings.HasPrefix(system, "linux") {
			t.Errorf("%d packages for %s", n, system)
		}
	}
	var provenance struct {
		Subject []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	text, err := os.ReadFile(filepath.Join(dir, release.ProvenanceName))
	if err == nil {
		err = json.Unmarshal(text, &provenance)
	}
	sums, sumsErr := release.Sums(dir)
	if err := errors.Join(err, sumsErr); err != nil {
		t.Fatal(err)
	}
	if len(provenance.Subject) != len(all)-2 { // without itself, and the checksums, which have its own
		t.Errorf("%d subjects of %d files", len(provenance.Subject), len(all))
	}
	for _, s := range provenance.Subject {
		if sums[s.Name] == "" || sums[s.Name] != s.Digest["sha256"] {
			t.Errorf("%s: %v", s.Name, s.Digest)
		}
	}
}

// program is a file of an archive.
type program struct {
	what string // its mode, owner and group
	time time.Time
	data []byte
}

// unpack returns the files of an archive of the release, by name.
func unpack(t *testing.T, f release.File) map[string]program {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, f.Name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := map[string]program{}
	add := func(name string, p program, from io.Reader, err error) {
		if err == nil {
			p.data, err = io.ReadAll(from)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		all[name] = p
	}
	if strings.HasSuffix(f.Name, ".zip") {
		z, err := zip.NewReader(file, f.Size)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range z.File {
			from, err := e.Open()
			add(e.Name, program{what: e.Mode().String() + " root root", time: e.Modified}, from, err)
		}
		return all
	}
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(z); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		add(h.Name, program{h.FileInfo().Mode().String() + " " + h.Uname + " " + h.Gname, h.ModTime, nil}, entries, nil)
	}
}

// TestArchives: each archive has the programs that run on its system, which need no library, and nothing else. Each
// sandlot has the agents for all processors inside.
func TestArchives(t *testing.T) {
	magic := map[string]string{"darwin": "\xcf\xfa\xed\xfe", "windows": "MZ", "linux": "\x7fELF"}
	r := opened(t)
	date, err := time.Parse(time.RFC3339, r.Date)
	if err != nil {
		t.Fatal(err)
	}
	archives := map[string]map[string]program{}
	for _, f := range r.Files {
		if f.Kind == release.KindArchive {
			archives[f.OS+"/"+f.Arch] = unpack(t, f)
		}
	}
	for system, files := range archives {
		name, _, _ := strings.Cut(system, "/")
		want := map[string]bool{"LICENSE": true}
		switch name {
		case "linux":
			want["sandlot"], want["sandlot-agent"], want["sandlot-runsc"] = true, true, true
		case "windows":
			want["sandlot.exe"] = true
		default:
			want["sandlot"] = true
		}
		for file, p := range files {
			mode := "-rwxr-xr-x root root"
			if file == "LICENSE" {
				mode = "-rw-r--r-- root root"
			} else if !bytes.HasPrefix(p.data, []byte(magic[name])) {
				t.Errorf("%s of %s begins with %q", file, system, p.data[:4])
			} else if name == "linux" {
				static(t, system+" "+file, p.data)
			}
			if !want[file] || p.what != mode || !p.time.Equal(date) {
				t.Errorf("%s: %s is %s, of %s", system, file, p.what, p.time)
			}
			delete(want, file)
		}
		if len(want) > 0 {
			t.Errorf("%s lacks %v", system, want)
		}
		main := append(files["sandlot"].data, files["sandlot.exe"].data...)
		for _, arch := range []string{"amd64", "arm64"} {
			if !has(t, main, archives["linux/"+arch]["sandlot-agent"].data) {
				t.Errorf("sandlot for %s does not have the agent for %s", system, arch)
			}
		}
	}
	if len(archives) != 6 {
		t.Errorf("%d archives", len(archives))
	}
}

// static checks that a program of Linux needs no library.
func static(t *testing.T, name string, data []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(name, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s is not static", name)
		}
	}
}

// has reports whether a program has another one inside, compressed.
func has(t *testing.T, program, other []byte) bool {
	t.Helper()
	unpacked := make([]byte, len(other))
	for rest := program; len(other) > 0; {
		i := bytes.Index(rest, []byte{0x28, 0xb5, 0x2f, 0xfd}) // a frame of Zstandard begins
		if i < 0 {
			break
		}
		z, err := zstd.NewReader(bytes.NewReader(rest[i:]), zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(z, unpacked)
		z.Close()
		if err == nil && bytes.Equal(unpacked, other) {
			return true
		}
		rest = rest[i+1:]
	}
	return false
}
