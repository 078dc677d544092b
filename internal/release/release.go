// Package release owns the form of a release: a folder of files, on this machine or behind a URL, whose list of
// checksums vouches for all others. Nothing of a release is unpacked or run before its checksum was compared.
package release

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// The files of a release that have the same name in each.
const (
	SumsName       = "checksums.txt"
	SignatureName  = SumsName + ".sig"
	ManifestName   = "release.json"
	ProvenanceName = "provenance.intoto.json"
)

// SignatureNamespace is what signatures of SumsName are for, as ssh-keygen calls it; Signer is the name of who signs
// in the file of allowed signers.
const (
	SignatureNamespace = "sandlot-release"
	Signer             = "sandlot"
)

// ManagedName is the file beside the programs that says what installed them, where that is a package manager or an
// image: deb, rpm or image. They are upgraded by the same.
const ManagedName = "managed"

// Kinds of files.
const (
	KindArchive = "archive" // the programs, for one system and architecture
	KindPackage = "package"
	KindImage   = "image"
	KindSBOM    = "sbom"
	KindScript  = "script"
)

// Manifest is the content of ManifestName.
type Manifest struct {
	Version string   `json:"version"` // without v
	Commit  string   `json:"commit"`
	Date    string   `json:"date"`    // of the commit, RFC 3339
	Changes []Change `json:"changes"` // of this release and earlier ones, the newest first
	Files   []File   `json:"files"`
}

// Change is what the changelog says of one release.
type Change struct {
	Version string `json:"version"`
	Text    string `json:"text"` // Markdown
}

// File is one file of a release.
type File struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	OS     string `json:"os,omitempty"`
	Arch   string `json:"arch,omitempty"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// fileName matches the names of files: they can be no paths.
var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+~-]*$`)

// check returns an error where the manifest is not one.
func (m *Manifest) check() error {
	if !IsVersion(m.Version) {
		return fmt.Errorf("%s: %q is not a version", ManifestName, m.Version)
	}
	for _, f := range m.Files {
		if !fileName.MatchString(f.Name) {
			return fmt.Errorf("%s: %q is not a name of a file", ManifestName, f.Name)
		}
	}
	return nil
}

// archive returns the archive for a system.
func (m *Manifest) archive(goos, goarch string) (File, error) {
	var have []string
	for _, f := range m.Files {
		if f.Kind != KindArchive {
			continue
		}
		if f.OS == goos && f.Arch == goarch {
			return f, nil
		}
		have = append(have, f.OS+"/"+f.Arch)
	}
	return File{}, fmt.Errorf("the release %s has no archive for %s/%s; it has those for %s", m.Version, goos, goarch,
		cmp.Or(strings.Join(have, ", "), "no system"))
}

// IsVersion reports whether a text without v is a version with all its three numbers. The short forms of the package
// semver are none: the hash of a commit may have digits only.
func IsVersion(s string) bool {
	v := "v" + s
	return semver.IsValid(v) && semver.Canonical(v)+semver.Build(v) == v
}

// Compare compares two versions, with or without v. One that is no version, as that of a build from source, is older
// than all that are.
func Compare(a, b string) int {
	v := func(s string) string {
		if s = strings.TrimPrefix(s, "v"); IsVersion(s) {
			return "v" + s
		}
		return ""
	}
	return semver.Compare(v(a), v(b))
}

// Since returns the changes of the versions after that one, the newest first.
func (m *Manifest) Since(version string) (changes []Change) {
	for _, c := range m.Changes {
		if Compare(c.Version, version) > 0 && Compare(c.Version, m.Version) <= 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

// Changelog returns the sections of a changelog in the form of Keep a Changelog, the newest first. What is not released
// yet is part of version, which is being made, unless the changelog has that version already.
func Changelog(text, version string) (changes []Change, err error) {
	heading := regexp.MustCompile(`(?m)^## \[([^\]\n]+)\].*\n`)
	at := heading.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		name, body := text[m[2]:m[3]], strings.TrimSpace(text[m[1]:end])
		if name == "Unreleased" {
			if body == "" {
				continue
			}
			name = version
		}
		if !IsVersion(name) {
			return nil, fmt.Errorf("the changelog has a section of %q, which is not a version", name)
		}
		if slices.ContainsFunc(changes, func(c Change) bool { return c.Version == name }) {
			return nil, fmt.Errorf("the changelog has two sections of %s; what is not released yet is one of them",
				name)
		}
		changes = append(changes, Change{name, body})
	}
	if !slices.ContainsFunc(changes, func(c Change) bool { return c.Version == version }) {
		return nil, fmt.Errorf("the changelog says nothing of %s", version)
	}
	return changes, nil
}
