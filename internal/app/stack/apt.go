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
	"slices"
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
	if err := os.Remove(filepath.Join(dir, aptState)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // what is there is of one making, or stale
	}
	there := map[string]bool{"/" + aptState: true}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, from)
		there[name] = true
		if name == "/"+aptState {
			return nil
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, name), 0o755)
		}
		return os.Rename(path, filepath.Join(dir, name))
	})
	if err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || there[strings.TrimPrefix(path, dir)] {
			return err
		}
		return os.Remove(path)
	})
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(from, aptState), filepath.Join(dir, aptState))
}

// makeApt fetches the lists of the distribution's archive with the machine's apt-get, which verifies them, and writes a
// database of those of the machine's packages that the archive has. It writes nothing of the machine's own state.
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
	conf := filepath.Join(state, "apt.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, aptFetch, sources, state, lists, status, state), 0o644); err != nil {
		return err
	}
	updateErr := run(ctx, nil, "apt-get", "update", "-q", "-c", conf) // one suite that is gone fails it
	if err := k.keepFetched(lists, sources); err != nil {
		return errors.Join(updateErr, err)
	}
	names, err := exec.CommandContext(ctx, "apt-cache", "pkgnames", "-c", conf).Output()
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

// aptFetch are the settings of the machine's apt for this; its own are read before, such as proxies. Its hooks do not run.
const aptFetch = `#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "%s";
Dir::Etc::sourceparts "/dev/null";
Dir::State "%s";
Dir::State::lists "%s";
Dir::State::status "%s";
Dir::Cache "%s";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::GzipIndexes "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
`

// keepFetched leaves in the file of sources the suites whose lists came, such as without those that an archive does not have
// any more. The error is that none came.
func (k *kind) keepFetched(lists, sources string) error {
	var there []pkgregistry.AptSource
	for _, s := range k.sources {
		host := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(s.URL, "/"), "http://"), "https://")
		s.Suites = slices.DeleteFunc(slices.Clone(s.Suites), func(suite string) bool {
			name := strings.NewReplacer("/", "_", "_", "%5f", "~", "%7e", "=", "%3d", "@", "%40", "%", "%25").Replace(
				host + "/dists/" + suite) // as apt names its files
			found, _ := filepath.Glob(filepath.Join(lists, name+"_*Release"))
			return len(found) == 0
		})
		if len(s.Suites) > 0 {
			there = append(there, s)
		}
	}
	if len(there) == 0 {
		return errors.New("no list of the distribution's archive was fetched")
	}
	return os.WriteFile(sources, []byte(sourcesText(there)), 0o644)
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
