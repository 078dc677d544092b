// Package releasetest makes small releases for tests.
package releasetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"sandlot/internal/release"
)

// Make makes a release for this machine in a new folder, with these programs: their paths, by name.
func Make(t testing.TB, version string, programs map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var archive bytes.Buffer
	z, _ := gzip.NewWriterLevel(&archive, gzip.NoCompression)
	to := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		data, err := os.ReadFile(programs[name])
		if err == nil {
			err = to.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg})
		}
		if err == nil {
			_, err = to.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("sandlot_%s_%s_%s.tar.gz", version, runtime.GOOS, runtime.GOARCH)
	if err := os.WriteFile(filepath.Join(dir, name), archive.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	Describe(t, dir, version, name)
	return dir
}

// Describe writes the manifest and the checksums of a release whose archive for this machine has that name.
func Describe(t testing.TB, dir, version, archive string) {
	t.Helper()
	m := release.Manifest{Version: version, Commit: "0123456789abcdef0123456789abcdef01234567",
		Date: "2026-11-24T12:00:00Z",
		Changes: []release.Change{{Version: version, Text: "### Added\n\n- What is new in " + version + "."},
			{Version: "0.0.1", Text: "- The first one."}},
		Files: []release.File{{Name: archive, Kind: release.KindArchive, OS: runtime.GOOS, Arch: runtime.GOARCH}}}
	if err := release.WriteManifest(dir, m); err != nil {
		t.Fatal(err)
	}
	if err := release.WriteSums(dir); err != nil {
		t.Fatal(err)
	}
}

// Archive returns the path of the archive of a release that Make has made.
func Archive(t testing.TB, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "sandlot_*.tar.gz"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

// Script writes a program that runs a line of the shell, and returns its path.
func Script(t testing.TB, line string) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "program")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("#!/bin/sh\n" + line + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// Sign signs a release with a new key, and returns a file of allowed signers that has it.
func Sign(t testing.TB, dir string) (signers string) {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key)
	run(t, "ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", release.SignatureNamespace,
		filepath.Join(dir, release.SumsName))
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	signers = key + ".signers"
	if err := os.WriteFile(signers, append([]byte(release.Signer+" "), public...), 0o644); err != nil {
		t.Fatal(err)
	}
	return signers
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
