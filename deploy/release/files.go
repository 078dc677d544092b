package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/release"
)

// configuration writes GoReleaser's configuration for the systems that are asked for, and returns its path.
func (m *maker) configuration() (path string, err error) {
	text, err := os.ReadFile("deploy/goreleaser.yaml")
	if err != nil {
		return "", err
	}
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return "", err
	}
	wanted := strings.Split(m.targets, ",")
	builds, _ := all["builds"].([]any)
	all["builds"] = slices.DeleteFunc(builds, func(b any) bool {
		build, _ := b.(map[string]any)
		targets, _ := build["targets"].([]any)
		targets = slices.DeleteFunc(targets, func(t any) bool {
			return m.targets != "" && !slices.Contains(wanted, fmt.Sprint(t))
		})
		build["targets"] = targets
		return len(targets) == 0
	})
	if text, err = yaml.Marshal(all); err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "goreleaser-*.yaml")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	return f.Name(), errors.Join(err, f.Close())
}

// artifact is one of dist/artifacts.json.
type artifact struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
	OS   string `json:"goos"`
	Arch string `json:"goarch"`
}

// kinds are those of the files of a release, by GoReleaser's types.
var kinds = map[string]string{"Archive": release.KindArchive, "Linux Package": release.KindPackage,
	"SBOM": release.KindSBOM}

// collect copies what GoReleaser has made into the folder of the release, with the script that installs it. programs
// are the paths of the programs for Linux, by architecture and name.
func (m *maker) collect() (files []release.File, programs map[string]map[string]string, err error) {
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(filepath.Join(dist, "artifacts.json"))
	if err != nil {
		return nil, nil, err
	}
	var all []artifact
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, nil, err
	}
	programs = map[string]map[string]string{}
	for _, a := range all {
		if a.Type == "Binary" && a.OS == "linux" {
			if programs[a.Arch] == nil {
				programs[a.Arch] = map[string]string{}
			}
			programs[a.Arch][a.Name] = a.Path
		}
		if kinds[a.Type] == "" {
			continue
		}
		f := release.File{Name: a.Name, Kind: kinds[a.Type], OS: a.OS, Arch: a.Arch}
		if system, ok := strings.CutSuffix(a.Name, ".cdx.json"); ok { // GoReleaser does not say it
			parts := strings.Split(system, "_")
			f.OS, f.Arch = parts[len(parts)-2], parts[len(parts)-1]
		}
		if err := add(&f, a.Path); err != nil {
			return nil, nil, err
		}
		files = append(files, f)
	}
	script := release.File{Name: "install.sh", Kind: release.KindScript}
	return append(files, script), programs, add(&script, "deploy/install.sh")
}

// add copies a file into the folder of the release.
func add(f *release.File, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, f.Name), data, 0o644)
}

// describe writes what describes the files: the manifest, the provenance, and the checksums of all.
func (m *maker) describe(files []release.File) error {
	log, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	changes, err := release.Changelog(string(log), m.version)
	if err != nil {
		return err
	}
	if err := release.WriteManifest(out, release.Manifest{Version: m.version, Commit: m.commit,
		Date: m.date.Format(time.RFC3339), Changes: changes, Files: files}); err != nil {
		return err
	}
	sums, err := release.Sums(out)
	if err != nil {
		return err
	}
	statement, err := m.provenance(sums)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(statement, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, release.ProvenanceName), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return release.WriteSums(out)
}

// descriptor describes an artifact, as in-toto does.
type descriptor struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// statement is an in-toto statement (v1) with a SLSA provenance (v1). It has no times: they would differ each time.
type statement struct {
	Type          string       `json:"_type"`
	Subject       []descriptor `json:"subject"`
	PredicateType string       `json:"predicateType"`
	Predicate     struct {
		BuildDefinition struct {
			BuildType            string            `json:"buildType"`
			ExternalParameters   map[string]string `json:"externalParameters"`
			InternalParameters   map[string]string `json:"internalParameters"`
			ResolvedDependencies []descriptor      `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		RunDetails struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

// provenance says of what, and by what, the files with these checksums were made.
func (m *maker) provenance(sums map[string]string) (s statement, err error) {
	s.Type, s.PredicateType = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		s.Subject = append(s.Subject, descriptor{name, map[string]string{"sha256": sums[name]}})
	}
	build := &s.Predicate.BuildDefinition
	build.BuildType = "urn:sandlot:make-release:v1" // docs/guide/install.md describes it
	build.ExternalParameters = map[string]string{"version": m.version}
	if m.targets != "" {
		build.ExternalParameters["targets"] = m.targets
	}
	build.InternalParameters = map[string]string{"go": runtime.Version()}
	build.ResolvedDependencies = []descriptor{{"source", map[string]string{"gitCommit": m.commit}}}
	for _, tool := range tools {
		info, err := buildinfo.ReadFile(filepath.Join(m.tools, "bin", tool))
		if err != nil {
			return s, err
		}
		build.InternalParameters[tool] = info.Main.Version
	}
	modules, err := os.ReadFile("go.sum")
	if err != nil {
		return s, err
	}
	hash := sha256.Sum256(modules)
	build.ResolvedDependencies = append(build.ResolvedDependencies, descriptor{"go.sum",
		map[string]string{"sha256": hex.EncodeToString(hash[:])}})
	s.Predicate.RunDetails.Builder.ID = m.builder
	return s, nil
}

// compare returns an error unless two folders have the same files.
func compare(a, b string) error {
	first, err := release.Sums(a)
	if err != nil {
		return err
	}
	second, err := release.Sums(b)
	if err != nil {
		return err
	}
	differ := map[string]bool{}
	for name := range first {
		differ[name] = second[name] != first[name]
	}
	for name := range second {
		differ[name] = second[name] != first[name]
	}
	maps.DeleteFunc(differ, func(_ string, differs bool) bool { return !differs })
	if len(differ) > 0 || len(first) == 0 {
		return fmt.Errorf("of %d files in %s, these differ from those in %s: %s", len(first), a, b,
			strings.Join(slices.Sorted(maps.Keys(differ)), ", "))
	}
	return nil
}
