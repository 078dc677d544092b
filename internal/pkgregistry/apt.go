package pkgregistry

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// AptSource is a part of the archive of the machine's distribution, Debian or Ubuntu.
type AptSource struct {
	URL        string
	Suites     []string
	Components []string
	Keyring    string // path of the distribution's own keys, by which apt verifies what the archive has
}

// distribution is what apt needs to know of Debian or Ubuntu.
type distribution struct {
	keyrings   []string // names in /usr/share/keyrings
	components []string
}

var distributions = map[string]distribution{
	"debian": {[]string{"debian-archive-keyring.gpg", "debian-archive-keyring.pgp"},
		[]string{"main", "contrib", "non-free", "non-free-firmware"}},
	"ubuntu": {[]string{"ubuntu-archive-keyring.gpg"}, []string{"main", "restricted", "universe", "multiverse"}},
}

// officialArchives are the hosts from which images of Debian and Ubuntu install packages.
var officialArchives = []Host{{"deb.debian.org", 80}, {"deb.debian.org", 443}, {"security.debian.org", 80},
	{"security.debian.org", 443}, {"archive.ubuntu.com", 80}, {"archive.ubuntu.com", 443}, {"ports.ubuntu.com", 80},
	{"ports.ubuntu.com", 443}, {"security.ubuntu.com", 80}, {"security.ubuntu.com", 443}}

// aptMachine is where the machine has its settings of apt. Tests have others.
type aptMachine struct {
	osRelease, etc, keyrings string
}

var theMachine = aptMachine{"/etc/os-release", "/etc/apt", "/usr/share/keyrings"}

// setApt sets the parts of the distribution's archive that the machine's apt uses, and allows their hosts. Archives of
// anybody else are left out: their addresses and packages may be nobody's to see. Images of Debian and Ubuntu
// have the official archives, so that these are allowed as well.
func (b *builder) setApt(m aptMachine, configured map[string]string) {
	mirror, set := configured["apt"]
	if configured != nil && !set {
		return
	}
	if !set {
		for _, h := range officialArchives {
			b.hosts[h] = true
		}
	}
	id, codename := m.release()
	d, known := distributions[id]
	keyring := m.keyring(d)
	if !known || codename == "" || keyring == "" {
		return
	}
	sources := m.sources(d, codename)
	if set {
		sources = []AptSource{{URL: mirror, Suites: []string{codename, codename + "-updates"}, Components: d.components[:1]}}
	}
	for _, s := range sources {
		if s.URL = b.addURL("a source of apt", s.URL); s.URL == "" {
			continue
		}
		s.Keyring = keyring
		b.Apt = append(b.Apt, s)
	}
}

// release returns the name of the distribution, and of its release. A derivative of another name has archives of its own.
func (m aptMachine) release() (id, codename string) {
	text, _ := os.ReadFile(m.osRelease)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"'`); name {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	return id, codename
}

func (m aptMachine) keyring(d distribution) string {
	for _, name := range d.keyrings {
		if path := filepath.Join(m.keyrings, name); isRegular(path) {
			return path
		}
	}
	return ""
}

func isRegular(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// sources returns the entries of the distribution's own archive in the machine's settings.
func (m aptMachine) sources(d distribution, codename string) (all []AptSource) {
	files := []string{filepath.Join(m.etc, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, _ := filepath.Glob(filepath.Join(m.etc, "sources.list.d", pattern))
		files = append(files, more...)
	}
	for _, file := range files {
		text, err := readBounded(file)
		if err != nil {
			continue
		}
		entries := parseLines(text)
		if strings.HasSuffix(file, ".sources") {
			entries = parseStanzas(text)
		}
		for _, e := range entries {
			all = append(all, e.sources(d, codename)...)
		}
	}
	return all
}

// maxSources bounds a file of sources, in bytes.
const maxSources = 1 << 20

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSources))
}

// aptEntry is an entry of a file of sources: field in lower case → words.
type aptEntry map[string][]string

// oneLine matches "deb [options] URL SUITE COMPONENT…".
var oneLine = regexp.MustCompile(`^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(\S.*)$`)

// parseLines parses a file of one entry in each line (sources.list(5), "one-line-style").
func parseLines(text []byte) (all []aptEntry) {
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		m := oneLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		e := aptEntry{"types": {"deb"}, "uris": {m[2]}, "suites": {m[3]}, "components": strings.Fields(m[4])}
		for _, option := range strings.Fields(m[1]) {
			name, value, _ := strings.Cut(option, "=")
			e[strings.ToLower(name)] = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		}
		all = append(all, e)
	}
	return all
}

// parseStanzas parses a file of stanzas (sources.list(5), "deb822-style").
func parseStanzas(text []byte) (all []aptEntry) {
	e, last := aptEntry{}, ""
	scanner := bufio.NewScanner(bytes.NewReader(append(text, "\n\n"...)))
	scanner.Buffer(nil, maxSources+2)
	for scanner.Scan() {
		line := scanner.Text()
		name, value, isField := strings.Cut(line, ":")
		switch {
		case strings.TrimSpace(line) == "":
			if len(e) > 0 {
				all = append(all, e)
			}
			e, last = aptEntry{}, ""
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			if last != "" {
				e[last] = append(e[last], strings.Fields(line)...)
			}
		case isField:
			last = strings.ToLower(strings.TrimSpace(name))
			e[last] = strings.Fields(value)
		}
	}
	return all
}

// harmless are the fields that do not change which packages an entry has, or whether they are verified.
var harmless = []string{"types", "uris", "suites", "components", "signed-by", "architectures", "arch", "enabled",
	"languages", "lang", "targets", "target", "pdiffs", "by-hash", "check-valid-until", "check-date", "valid-until-max",
	"x-repolib-name", "description"}

// sources returns what an entry has of the distribution's own archive: one for each URL.
func (e aptEntry) sources(d distribution, codename string) (all []AptSource) {
	for field := range maps.Keys(e) {
		if !slices.Contains(harmless, field) {
			return nil
		}
	}
	if !slices.Contains(e["types"], "deb") || len(e["enabled"]) > 0 && strings.EqualFold(e["enabled"][0], "no") {
		return nil
	}
	for _, key := range e["signed-by"] {
		if !slices.Contains(d.keyrings, filepath.Base(key)) {
			return nil
		}
	}
	s := AptSource{}
	for _, suite := range e["suites"] {
		if rest, ok := strings.CutPrefix(suite, codename); ok && slices.Contains([]string{"", "-updates", "-security",
			"-backports"}, rest) {
			s.Suites = append(s.Suites, suite)
		}
	}
	for _, component := range e["components"] {
		if slices.Contains(d.components, component) {
			s.Components = append(s.Components, component)
		}
	}
	if len(s.Suites) == 0 || len(s.Components) == 0 {
		return nil
	}
	for _, s.URL = range e["uris"] {
		all = append(all, s)
	}
	return all
}
