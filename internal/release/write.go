package release

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// WriteManifest writes the manifest of the release in a folder. The sizes and checksums of its files are found there.
func WriteManifest(dir string, m Manifest) error {
	m.Files = slices.SortedFunc(slices.Values(m.Files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	for i, f := range m.Files {
		info, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		m.Files[i].Size = info.Size()
		if m.Files[i].SHA256, err = fileSum(filepath.Join(dir, f.Name)); err != nil {
			return err
		}
	}
	if err := m.check(); err != nil {
		return err
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ManifestName), text.Bytes(), 0o644)
}

// WriteSums writes the checksums of all other files in a folder, as sha256sum does.
func WriteSums(dir string) error {
	sums, err := Sums(dir)
	if err != nil {
		return err
	}
	delete(sums, SumsName)
	delete(sums, SignatureName)
	var list bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&list, "%s  %s\n", sums[name], name)
	}
	return os.WriteFile(filepath.Join(dir, SumsName), list.Bytes(), 0o644)
}

// Sums returns the checksums of all files in a folder, by name.
func Sums(dir string) (map[string]string, error) {
	sums := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if sums[e.Name()], err = fileSum(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

// fileSum returns the SHA-256 of a file in hexadecimal.
func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), errors.Join(err, f.Close())
}
