package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is committed and embedded is what the sources make.
func TestDistIsOfTheSources(t *testing.T) {
	files, err := bundle("../web")
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadDir("../dist")
	if err != nil {
		t.Fatal(err)
	}
	if len(there) != len(files) {
		t.Errorf("dist has %v, and the sources make %v", there, slices.Sorted(maps.Keys(files)))
	}
	for _, e := range there {
		content, err := os.ReadFile(filepath.Join("../dist", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		name, packed := strings.CutSuffix(e.Name(), ".gz")
		if packed {
			z, err := gzip.NewReader(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			if content, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(content, files[name]) {
			t.Errorf("%s differs from what the sources make: go run ./internal/console/build", name)
		}
	}
}

// A new version of xterm.js that makes styles in another way does not pass unnoticed.
func TestChangedLibraryIsNoticed(t *testing.T) {
	text, err := os.ReadFile("../web/npm/@xterm/xterm/lib/xterm.mjs")
	if err != nil {
		t.Fatal(err)
	}
	changed, err := withoutStyles(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(changed, `createElement("style")`) || strings.Contains(changed, `setAttribute("style"`) {
		t.Error("it makes styles")
	}
	if _, err := withoutStyles(string(text) + `createElement("style")`); err == nil {
		t.Error("another element of style was not noticed")
	}
}

// Every package has its version, the integrity that npm names, and its licence.
func TestPackagesAreNamed(t *testing.T) {
	list, err := readPackages("../web/npm")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{"packages.json": true}
	for _, p := range list {
		if p.Version == "" || !strings.HasPrefix(p.Integrity, "sha512-") || p.License != "MIT" {
			t.Errorf("%+v", p)
		}
		for _, f := range append(p.Files, "LICENSE") {
			listed[p.Name+"/"+f] = true
		}
	}
	err = filepath.WalkDir("../web/npm", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel("../web/npm", path)
		if !listed[filepath.ToSlash(name)] {
			t.Errorf("%s is in no line of packages.json", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
