package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/config"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// record is the result of a build, as JSON in a file of its template.
type record struct {
	Definition string           `json:"definition"`        // the hash of the settings that it was made of
	Runtime    string           `json:"runtime,omitempty"` // its name; empty: the default one, in older records
	Base       string           `json:"base"`              // the ID of the image that the settings name
	Content    string           `json:"content"`           // hash of packages, files and Base; empty: nothing was added
	Image      sandbox.Image    `json:"image"`
	User       image.User       `json:"user"`
	Languages  []image.Language `json:"languages"`
	Built      time.Time        `json:"built"`
	Removed    time.Time        `json:"removed,omitzero"` // when the settings were found not to have the template
}

// repositoryIn returns the part of an image's name that is repositoryOf its template.
func repositoryIn(name string) string {
	repository, _, _ := strings.Cut(name, ":")
	return repository
}

// names returns the names of the languages that were found.
func (r record) names() []string { return (&image.Template{Languages: r.Languages}).LanguageNames() }

// recordVersion is part of the hashes, so that a newer Sandlot does not use what it would make differently.
const recordVersion = 1

func hashOf(parts ...any) string {
	text, err := json.Marshal(append(parts, recordVersion))
	if err != nil {
		panic("template: " + err.Error()) // settings consist of texts and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// definitionHash returns a hash of the settings on which a record depends.
func definitionHash(d config.Template) string {
	return hashOf(d.Image, d.Packages, d.Files, d.Runtime, d.Env["PATH"], len(d.Languages) > 0)
}

// contentKey returns the hash of an image, and of the packages and files that are added to it.
func contentKey(d config.Template, base string) string {
	p := d.Packages
	for _, list := range []*[]string{&p.Pip, &p.Npm, &p.Apt} {
		*list = slices.Sorted(slices.Values(*list))
	}
	return hashOf(base, p, d.Files, d.Runtime)[:32]
}

// repositoryOf returns the name, without a tag, of the images that are built of a template. The tag is a content key.
func repositoryOf(template string) string { return "sandlot/" + template }

var buildName = regexp.MustCompile(`^sandlot/[^/:]+:[0-9a-f]{32}$`)

// IsBuild says whether an image's name is that of a build.
func IsBuild(name string) bool { return buildName.MatchString(name) }

// Used returns the templates that are made of images, by the digests of those images: of those that settings have,
// and of the ready-made ones, as records in a folder say.
func Used(dir string, settings []config.Template) map[string]string {
	var names []string
	for _, d := range slices.Concat(settings, readyMadeTemplates) {
		names = append(names, d.Name)
	}
	return usedBy(dir, names)
}

// AllUsed is Used for all records of a folder: those of templates, too, that only the server's settings have.
func AllUsed(dir string) map[string]string { return usedBy(dir, recordNames(dir)) }

func usedBy(dir string, names []string) map[string]string {
	b, used := Builder{Config: Config{Dir: dir}}, map[string]string{}
	for _, name := range names {
		r, err := b.readRecord(name)
		if err != nil {
			continue
		}
		for _, digest := range []string{r.Base, r.Image.ID} {
			if digest != "" {
				used[digest] = name
			}
		}
	}
	return used
}

// recordNames returns the names of the templates that have records.
func recordNames(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // none was built yet
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			names = append(names, name)
		}
	}
	return names
}

func (b *Builder) recordPath(name string) string { return filepath.Join(b.Dir, name+".json") }

func (b *Builder) readRecord(name string) (r record, err error) {
	text, err := os.ReadFile(b.recordPath(name))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func (b *Builder) writeRecord(name string, r record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(b.recordPath(name), text)
}
