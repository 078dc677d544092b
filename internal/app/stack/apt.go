package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sandlot/internal/dpkg"
	"sandlot/internal/image"
	"sandlot/internal/pkgregistry"
)

// What is in the folder of apt. Its path stays the same, so that sandboxes that sleep find it: its files are replaced.
const (
	aptLists    = "lists"
	aptDatabase = "dpkg"
	aptSources  = "archive.sources"
	aptState    = ".state" // what lists and database were made of
)

// aptNow identifies what the lists and the database are made of: another day has other lists, since archives remove what
// has a newer version.
func aptNow() string {
	st, err := os.Stat(filepath.Join(dpkg.Dir, "status"))
	if err != nil {
		return ""
	}
	return fmt.Sprintln(st.Size(), st.ModTime().UnixNano(), time.Now().UTC().Format(time.DateOnly))
}

// isStale reports whether a folder that is complete has to be made again. It goes on to be used meanwhile.
func (k *kind) isStale(dir string) bool {
	if k.name != "apt" {
		return false
	}
	was, err := os.ReadFile(filepath.Join(dir, aptState))
	return err != nil || string(was) != aptNow()
}

// replace gives a folder the files of another one, each at once, and removes what this one has not. Sandboxes that have
// the folder see the new files. It may be done again after an error.
func replace(dir, from string) error {
	there := map[string]bool{}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, from)
		there[name] = true
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, name), 0o755)
		}
		return os.Rename(path, filepath.Join(dir, name))
	})
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || there[strings.TrimPrefix(path, dir)] {
			return err
		}
		return os.Remove(path)
	})
}

// makeApt fetches the lists of the distribution's archive with the machine's apt-get, which verifies them, and writes a
// database of those of the machine's packages that the archive has. It reads and writes nothing of the
// machine's own state, and takes no setting of its own: they may have passwords.
func (k *kind) makeApt(ctx context.Context, dir string) error {
	lists := filepath.Join(dir, aptLists)
	state := filepath.Join(dir, "state")
	if err := errors.Join(os.MkdirAll(filepath.Join(lists, "partial"), 0o755), os.MkdirAll(state, 0o755)); err != nil {
		return err
	}
	sources := filepath.Join(dir, aptSources)
	if err := os.WriteFile(sources, []byte(sourcesText(k.sources)), 0o644); err != nil {
		return err
	}
	status := filepath.Join(state, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return err
	}
	options := []string{"-o", "Dir::Etc::sourcelist=" + sources, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State=" + state, "-o", "Dir::State::lists=" + lists, "-o", "Dir::State::status=" + status,
		"-o", "Dir::Cache=" + state, "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=2",
		"-o", "APT::Update::Post-Invoke=", "-o", "APT::Update::Post-Invoke-Success=", "-o", "APT::Update::Pre-Invoke=",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false", "-o", "Acquire::GzipIndexes=false",
		"-o", "APT::Update::Error-Mode=any", "-q"}
	if err := run(ctx, nil, append([]string{"apt-get", "update"}, options...)...); err != nil {
		return err
	}
	names, err := exec.CommandContext(ctx, "apt-cache", append([]string{"pkgnames"}, options...)...).Output()
	if err != nil {
		return fmt.Errorf("apt-cache pkgnames: %w", err)
	}
	public := map[string]bool{}
	for name := range bytes.Lines(names) {
		public[strings.TrimSpace(string(name))] = true
	}
	now := aptNow()
	packages, err := dpkg.Read(dpkg.Dir)
	if err == nil {
		err = dpkg.Write(filepath.Join(dir, aptDatabase), dpkg.Dir, dpkg.Known(packages, public))
	}
	_ = os.Remove(filepath.Join(lists, "lock"))
	return errors.Join(err, os.RemoveAll(state), os.WriteFile(filepath.Join(dir, aptState), []byte(now), 0o644))
}

// sourcesText returns a file of sources (sources.list(5), "deb822-style").
func sourcesText(sources []pkgregistry.AptSource) string {
	var b strings.Builder
	for _, s := range sources {
		fmt.Fprintf(&b, "Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n\n", s.URL,
			strings.Join(s.Suites, " "), strings.Join(s.Components, " "), s.Keyring)
	}
	return b.String()
}

// addApt adds the lists and the database to the template host.
func addApt(t *image.Template, dir string) {
	t.Binds = append(t.Binds,
		image.Bind{Source: filepath.Join(dir, aptLists), Target: "/var/lib/apt/lists", Graft: true},
		image.Bind{Source: filepath.Join(dir, aptDatabase), Target: dpkg.Dir, Graft: true})
	if text, err := os.ReadFile(filepath.Join(dir, aptSources)); err == nil {
		t.Files["etc/apt/sources.list.d/sandlot.sources"] = text
	}
}
